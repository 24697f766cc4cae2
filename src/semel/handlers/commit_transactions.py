"""CommitTransactions and BeginAttempt, which only Semel serves.

ApiVersions lists them together with the feature ``semel.commit.transactions``, unless
``semel.extensions.enable`` is off. The rules are in ``semel.core.transactions.attempts``.
"""

from collections.abc import Iterable
from functools import partial
from typing import Final

from semel.broker.broker import Broker
from semel.core.names import ID_CHARS_MAX, is_usable
from semel.core.transactions.attempts import BeginAttempt, CommitTransactions, Producer, TransactionsCommitted
from semel.core.transactions.commands import ProducerGiven, Superseded
from semel.core.types import CommittedOffset, ErrorCode, OffsetKey
from semel.handlers.context import Handler, RequestContext
from semel.handlers.leadership import coordination_error, refused_by_store
from semel.handlers.rights import (
    GROUP_DENIED,
    ID_DENIED,
    MESSAGES,
    READ,
    TOPIC_DENIED,
    WRITE,
    RequestRights,
    rights_of,
)
from semel.handlers.transaction_errors import close_superseded
from semel.store.contract import StoreRefused
from semel.wire import messages as wire

TRANSACTIONS_MAX: Final = 1_000
"""Per request. They are decided in one step while all other commands wait: 0.1 s for this many."""

GENERATIONS: Final = (1, 2)

_NOT_CURRENT: Final = "The run is not the current one of its driver."
_REFUSALS: Final = {
    ErrorCode.PRODUCER_FENCED: _NOT_CURRENT,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: _NOT_CURRENT,
    ErrorCode.INVALID_TXN_STATE: "The run has decided, or the transactional id was used before.",
}
"""Error messages of BeginAttempt."""


async def commit_transactions(
    broker: Broker, request: wire.CommitTransactionsRequest, context: RequestContext
) -> wire.CommitTransactionsResponse:
    """CommitTransactions v0: commit several transactions and the offsets of a group, all or nothing.

    Behaviour: the driver sends its transactional id with its producer id and epoch. It is PRODUCER_FENCED (or
        INVALID_PRODUCER_ID_MAPPING) if these are not current. If one of the transactions cannot be committed,
        the error is INVALID_TXN_STATE, and the response lists each such transaction with the error that
        EndTxn would return. An unknown partition is UNKNOWN_TOPIC_OR_PARTITION. After any error nothing has
        changed. Repeating the request succeeds again. More than 1000 transactions, a repeated id or the
        driver's own are INVALID_REQUEST. A full disk is COORDINATOR_NOT_AVAILABLE. The request goes to the
        coordinator of the driver's id; any other broker is NOT_COORDINATOR. The coordinators of the other ids
        and of the group may differ.
    Differs:   Kafka has no such API.
    """
    if denied := _denied(rights_of(broker, request, context), request):
        return denied
    if problem := _problem(request):
        return wire.CommitTransactionsResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=problem)
    if error := coordination_error(broker, request.transactional_id):
        return wire.CommitTransactionsResponse(error_code=error)
    if request.topics and not is_usable(request.group_id or ""):
        return wire.CommitTransactionsResponse(
            error_code=ErrorCode.INVALID_GROUP_ID,
            error_message=f"The offsets are of no group, or its id is longer than {ID_CHARS_MAX} characters.",
        )
    offsets, unknown = await _offsets(broker, request)
    if unknown:
        return wire.CommitTransactionsResponse(
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message=f"There is no {', '.join(unknown[:10])}.",
        )
    command = CommitTransactions(
        Producer(request.transactional_id, request.producer_id, request.producer_epoch),
        tuple(map(_producer, request.transactions)),
        request.group_id,
        offsets,
        metadata_chars_max=broker.settings.offset_metadata_max_bytes,
        connection=context.connection_id,
    )
    try:
        answer = await broker.ask(command)
    except StoreRefused:
        answer = TransactionsCommitted(refused_by_store(broker, request.transactional_id))
    if isinstance(answer, Superseded):
        close_superseded(request.transactional_id)
    return wire.CommitTransactionsResponse(
        error_code=answer.error,
        error_message="Not all of the transactions can be committed." if answer.refused else None,
        refused=[
            wire.CommitTransactionsRefusal(transactional_id=name, error_code=error)
            for name, error in answer.refused
        ],
    )


def _denied(
    rights: RequestRights, request: wire.CommitTransactionsRequest
) -> wire.CommitTransactionsResponse | None:
    """The response to a client that may not write all ids, or not read the group or the topics."""
    may_drive = rights.transactional_id(WRITE, request.transactional_id)
    ids = [each.transactional_id for each in request.transactions]
    _, denied = rights.split(ids, partial(rights.transactional_id, WRITE))
    if denied or not may_drive:
        error = ID_DENIED
    elif request.topics and not rights.group(READ, request.group_id):
        error = GROUP_DENIED
    elif not rights.topics(READ, (each.name for each in request.topics)):
        error = TOPIC_DENIED
    else:
        return None
    refused = [wire.CommitTransactionsRefusal(transactional_id=each, error_code=ID_DENIED) for each in denied]
    return wire.CommitTransactionsResponse(error_code=error, error_message=MESSAGES[error], refused=refused)


