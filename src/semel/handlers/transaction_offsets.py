"""TxnOffsetCommit: commits a group's offsets as part of a transaction.

The offsets are pending until the transaction commits. Until then OffsetFetch with RequireStable returns a
retriable error (``offsets``). ``semel.core.transactions`` decides whether a client may commit: the producer
must be the current one of the transactional id, and the member, if given, must be in the group's current
generation.
"""

from collections.abc import Iterable
from typing import Final, cast

from semel.broker.broker import Broker
from semel.core.groups.commit_checks import Committer
from semel.core.names import is_usable
from semel.core.transactions.commands import SUPERSEDED, CommitPending
from semel.core.types import CommittedOffset, ErrorCode, OffsetKey
from semel.handlers.context import Handler, RequestContext
from semel.handlers.leadership import coordination_error, refused_by_store
from semel.handlers.offsets import COMMITTED_AT_ONCE
from semel.handlers.rights import GROUP_DENIED, ID_DENIED, READ, TOPIC_DENIED, WRITE, rights_of
from semel.handlers.transaction_errors import close_superseded, error_for_client
from semel.store.contract import StoreRefused
from semel.wire.api_key import ApiKey
from semel.wire.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

SECOND_GENERATION: Final = 5
"""The version from which committing adds the group to the transaction (KIP-890)."""


async def txn_offset_commit(
    broker: Broker, request: TxnOffsetCommitRequest, context: RequestContext
) -> TxnOffsetCommitResponse:
    """TxnOffsetCommit v0–v5: offsets that become a group's positions when the transaction commits.

    Behaviour: up to v4 the group must have been added by AddOffsetsToTxn. A commit with a member id is
        checked against the group's generation or the member's epoch; an older epoch is accepted for
        partitions that the member has owned since (KIP-1251). A commit without a member id is accepted even
        while the group has members. A fenced producer is INVALID_PRODUCER_EPOCH in every version. The request
        goes to the coordinator of the group; any other broker is NOT_COORDINATOR.
    Versions:  v2 leader epoch · v3 flexible, generation and member (KIP-447) · v4 TRANSACTION_ABORTABLE,
        before that INVALID_TXN_STATE · v5 adds the group implicitly.
    Differs:   never CONCURRENT_TRANSACTIONS. Up to v4 a request on a superseded connection is not answered.
    """
    rights = rights_of(broker, request, context)
    if not rights.transactional_id(WRITE, request.transactional_id):
        return TxnOffsetCommitResponse(topics=_not_committed(request.topics, ID_DENIED))
    if not rights.group(READ, request.group_id):
        return TxnOffsetCommitResponse(topics=_not_committed(request.topics, GROUP_DENIED))
    allowed, refused = rights.split(request.topics, lambda each: rights.topic(READ, each.name))
    response = TxnOffsetCommitResponse()
    answers: list[TxnOffsetCommitResponsePartition] = []
    offsets: list[tuple[OffsetKey, CommittedOffset]] = []
    topics = await broker.catalog.topics({each.name for each in allowed})
    for asked in allowed:
        topic = topics[asked.name]
        shown = TxnOffsetCommitResponseTopic(name=asked.name)
        response.topics.append(shown)
        for each in asked.partitions:
            answer = TxnOffsetCommitResponsePartition(partition_index=each.partition_index)
            shown.partitions.append(answer)
            if topic is None or not 0 <= each.partition_index < topic.partitions:
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            answers.append(answer)
            offsets.append((OffsetKey(request.group_id, topic.name, each.partition_index), _value(each)))
    if offsets:
        errors = await _commit(broker, request, context, tuple(offsets))
        for answer, error in zip(answers, errors, strict=True):
            answer.error_code = error_for_client(error, ApiKey.TXN_OFFSET_COMMIT, context.version)
    response.topics += _not_committed(refused, TOPIC_DENIED)
    return response


def _not_committed(
    topics: Iterable[TxnOffsetCommitRequestTopic], error: ErrorCode
) -> list[TxnOffsetCommitResponseTopic]:
    return [
        TxnOffsetCommitResponseTopic(
            name=topic.name,
            partitions=[
                TxnOffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error)
                for each in topic.partitions
            ],
        )
        for topic in topics
    ]


def _value(asked: TxnOffsetCommitRequestPartition) -> CommittedOffset:
    return CommittedOffset(
        asked.committed_offset, asked.committed_leader_epoch, asked.committed_metadata or ""
    )


async def _commit(
    broker: Broker,
    request: TxnOffsetCommitRequest,
    context: RequestContext,
    offsets: tuple[tuple[OffsetKey, CommittedOffset], ...],
) -> tuple[ErrorCode, ...]:
    if not is_usable(request.group_id):
        return (ErrorCode.INVALID_GROUP_ID,) * len(offsets)
    if error := coordination_error(broker, request.group_id):
        return (error,) * len(offsets)
    if len(offsets) > COMMITTED_AT_ONCE:
        return (ErrorCode.INVALID_COMMIT_OFFSET_SIZE,) * len(offsets)
    if not await broker.has_room_for_group(request.group_id):
        return (ErrorCode.COORDINATOR_NOT_AVAILABLE,) * len(offsets)
    settings = broker.settings
    command = CommitPending(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        request.group_id,
        Committer(request.generation_id, request.member_id, request.group_instance_id),
        offsets,
        version=2 if context.version >= SECOND_GENERATION else 1,
        must_be_added=settings.transaction_partition_verification_enable,
        metadata_chars_max=settings.offset_metadata_max_bytes,
        connection=context.connection_id,
    )
    try:
        errors = await broker.ask(command)
    except StoreRefused:
        errors = (refused_by_store(broker, request.group_id),) * len(offsets)
    if errors is SUPERSEDED:
        close_superseded(request.transactional_id)
    return cast(tuple[ErrorCode, ...], errors)


HANDLERS: dict[int, Handler] = {ApiKey.TXN_OFFSET_COMMIT: txn_offset_commit}
