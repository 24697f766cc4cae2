"""Fetch: sends batches to consumers as they are stored, without decoding them.

The handler resolves topics, keeps the session and builds the response. What may be read,
and how long a fetch waits, is decided in ``broker/reads/reads.py``. Offset lookups are in ``list_offsets``.

**Fetch sessions** (KIP-227). A client lists its partitions once and then sends only changes. A session is a
list of partitions, each with the client's last request and the broker's last answer. A request is *full*
(epoch 0 begins a session, -1 wants none) or *incremental* (it carries the session's next epoch, and changes
the list). The response to an incremental request omits partitions without news.

Sessions are kept in memory and may be lost at any time: the client gets FETCH_SESSION_ID_NOT_FOUND and begins
a new one. The number of sessions and the total number of their partitions are bounded. When all slots are
taken, a session that was idle for two minutes is evicted. If there is none, the client gets no session, which
only makes its requests longer.

``begin`` checks and advances the epoch without awaiting.
"""

import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from semel.broker.broker import Broker
from semel.broker.reads.reads import FetchRange, FetchResult, Isolation
from semel.broker.slices import SLICE_ITEMS
from semel.core.types import Buffer, ErrorCode, PartitionKey, Topic
from semel.handlers.context import Handler, RequestContext
from semel.handlers.leadership import MOVED, NO_EPOCH, LeaderHints, leadership_error
from semel.handlers.list_offsets import isolation_of, list_offsets, offset_for_leader_epoch
from semel.handlers.rights import CLUSTER_ACTION, READ, RequestRights, rights_of
from semel.store.contract import StoreRefused
from semel.wire import messages as wire
from semel.wire.api_key import ApiKey

NO_SESSION: Final = 0
BEGIN_EPOCH: Final = 0
NO_SESSION_EPOCH: Final = -1
EPOCH_MAX: Final = 2**31 - 1
IDLE_MS: Final = 120_000

TopicReference: TypeAlias = str | bytes
"""A topic as the request refers to it: by name up to version 12, by id from version 13 on."""


class SessionPartition:
    """A partition that a client fetches: its last request, and the last answer."""

    __slots__ = ("asked", "high_watermark", "index", "log_start_offset", "topic")

    def __init__(self, topic: TopicReference, asked: wire.FetchPartition) -> None:
        self.topic = topic
        self.index = asked.partition
        self.asked = asked
        self.high_watermark = -1
        self.log_start_offset = -1

    def is_news(self, data: wire.PartitionData) -> bool:
        """Whether an incremental response must contain this answer. Remembers it as the last one."""
        news = (
            bool(data.records)
            or data.high_watermark != self.high_watermark
            or data.log_start_offset != self.log_start_offset
        )
        self.log_start_offset = data.log_start_offset
        self.high_watermark = data.high_watermark
        if data.error_code:
            # The first answer after an error is news too, whatever its high watermark.
            self.high_watermark = -1
            return True
        return news


PartitionReference: TypeAlias = tuple[TopicReference, int]


_IDS: Final = random.SystemRandom()
"""Random, so that a client cannot guess the id of another client's session."""


class FetchSession:
    """One session. The next request must carry ``epoch``."""

    __slots__ = ("by_id", "epoch", "owner", "partitions", "session_id", "used_ms")

    def __init__(
        self,
        session_id: int,
        by_id: bool,
        partitions: dict[PartitionReference, SessionPartition],
        owner: str = "",
    ) -> None:
        self.session_id = session_id
        self.owner = owner
        """The principal that began the session."""
        self.by_id = by_id
        self.partitions = partitions
        self.epoch = 1
        self.used_ms = 0

    def move_to_end(self, partition: SessionPartition) -> None:
        """Serve this partition last next time, so that it cannot starve the others."""
        reference = (partition.topic, partition.index)
        if self.partitions.get(reference) is partition:
            del self.partitions[reference]
            self.partitions[reference] = partition


