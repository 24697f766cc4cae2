"""Keeps sessions, checks partitions and submits acknowledgements for the APIs of acquired records.

**Share sessions.** A member lists its partitions at a leader once, and then sends only changes. A session
belongs to a member of a group. Its first request has epoch 0, each later one the next epoch, and the last one
-1. Sessions are kept in memory and may be lost at any time: the member gets SHARE_SESSION_NOT_FOUND and
begins a new one. The number of sessions and the total number of their partitions are bounded.

When a session ends, by request or because its connection was closed, the records that the member has
acquired are released. A member that begins its session again keeps them: the locks belong to the member.

Epochs are checked and advanced without awaiting.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from semel.broker.broker import Broker
from semel.core.groups.configs import ShareConfigs
from semel.core.shares.commands import Acknowledge, AcknowledgedRun, AcknowledgeType, ReleaseMember
from semel.core.types import Command, ErrorCode, PartitionKey, ShareKey
from semel.handlers.leadership import MOVED, LeaderHints, leadership_error
from semel.handlers.rights import READ, TOPIC_DENIED, RequestRights
from semel.store.contract import StoreRefused
from semel.wire import messages as wire

BEGIN: Final = 0
END: Final = -1
EPOCH_MAX: Final = 2**31 - 1

TopicIdPartition: TypeAlias = tuple[bytes, int]
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
        self.partitions: dict[TopicIdPartition, None] = {}
        self.seen: dict[TopicIdPartition, None] = {}
        """Includes removed partitions, because the member may still hold records of them."""
        self.acquiring: set[ShareKey] = set()
        """The share-partitions with an ``Acquire`` in progress."""

    def change(self, added: list[TopicIdPartition], forgotten: list[TopicIdPartition]) -> None:
        """Add and remove partitions."""
        for each in added:
            self.partitions.setdefault(each)
            self.seen.setdefault(each)
        for each in forgotten:
            self.partitions.pop(each, None)

    def move_to_end(self, place: TopicIdPartition) -> None:
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
        partitions: list[TopicIdPartition],
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
        added: list[TopicIdPartition],
        forgotten: list[TopicIdPartition],
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


FIRST_WITH_RENEWAL: Final = 2
MEMBER_ID_CHARS_MAX: Final = 36
"""Kafka's limit: members choose a UUID."""


def sessions_of(broker: Broker) -> ShareSessions:
    """The share sessions of a broker. They end with their connections."""
    return broker.kept(_sessions)


def _sessions(broker: Broker) -> ShareSessions:
    settings = broker.settings
    sessions = ShareSessions(settings.group_share_max_share_sessions, settings.semel_entities_max)

    def gone(connection_id: int) -> None:
        for session in sessions.end_all(connection_id):
            release(broker, session)

    broker.when_gone.append(gone)
    return sessions


def release(broker: Broker, session: ShareSession) -> None:
    """Release what the member of an ended session has acquired. Not awaited: locks end anyway."""
    # This broker knows all locks. Most partitions of a large session have none.
    locked = broker.share_locks
    keys = [each for each in session.shares if each in locked or each in session.acquiring]
    if keys:
        commands = [ReleaseMember(each, session.key[1]) for each in keys]
        broker.submit(commands)


def identified(group_id: str | None, member_id: str | None) -> SessionKey | str:
    """The session that a request belongs to, or what is wrong with it."""
    if not group_id:
        return "Invalid group id in the request."
    if not member_id or len(member_id) > MEMBER_ID_CHARS_MAX:
        return "Invalid member id in the request."
    return group_id, member_id


def batches_of(
    topics: Iterable[wire.ShareAcknowledgeTopic | wire.ShareFetchTopic],
) -> dict[TopicIdPartition, list[wire.AcknowledgementBatch]]:
    """The acknowledgements in a request, by partition."""
    return {
        (topic.topic_id, each.partition_index): each.acknowledgement_batches
        for topic in topics
        for each in topic.partitions
    }


async def check_places(
    broker: Broker, places: Iterable[TopicIdPartition], rights: RequestRights
) -> dict[TopicIdPartition, ErrorCode]:
    """The error of each partition; NONE if this broker leads it and the client may read it now."""
    errors: dict[TopicIdPartition, ErrorCode] = {}
    catalog = broker.catalog
    for topic_id, index in places:
        topic = catalog.cached_by_id(topic_id) or await catalog.topic_by_id(topic_id)
        if topic is None:
            error = ErrorCode.UNKNOWN_TOPIC_ID
        elif not rights.now().topic(READ, topic.name):
            error = TOPIC_DENIED
        elif not 0 <= index < topic.partitions:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            error = leadership_error(broker, PartitionKey(topic_id, index))
        errors[topic_id, index] = error
    return errors


