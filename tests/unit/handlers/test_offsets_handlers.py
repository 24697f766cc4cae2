"""Offset requests through the handlers and a broker in memory, encoded and decoded in every version."""

from typing import Any

import pytest
from support.brokers.in_memory import broker_in_memory, make_topic, send

from semel.broker.broker import Broker
from semel.core.topics import DeleteTopic
from semel.core.types import ErrorCode, Topic
from semel.store.contract import StoreFull
from semel.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)

COMMIT, FETCH, DELETE = 8, 9, 47
UNKNOWN_ID = b"?" * 16


def commit_request(*topics: tuple[Topic, list[int]], offset: int = 7, **fields: Any) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        **{"group_id": "g", **fields},
        topics=[
            OffsetCommitRequestTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=index,
                        committed_offset=offset + index,
                        committed_leader_epoch=4,
                        committed_metadata="note" if index else None,
                    )
                    for index in partitions
                ],
            )
            for topic, partitions in topics
        ],
    )


def errors(response: Any) -> list[int]:
    return [part.error_code for topic in response.topics for part in topic.partitions]


async def fetch(
    broker: Broker, version: int, topic: Topic | None, partitions: list[int], group_id: str = "g"
) -> Any:
    """The error and the topics of one group, whichever way the version puts them."""
    if version < 8:
        named = (
            None
            if topic is None
            else [OffsetFetchRequestTopic(name=topic.name, partition_indexes=partitions)]
        )
        response = await send(broker, FETCH, OffsetFetchRequest(group_id=group_id, topics=named), version)
        return response.error_code, response.topics
    asked = None
    if topic is not None:
        asked = [
            OffsetFetchRequestTopics(name=topic.name, topic_id=topic.topic_id, partition_indexes=partitions)
        ]
    group = OffsetFetchRequestGroup(group_id=group_id, topics=asked)
    (answer,) = (await send(broker, FETCH, OffsetFetchRequest(groups=[group]), version)).groups
    assert answer.group_id == group_id
    return answer.error_code, answer.topics


@pytest.mark.parametrize("version", range(2, 11))
async def test_commit_in_every_version(version: int) -> None:
    async with broker_in_memory(offset_metadata_max_bytes=4) as broker:
        topic = await make_topic(broker, "t", 2)
        gone = topic.but(name="gone", topic_id=UNKNOWN_ID)
        response = await send(broker, COMMIT, commit_request((topic, [0, 1, 2]), (gone, [0])), version)
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        expected = [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, unknown]
        assert errors(response) == expected
        _, (found,) = await fetch(broker, 9, topic, [0, 1])
        assert [part.committed_offset for part in found.partitions] == [7, 8]
        assert [part.metadata for part in found.partitions] == ["", "note"]
        assert found.partitions[0].committed_leader_epoch == (4 if version >= 6 else -1)


@pytest.mark.parametrize("version", range(2, 11))
async def test_a_commit_of_a_member_that_is_not_there(version: int) -> None:
    async with broker_in_memory() as broker:
        topic = await make_topic(broker, "t", 1)
        request = commit_request((topic, [0]), generation_id_or_member_epoch=3, member_id="a")
        unknown = ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION
        assert errors(await send(broker, COMMIT, request, version)) == [unknown]
        await send(broker, COMMIT, commit_request((topic, [0])), version)
        assert errors(await send(broker, COMMIT, request, version)) == [ErrorCode.UNKNOWN_MEMBER_ID]


async def test_a_note_that_is_too_long() -> None:
    async with broker_in_memory(offset_metadata_max_bytes=3) as broker:
        topic = await make_topic(broker, "t", 2)
        response = await send(broker, COMMIT, commit_request((topic, [0, 1])))
        assert errors(response) == [ErrorCode.NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE]


