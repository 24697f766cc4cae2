"""OffsetCommit, OffsetFetch, OffsetDelete: the committed offsets (positions) of a group.

The handlers check that partitions exist before they submit commands: a position in a partition that is
deleted a moment later is harmless. ``semel.core.groups.offsets`` decides whether a client may commit.

A client sees its own answered commits: the answer follows the commit to the store, and every fetch reads the
ledger or what was applied since.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, TypeVar

from semel.broker.broker import Broker
from semel.core.groups.offsets import (
    CommitOffsets,
    Committer,
    DeleteOffsets,
    Fetched,
    FetchOffsets,
    OffsetsDeleted,
)
from semel.core.types import CommittedOffset, ErrorCode, OffsetKey, Topic
from semel.handlers.context import Handler, RequestContext
from semel.handlers.leadership import coordination_error, refused_by_store
from semel.handlers.rights import (
    DELETE,
    DESCRIBE,
    GROUP_DENIED,
    READ,
    TOPIC,
    TOPIC_DENIED,
    RequestRights,
    rights_of,
)
from semel.store.contract import StoreRefused
from semel.wire import messages as wire
from semel.wire.api_key import ApiKey

COMMITTED_AT_ONCE = 10_000
"""The most positions that one request may commit, because they are decided and written together. In Kafka
they must fit into one message of the offsets topic, which allows a similar number."""
READ_AT_ONCE = 5_000
"""Positions that one command reads: some milliseconds of the event loop's time."""
TOPIC_IDS = 10
"""The version from which OffsetCommit and OffsetFetch have topic ids instead of names (KIP-848)."""


async def offset_commit(
    broker: Broker, request: wire.OffsetCommitRequest, context: RequestContext
) -> wire.OffsetCommitResponse:
    """OffsetCommit v2–v10: move a group's positions.

    Behaviour: by a member of the current generation or epoch, or by any client while the group is empty. An
        older epoch is accepted for partitions that the member has owned since (KIP-1251).
        More than 10,000 partitions are INVALID_COMMIT_OFFSET_SIZE. A group of another coordinator is
        NOT_COORDINATOR.
    Versions:  v6 leader epoch · v7 static members · v8 flexible · v9 KIP-848 members, GROUP_ID_NOT_FOUND
        and STALE_MEMBER_EPOCH · v10 topic ids.
    Differs:   the retention time of v2–v4 is ignored: offsets.retention.minutes applies to all groups. An
        empty group id is INVALID_GROUP_ID.
    """
    rights = rights_of(broker, request, context)
    if not rights.group(READ, request.group_id):
        return wire.OffsetCommitResponse(topics=_not_committed(request.topics, GROUP_DENIED))
    response = wire.OffsetCommitResponse()
    steps = broker.slices.steps()
    answers: list[wire.OffsetCommitResponsePartition] = []
    offsets: list[tuple[OffsetKey, CommittedOffset]] = []
    denied: list[wire.OffsetCommitRequestTopic] = []
    for asked in request.topics:
        if not await _may_read(broker, rights, asked, context.version):
            denied.append(asked)
            continue
        topic, unknown = await _find(broker, asked, context.version)
        shown = wire.OffsetCommitResponseTopic(name=asked.name, topic_id=asked.topic_id)
        response.topics.append(shown)
        for partition in asked.partitions:
            await steps.step()
            answer = wire.OffsetCommitResponsePartition(partition_index=partition.partition_index)
            shown.partitions.append(answer)
            if topic is None or not 0 <= partition.partition_index < topic.partitions:
                answer.error_code = unknown if topic is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            answers.append(answer)
            value = CommittedOffset(
                partition.committed_offset,
                partition.committed_leader_epoch,
                partition.committed_metadata or "",
            )
            offsets.append((OffsetKey(request.group_id, topic.name, partition.partition_index), value))
    errors = await _commit(broker, request, tuple(offsets), context.version) if offsets else ()
    for answer, error in zip(answers, errors, strict=True):
        answer.error_code = error
    response.topics += _not_committed(denied, TOPIC_DENIED)
    return response


