"""InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn: the life cycle of a transaction.

``semel.core.transactions`` decides the commands. The handlers resolve names to partitions, and translate
errors to those that the client's version knows (``transaction_errors``). Two generations of clients are
served side by side, distinguished by the version of each request. The first adds partitions and groups before
it writes. The second (EndTxn 5, Produce 12, TxnOffsetCommit 5; KIP-890) adds them by writing and gets a new
epoch at every end.

A transactional id has one coordinator; every other broker answers NOT_COORDINATOR.

A late request of the first generation, on a superseded connection, is not answered; the connection is closed.
"""

from collections.abc import Awaitable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

from semel.broker.broker import Broker
from semel.broker.commit.pending_commands import Answers, Promise, resolved
from semel.core.log.partition import AllocateProducerId
from semel.core.names import is_usable
from semel.core.security.acls import Operation
from semel.core.transactions.commands import (
    NO_CONNECTION,
    NO_EPOCH,
    SUPERSEDED,
    AddOffsets,
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    InitProducer,
    ProducerGiven,
    Superseded,
    VerifyPartitions,
)
from semel.core.types import NO_PRODUCER, Answer, ErrorCode, PartitionKey, Topic
from semel.handlers.context import Handler, RequestContext
from semel.handlers.leadership import coordination_error, refused_by_store
from semel.handlers.metadata import INTERNAL_TOPICS
from semel.handlers.rights import (
    CLUSTER,
    CLUSTER_ACTION,
    CLUSTER_DENIED,
    GROUP_DENIED,
    ID_DENIED,
    READ,
    WRITE,
    RequestRights,
    rights_of,
)
from semel.handlers.transaction_errors import close_superseded, error_for_client
from semel.store.contract import StoreRefused
from semel.wire import messages as wire
from semel.wire.api_key import ApiKey

BETWEEN_BROKERS: Final = 4
"""From this version on AddPartitionsToTxn is sent by brokers, for several transactions at once."""


async def init_producer_id(
    broker: Broker, request: wire.InitProducerIdRequest, context: RequestContext
) -> wire.InitProducerIdResponse:
    """InitProducerId v0–v6: a producer id and epoch; the previous producer of the id is fenced.

    Behaviour: without a transactional id always a new producer id at epoch 0, whatever id and epoch the
        request carries. With one, the next epoch: the previous producer is fenced, and its open transaction
        is aborted. A full disk is COORDINATOR_NOT_AVAILABLE, which clients retry. A new id beyond
        semel.transactional.ids.max is POLICY_VIOLATION.
    Versions:  v2 flexible · v3 id and epoch in the request (KIP-360) · v4 PRODUCER_FENCED, before that
        INVALID_PRODUCER_EPOCH · v6 two-phase commit, advertised with transaction.two.phase.commit.enable.
    Differs:   if a transaction is open, the first request succeeds; Kafka returns CONCURRENT_TRANSACTIONS
        until the abort is done. KeepPreparedTxn is supported (KIP-939).
    """
    rights = rights_of(broker, request, context)
    error = _denied_producer(rights, request) or _init_error(broker, request)
    if error:
        return wire.InitProducerIdResponse(error_code=error, producer_id=NO_PRODUCER, producer_epoch=NO_EPOCH)
    try:
        if request.transactional_id is None:
            given = ProducerGiven(ErrorCode.NONE, await broker.ask(AllocateProducerId()), 0)
        else:
            given = await _begin(broker, request, request.transactional_id, context)
    except StoreRefused:
        given = ProducerGiven(refused_by_store(broker, request.transactional_id or ""))
    return wire.InitProducerIdResponse(
        error_code=error_for_client(given.error, ApiKey.INIT_PRODUCER_ID, context.version),
        producer_id=given.producer_id,
        producer_epoch=given.epoch,
        ongoing_txn_producer_id=given.ongoing_producer_id,
        ongoing_txn_producer_epoch=given.ongoing_epoch,
    )


def _denied_producer(rights: RequestRights, request: wire.InitProducerIdRequest) -> ErrorCode:
    """With a transactional id: Write on it, and TwoPhaseCommit if requested.

    Without one: IdempotentWrite on the cluster, or Write on any topic.
    """
    if request.transactional_id is None:
        may_write = rights.has(Operation.IDEMPOTENT_WRITE, CLUSTER) or rights.any_topic(WRITE)
        return ErrorCode.NONE if may_write or rights.cluster(Operation.IDEMPOTENT_WRITE) else CLUSTER_DENIED
    operations = (WRITE, Operation.TWO_PHASE_COMMIT) if request.enable2_pc else (WRITE,)
    may_begin = all(rights.transactional_id(each, request.transactional_id) for each in operations)
    return ErrorCode.NONE if may_begin else ID_DENIED


