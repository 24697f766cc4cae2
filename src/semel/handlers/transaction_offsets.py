"""TxnOffsetCommit and TxnShareAcknowledge: what a group has read, as part of a transaction.

The offsets are pending until the transaction commits. Until then OffsetFetch with RequireStable returns a
retriable error (``offsets``). ``semel.core.transactions`` decides whether a client may commit: the producer
must be the current one of the transactional id, and the member, if given, must be in the group's current
generation.

TxnShareAcknowledge acknowledges records of a share group. Only Semel serves it. ApiVersions lists it like
Semel's other extensions (``commit_transactions``). The rules are in ``semel.core.shares.pending``.
"""

from collections.abc import Iterable
from typing import Final, cast

from semel.broker.broker import Broker
from semel.core.groups.offsets import Committer
from semel.core.names import ID_CHARS_MAX, is_usable
from semel.core.shares.commands import AcknowledgeInTransaction, AcknowledgeType
from semel.core.transactions.commands import SUPERSEDED, CommitPending
from semel.core.types import CommittedOffset, ErrorCode, OffsetKey, ShareKey
from semel.handlers import share_partitions
from semel.handlers.context import Handler, RequestContext
from semel.handlers.leadership import LeaderHints, coordination_error, refused_by_store
from semel.handlers.offsets import COMMITTED_AT_ONCE
from semel.handlers.rights import GROUP_DENIED, ID_DENIED, MESSAGES, READ, TOPIC_DENIED, WRITE, rights_of
from semel.handlers.transaction_errors import close_superseded, error_for_client
from semel.store.contract import StoreRefused
from semel.wire import messages as wire
from semel.wire.api_key import ApiKey

_FINAL: Final = frozenset({AcknowledgeType.GAP, AcknowledgeType.ACCEPT, AcknowledgeType.REJECT})
"""The types that a transaction can decide. Releases and renewals take effect at once, outside of it."""


async def txn_share_acknowledge(
    broker: Broker, request: wire.TxnShareAcknowledgeRequest, context: RequestContext
) -> wire.TxnShareAcknowledgeResponse:
    """TxnShareAcknowledge v0: accept or reject acquired records when a transaction commits.

    Behaviour: sent to the leaders of the partitions, like ShareAcknowledge. The acknowledgements of a
        partition are accepted as a whole or not at all, and add it to the transaction. The member must hold
        every record, even those below the start offset; otherwise INVALID_RECORD_STATE. The records are in
        flight until the transaction ends; an abort makes them available again, and the delivery counts.
        Repeating the request in the same transaction succeeds again. The producer id and
        epoch must be current, else INVALID_PRODUCER_ID_MAPPING or PRODUCER_FENCED. A transaction of version 1
        is INVALID_TXN_STATE. Other types than 0 (gap), 1 (accept) and 3 (reject) are INVALID_REQUEST.
    Differs:   Kafka has no such API.
    """
    rights = rights_of(broker, request, context)
    if not rights.transactional_id(WRITE, request.transactional_id):
        return wire.TxnShareAcknowledgeResponse(error_code=ID_DENIED, error_message=MESSAGES[ID_DENIED])
    if not rights.group(READ, request.group_id):
        return wire.TxnShareAcknowledgeResponse(error_code=GROUP_DENIED, error_message=MESSAGES[GROUP_DENIED])
    key = share_partitions.identified(request.group_id, request.member_id)
    if isinstance(key, str):
        return wire.TxnShareAcknowledgeResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=key)
    if not is_usable(request.transactional_id):
        return wire.TxnShareAcknowledgeResponse(
            error_code=ErrorCode.INVALID_REQUEST,
            error_message=f"The transactional id is empty, or longer than {ID_CHARS_MAX} characters.",
        )
    if share_partitions.sessions_of(broker).is_foreign(key, context.principal):
        return wire.TxnShareAcknowledgeResponse(error_code=ErrorCode.SHARE_SESSION_NOT_FOUND)
    wanted = share_partitions.batches_of(request.topics)
    limits = broker.policies.configs.share_group(request.group_id).limits
    answers = await share_partitions.check_places(broker, wanted, rights)
    commands: dict[share_partitions.TopicIdPartition, AcknowledgeInTransaction] = {}
    for place, batches in wanted.items():
        if not answers[place] and not _are_valid(batches):
            answers[place] = ErrorCode.INVALID_REQUEST
        if not answers[place]:
            commands[place] = AcknowledgeInTransaction(
                ShareKey(*place, request.group_id),
                request.member_id,
                share_partitions.runs_of(batches),
                request.transactional_id,
                request.producer_id,
                request.producer_epoch,
                limits,
            )
    answers |= await share_partitions.decided(broker, commands)
    hints = LeaderHints(broker, context)
    return wire.TxnShareAcknowledgeResponse(
        responses=share_partitions.answered(answers, hints), node_endpoints=hints.endpoints
    )


def _are_valid(batches: list[wire.AcknowledgementBatch]) -> bool:
    types: Iterable[int] = {kind for each in batches for kind in each.acknowledge_types}
    return (
        bool(batches)
        and share_partitions.are_valid(batches, knows_renewal=False, is_renewing=False)
        and _FINAL.issuperset(types)
    )


SECOND_GENERATION: Final = 5
"""The version from which committing adds the group to the transaction (KIP-890)."""


async def txn_offset_commit(
    broker: Broker, request: wire.TxnOffsetCommitRequest, context: RequestContext
) -> wire.TxnOffsetCommitResponse:
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
        return wire.TxnOffsetCommitResponse(topics=_not_committed(request.topics, ID_DENIED))
    if not rights.group(READ, request.group_id):
        return wire.TxnOffsetCommitResponse(topics=_not_committed(request.topics, GROUP_DENIED))
    allowed, refused = rights.split(request.topics, lambda each: rights.topic(READ, each.name))
    response = wire.TxnOffsetCommitResponse()
    answers: list[wire.TxnOffsetCommitResponsePartition] = []
    offsets: list[tuple[OffsetKey, CommittedOffset]] = []
    topics = await broker.catalog.topics({each.name for each in allowed})
    for asked in allowed:
        topic = topics[asked.name]
        shown = wire.TxnOffsetCommitResponseTopic(name=asked.name)
        response.topics.append(shown)
        for each in asked.partitions:
            answer = wire.TxnOffsetCommitResponsePartition(partition_index=each.partition_index)
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
    topics: Iterable[wire.TxnOffsetCommitRequestTopic], error: ErrorCode
) -> list[wire.TxnOffsetCommitResponseTopic]:
    return [
        wire.TxnOffsetCommitResponseTopic(
            name=topic.name,
            partitions=[
                wire.TxnOffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error)
                for each in topic.partitions
            ],
        )
        for topic in topics
    ]


def _value(asked: wire.TxnOffsetCommitRequestPartition) -> CommittedOffset:
    return CommittedOffset(
        asked.committed_offset, asked.committed_leader_epoch, asked.committed_metadata or ""
    )


async def _commit(
    broker: Broker,
    request: wire.TxnOffsetCommitRequest,
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


HANDLERS: dict[int, Handler] = {
    ApiKey.TXN_OFFSET_COMMIT: txn_offset_commit,
    ApiKey.TXN_SHARE_ACKNOWLEDGE: txn_share_acknowledge,
}