@pytest.mark.parametrize("version", range(1, 11))
async def test_fetch_in_every_version(version: int) -> None:
    async with broker_in_memory() as broker:
        topic = await make_topic(broker, "t", 3)
        await send(broker, COMMIT, commit_request((topic, [0, 2])))
        error, (found,) = await fetch(broker, version, topic, [0, 1, 2])
        assert error == ErrorCode.NONE
        assert found.name == ("" if version >= 10 else "t")
        assert [part.committed_offset for part in found.partitions] == [7, -1, 9]
        assert [part.error_code for part in found.partitions] == [ErrorCode.NONE] * 3
        assert [part.committed_leader_epoch for part in found.partitions] == (
            [4, -1, 4] if version >= 5 else [-1] * 3
        )


@pytest.mark.parametrize("version", range(2, 11))
async def test_fetch_of_everything(version: int) -> None:
    async with broker_in_memory() as broker:
        topic = await make_topic(broker, "t", 3)
        await send(broker, COMMIT, commit_request((topic, [0, 2])))
        error, (found,) = await fetch(broker, version, None, [])
        assert error == ErrorCode.NONE
        assert found.topic_id == topic.topic_id if version >= 10 else found.name == "t"
        assert {part.partition_index: part.committed_offset for part in found.partitions} == {0: 7, 2: 9}
        assert await fetch(broker, version, None, [], group_id="none") == (ErrorCode.NONE, [])


@pytest.mark.parametrize("version", range(1, 11))
async def test_an_unknown_group_has_committed_nothing(version: int) -> None:
    async with broker_in_memory() as broker:
        topic = await make_topic(broker, "t", 1)
        error, (found,) = await fetch(broker, version, topic, [0], group_id="none")
        (part,) = found.partitions
        assert (error, part.committed_offset, part.error_code) == (ErrorCode.NONE, -1, ErrorCode.NONE)


async def test_fetch_by_an_unknown_topic_id() -> None:
    async with broker_in_memory() as broker:
        topic = await make_topic(broker, "t", 1)
        _, (found,) = await fetch(broker, 10, topic.but(topic_id=UNKNOWN_ID), [0])
        assert found.topic_id == UNKNOWN_ID
        assert found.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_several_groups_at_once() -> None:
    async with broker_in_memory() as broker:
        topic = await make_topic(broker, "t", 1)
        await send(broker, COMMIT, commit_request((topic, [0]), group_id="g"))
        await send(broker, COMMIT, commit_request((topic, [0]), group_id="h", offset=20))
        topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
        groups = [OffsetFetchRequestGroup(group_id=each, topics=topics) for each in "hg"]
        response = await send(broker, FETCH, OffsetFetchRequest(groups=groups), 8)
        assert [each.topics[0].partitions[0].committed_offset for each in response.groups] == [20, 7]


async def test_delete_offsets() -> None:
    async with broker_in_memory() as broker:
        topic = await make_topic(broker, "t", 2)
        request = OffsetDeleteRequest(
            group_id="g",
            topics=[
                OffsetDeleteRequestTopic(
                    name=name, partitions=[OffsetDeleteRequestPartition(partition_index=0)]
                )
                for name in ("t", "gone")
            ],
        )
        refused = await send(broker, DELETE, request)
        assert (refused.error_code, refused.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])
        await send(broker, COMMIT, commit_request((topic, [0, 1])))
        deleted = await send(broker, DELETE, request)
        assert deleted.error_code == ErrorCode.NONE
        assert errors(deleted) == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        _, (found,) = await fetch(broker, 9, topic, [0, 1])
        assert [part.committed_offset for part in found.partitions] == [-1, 8]


async def test_offsets_go_with_their_topic() -> None:
    async with broker_in_memory() as broker:
        topic = await make_topic(broker, "t", 1)
        await send(broker, COMMIT, commit_request((topic, [0])))
        await broker.ask(DeleteTopic("t"))
        assert await fetch(broker, 9, None, []) == (ErrorCode.NONE, [])


async def test_a_full_disk_makes_clients_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_in_memory() as broker:
        topic = await make_topic(broker, "t", 1)

        async def refuse(*_: Any, **__: Any) -> int:
            raise StoreFull

        monkeypatch.setattr(broker.store, "commit", refuse)
        response = await send(broker, COMMIT, commit_request((topic, [0])))
        assert errors(response) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
