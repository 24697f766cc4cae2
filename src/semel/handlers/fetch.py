"""Fetch: sends batches to consumers as they are stored, without decoding them.

The handler resolves topics, keeps the session (``fetch_sessions``) and builds the response. What may be read,
and how long a fetch waits, is decided in ``broker/reads.py``. Offset lookups are in ``list_offsets``.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final
from weakref import WeakKeyDictionary

from semel.broker.broker import Broker
from semel.broker.reads import FetchRange, FetchResult, Isolation
from semel.broker.slices import SLICE_ITEMS
from semel.core.types import Buffer, ErrorCode, PartitionKey, Topic
from semel.handlers.context import Handler, RequestContext
from semel.handlers.fetch_sessions import FetchSessions, SessionFetch, SessionPartition, TopicReference
from semel.handlers.leadership import MOVED, NO_EPOCH, LeaderHints, leadership_error
from semel.handlers.list_offsets import isolation_of, list_offsets, offset_for_leader_epoch
from semel.store.interface import StoreRefused
from semel.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

FIRST_BY_ID: Final = 13
FIRST_WITH_STORAGE_ERROR: Final = 6

# Fetch sessions by broker. Only this handler uses them; they are dropped together with the broker.
_SESSIONS: WeakKeyDictionary[Broker, FetchSessions] = WeakKeyDictionary()


async def fetch(broker: Broker, request: FetchRequest, context: RequestContext) -> FetchResponse:
    """Fetch v4–v18: batches from given offsets, at once or when min_bytes are available.

    Behaviour: whole batches up to the high watermark, or the last stable offset for READ_COMMITTED. Waits for
        min_bytes up to max_wait_ms, unless a partition has an error. At least one batch, whatever its size. A
        partition that another broker leads is NOT_LEADER_OR_FOLLOWER, also if it moved during the wait.
    Versions:  v5 log start offset · v7 sessions (KIP-227) · v9 leader epoch · v12 flexible, the current
        leader · v13 topic ids · v16 the address of the leader (KIP-951).
    Differs:   never sends part of a batch, and does not wait when a partition has more than its limit. Every
        client is a consumer: replica ids and last fetched epochs are ignored. An unknown isolation level
        closes the connection. A request without partitions gets no session. In a session by topic ids a
        deleted topic is UNKNOWN_TOPIC_ID, in Kafka UNKNOWN_TOPIC_OR_PARTITION.
    """
    isolation = isolation_of(request.isolation_level)
    sessions = _SESSIONS.get(broker)
    if sessions is None:
        settings = broker.settings
        sessions = _SESSIONS[broker] = FetchSessions(
            settings.max_incremental_fetch_session_cache_slots, settings.semel_entities_max
        )
    turn = sessions.begin(request, by_id=context.version >= FIRST_BY_ID, now=broker.now())
    if turn.error:
        return FetchResponse(error_code=turn.error)
    hints = LeaderHints(broker, context)
    try:
        topics = await _topics(broker, turn.partitions)
        answers = await _fetch_all(
            broker, request, turn.partitions, topics, isolation, context.reserve, hints
        )
    except StoreRefused:
        # The ledger has no room for the latest commits, so it cannot locate the records.
        answers = [_data(each.index, FetchResult(ErrorCode.KAFKA_STORAGE_ERROR)) for each in turn.partitions]
    if context.version < FIRST_WITH_STORAGE_ERROR:
        for data in answers:
            if data.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
                data.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    return FetchResponse(
        session_id=turn.session_id, responses=_by_topic(turn, answers), node_endpoints=hints.endpoints
    )


async def _topics(
    broker: Broker, partitions: Iterable[SessionPartition]
) -> dict[TopicReference, Topic | None]:
    """Look up each topic of the request once."""
    catalog = broker.catalog
    topics: dict[TopicReference, Topic | None] = {}
    for partition in partitions:
        reference = partition.topic
        if reference in topics:
            continue
        if isinstance(reference, str):
            topics[reference] = catalog.cached(reference) or await catalog.topic(reference)
        else:
            topics[reference] = catalog.cached_by_id(reference) or await catalog.topic_by_id(reference)
    return topics


async def _fetch_all(
    broker: Broker,
    request: FetchRequest,
    partitions: Sequence[SessionPartition],
    topics: dict[TopicReference, Topic | None],
    isolation: Isolation,
    reserve: Callable[[int], Awaitable[None]],
    hints: LeaderHints,
) -> list[PartitionData]:
    """One answer for each partition, in the same order."""
    ownership = broker.ownership
    owners_known = ownership.changes
    refused: dict[int, ErrorCode] = {}
    keys: list[PartitionKey | None] = []
    ranges: list[FetchRange] = []
    for at, partition in enumerate(partitions, 1):
        if at % SLICE_ITEMS == 0:
            await broker.slices.turn()
        asked = partition.asked
        key = _key(topics[partition.topic], partition.index)
        keys.append(key)
        error = _check(broker, key, partition, topics[partition.topic])
        if error or key is None:
            refused[at] = error
        else:
            ranges.append(FetchRange(key, asked.fetch_offset, asked.partition_max_bytes, isolation))
    # A response with an error is sent at once; it does not wait for records.
    wait_ms = 0 if refused else request.max_wait_ms
    results = iter(
        await broker.reads.fetch(
            ranges,
            request.min_bytes,
            request.max_bytes,
            wait_ms,
            reserve,
            lambda: ownership.changes == owners_known,
        )
    )
    answers: list[PartitionData] = []
    for at, (partition, key) in enumerate(zip(partitions, keys, strict=True), 1):
        if at % SLICE_ITEMS == 0:
            await broker.slices.turn()
        if at in refused:
            result = FetchResult(refused[at])
        else:
            result = next(results)
            # It may have moved during the wait. Then the bounds of this broker are no longer the newest.
            if key is not None and not ownership.leads(key):
                result = FetchResult(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        data = _data(partition.index, result)
        if result.error in MOVED and key is not None:
            data.current_leader = hints.of(key)
        answers.append(data)
    return answers


def _key(topic: Topic | None, index: int) -> PartitionKey | None:
    if topic is None or not 0 <= index < topic.partitions:
        return None
    return PartitionKey(topic.topic_id, index)


def _check(
    broker: Broker, key: PartitionKey | None, partition: SessionPartition, topic: Topic | None
) -> ErrorCode:
    if key is None:
        is_unknown_id = topic is None and isinstance(partition.topic, bytes)
        return ErrorCode.UNKNOWN_TOPIC_ID if is_unknown_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    # In Fetch, and only there, every negative value means that the client knows no epoch.
    return leadership_error(broker, key, max(partition.asked.current_leader_epoch, NO_EPOCH))


def _data(index: int, result: FetchResult) -> PartitionData:
    return PartitionData(
        partition_index=index,
        error_code=result.error,
        high_watermark=result.high_watermark,
        last_stable_offset=result.last_stable_offset,
        log_start_offset=result.log_start_offset,
        aborted_transactions=(
            None
            if result.aborted is None
            else [
                AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
                for producer_id, first_offset in result.aborted
            ]
        ),
        records=_records(result.buffers),
    )


def _records(buffers: Sequence[Buffer]) -> Buffer:
    """Join the buffers, because the message has one field. A single buffer is not copied."""
    if len(buffers) == 1:
        return buffers[0]
    return b"".join(buffers)


def _by_topic(turn: SessionFetch, answers: Sequence[PartitionData]) -> list[FetchableTopicResponse]:
    """The answers grouped by topic; in an incremental session only partitions with news."""
    topics: dict[TopicReference, FetchableTopicResponse] = {}
    for partition, data in zip(turn.partitions, answers, strict=True):
        if turn.session is not None:
            is_news = partition.is_news(data)
            if data.records:
                turn.session.move_to_end(partition)
            if turn.is_incremental and not is_news:
                continue
        reference = partition.topic
        answer = topics.get(reference)
        if answer is None:
            answer = FetchableTopicResponse()
            if isinstance(reference, str):
                answer.topic = reference
            else:
                answer.topic_id = reference
            topics[reference] = answer
        answer.partitions.append(data)
    return list(topics.values())


HANDLERS: dict[int, Handler] = {1: fetch, 2: list_offsets, 23: offset_for_leader_epoch}