def _init_error(broker: Broker, request: wire.InitProducerIdRequest) -> ErrorCode:
    if (request.producer_id == NO_PRODUCER) != (request.producer_epoch == NO_EPOCH):
        return ErrorCode.INVALID_REQUEST
    if request.transactional_id is None:
        return ErrorCode.NONE
    if not is_usable(request.transactional_id):
        return ErrorCode.INVALID_REQUEST
    return coordination_error(broker, request.transactional_id)


async def _begin(
    broker: Broker, request: wire.InitProducerIdRequest, transactional_id: str, context: RequestContext
) -> ProducerGiven:
    is_full = broker.counts.transactional_ids >= broker.settings.semel_transactional_ids_max
    if is_full and await broker.ask(DescribeTransaction(transactional_id)) is None:
        return ProducerGiven(ErrorCode.POLICY_VIOLATION)
    given: ProducerGiven = await broker.ask(_init_command(broker, request, transactional_id, context))
    return given


def _init_command(
    broker: Broker, request: wire.InitProducerIdRequest, transactional_id: str, context: RequestContext
) -> InitProducer:
    settings = broker.settings
    return InitProducer(
        transactional_id,
        request.transaction_timeout_ms,
        request.producer_id,
        request.producer_epoch,
        timeout_max_ms=settings.transaction_max_timeout_ms,
        is_two_phase=request.enable2_pc,
        keep_prepared=request.keep_prepared_txn,
        may_two_phase=settings.transaction_two_phase_commit_enable,
        connection=context.connection_id,
    )


class _Adding(NamedTuple):
    """A transaction and the partitions to add to it, or to verify."""

    asked: wire.AddPartitionsToTxnTransaction
    partitions: dict[tuple[str, int], PartitionKey]
    """Those that exist, by name and index."""
    refused: dict[tuple[str, int], ErrorCode]
    error: ErrorCode
    """The error of the transactional id, for all partitions."""
    block_max_ms: int = -1


def add_partitions_to_txn(
    broker: Broker, request: wire.AddPartitionsToTxnRequest, context: RequestContext
) -> Awaitable[wire.AddPartitionsToTxnResponse]:
    """AddPartitionsToTxn v0–v5: add partitions to a transaction, which begins with the first of them.

    Behaviour: all are added or none: if one is unknown (3) or internal (29), the others are
        OPERATION_NOT_ATTEMPTED. From v4 on a request has several transactions, and VerifyOnly checks whether
        partitions have been added: those that have not are TRANSACTION_ABORTABLE.
    Versions:  v2 PRODUCER_FENCED, before that INVALID_PRODUCER_EPOCH · v3 flexible · v4 between brokers
        (KIP-890) · v5 as v4.
    Differs:   never CONCURRENT_TRANSACTIONS. Without ACLs, v4 is CLUSTER_AUTHORIZATION_FAILED if
        semel.cluster.action.enable is false; otherwise all clients may send it.
    """
    rights = rights_of(broker, request, context)
    denied: Collection[str] = ()
    if context.version >= BETWEEN_BROKERS:
        if not rights.cluster(CLUSTER_ACTION) or not broker.may_act_as_broker:
            return resolved(wire.AddPartitionsToTxnResponse(error_code=CLUSTER_DENIED))
        asked = request.transactions
    else:
        asked = [_as_transaction(request)]
        if not rights.transactional_id(WRITE, asked[0].transactional_id):
            return resolved(_all_refused(request, context.version))
        _, refused = rights.split(asked[0].topics, partial(_may_write, rights))
        denied = {each.name for each in refused}
    found = {
        topic.name: broker.catalog.cached(topic.name)
        for each in asked
        for topic in each.topics
        if topic.name not in denied
    }
    if None in found.values():
        return _look_up_and_add(broker, asked, found, denied, context)
    return _add(broker, asked, found, denied, context)


def _may_write(rights: RequestRights, topic: wire.AddPartitionsToTxnTopic) -> bool:
    return topic.name in INTERNAL_TOPICS or rights.topic(WRITE, topic.name)


def _all_refused(request: wire.AddPartitionsToTxnRequest, version: int) -> wire.AddPartitionsToTxnResponse:
    """The response if the transactional id may not be used."""
    topics = [each for each in request.v3_and_below_topics if each.partitions]
    errors = {(each.name, index): ID_DENIED for each in topics for index in each.partitions}
    return wire.AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=_topic_results(topics, errors, version)
    )