class SessionFetch(NamedTuple):
    """The session and the partitions of one request."""

    error: ErrorCode
    partitions: list[SessionPartition]
    session: FetchSession | None = None
    is_incremental: bool = False

    @property
    def session_id(self) -> int:
        """The session id in the response."""
        return self.session.session_id if self.session else NO_SESSION


class FetchSessions:
    """All sessions of a broker, least recently used first."""

    def __init__(self, sessions_max: int, partitions_max: int) -> None:
        self._sessions_max = sessions_max
        self._partitions_max = partitions_max
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, request: wire.FetchRequest, *, by_id: bool, now: int, owner: str = "") -> SessionFetch:
        """Determine the partitions of a request and advance its session."""
        known = self._sessions.get(request.session_id)
        if known is not None and known.owner != owner:
            # The session belongs to another principal, whose topics this client may not know.
            return SessionFetch(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])
        if request.session_epoch in (BEGIN_EPOCH, NO_SESSION_EPOCH):
            self._remove(request.session_id)
            partitions = {(each.topic, each.index): each for each in _asked(request, by_id)}
            session = None
            if request.session_epoch == BEGIN_EPOCH:
                session = self._create(by_id, partitions, now, owner)
            return SessionFetch(ErrorCode.NONE, list(partitions.values()), session)
        session = known
        if session is None:
            return SessionFetch(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])
        if session.epoch != request.session_epoch:
            return SessionFetch(ErrorCode.INVALID_FETCH_SESSION_EPOCH, [])
        if session.by_id != by_id:
            return SessionFetch(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, [])
        return self._go_on(session, request, now)

    def _go_on(self, session: FetchSession, request: wire.FetchRequest, now: int) -> SessionFetch:
        known = session.partitions
        self._partitions -= len(known)
        for each in _asked(request, session.by_id):
            cached = known.setdefault((each.topic, each.index), each)
            cached.asked = each.asked
        for forgotten in request.forgotten_topics_data:
            topic: TopicReference = forgotten.topic_id if session.by_id else forgotten.topic
            for index in forgotten.partitions:
                known.pop((topic, index), None)
        self._partitions += len(known)
        if self._partitions > self._partitions_max:
            self._remove(session.session_id)
            return SessionFetch(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])
        if not known:
            self._remove(session.session_id)
            return SessionFetch(ErrorCode.NONE, [])
        session.epoch = session.epoch + 1 if session.epoch < EPOCH_MAX else 1
        session.used_ms = now
        self._sessions.move_to_end(session.session_id)
        return SessionFetch(ErrorCode.NONE, list(known.values()), session, is_incremental=True)

    def _create(
        self, by_id: bool, partitions: dict[PartitionReference, SessionPartition], now: int, owner: str
    ) -> FetchSession | None:
        if not partitions or not self._has_room(len(partitions), now):
            return None
        session_id = _IDS.randint(1, EPOCH_MAX)
        while session_id in self._sessions:
            session_id = _IDS.randint(1, EPOCH_MAX)
        session = FetchSession(session_id, by_id, partitions, owner)
        session.used_ms = now
        self._sessions[session_id] = session
        self._partitions += len(partitions)
        return session

    def _has_room(self, partitions: int, now: int) -> bool:
        while (
            len(self._sessions) >= self._sessions_max or self._partitions + partitions > self._partitions_max
        ):
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now - oldest.used_ms < IDLE_MS:
                return False
            self._remove(oldest.session_id)
        return True

    def _remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.partitions)


def _asked(request: wire.FetchRequest, by_id: bool) -> Iterator[SessionPartition]:
    for topic in request.topics:
        reference: TopicReference = topic.topic_id if by_id else topic.topic
        for partition in topic.partitions:
            yield SessionPartition(reference, partition)


FIRST_BY_ID: Final = 13
FIRST_WITH_STORAGE_ERROR: Final = 6
FIRST_WITH_REPLICA_STATE: Final = 15


def _sessions(broker: Broker) -> FetchSessions:
    settings = broker.settings
    return FetchSessions(settings.max_incremental_fetch_session_cache_slots, settings.semel_entities_max)


