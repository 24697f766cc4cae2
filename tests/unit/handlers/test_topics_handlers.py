"""Topics and their records through the handlers: create, delete, grow, DeleteRecords, log directories."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.brokers.in_memory import broker_in_memory, context, make_topic

from semel.broker.broker import Broker, _directory
from semel.config import Settings
from semel.core.log.partition import Append
from semel.core.types import ErrorCode, PartitionKey, Topic
from semel.handlers.logs import delete_records, describe_log_dirs
from semel.handlers.placement import list_partition_reassignments
from semel.handlers.topics import create_partitions, create_topics, delete_topics
from semel.store.contract import StoreFull
from semel.store.opening import Remote
from semel.wire.messages.placement import ListPartitionReassignmentsRequest
from semel.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from semel.wire.records import Record, encode_batch, read_header

NO_ID = bytes(16)


def wanted(name: str, partitions: int = 1, replication: int = 1, **more: Any) -> CreatableTopic:
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=replication, **more)


async def create(
    broker: Broker, *topics: CreatableTopic, version: int = 7, validate_only: bool = False
) -> list[CreatableTopicResult]:
    request = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
    response = await create_topics(broker, request, context(version))
    return CreateTopicsResponse.decode(response.encode(version), version).topics


def assignment(*partitions: tuple[int, list[int]]) -> list[CreatableReplicaAssignment]:
    return [
        CreatableReplicaAssignment(partition_index=index, broker_ids=nodes) for index, nodes in partitions
    ]


@pytest.mark.parametrize("version", range(2, 8))
async def test_create_topics_in_every_version(version: int) -> None:
    async with broker_in_memory() as broker:
        config = CreatableTopicConfig(name="retention.ms", value="5")
        created, refused = await create(
            broker, wanted("a", 3, 2, configs=[config]), wanted("no/good"), version=version
        )
        assert (created.name, created.error_code) == ("a", ErrorCode.NONE)
        assert (refused.name, refused.error_code) == ("no/good", ErrorCode.INVALID_TOPIC_EXCEPTION)
        assert refused.error_message
        topic = await broker.catalog.topic("a")
        assert topic is not None
        assert (topic.partitions, dict(topic.configs)) == (3, {"retention.ms": "5"})
        if version >= 5:
            assert (created.num_partitions, created.replication_factor) == (3, 1)
            shown = {each.name: (each.value, each.config_source) for each in created.configs or []}
            assert shown["retention.ms"] == ("5", 1)
            assert shown["cleanup.policy"] == ("delete", 5)
            assert (refused.num_partitions, refused.replication_factor) == (-1, -1)
        if version >= 7:
            assert created.topic_id == topic.topic_id != NO_ID
            assert refused.topic_id == NO_ID
            assert await broker.catalog.topic_by_id(created.topic_id) == topic


async def test_a_retry_of_create_topics_is_topic_already_exists() -> None:
    async with broker_in_memory() as broker:
        await create(broker, wanted("a", 3))
        [again] = await create(broker, wanted("a", 3))
        assert again.error_code == ErrorCode.TOPIC_ALREADY_EXISTS


async def test_create_topics_to_validate_only_makes_nothing() -> None:
    async with broker_in_memory() as broker:
        good, bad = await create(broker, wanted("a"), wanted("b", 0), validate_only=True)
        assert (good.error_code, good.num_partitions) == (ErrorCode.NONE, 1)
        assert bad.error_code == ErrorCode.INVALID_PARTITIONS
        assert await broker.catalog.all() == []


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (wanted("a", 0), ErrorCode.INVALID_PARTITIONS),
        (wanted("a", -2), ErrorCode.INVALID_PARTITIONS),
        (wanted("a", 11), ErrorCode.INVALID_PARTITIONS),
        (wanted("a", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (wanted("a", 1, -2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (wanted("a", configs=[CreatableTopicConfig(name="x", value="1")]), ErrorCode.INVALID_CONFIG),
        (wanted("a", configs=[CreatableTopicConfig(name="flush.ms", value=None)]), ErrorCode.INVALID_CONFIG),
        (
            wanted("a", configs=[CreatableTopicConfig(name="flush.ms", value=value) for value in "12"]),
            ErrorCode.INVALID_CONFIG,
        ),
        (wanted("a", 1, 1, assignments=assignment((0, [0]))), ErrorCode.INVALID_REQUEST),
        (wanted("a", -1, 1, assignments=assignment((0, [0]))), ErrorCode.INVALID_REQUEST),
        (wanted("a", -1, -1, assignments=assignment((1, [0]))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (
            wanted("a", -1, -1, assignments=assignment((0, [0]), (0, [0]))),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
        (wanted("a", -1, -1, assignments=assignment((0, []))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (wanted("a", -1, -1, assignments=assignment((0, [5]))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (wanted("a", -1, -1, assignments=assignment((0, [0, 0]))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
async def test_create_topics_refuses(topic: CreatableTopic, error: ErrorCode) -> None:
    async with broker_in_memory(semel_partitions_per_topic_max=10) as broker:
        good, bad = await create(broker, wanted("good"), topic)
        assert good.error_code == ErrorCode.NONE
        assert bad.error_code == error
        assert bad.error_message
        assert [each.name for each in await broker.catalog.all()] == ["good"]


async def test_create_topics_with_defaults_and_with_assignments() -> None:
    async with broker_in_memory(num_partitions=6) as broker:
        plain, manual, wide = await create(
            broker,
            wanted("plain", -1, -1),
            wanted("manual", -1, -1, assignments=assignment((1, [0]), (0, [0]))),
            wanted("wide", 1, 32_767),
        )
        assert (plain.error_code, plain.num_partitions) == (ErrorCode.NONE, 6)
        assert (manual.error_code, manual.num_partitions) == (ErrorCode.NONE, 2)
        assert (wide.error_code, wide.replication_factor) == (ErrorCode.NONE, 1)


async def test_create_topics_refuses_the_same_name_twice_and_too_much_at_once() -> None:
    async with broker_in_memory(semel_partitions_per_topic_max=10) as broker:
        twice, once = await create(broker, wanted("a"), wanted("a", 2), wanted("b"))
        assert (twice.name, twice.error_code) == ("a", ErrorCode.INVALID_REQUEST)
        assert (once.name, once.error_code) == ("b", ErrorCode.NONE)
        much = await create(broker, wanted("c", 6), wanted("d", 6))
        assert {each.error_code for each in much} == {ErrorCode.POLICY_VIOLATION}


async def test_a_full_disk_is_a_retriable_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_in_memory() as broker:

        async def full(*_: object, **__: object) -> None:
            raise StoreFull

        monkeypatch.setattr(broker.store, "commit", full)
        [refused] = await create(broker, wanted("a"))
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert ErrorCode(refused.error_code).retriable
        monkeypatch.undo()
        [created] = await create(broker, wanted("a"))
        assert created.error_code == ErrorCode.NONE


async def delete(broker: Broker, request: DeleteTopicsRequest, version: int) -> list[tuple[str | None, int]]:
    response = await delete_topics(broker, request, context(version))
    decoded = DeleteTopicsResponse.decode(response.encode(version), version)
    return [(each.name, each.error_code) for each in decoded.responses]


@pytest.mark.parametrize("version", range(1, 6))
async def test_delete_topics_by_name(version: int) -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a")
        await make_topic(broker, "b")
        request = DeleteTopicsRequest(topic_names=["a", "missing", "b", "b"])
        assert await delete(broker, request, version) == [
            ("a", ErrorCode.NONE),
            ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("b", ErrorCode.INVALID_REQUEST),
        ]
        assert [each.name for each in await broker.catalog.all()] == ["b"]
        assert await broker.catalog.topic("a") is None


async def test_kip_516_delete_topics_by_id() -> None:
    async with broker_in_memory() as broker:
        a, _ = await make_topic(broker, "a"), await make_topic(broker, "b")
        unknown = b"?" * 16
        request = DeleteTopicsRequest(
            topics=[
                DeleteTopicState(topic_id=a.topic_id),
                DeleteTopicState(name="b"),
                DeleteTopicState(topic_id=unknown),
                DeleteTopicState(),
                DeleteTopicState(name="both", topic_id=unknown),
            ]
        )
        assert await delete(broker, request, 6) == [
            ("a", ErrorCode.NONE),
            ("b", ErrorCode.NONE),
            (None, ErrorCode.UNKNOWN_TOPIC_ID),
            (None, ErrorCode.INVALID_REQUEST),
            ("both", ErrorCode.INVALID_REQUEST),
        ]
        assert await broker.catalog.all() == []


@pytest.mark.parametrize(
    ("version", "error"),
    [(1, ErrorCode.INVALID_REQUEST), (2, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED)],
)
async def test_delete_topics_can_be_switched_off(version: int, error: ErrorCode) -> None:
    async with broker_in_memory(delete_topic_enable=False) as broker:
        await make_topic(broker, "a")
        assert await delete(broker, DeleteTopicsRequest(topic_names=["a"]), version) == [("a", error)]
        assert await broker.catalog.topic("a") is not None


async def test_a_topic_made_anew_shares_nothing_with_the_old_one() -> None:
    async with broker_in_memory() as broker:
        [old] = await create(broker, wanted("a", 1))
        topic = await broker.catalog.topic("a")
        assert topic is not None
        await fill(broker, topic, batches=2)
        await delete(broker, DeleteTopicsRequest(topic_names=["a"]), 5)
        [new] = await create(broker, wanted("a", 1))
        assert new.topic_id != old.topic_id
        partition = await broker.reads.partition(PartitionKey(new.topic_id, 0))
        assert partition is not None
        assert partition.high_watermark == 0
        assert await broker.reads.partition(PartitionKey(old.topic_id, 0)) is None
        assert await broker.catalog.topic_by_id(old.topic_id) is None


async def grow(broker: Broker, *topics: CreatePartitionsTopic, validate_only: bool = False) -> list[int]:
    request = CreatePartitionsRequest(topics=list(topics), validate_only=validate_only)
    for version in range(4):
        assert type(request).decode(request.encode(version), version) == request
    response = await create_partitions(broker, request, context(3))
    assert response.encode(3)
    return [each.error_code for each in response.results]


def to(name: str, count: int, assignments: list[list[int]] | None = None) -> CreatePartitionsTopic:
    return CreatePartitionsTopic(
        name=name,
        count=count,
        assignments=None
        if assignments is None
        else [CreatePartitionsAssignment(broker_ids=nodes) for nodes in assignments],
    )


async def test_create_partitions() -> None:
    async with broker_in_memory(semel_partitions_per_topic_max=10) as broker:
        topic = await make_topic(broker, "a", 2)
        await fill(broker, topic, batches=1)
        assert await grow(broker, to("a", 4), validate_only=True) == [ErrorCode.NONE]
        assert await grow(broker, to("a", 2)) == [ErrorCode.INVALID_PARTITIONS]
        assert await grow(broker, to("a", 1)) == [ErrorCode.INVALID_PARTITIONS]
        assert await grow(broker, to("a", 11)) == [ErrorCode.INVALID_PARTITIONS]
        assert await grow(broker, to("missing", 4)) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await grow(broker, to("a", 4), to("a", 5)) == [ErrorCode.INVALID_REQUEST]
        assert await grow(broker, to("a", 4, [[0]])) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]
        assert await grow(broker, to("a", 4, [[0], [9]])) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]
        assert (await broker.catalog.topic("a")) == topic
        assert await grow(broker, to("a", 4, [[0], [0]])) == [ErrorCode.NONE]
        grown = await broker.catalog.topic("a")
        assert grown is not None
        assert grown.partitions == 4
        marks = [await broker.reads.partition(PartitionKey(topic.topic_id, index)) for index in range(5)]
        assert [None if each is None else each.high_watermark for each in marks] == [2, 0, 0, 0, None]


async def test_create_partitions_refuses_too_much_at_once() -> None:
    async with broker_in_memory(semel_partitions_per_topic_max=10) as broker:
        await make_topic(broker, "a", 1)
        await make_topic(broker, "b", 9)
        assert await grow(broker, to("a", 8), to("b", 10)) == [ErrorCode.NONE, ErrorCode.NONE]
        await make_topic(broker, "c", 1)
        await make_topic(broker, "d", 1)
        assert await grow(broker, to("c", 8), to("d", 8)) == [ErrorCode.POLICY_VIOLATION] * 2


def batch(records: int = 2) -> bytes:
    return encode_batch([Record(offset, 1_000, None, b"v" * 10) for offset in range(records)])


async def fill(broker: Broker, topic: Topic, *, batches: int, index: int = 0) -> int:
    """Append batches of two records; the bytes of one."""
    payload = batch()
    header = read_header(payload)
    key = PartitionKey(topic.topic_id, index)
    for _ in range(batches):
        answer = await broker.ask(Append(key, header, payload))
        assert answer.error == ErrorCode.NONE
    return len(payload)


async def trim(
    broker: Broker, name: str, *partitions: tuple[int, int], version: int = 2
) -> list[tuple[int, int]]:
    request = DeleteRecordsRequest(
        topics=[
            DeleteRecordsTopic(
                name=name,
                partitions=[
                    DeleteRecordsPartition(partition_index=index, offset=offset)
                    for index, offset in partitions
                ],
            )
        ]
    )
    response = await delete_records(broker, request, context(version))
    [topic] = DeleteRecordsResponse.decode(response.encode(version), version).topics
    assert [each.partition_index for each in topic.partitions] == [index for index, _ in partitions]
    return [(each.error_code, each.low_watermark) for each in topic.partitions]


@pytest.mark.parametrize("version", range(3))
async def test_delete_records(version: int) -> None:
    async with broker_in_memory() as broker:
        topic = await make_topic(broker, "a", 3)
        for index in (0, 1):
            await fill(broker, topic, batches=3, index=index)
        answers = await trim(broker, "a", (0, 4), (1, -1), (2, 0), (3, 0), version=version)
        assert answers == [
            (ErrorCode.NONE, 4),
            (ErrorCode.NONE, 6),
            (ErrorCode.NONE, 0),
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
        ]
        partition = await broker.reads.partition(PartitionKey(topic.topic_id, 0))
        assert partition is not None
        assert (partition.log_start_offset, partition.high_watermark) == (4, 6)
        # Backwards is no error and changes nothing; beyond the high watermark is out of range.
        assert await trim(broker, "a", (0, 1), version=version) == [(ErrorCode.NONE, 4)]
        assert await trim(broker, "a", (0, 7), version=version) == [(ErrorCode.OFFSET_OUT_OF_RANGE, -1)]
        assert await trim(broker, "a", (0, -2), version=version) == [(ErrorCode.OFFSET_OUT_OF_RANGE, -1)]


async def test_delete_records_of_what_is_not_there_or_only_compacted() -> None:
    async with broker_in_memory() as broker:
        assert await trim(broker, "missing", (0, 0)) == [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)]
        await make_topic(broker, "compacted", cleanup_policy="compact")
        await make_topic(broker, "both", cleanup_policy="compact,delete")
        assert await trim(broker, "compacted", (0, 0)) == [(ErrorCode.POLICY_VIOLATION, -1)]
        assert await trim(broker, "both", (0, 0)) == [(ErrorCode.NONE, 0)]


@pytest.mark.parametrize("version", range(1, 6))
async def test_describe_log_dirs(version: int) -> None:
    async with broker_in_memory() as broker:
        topic = await make_topic(broker, "a", 2)
        await make_topic(broker, "b")
        size = await fill(broker, topic, batches=3)
        response = await describe_log_dirs(broker, DescribeLogDirsRequest(topics=None), context(version))
        [found] = DescribeLogDirsResponse.decode(response.encode(version), version).results
        assert (found.error_code, found.log_dir) == (ErrorCode.NONE, "memory")
        sizes = {
            each.name: [(part.partition_index, part.partition_size) for part in each.partitions]
            for each in found.topics
        }
        assert sizes == {"a": [(0, 3 * size), (1, 0)], "b": [(0, 0)]}
        assert (found.total_bytes, found.usable_bytes) == (-1, -1)
        some = DescribeLogDirsRequest(
            topics=[
                DescribableLogDirTopic(topic="a", partitions=[1, 1, 5, -1]),
                DescribableLogDirTopic(topic="missing", partitions=[0]),
            ]
        )
        [found] = (await describe_log_dirs(broker, some, context(version))).results
        assert [(each.name, len(each.partitions)) for each in found.topics] == [("a", 1)]


@pytest.mark.parametrize(
    ("chunks", "shown"),
    [
        ("file:///srv/semel%20data", "/srv/semel data"),
        ("s3://bucket/prefix", "s3://bucket/prefix"),
        ("s3://key:secret@bucket/prefix?token=secret", "s3://bucket/prefix"),
    ],
)
def test_the_place_of_a_cluster_is_shown_without_secrets(chunks: str, shown: str) -> None:
    assert _directory(Remote("postgresql://semel:secret@host/db", chunks)) == shown


async def test_describe_log_dirs_is_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    broker = await Broker.open(Settings(), Path("data"))
    try:
        [found] = (await describe_log_dirs(broker, DescribeLogDirsRequest(topics=None), context(4))).results
        assert found.log_dir == str(tmp_path / "data")
    finally:
        await broker.close()


async def test_describe_log_dirs_on_disk_tells_the_room_there_is(tmp_path: Path) -> None:
    broker = await Broker.open(Settings(), tmp_path)
    try:
        response = await describe_log_dirs(broker, DescribeLogDirsRequest(topics=None), context(4))
        [found] = response.results
        assert found.log_dir == str(tmp_path)
        assert found.total_bytes == shutil.disk_usage(tmp_path).total
        assert 0 < found.usable_bytes <= found.total_bytes
    finally:
        await broker.close()


async def test_no_partition_is_ever_on_the_move() -> None:
    async with broker_in_memory() as broker:
        request = ListPartitionReassignmentsRequest(topics=None)
        response = await list_partition_reassignments(broker, request, context(0))
        assert response.encode(0)
        assert (response.error_code, response.topics) == (ErrorCode.NONE, [])


async def test_large_changes_take_turns_and_small_ones_do_not_wait_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A large one is submitted when the ledger has what was committed before."""
    async with broker_in_memory() as broker:
        asked, load = [], broker.store.ledger.load

        async def loaded(keys: Any) -> Any:
            asked.append(tuple(keys))
            return await load(keys)

        monkeypatch.setattr(broker.store.ledger, "load", loaded)
        async with broker.large_changes:
            large = asyncio.create_task(create(broker, wanted("large", 501)))
            assert [each.error_code for each in await create(broker, wanted("small", 500))] == [0]
            assert not large.done()
            assert () not in asked
        assert [each.error_code for each in await large] == [0]
        assert () in asked
        await broker.large_changes.acquire()
        request = DeleteTopicsRequest(topic_names=["large"])
        deletion = asyncio.create_task(delete_topics(broker, request, context(5)))
        assert (await create(broker, wanted("another")))[0].error_code == 0
        assert not deletion.done()
        broker.large_changes.release()
        assert (await deletion).responses[0].error_code == 0


async def test_topics_survive_a_restart(tmp_path: Path) -> None:
    broker = await Broker.open(Settings(), tmp_path)
    config = CreatableTopicConfig(name="retention.ms", value="5")
    await create(broker, wanted("kept", 2, configs=[config]), wanted("gone"))
    assert await grow(broker, to("kept", 3)) == [ErrorCode.NONE]
    assert await delete(broker, DeleteTopicsRequest(topic_names=["gone"]), 5) == [("gone", ErrorCode.NONE)]
    before = await broker.catalog.topic("kept")
    await broker.close()

    broker = await Broker.open(Settings(), tmp_path)
    try:
        assert await broker.catalog.all() == [before]
        assert before is not None
        assert (before.partitions, dict(before.configs)) == (3, {"retention.ms": "5"})
        marks = [await broker.reads.partition(PartitionKey(before.topic_id, index)) for index in range(4)]
        assert [None if each is None else each.high_watermark for each in marks] == [0, 0, 0, None]
        [again] = await create(broker, wanted("kept"))
        assert again.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    finally:
        await broker.close()
