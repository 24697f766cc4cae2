"""Transactions: Write on the transactional id, and the rights for what is added to the transaction.

Requests between brokers need ClusterAction. Semel's own CommitTransactions and BeginAttempt need Write on
every transactional id; offsets need the same rights as in TxnOffsetCommit.
"""

from collections.abc import Awaitable
from typing import Any, Final

from semel.broker.commit.promise import resolved
from semel.core.security.acls import CLUSTER_NAME, Operation
from semel.core.types import ErrorCode
from semel.handlers.authorization.access import (
    CLUSTER,
    CLUSTER_DENIED,
    GROUP,
    GROUP_DENIED,
    ID_DENIED,
    MESSAGES,
    TOPIC,
    TOPIC_DENIED,
    TRANSACTIONAL_ID,
    Access,
    Guard,
)
from semel.handlers.metadata import INTERNAL_TOPICS
from semel.handlers.transactions import BETWEEN_BROKERS
from semel.wire.api_key import ApiKey
from semel.wire.messages.semel import (
    BeginAttemptRequest,
    BeginAttemptResponse,
    CommitTransactionsRefusal,
    CommitTransactionsRequest,
    CommitTransactionsResponse,
)
from semel.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

READ: Final = Operation.READ
WRITE: Final = Operation.WRITE


def init_producer_id(access: Access, request: InitProducerIdRequest) -> Awaitable[Any]:
    """With a transactional id: Write on it, and TwoPhaseCommit if requested.

    Without one: IdempotentWrite on the cluster, or Write on any topic.
    """
    transactional_id = request.transactional_id
    if transactional_id is None:
        may_write = access.rights.may(Operation.IDEMPOTENT_WRITE, CLUSTER, CLUSTER_NAME)
        if may_write or access.rights.may_any(WRITE, TOPIC):
            return access.pass_on(request)
        access.deny(Operation.IDEMPOTENT_WRITE, CLUSTER, CLUSTER_NAME)
        error = CLUSTER_DENIED
    else:
        operations = (WRITE, Operation.TWO_PHASE_COMMIT) if request.enable2_pc else (WRITE,)
        if all(access.may(each, TRANSACTIONAL_ID, transactional_id) for each in operations):
            return access.pass_on(request)
        error = ID_DENIED
    return resolved(InitProducerIdResponse(error_code=error, producer_id=-1, producer_epoch=-1))


def add_partitions_to_txn(access: Access, request: AddPartitionsToTxnRequest) -> Awaitable[Any]:
    """Write on the id and on each topic; from version 4 on, between brokers, ClusterAction."""
    if access.context.version >= BETWEEN_BROKERS:
        if access.may_cluster(Operation.CLUSTER_ACTION):
            return access.pass_on(request)
        return resolved(AddPartitionsToTxnResponse(error_code=CLUSTER_DENIED))
    if not access.may(WRITE, TRANSACTIONAL_ID, request.v3_and_below_transactional_id):
        names = {each.name for each in request.v3_and_below_topics}
        return resolved(_not_added(request, dict.fromkeys(names, ID_DENIED)))
    denied = {
        each.name
        for each in request.v3_and_below_topics
        if each.name not in INTERNAL_TOPICS and not access.may(WRITE, TOPIC, each.name)
    }
    return _refuse_partitions(access, request, denied) if denied else access.pass_on(request)


async def _refuse_partitions(
    access: Access, request: AddPartitionsToTxnRequest, denied: set[str]
) -> AddPartitionsToTxnResponse:
    """Refuse all partitions: those that could be added are OPERATION_NOT_ATTEMPTED."""
    allowed = {each.name for each in request.v3_and_below_topics} - denied - INTERNAL_TOPICS
    found = await access.broker.catalog.topics(allowed)
    errors = dict.fromkeys(denied | INTERNAL_TOPICS, TOPIC_DENIED)
    sizes = {name: 0 if topic is None else topic.partitions for name, topic in found.items()}
    errors.update(dict.fromkeys(allowed, ErrorCode.OPERATION_NOT_ATTEMPTED))
    return _not_added(request, errors, sizes)


def _not_added(
    request: AddPartitionsToTxnRequest, errors: dict[str, ErrorCode], sizes: dict[str, int] | None = None
) -> AddPartitionsToTxnResponse:
    """The errors of all topics; partitions beyond ``sizes`` do not exist."""
    results: dict[str, dict[int, ErrorCode]] = {}
    for topic in request.v3_and_below_topics:
        size = None if sizes is None else sizes.get(topic.name)
        for index in topic.partitions:
            exists = size is None or 0 <= index < size
            error = errors[topic.name] if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            results.setdefault(topic.name, {})[index] = error
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(
                name=name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=error)
                    for index, error in partitions.items()
                ],
            )
            for name, partitions in results.items()
        ]
    )


def add_offsets_to_txn(access: Access, request: AddOffsetsToTxnRequest) -> Awaitable[Any]:
    """Write on the id, Read on the group."""
    if not access.may(WRITE, TRANSACTIONAL_ID, request.transactional_id):
        return resolved(AddOffsetsToTxnResponse(error_code=ID_DENIED))
    if not access.may(READ, GROUP, request.group_id):
        return resolved(AddOffsetsToTxnResponse(error_code=GROUP_DENIED))
    return access.pass_on(request)


def end_txn(access: Access, request: EndTxnRequest) -> Awaitable[Any]:
    """Write on the id."""
    if access.may(WRITE, TRANSACTIONAL_ID, request.transactional_id):
        return access.pass_on(request)
    return resolved(EndTxnResponse(error_code=ID_DENIED))


def commit_transactions(access: Access, request: CommitTransactionsRequest) -> Awaitable[Any]:
    """Write on the driver's id and all others; Read on the group and the topics, if there are offsets."""
    may_drive = access.may(WRITE, TRANSACTIONAL_ID, request.transactional_id)
    ids = [each.transactional_id for each in request.transactions]
    denied = [each for each in ids if not access.may(WRITE, TRANSACTIONAL_ID, each)]
    error = ErrorCode.NONE
    if denied or not may_drive:
        error = ID_DENIED
    elif request.topics and not access.may(READ, GROUP, request.group_id):
        error = GROUP_DENIED
    elif not all(access.may(READ, TOPIC, each.name) for each in request.topics):
        error = TOPIC_DENIED
    if not error:
        return access.pass_on(request)
    return resolved(
        CommitTransactionsResponse(
            error_code=error,
            error_message=MESSAGES[error],
            refused=[
                CommitTransactionsRefusal(transactional_id=each, error_code=ID_DENIED) for each in denied
            ],
        )
    )


def begin_attempt(access: Access, request: BeginAttemptRequest) -> Awaitable[Any]:
    """Write on the id of the attempt and on that of its driver."""
    ids = (request.transactional_id, request.driver_transactional_id)
    if all(access.may(WRITE, TRANSACTIONAL_ID, each) for each in ids):
        return access.pass_on(request)
    return resolved(BeginAttemptResponse(error_code=ID_DENIED, error_message=MESSAGES[ID_DENIED]))


GUARDS: dict[int, Guard] = {
    ApiKey.INIT_PRODUCER_ID: init_producer_id,
    ApiKey.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn,
    ApiKey.ADD_OFFSETS_TO_TXN: add_offsets_to_txn,
    ApiKey.END_TXN: end_txn,
    CommitTransactionsRequest.api_key: commit_transactions,
    BeginAttemptRequest.api_key: begin_attempt,
}