def _problem(request: wire.CommitTransactionsRequest) -> str | None:
    """The error message for an invalid request; None if it is valid."""
    ids = [each.transactional_id for each in request.transactions]
    if not all(map(is_usable, (request.transactional_id, *ids))):
        return f"A transactional id is empty, or longer than {ID_CHARS_MAX} characters."
    if len(ids) > TRANSACTIONS_MAX:
        return f"{len(ids)} transactions in one request; at most {TRANSACTIONS_MAX} are allowed."
    if len({request.transactional_id, *ids}) <= len(ids):
        return "A transactional id is there twice, or is the driver's own."
    return None


def _producer(asked: wire.CommitTransactionsTransaction) -> Producer:
    return Producer(asked.transactional_id, asked.producer_id, asked.producer_epoch)


async def _offsets(
    broker: Broker, request: wire.CommitTransactionsRequest
) -> tuple[tuple[tuple[OffsetKey, CommittedOffset], ...], list[str]]:
    """The offsets as the core's types, and the partitions that do not exist."""
    found: list[tuple[OffsetKey, CommittedOffset]] = []
    unknown: list[str] = []
    topics = await broker.catalog.topics({each.name for each in request.topics})
    for asked in request.topics:
        topic = topics[asked.name]
        for each in asked.partitions:
            if topic is None or not 0 <= each.partition_index < topic.partitions:
                unknown.append(f"{asked.name[:249]}/{each.partition_index}")
                continue
            value = CommittedOffset(
                each.committed_offset, each.committed_leader_epoch, each.committed_metadata or ""
            )
            found.append((OffsetKey(request.group_id, asked.name, each.partition_index), value))
    return tuple(found), unknown


async def begin_attempt(
    broker: Broker, request: wire.BeginAttemptRequest, context: RequestContext
) -> wire.BeginAttemptResponse:
    """BeginAttempt v0: a producer id and an epoch for a task attempt of a run.

    Behaviour: like InitProducerId, for a transactional id that is used in one run and never again. The run
        is the driver's producer id and epoch; PRODUCER_FENCED (or INVALID_PRODUCER_ID_MAPPING) if these are
        not current. The transaction is open at once, and stays open until it is ended or
        semel.attempt.timeout.ms has passed. Repeating the request returns the same producer id and epoch
        until the attempt has written. After that it is INVALID_TXN_STATE, as it is for an id that was used
        before and for a run that has decided. A full disk is COORDINATOR_NOT_AVAILABLE. The request goes to
        the coordinator of the attempt's id; any other broker is NOT_COORDINATOR.
    Differs:   Kafka has no such API.
    """
    rights = rights_of(broker, request, context)
    ids = (request.transactional_id, request.driver_transactional_id)
    if not all(rights.transactional_id(WRITE, each) for each in ids):
        return wire.BeginAttemptResponse(error_code=ID_DENIED, error_message=MESSAGES[ID_DENIED])
    driver = Producer(
        request.driver_transactional_id, request.driver_producer_id, request.driver_producer_epoch
    )
    problem = _attempt_problem(request)
    if problem:
        return wire.BeginAttemptResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=problem)
    if error := coordination_error(broker, request.transactional_id):
        return wire.BeginAttemptResponse(error_code=error)
    command = BeginAttempt(
        request.transactional_id,
        driver,
        broker.settings.semel_attempt_timeout_ms,
        version=request.transaction_version,
    )
    try:
        given = await broker.ask(command)
    except StoreRefused:
        given = ProducerGiven(refused_by_store(broker, request.transactional_id))
    return wire.BeginAttemptResponse(
        error_code=given.error,
        error_message=_REFUSALS.get(given.error),
        producer_id=given.producer_id,
        producer_epoch=given.epoch,
    )


def _attempt_problem(request: wire.BeginAttemptRequest) -> str | None:
    ids: Iterable[str] = (request.transactional_id, request.driver_transactional_id)
    if not all(map(is_usable, ids)):
        return f"A transactional id is empty, or longer than {ID_CHARS_MAX} characters."
    if request.transactional_id == request.driver_transactional_id:
        return "An attempt has another transactional id than its driver."
    if request.transaction_version not in GENERATIONS:
        return f"There is no version {request.transaction_version} of transactions."
    return None


HANDLERS: dict[int, Handler] = {
    wire.CommitTransactionsRequest.api_key: commit_transactions,
    wire.BeginAttemptRequest.api_key: begin_attempt,
}