class Acknowledgements(NamedTuple):
    """The acknowledgements of one partition in a request."""

    place: TopicIdPartition
    batches: Sequence[wire.AcknowledgementBatch]


async def acknowledge(
    broker: Broker,
    session: ShareSession,
    wanted: Sequence[Acknowledgements],
    errors: dict[TopicIdPartition, ErrorCode],
    configs: ShareConfigs,
    *,
    knows_renewal: bool,
    is_renewing: bool,
) -> dict[TopicIdPartition, ErrorCode]:
    """Acknowledge records, each partition as a whole. ``errors`` are the results of ``check_places``."""
    group_id, member_id = session.key
    answers: dict[TopicIdPartition, ErrorCode] = {}
    commands: dict[TopicIdPartition, Acknowledge] = {}
    for place, batches in wanted:
        error = errors[place]
        if not error and not are_valid(batches, knows_renewal=knows_renewal, is_renewing=is_renewing):
            error = ErrorCode.INVALID_REQUEST
        if not error and is_renewing and not configs.may_renew and _renews(batches):
            error = ErrorCode.INVALID_RECORD_STATE
        answers[place] = error
        if not error and batches:
            key = ShareKey(*place, group_id)
            commands[place] = Acknowledge(key, member_id, runs_of(batches), configs.limits)
    return answers | await decided(broker, commands)


def runs_of(batches: Iterable[wire.AcknowledgementBatch]) -> tuple[AcknowledgedRun, ...]:
    """The acknowledgements of one partition, as the core's type."""
    return tuple(
        AcknowledgedRun(each.first_offset, each.last_offset, tuple(each.acknowledge_types))
        for each in batches
    )


async def decided(
    broker: Broker, commands: Mapping[TopicIdPartition, Command[ErrorCode]]
) -> dict[TopicIdPartition, ErrorCode]:
    """Submit a command for each partition, and return their errors."""
    if not commands:
        return {}
    try:
        errors = await broker.submit(list(commands.values()))
    except StoreRefused:
        errors = [_refused(broker, each) for each in commands]
    return dict(zip(commands, errors, strict=True))


def answered(
    answers: Mapping[TopicIdPartition, ErrorCode], hints: LeaderHints
) -> list[wire.ShareAcknowledgeTopicResponse]:
    """The errors of acknowledgements, with the leaders of partitions that have moved."""
    topics: dict[bytes, wire.ShareAcknowledgeTopicResponse] = {}
    for (topic_id, index), error in answers.items():
        answer = wire.ShareAcknowledgeAnswer(partition_index=index, error_code=error)
        if error in MOVED:
            answer.current_leader = hints.of(PartitionKey(topic_id, index))
        topics.setdefault(topic_id, wire.ShareAcknowledgeTopicResponse(topic_id=topic_id)).partitions.append(
            answer
        )
    return list(topics.values())


def _refused(broker: Broker, place: TopicIdPartition) -> ErrorCode:
    return leadership_error(broker, PartitionKey(*place)) or ErrorCode.KAFKA_STORAGE_ERROR


def are_valid(
    batches: Sequence[wire.AcknowledgementBatch], *, knows_renewal: bool, is_renewing: bool
) -> bool:
    """Whether the batches are in order, and each has one acknowledge type or one per record."""
    before = -1
    largest = AcknowledgeType.RENEW if knows_renewal else AcknowledgeType.REJECT
    for each in batches:
        types = each.acknowledge_types
        if each.first_offset > each.last_offset or each.first_offset <= before:
            return False
        if not types or (len(types) > 1 and len(types) != each.last_offset + 1 - each.first_offset):
            return False
        if min(types) < 0 or max(types) > largest:
            return False
        before = each.last_offset
    return is_renewing or not _renews(batches)


def _renews(batches: Sequence[wire.AcknowledgementBatch]) -> bool:
    return any(AcknowledgeType.RENEW in each.acknowledge_types for each in batches)


def end_session(broker: Broker, sessions: ShareSessions, key: SessionKey, epoch: int) -> None:
    """End the session if this was its last request (epoch -1)."""
    if epoch == END and (session := sessions.end(key)) is not None:
        release(broker, session)
