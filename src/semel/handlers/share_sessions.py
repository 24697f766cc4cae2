"""Share sessions (KIP-932): a member lists its partitions at a leader once, and then sends only changes.

A session belongs to a member of a group. Its first request has epoch 0, each later one the next epoch, and
the last one -1. Sessions are kept in memory and may be lost at any time: the member gets
SHARE_SESSION_NOT_FOUND and begins a new one. The number of sessions and the total number of their partitions
are bounded.

When a session ends, by request or because its connection was closed, the records that the member has
acquired are released. A member that begins its session again keeps them: the locks belong to the member.

Epochs are checked and advanced without awaiting.
"""

from collections.abc import Container
from typing import Final, NamedTuple, TypeAlias

from semel.core.types import ErrorCode, ShareKey

BEGIN: Final = 0
END: Final = -1
EPOCH_MAX: Final = 2**31 - 1

Place: TypeAlias = tuple[bytes, int]
"""A partition: topic id and index."""
SessionKey: TypeAlias = tuple[str, str]
"""A group and a member of it."""


class ShareSession:
    """One session. The next request must carry ``epoch``."""

    __slots__ = ("acquiring", "connection_id", "epoch", "is_ended", "key", "owner", "partitions", "seen")

    def __init__(self, key: SessionKey, connection_id: int, owner: str) -> None:
        self.key = key
        self.connection_id = connection_id
        self.owner = owner
        """The principal that began the session."""
        self.epoch = 1
        self.is_ended = False
        """When true, a fetch that still waits must not acquire: the member would not learn of it."""
        self.partitions: dict[Place, None] = {}
        self.seen: dict[Place, None] = {}
        """Includes removed partitions, because the member may still hold records of them."""
        self.acquiring: set[ShareKey] = set()
        """The share-partitions with an ``Acquire`` in progress."""

    def change(self, added: list[Place], forgotten: list[Place]) -> None:
        """Add and remove partitions."""
        for each in added:
            self.partitions.setdefault(each)
            self.seen.setdefault(each)
        for each in forgotten:
            self.partitions.pop(each, None)

    def move_to_end(self, place: Place) -> None:
        """Serve this partition last next time, so that it cannot starve the others."""
        if place in self.partitions:
            del self.partitions[place]
            self.partitions[place] = None

    @property
    def shares(self) -> list[ShareKey]:
        """The share-partitions of which the member may hold records."""
        return [ShareKey(topic_id, index, self.key[0]) for topic_id, index in self.seen]


class Turn(NamedTuple):
    """The session of one request, or why there is none."""

    error: ErrorCode
    session: ShareSession | None = None


class ShareSessions:
    """All share sessions of a broker."""

    def __init__(self, sessions_max: int, partitions_max: int) -> None:
        self._sessions_max = sessions_max
        self._partitions_max = partitions_max
        # One member must not lock all others out.
        self._one_max = max(partitions_max // 10, 1)
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._by_connection: dict[int, dict[SessionKey, None]] = {}
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self,
        key: SessionKey,
        connection_id: int,
        owner: str,
        partitions: list[Place],
        locked: Container[ShareKey] = (),
    ) -> Turn:
        """Begin a session, replacing the member's older one. ``locked``: share-partitions with locks."""
        older = self._sessions.get(key)
        if older is not None and older.owner != owner:
            # A principal must not take over the records of another.
            return Turn(ErrorCode.SHARE_SESSION_NOT_FOUND)
        session = ShareSession(key, connection_id, owner)
        if older is not None:
            session.seen = {each: None for each in older.seen if ShareKey(*each, key[0]) in locked}
        session.change(partitions, [])
        # The older session continues if there is no room for more partitions.
        taken = 0 if older is None else len(older.seen)
        is_full = older is None and len(self._sessions) >= self._sessions_max
        if is_full or not self._has_room(taken, len(session.seen) - taken):
            return Turn(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        self.end(key)
        self._sessions[key] = session
        self._partitions += len(session.seen)
        self._by_connection.setdefault(connection_id, {})[key] = None
        return Turn(ErrorCode.NONE, session)

    def _has_room(self, before: int, more: int) -> bool:
        return before + more <= self._one_max and self._partitions + more <= self._partitions_max

    def go_on(
        self,
        key: SessionKey,
        epoch: int,
        owner: str,
        added: list[Place],
        forgotten: list[Place],
    ) -> Turn:
        """Check the epoch of a request, advance it, and change the list of partitions."""
        session = self._sessions.get(key)
        if session is None or session.owner != owner:
            return Turn(ErrorCode.SHARE_SESSION_NOT_FOUND)
        if epoch == END:
            return Turn(ErrorCode.NONE, session)
        if epoch != session.epoch:
            return Turn(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        before = len(session.seen)
        more = sum(each not in session.seen for each in added)
        if more and not self._has_room(before, more):
            return Turn(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        session.change(added, forgotten)
        self._partitions += len(session.seen) - before
        session.epoch = session.epoch + 1 if session.epoch < EPOCH_MAX else 1
        return Turn(ErrorCode.NONE, session)

    def is_foreign(self, key: SessionKey, owner: str) -> bool:
        """Whether the session of a member belongs to another principal."""
        session = self._sessions.get(key)
        return session is not None and session.owner != owner

    def end(self, key: SessionKey) -> ShareSession | None:
        """Remove a session."""
        session = self._sessions.pop(key, None)
        if session is not None:
            session.is_ended = True
            self._partitions -= len(session.seen)
            keys = self._by_connection.get(session.connection_id)
            if keys is not None:
                keys.pop(key, None)
                if not keys:
                    del self._by_connection[session.connection_id]
        return session

    def end_all(self, connection_id: int) -> list[ShareSession]:
        """Remove the sessions of a connection that was closed."""
        ended = [self.end(key) for key in list(self._by_connection.get(connection_id, ()))]
        return [each for each in ended if each is not None]