async def _look_up_and_add(
    broker: Broker,
    asked: list[wire.AddPartitionsToTxnTransaction],
    names: Iterable[str],
    denied: Collection[str],
    context: RequestContext,
) -> wire.AddPartitionsToTxnResponse:
    return await _add(broker, asked, await broker.catalog.topics(tuple(names)), denied, context)


def _as_transaction(request: wire.AddPartitionsToTxnRequest) -> wire.AddPartitionsToTxnTransaction:
    return wire.AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )


def _find(
    broker: Broker,
    asked: wire.AddPartitionsToTxnTransaction,
    found: Mapping[str, Topic | None],
    denied: Collection[str],
    context: RequestContext,
) -> _Adding:
    partitions: dict[tuple[str, int], PartitionKey] = {}
    refused: dict[tuple[str, int], ErrorCode] = {}
    limits: list[int] = []
    for each in asked.topics:
        is_internal = each.name in INTERNAL_TOPICS and context.version < BETWEEN_BROKERS
        topic = found.get(each.name)
        for index in each.partitions:
            if is_internal or each.name in denied:
                refused[each.name, index] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif topic is None or not 0 <= index < topic.partitions:
                refused[each.name, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                partitions[each.name, index] = PartitionKey(topic.topic_id, index)
        limits += _limits(broker, topic)
    error = ErrorCode.INVALID_REQUEST
    if asked.transactional_id:
        error = coordination_error(broker, asked.transactional_id)
    return _Adding(asked, partitions, refused, error, min(limits, default=-1))


def _limits(broker: Broker, topic: Topic | None) -> list[int]:
    """The topic's limit on how long a transaction may be open, if it has one."""
    limit = -1 if topic is None else broker.catalog.limits(topic).block_max_ms
    return [] if limit < 0 else [limit]


def _add(
    broker: Broker,
    asked: list[wire.AddPartitionsToTxnTransaction],
    found: Mapping[str, Topic | None],
    denied: Collection[str],
    context: RequestContext,
) -> Promise[wire.AddPartitionsToTxnResponse]:
    """Have each transaction decided, all in one tick."""
    adding = [_find(broker, each, found, denied, context) for each in asked]
    commands = [_add_command(each, context) for each in adding if _may_add(each)]

    def respond(decided: Answers) -> wire.AddPartitionsToTxnResponse:
        if isinstance(decided, Exception):
            ids = (each.asked.transactional_id for each in adding if _may_add(each))
            decided = [refused_by_store(broker, each) for each in ids]
        results = _results(adding, iter(decided), context)
        if context.version < BETWEEN_BROKERS:
            return wire.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results[0])
        return wire.AddPartitionsToTxnResponse(
            results_by_transaction=[
                wire.AddPartitionsToTxnResult(transactional_id=each.transactional_id, topic_results=result)
                for each, result in zip(asked, results, strict=True)
            ]
        )

    return broker.submit(commands).map(respond)


def _results(
    adding: list[_Adding], answers: Iterator[Answer], context: RequestContext
) -> list[list[wire.AddPartitionsToTxnTopicResult]]:
    """The results of each transaction's partitions; ``answers`` has one for each submitted command."""
    results = []
    for each in adding:
        answer = next(answers) if _may_add(each) else each.error
        if answer is SUPERSEDED:
            close_superseded(each.asked.transactional_id)
        if each.refused:
            answer = ErrorCode.OPERATION_NOT_ATTEMPTED
        errors = [answer] * len(each.partitions) if isinstance(answer, ErrorCode) else answer
        decided = dict(zip(each.partitions, errors, strict=True))
        results.append(_topic_results(each.asked.topics, {**decided, **each.refused}, context.version))
    return results


def _may_add(adding: _Adding) -> bool:
    return not adding.refused and not adding.error


def _add_command(adding: _Adding, context: RequestContext) -> AddPartitions | VerifyPartitions:
    asked = adding.asked
    partitions = tuple(adding.partitions.values())
    if asked.verify_only:
        return VerifyPartitions(asked.transactional_id, asked.producer_id, asked.producer_epoch, partitions)
    is_between_brokers = context.version >= BETWEEN_BROKERS
    return AddPartitions(
        asked.transactional_id,
        asked.producer_id,
        asked.producer_epoch,
        partitions,
        version=2 if is_between_brokers else 1,
        block_max_ms=adding.block_max_ms,
        # The sender is a broker, so its connection is not the producer's.
        connection=NO_CONNECTION if is_between_brokers else context.connection_id,
    )


