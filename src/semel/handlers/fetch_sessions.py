"""Fetch sessions (KIP-227): a client lists its partitions once and then sends only changes.

A session is a list of partitions, each with the client's last request and the broker's last answer. A request
is *full* (epoch 0 begins a session, -1 wants none) or *incremental* (it carries the session's next epoch, and
changes the list). The response to an incremental request omits partitions without news.

Sessions are kept in memory and may be lost at any time: the client gets FETCH_SESSION_ID_NOT_FOUND and begins
a new one. The number of sessions and the total number of their partitions are bounded. When all slots are
taken, a session that was idle for two minutes is evicted. If there is none, the client gets no session, which
only makes its requests longer.

``begin`` checks and advances the epoch without awaiting.
"""

import random
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from semel.core.types import ErrorCode
from semel.wire.messages.fetch import FetchPartition, FetchRequest, PartitionData

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

    def __init__(self, topic: TopicReference, asked: FetchPartition) -> None:
        self.topic = topic
        self.index = asked.partition
        self.asked = asked
        self.high_watermark = -1
        self.log_start_offset = -1

    def is_news(self, data: PartitionData) -> bool:
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

    def begin(self, request: FetchRequest, *, by_id: bool, now: int, owner: str = "") -> SessionFetch:
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

    def _go_on(self, session: FetchSession, request: FetchRequest, now: int) -> SessionFetch:
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


def _asked(request: FetchRequest, by_id: bool) -> Iterator[SessionPartition]:
    for topic in request.topics:
        reference: TopicReference = topic.topic_id if by_id else topic.topic
        for partition in topic.partitions:
            yield SessionPartition(reference, partition)