async def fetch(broker: Broker, request: wire.FetchRequest, context: RequestContext) -> wire.FetchResponse:
    """Fetch v4–v18: batches from given offsets, at once or when min_bytes are available.

    Behaviour: whole batches up to the high watermark, or the last stable offset for READ_COMMITTED. Waits for
        min_bytes up to max_wait_ms, unless a partition has an error. At least one batch, whatever its size. A
        partition that another broker leads, or that moved during the wait, is NOT_LEADER_OR_FOLLOWER.
        Partitions that may not be read are TOPIC_AUTHORIZATION_FAILED, in sessions too; this error does not
        end the wait. Beyond a quota the response is empty and says how long the client is muted (KIP-219).
    Versions:  v5 log start offset · v7 sessions (KIP-227) · v9 leader epoch · v12 flexible, the current
        leader · v13 topic ids · v16 the address of the leader (KIP-951).
    Differs:   never sends part of a batch, and does not wait when a partition has more than its limit. Every
        client is a consumer: replica ids and last fetched epochs are ignored. An unknown isolation level
        closes the connection. A request without partitions gets no session. In a session by topic ids a
        deleted topic is UNKNOWN_TOPIC_ID; in Kafka it is UNKNOWN_TOPIC_OR_PARTITION.
    """
    rights = rights_of(broker, request, context)
    isolation = isolation_of(request.isolation_level)
    sessions = broker.kept(_sessions)
    by_id, owner = context.version >= FIRST_BY_ID, context.principal
    turn = sessions.begin(request, by_id=by_id, now=broker.now(), owner=owner)
    if turn.error:
        return wire.FetchResponse(error_code=turn.error)
    hints = LeaderHints(broker, context)
    try:
        topics = await _topics(broker, turn.partitions)
        denied = _denied(rights, request, context.version, topics)
        wanted = await _wanted(broker, turn.partitions, topics, isolation, denied)
        results = await _read(broker, request, wanted, context)
        if not _may_send(results, context):
            return wire.FetchResponse(session_id=turn.session_id)
        denied = _denied(rights, request, context.version, topics)
        answers = await _answers(broker, turn.partitions, wanted, results, denied, hints)
    except StoreRefused:
        # The ledger has no room for the latest commits, so it cannot locate the records.
        answers = [_data(each.index, FetchResult(ErrorCode.KAFKA_STORAGE_ERROR)) for each in turn.partitions]
    if context.version < FIRST_WITH_STORAGE_ERROR:
        for data in answers:
            if data.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
                data.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    return wire.FetchResponse(
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


def _denied(
    rights: RequestRights,
    request: wire.FetchRequest,
    version: int,
    topics: dict[TopicReference, Topic | None],
) -> set[TopicReference]:
    """The topics that may not be read now. They are refused whether they exist or not.

    Sessions keep partitions regardless of rights, so every request asks again. A client that claims to be a
    replica needs ClusterAction (CVE-2018-1288).
    """
    if rights.are_all:
        return set()
    replica_id = request.replica_id
    if version >= FIRST_WITH_REPLICA_STATE:
        replica_id = request.replica_state.replica_id

    def may_read(reference: TopicReference) -> bool:
        if replica_id >= 0:
            return rights.now().cluster(CLUSTER_ACTION)
        if isinstance(reference, str):
            return rights.now().topic(READ, reference)
        topic = topics[reference]
        # An unknown id has no name, and is refused for that.
        return topic is None or rights.now().topic(READ, topic.name)

    return {reference for reference in topics if not may_read(reference)}


class _Wanted(NamedTuple):
    """The partitions of a request, and those of them that can be read."""

    keys: list[PartitionKey | None]
    ranges: list[FetchRange]
    refused: dict[int, ErrorCode]
    """Errors by the position of the partition in the request, counted from 1."""
    owners_known: int
    """``Ownership.changes`` when the leaders were checked."""


async def _wanted(
    broker: Broker,
    partitions: Sequence[SessionPartition],
    topics: dict[TopicReference, Topic | None],
    isolation: Isolation,
    denied: set[TopicReference],
) -> _Wanted:
    wanted = _Wanted([], [], {}, broker.ownership.changes)
    for at, partition in enumerate(partitions, 1):
        if at % SLICE_ITEMS == 0:
            await broker.slices.turn()
        asked = partition.asked
        key = _key(topics[partition.topic], partition.index)
        wanted.keys.append(key)
        error = _check(broker, key, partition, topics[partition.topic])
        if partition.topic in denied:
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if error or key is None:
            wanted.refused[at] = error
        else:
            wanted.ranges.append(FetchRange(key, asked.fetch_offset, asked.partition_max_bytes, isolation))
    return wanted


def _may_send(results: Sequence[FetchResult], context: RequestContext) -> bool:
    """Whether the client's quota allows the records that were read."""
    throttle = context.throttle
    return throttle.is_idle or throttle.may_send(
        sum(len(buffer) for result in results for buffer in result.buffers)
    )


async def _read(
    broker: Broker, request: wire.FetchRequest, wanted: _Wanted, context: RequestContext
) -> Sequence[FetchResult]:
    """A result for each range, at once or after a wait."""
    ownership = broker.ownership
    if not context.throttle.is_idle and (limit := context.throttle.fetch_bytes_max()) is not None:
        request.max_bytes = min(request.max_bytes, limit)
        request.min_bytes = min(request.min_bytes, request.max_bytes)
    # A response with an error is sent at once, without waiting for records. TOPIC_AUTHORIZATION_FAILED alone
    # does not end the wait, because a client may fetch a denied topic again and again.
    is_wrong = any(error != ErrorCode.TOPIC_AUTHORIZATION_FAILED for error in wanted.refused.values())
    return await broker.reads.fetch(
        wanted.ranges,
        request.min_bytes,
        request.max_bytes,
        0 if is_wrong else request.max_wait_ms,
        context.reserve,
        lambda: ownership.changes == wanted.owners_known,
    )


async def _answers(
    broker: Broker,
    partitions: Sequence[SessionPartition],
    wanted: _Wanted,
    read: Sequence[FetchResult],
    denied: set[TopicReference],
    hints: LeaderHints,
) -> list[wire.PartitionData]:
    """One answer for each partition, in the same order. ``denied`` are the topics denied after the wait."""
    results = iter(read)
    answers: list[wire.PartitionData] = []
    for at, (partition, key) in enumerate(zip(partitions, wanted.keys, strict=True), 1):
        if at % SLICE_ITEMS == 0:
            await broker.slices.turn()
        if at in wanted.refused:
            result = FetchResult(wanted.refused[at])
        else:
            result = next(results)
            if partition.topic in denied:
                result = FetchResult(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            # The partition may have moved during the wait; then the bounds at this broker are outdated.
            elif key is not None and not broker.ownership.leads(key):
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


def _data(index: int, result: FetchResult) -> wire.PartitionData:
    return wire.PartitionData(
        partition_index=index,
        error_code=result.error,
        high_watermark=result.high_watermark,
        last_stable_offset=result.last_stable_offset,
        log_start_offset=result.log_start_offset,
        aborted_transactions=(
            None
            if result.aborted is None
            else [
                wire.AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
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


def _by_topic(turn: SessionFetch, answers: Sequence[wire.PartitionData]) -> list[wire.FetchableTopicResponse]:
    """The answers grouped by topic; an incremental response contains only partitions with news."""
    topics: dict[TopicReference, wire.FetchableTopicResponse] = {}
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
            answer = wire.FetchableTopicResponse()
            if isinstance(reference, str):
                answer.topic = reference
            else:
                answer.topic_id = reference
            topics[reference] = answer
        answer.partitions.append(data)
    return list(topics.values())


HANDLERS: dict[int, Handler] = {
    ApiKey.FETCH: fetch,
    ApiKey.LIST_OFFSETS: list_offsets,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch,
}