def _topic_results(
    topics: Iterable[wire.AddPartitionsToTxnTopic], errors: dict[tuple[str, int], ErrorCode], version: int
) -> list[wire.AddPartitionsToTxnTopicResult]:
    by_name: dict[str, list[wire.AddPartitionsToTxnPartitionResult]] = {each.name: [] for each in topics}
    for (name, index), error in errors.items():
        code = error_for_client(error, ApiKey.ADD_PARTITIONS_TO_TXN, version)
        by_name[name].append(
            wire.AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
        )
    return [
        wire.AddPartitionsToTxnTopicResult(name=name, results_by_partition=results)
        for name, results in by_name.items()
    ]


def add_offsets_to_txn(
    broker: Broker, request: wire.AddOffsetsToTxnRequest, context: RequestContext
) -> Promise[wire.AddOffsetsToTxnResponse]:
    """AddOffsetsToTxn v0–v4: add a group, whose offsets will be committed with the transaction.

    Behaviour: like AddPartitionsToTxn for a partition; DescribeTransactions shows the group as a partition
        of __consumer_offsets.
    Versions:  v2 PRODUCER_FENCED, before that INVALID_PRODUCER_EPOCH · v3 flexible · v4 as v3. From
        TxnOffsetCommit 5 on clients do not need it.
    Differs:   never CONCURRENT_TRANSACTIONS. An empty group id is INVALID_GROUP_ID.
    """
    rights = rights_of(broker, request, context)
    if not rights.transactional_id(WRITE, request.transactional_id):
        return resolved(wire.AddOffsetsToTxnResponse(error_code=ID_DENIED))
    if not rights.group(READ, request.group_id):
        return resolved(wire.AddOffsetsToTxnResponse(error_code=GROUP_DENIED))
    if not request.transactional_id:
        return resolved(wire.AddOffsetsToTxnResponse(error_code=ErrorCode.INVALID_REQUEST))
    if not is_usable(request.group_id):
        return resolved(wire.AddOffsetsToTxnResponse(error_code=ErrorCode.INVALID_GROUP_ID))
    if wrong := coordination_error(broker, request.transactional_id):
        return resolved(wire.AddOffsetsToTxnResponse(error_code=wrong))
    command = AddOffsets(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        request.group_id,
        connection=context.connection_id,
    )

    def respond(decided: Answers) -> wire.AddOffsetsToTxnResponse:
        error: ErrorCode | Superseded = refused_by_store(broker, request.transactional_id)
        if not isinstance(decided, Exception):
            error = decided[0]
        if isinstance(error, Superseded):
            close_superseded(request.transactional_id)
        return wire.AddOffsetsToTxnResponse(
            error_code=error_for_client(error, ApiKey.ADD_OFFSETS_TO_TXN, context.version)
        )

    return broker.submit([command]).map(respond)


def end_txn(
    broker: Broker, request: wire.EndTxnRequest, context: RequestContext
) -> Promise[wire.EndTxnResponse]:
    """EndTxn v0–v5: commit or abort.

    Behaviour: when the response is sent, the transaction has ended in every partition and readers see it:
        markers, offsets and outcome are one commit. In a repeated request the same outcome succeeds and the
        other one is INVALID_TXN_STATE.
    Versions:  v2 PRODUCER_FENCED, before that INVALID_PRODUCER_EPOCH · v3 flexible · v5 producer id and epoch
        for the next transaction, abort without a transaction (KIP-890).
    Differs:   never CONCURRENT_TRANSACTIONS. Up to v4 a request on a superseded connection is not answered
        (KAFKA-17754).
    """
    if not rights_of(broker, request, context).transactional_id(WRITE, request.transactional_id):
        return resolved(wire.EndTxnResponse(error_code=ID_DENIED))
    if not request.transactional_id:
        return resolved(wire.EndTxnResponse(error_code=ErrorCode.INVALID_REQUEST))
    if wrong := coordination_error(broker, request.transactional_id):
        return resolved(wire.EndTxnResponse(error_code=wrong))
    command = EndTransaction(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        request.committed,
        version=2 if context.version >= 5 else 1,
        connection=context.connection_id,
    )

    def respond(decided: Answers) -> wire.EndTxnResponse:
        given: ProducerGiven | Superseded = ProducerGiven(refused_by_store(broker, request.transactional_id))
        if not isinstance(decided, Exception):
            given = decided[0]
        if isinstance(given, Superseded):
            close_superseded(request.transactional_id)
        return wire.EndTxnResponse(
            error_code=error_for_client(given.error, ApiKey.END_TXN, context.version),
            producer_id=given.producer_id,
            producer_epoch=given.epoch,
        )

    return broker.submit([command]).map(respond)


HANDLERS: dict[int, Handler] = {
    ApiKey.INIT_PRODUCER_ID: init_producer_id,
    ApiKey.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn,
    ApiKey.ADD_OFFSETS_TO_TXN: add_offsets_to_txn,
    ApiKey.END_TXN: end_txn,
}
