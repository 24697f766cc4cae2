"""Keeps sessions, checks partitions and submits acknowledgements for the APIs of acquired records."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from semel.broker.broker import Broker
from semel.core.groups.configs import ShareConfigs
from semel.core.shares.commands import Acknowledge, AcknowledgedRun, AcknowledgeType, ReleaseMember
from semel.core.types import Command, ErrorCode, PartitionKey, ShareKey
from semel.handlers.leadership import MOVED, LeaderHints, leadership_error
from semel.handlers.rights import READ, TOPIC_DENIED, RequestRights
from semel.handlers.share_sessions import END, Place, SessionKey, ShareSession, ShareSessions
from semel.store.contract import StoreRefused
from semel.wire.messages.shares import (
    AcknowledgementBatch,
    ShareAcknowledgeAnswer,
    ShareAcknowledgeTopic,
    ShareAcknowledgeTopicResponse,
    ShareFetchTopic,
)

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
    topics: Iterable[ShareAcknowledgeTopic | ShareFetchTopic],
) -> dict[Place, list[AcknowledgementBatch]]:
    """The acknowledgements in a request, by partition."""
    return {
        (topic.topic_id, each.partition_index): each.acknowledgement_batches
        for topic in topics
        for each in topic.partitions
    }


async def check_places(
    broker: Broker, places: Iterable[Place], rights: RequestRights
) -> dict[Place, ErrorCode]:
    """The error of each partition; NONE if this broker leads it and the client may read it now."""
    errors: dict[Place, ErrorCode] = {}
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

    place: Place
    batches: Sequence[AcknowledgementBatch]


async def acknowledge(
    broker: Broker,
    session: ShareSession,
    wanted: Sequence[Acknowledgements],
    errors: dict[Place, ErrorCode],
    configs: ShareConfigs,
    *,
    knows_renewal: bool,
    is_renewing: bool,
) -> dict[Place, ErrorCode]:
    """Acknowledge records, each partition as a whole. ``errors`` are the results of ``check_places``."""
    group_id, member_id = session.key
    answers: dict[Place, ErrorCode] = {}
    commands: dict[Place, Acknowledge] = {}
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


def runs_of(batches: Iterable[AcknowledgementBatch]) -> tuple[AcknowledgedRun, ...]:
    """The acknowledgements of one partition, as the core's type."""
    return tuple(
        AcknowledgedRun(each.first_offset, each.last_offset, tuple(each.acknowledge_types))
        for each in batches
    )


async def decided(broker: Broker, commands: Mapping[Place, Command[ErrorCode]]) -> dict[Place, ErrorCode]:
    """Submit a command for each partition, and return their errors."""
    if not commands:
        return {}
    try:
        errors = await broker.submit(list(commands.values()))
    except StoreRefused:
        errors = [_refused(broker, each) for each in commands]
    return dict(zip(commands, errors, strict=True))


def answered(answers: Mapping[Place, ErrorCode], hints: LeaderHints) -> list[ShareAcknowledgeTopicResponse]:
    """The errors of acknowledgements, with the leaders of partitions that have moved."""
    topics: dict[bytes, ShareAcknowledgeTopicResponse] = {}
    for (topic_id, index), error in answers.items():
        answer = ShareAcknowledgeAnswer(partition_index=index, error_code=error)
        if error in MOVED:
            answer.current_leader = hints.of(PartitionKey(topic_id, index))
        topics.setdefault(topic_id, ShareAcknowledgeTopicResponse(topic_id=topic_id)).partitions.append(
            answer
        )
    return list(topics.values())


def _refused(broker: Broker, place: Place) -> ErrorCode:
    return leadership_error(broker, PartitionKey(*place)) or ErrorCode.KAFKA_STORAGE_ERROR


def are_valid(batches: Sequence[AcknowledgementBatch], *, knows_renewal: bool, is_renewing: bool) -> bool:
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


def _renews(batches: Sequence[AcknowledgementBatch]) -> bool:
    return any(AcknowledgeType.RENEW in each.acknowledge_types for each in batches)


def end_session(broker: Broker, sessions: ShareSessions, key: SessionKey, epoch: int) -> None:
    """End the session if this was its last request (epoch -1)."""
    if epoch == END and (session := sessions.end(key)) is not None:
        release(broker, session)