async def _may_read(
    broker: Broker, rights: RequestRights, asked: wire.OffsetCommitRequestTopic, version: int
) -> bool:
    """Whether the client may read the topic. A topic whose id is unknown has no name to ask for."""
    if rights.are_all:
        return True
    if version < TOPIC_IDS:
        return rights.topic(READ, asked.name)
    topic = await broker.catalog.topic_by_id(asked.topic_id)
    return topic is None or rights.topic(READ, topic.name)


def _not_committed(
    topics: Iterable[wire.OffsetCommitRequestTopic], error: ErrorCode
) -> list[wire.OffsetCommitResponseTopic]:
    return [
        wire.OffsetCommitResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[
                wire.OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error)
                for each in topic.partitions
            ],
        )
        for topic in topics
    ]


async def _commit(
    broker: Broker,
    request: wire.OffsetCommitRequest,
    offsets: tuple[tuple[OffsetKey, CommittedOffset], ...],
    version: int,
) -> Sequence[ErrorCode]:
    """Commit positions of partitions that exist; returns an error for each."""
    committer = Committer(request.generation_id_or_member_epoch, request.member_id, request.group_instance_id)
    command = CommitOffsets(
        request.group_id,
        committer,
        offsets,
        broker.settings.offset_metadata_max_bytes,
        knows_consumer_groups=version >= 9,
    )
    if error := coordination_error(broker, request.group_id):
        return [error] * len(offsets)
    if len(offsets) > COMMITTED_AT_ONCE:
        return [ErrorCode.INVALID_COMMIT_OFFSET_SIZE] * len(offsets)
    if not await broker.has_room_for_group(request.group_id):
        return [ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(offsets)
    try:
        errors: Sequence[ErrorCode] = await broker.ask(command)
    except StoreRefused:
        return [refused_by_store(broker, request.group_id)] * len(offsets)
    return errors


async def _find(
    broker: Broker, asked: wire.OffsetCommitRequestTopic, version: int
) -> tuple[Topic | None, ErrorCode]:
    """The topic, and the error if it does not exist."""
    if version >= TOPIC_IDS:
        return await broker.catalog.topic_by_id(asked.topic_id), ErrorCode.UNKNOWN_TOPIC_ID
    return await broker.catalog.topic(asked.name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class _AskedTopic(NamedTuple):
    """A topic in a fetch, given by name or by id; without a name if its id is unknown."""

    name: str | None
    topic_id: bytes
    partitions: list[int]


class _Position(NamedTuple):
    partition: int
    value: CommittedOffset | None
    error: ErrorCode


_Positions = list[tuple[_AskedTopic, list[_Position]]]

P = TypeVar("P", wire.OffsetFetchResponsePartition, wire.OffsetFetchResponsePartitions)


async def offset_fetch(
    broker: Broker, request: wire.OffsetFetchRequest, context: RequestContext
) -> wire.OffsetFetchResponse:
    """OffsetFetch v1–v10: read a group's positions.

    Behaviour: -1 without an error if nothing is committed or the group does not exist. No list of topics
        means all positions of the group. With RequireStable a position that an open transaction
        may still change is UNSTABLE_OFFSET_COMMIT, which clients retry. A repeated group is answered once. A
        group of another coordinator is NOT_COORDINATOR.
    Versions:  v2 all topics, error of the group · v5 leader epoch · v6 flexible · v7 RequireStable · v8
        several groups · v9 member id and epoch · v10 topic ids.
    """
    rights = rights_of(broker, request, context)
    steps = broker.slices.steps()
    if context.version < 8:
        command = FetchOffsets(request.group_id, require_stable=request.require_stable)
        error, positions = await _fetch(broker, rights, command, request.topics, context.version)
        response = wire.OffsetFetchResponse(error_code=error)
        for asked, found in positions:
            shown = wire.OffsetFetchResponseTopic(name=asked.name or "")
            response.topics.append(shown)
            for each in found:
                await steps.step()
                shown.partitions.append(_partition(each, wire.OffsetFetchResponsePartition))
        return response
    response = wire.OffsetFetchResponse()
    for group in {each.group_id: each for each in request.groups}.values():
        command = FetchOffsets(
            group.group_id, group.member_id, group.member_epoch, require_stable=request.require_stable
        )
        error, positions = await _fetch(broker, rights, command, group.topics, context.version)
        answer = wire.OffsetFetchResponseGroup(group_id=group.group_id, error_code=error)
        response.groups.append(answer)
        for asked, found in positions:
            of_topic = wire.OffsetFetchResponseTopics(name=asked.name or "", topic_id=asked.topic_id)
            answer.topics.append(of_topic)
            for each in found:
                await steps.step()
                of_topic.partitions.append(_partition(each, wire.OffsetFetchResponsePartitions))
    return response


async def _asked(
    broker: Broker, wanted: wire.OffsetFetchRequestTopic | wire.OffsetFetchRequestTopics, version: int
) -> _AskedTopic:
    if version < TOPIC_IDS or isinstance(wanted, wire.OffsetFetchRequestTopic):
        return _AskedTopic(wanted.name, bytes(16), wanted.partition_indexes)
    topic = await broker.catalog.topic_by_id(wanted.topic_id)
    return _AskedTopic(topic.name if topic else None, wanted.topic_id, wanted.partition_indexes)


async def _fetch(
    broker: Broker,
    rights: RequestRights,
    command: FetchOffsets,
    topics: Sequence[wire.OffsetFetchRequestTopic] | Sequence[wire.OffsetFetchRequestTopics] | None,
    version: int,
) -> tuple[ErrorCode, _Positions]:
    """The group's error, and the positions; last those of topics that may not be described."""
    # Version 1 has no field for the group's error, so each partition carries it.
    is_first = version < 2
    if not rights.group(DESCRIBE, command.group_id):
        asked = [await _asked(broker, each, version) for each in topics or () if is_first]
        return GROUP_DENIED, _refused(asked, GROUP_DENIED)
    asked = [await _asked(broker, each, version) for each in topics or ()]
    # A topic whose id is unknown has no name to ask for.
    allowed, denied = rights.split(asked, lambda each: each.name is None or rights.topic(DESCRIBE, each.name))
    keys = tuple(
        OffsetKey(command.group_id, each.name, partition)
        for each in allowed
        if each.name is not None
        for partition in each.partitions
    )
    fetched = await _fetch_all(broker, command, keys)
    if fetched.error is not ErrorCode.NONE:
        return fetched.error, _refused(allowed, fetched.error) if is_first else []
    if topics is None:
        everything = await _everything(broker, command.group_id, fetched.unstable, version)
        return ErrorCode.NONE, [
            each for each in everything if rights.has(DESCRIBE, TOPIC, each[0].name or "")
        ]
    values = iter(zip(keys, fetched.offsets, strict=True))
    positions: _Positions = []
    steps = broker.slices.steps()
    for topic in allowed:
        found: list[_Position] = []
        for index in topic.partitions:
            await steps.step()
            if topic.name is None:
                found.append(_Position(index, None, ErrorCode.UNKNOWN_TOPIC_ID))
            else:
                found.append(_position(*next(values), fetched.unstable))
        positions.append((topic, found))
    return ErrorCode.NONE, positions + _refused(denied, TOPIC_DENIED)


def _refused(topics: Iterable[_AskedTopic], error: ErrorCode) -> _Positions:
    return [(topic, [_Position(index, None, error) for index in topic.partitions]) for topic in topics]


async def _fetch_all(broker: Broker, command: FetchOffsets, keys: tuple[OffsetKey, ...]) -> Fetched:
    """The positions of all keys. Large requests are read in parts, each part as of one tick."""
    whole = Fetched(coordination_error(broker, command.group_id))
    if whole.error:
        return whole
    try:
        for first in range(0, max(1, len(keys)), READ_AT_ONCE):
            if first:
                await broker.slices.turn()
            part: Fetched = await broker.ask(command.but(offsets=keys[first : first + READ_AT_ONCE]))
            if part.error is not ErrorCode.NONE:
                return part
            whole = whole.but(offsets=whole.offsets + part.offsets, unstable=whole.unstable | part.unstable)
    except StoreRefused:
        return Fetched(refused_by_store(broker, command.group_id))
    return whole


def _position(key: OffsetKey, value: CommittedOffset | None, unstable: Collection[OffsetKey]) -> _Position:
    if key in unstable:
        return _Position(key.partition, None, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    return _Position(key.partition, value, ErrorCode.NONE)


async def _everything(
    broker: Broker, group_id: str, unstable: Collection[OffsetKey], version: int
) -> _Positions:
    by_name: dict[str, list[_Position]] = {}
    for key, value in await broker.listings.group_offsets(group_id):
        by_name.setdefault(key.topic, []).append(_position(key, value, unstable))
    positions: _Positions = []
    for name, found in by_name.items():
        topic_id = bytes(16)
        if version >= TOPIC_IDS:
            topic = await broker.catalog.topic(name)
            if topic is None:
                continue  # Without an id the client could not identify the topic.
            topic_id = topic.topic_id
        positions.append((_AskedTopic(name, topic_id, []), found))
    return positions


def _partition(position: _Position, shown_as: type[P]) -> P:
    value = position.value or CommittedOffset(-1)
    return shown_as(
        partition_index=position.partition,
        committed_offset=value.offset,
        committed_leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        error_code=position.error,
    )


async def offset_delete(
    broker: Broker, request: wire.OffsetDeleteRequest, context: RequestContext
) -> wire.OffsetDeleteResponse:
    """OffsetDelete v0: delete a group's positions.

    Behaviour: GROUP_SUBSCRIBED_TO_TOPIC for topics that a member subscribes to; NON_EMPTY_GROUP for a group
        whose members are not consumers; NOT_COORDINATOR for a group of another coordinator. A missing
        position is not an error.
    Versions:  v0.
    """
    rights = rights_of(broker, request, context)
    if not rights.group(DELETE, request.group_id):
        return wire.OffsetDeleteResponse(error_code=GROUP_DENIED)
    topics, refused = rights.split(request.topics, lambda each: rights.topic(READ, each.name))
    if error := coordination_error(broker, request.group_id):
        return wire.OffsetDeleteResponse(error_code=error)
    response = wire.OffsetDeleteResponse()
    keys: list[OffsetKey] = []
    answers: list[wire.OffsetDeleteResponsePartition] = []
    for asked in topics:
        topic = await broker.catalog.topic(asked.name)
        shown = wire.OffsetDeleteResponseTopic(name=asked.name)
        response.topics.append(shown)
        for each in asked.partitions:
            answer = wire.OffsetDeleteResponsePartition(partition_index=each.partition_index)
            shown.partitions.append(answer)
            if topic is None or not 0 <= each.partition_index < topic.partitions:
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            keys.append(OffsetKey(request.group_id, asked.name, each.partition_index))
            answers.append(answer)
    try:
        deleted: OffsetsDeleted = await broker.ask(DeleteOffsets(request.group_id, tuple(keys)))
    except StoreRefused:
        deleted = OffsetsDeleted(refused_by_store(broker, request.group_id))
    if deleted.error is not ErrorCode.NONE:
        return wire.OffsetDeleteResponse(error_code=deleted.error)
    for answer, error in zip(answers, deleted.partitions, strict=True):
        answer.error_code = error
    response.topics += map(_not_deleted, refused)
    return response


def _not_deleted(topic: wire.OffsetDeleteRequestTopic) -> wire.OffsetDeleteResponseTopic:
    return wire.OffsetDeleteResponseTopic(
        name=topic.name,
        partitions=[
            wire.OffsetDeleteResponsePartition(partition_index=each.partition_index, error_code=TOPIC_DENIED)
            for each in topic.partitions
        ],
    )


HANDLERS: dict[int, Handler] = {
    ApiKey.OFFSET_COMMIT: offset_commit,
    ApiKey.OFFSET_FETCH: offset_fetch,
    ApiKey.OFFSET_DELETE: offset_delete,
}
