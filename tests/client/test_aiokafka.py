"""aiokafka against a real broker: the scenarios of `test_confluent.py` that it has.

It speaks old versions (ApiVersions v0, InitProducerId v0, OffsetCommit v3), so these tests are also the ones
for those. Its admin client has no incremental configs, no deletion of groups, and no way to alter offsets.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    KafkaError,
    MessageSizeTooLargeError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from aiokafka.structs import OffsetAndMetadata
from support.brokers.process import BrokerProcess
from support.clients.raw import RawClient
from support.clients.reading import check_came_back
from support.waiting import until_async

from semel.wire.compression import Codec

Fresh = Callable[[str], str]
WAIT_SECONDS = 30.0


@asynccontextmanager
async def administrator(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


async def create(bootstrap: str, name: str, partitions: int = 3, **configs: str) -> str:
    async with administrator(bootstrap) as admin:
        answer = await admin.create_topics([NewTopic(name, partitions, 1, topic_configs=configs)])
        assert [(each[0], each[1]) for each in answer.topic_errors] == [(name, 0)]
    return name


@asynccontextmanager
async def producing(bootstrap: str, **config: Any) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, **config)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def produce(
    bootstrap: str, topic: str, values: Iterable[bytes], partition: int = 0, **config: Any
) -> list[int]:
    async with producing(bootstrap, **config) as producer:
        sent = [await producer.send(topic, value, partition=partition) for value in values]
        answers = [await each for each in sent]
        return [-1 if each is None else each.offset for each in answers]


class Reader:
    """A consumer that notes what it got."""

    def __init__(self, bootstrap: str, group: str | None, **config: Any) -> None:
        self.records: list[ConsumerRecord] = []
        options = {"auto_offset_reset": "earliest", "session_timeout_ms": 30_000}
        options |= {
            "heartbeat_interval_ms": 200,
            "retry_backoff_ms": 50,
            "metadata_max_age_ms": 2_000,
            "rebalance_timeout_ms": 10_000,
        }
        self.consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=group, **{**options, **config})

    async def poll(self, timeout_ms: int = 50) -> list[ConsumerRecord]:
        for records in (await self.consumer.getmany(timeout_ms=timeout_ms)).values():
            self.records += records
        return self.records

    async def read(self, count: int) -> list[bytes]:
        async def enough() -> bool:
            return len(await self.poll()) >= count

        await until_async(enough, WAIT_SECONDS, f"reading {count} records")
        return self.values

    @property
    def values(self) -> list[bytes]:
        return [each.value for each in self.records]

    @property
    def partitions(self) -> set[int]:
        return {each.partition for each in self.consumer.assignment()}


@asynccontextmanager
async def reader(
    bootstrap: str, group: str | None, topic: str | None = None, **config: Any
) -> AsyncIterator[Reader]:
    each = Reader(bootstrap, group, **config)
    if topic is not None:
        each.consumer.subscribe([topic])
    await each.consumer.start()
    try:
        yield each
    finally:
        await each.consumer.stop()


async def shares(members: list[Reader], count: int) -> None:
    """Wait until every member has some partitions, and together they have each once."""

    async def shared() -> bool:
        for member in members:
            await member.poll(20)
        parts = [member.partitions for member in members]
        return all(parts) and sorted(each for part in parts for each in part) == list(range(count))

    await until_async(shared, WAIT_SECONDS, "sharing")


async def test_records_come_back_as_they_were_sent(bootstrap: str, fresh: Fresh) -> None:
    topic = await create(bootstrap, fresh("aiokafka"))
    sent = []
    async with producing(bootstrap) as producer:
        for number in range(30):
            headers = (("a", b"1"), ("a", b"2"), ("empty", b"")) if number % 2 else ()
            key, value, timestamp = b"key-%d" % number, b"value-%d" % number, 1_700_000_000_000 + number
            answer = await producer.send_and_wait(
                topic, value, key, number % 3, timestamp_ms=timestamp, headers=list(headers)
            )
            sent.append((answer.partition, answer.offset, key, value, timestamp, headers))
        await producer.send_and_wait(topic, None, b"tombstone", 0)
    assert [(each[0], each[1]) for each in sent] == [(number % 3, number // 3) for number in range(30)]
    async with reader(bootstrap, fresh("group"), topic) as each:
        await each.read(31)
        check_came_back(sent, each.records)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_behaviour_96_aiokafka_really_compresses(
    bootstrap: str, fresh: Fresh, raw: RawClient, codec: str
) -> None:
    topic = await create(bootstrap, fresh("aiokafka"))
    values = [b"the same again and again %d " % number * 20 for number in range(50)]
    await produce(bootstrap, topic, values, compression_type=codec, linger_ms=100)
    headers = raw.headers(topic)
    assert {header.codec for header in headers} == {Codec[codec.upper()]}
    assert sum(header.length for header in headers) < sum(map(len, values)) / 4
    async with reader(bootstrap, fresh("group"), topic) as each:
        assert await each.read(50) == values


@pytest.mark.parametrize("acks", [0, 1, "all"])
async def test_acks(bootstrap: str, fresh: Fresh, acks: int | str) -> None:
    topic = await create(bootstrap, fresh("aiokafka"))
    values = [b"%d" % number for number in range(20)]
    offsets = await produce(bootstrap, topic, values, acks=acks)
    assert offsets == ([-1] * 20 if acks == 0 else list(range(20)))
    async with reader(bootstrap, fresh("group"), topic) as each:
        assert await each.read(20) == values


async def test_an_idempotent_producer(bootstrap: str, fresh: Fresh, raw: RawClient) -> None:
    topic = await create(bootstrap, fresh("aiokafka"))
    values = [b"%d" % number for number in range(200)]
    offsets = await produce(bootstrap, topic, values, enable_idempotence=True, max_batch_size=100)
    assert offsets == list(range(200))
    headers = raw.headers(topic)
    assert len({header.producer_id for header in headers}) == 1
    assert headers[0].producer_id >= 0
    assert [header.base_sequence for header in headers] == [header.base_offset for header in headers]


async def test_two_members_share_and_take_over(bootstrap: str, fresh: Fresh) -> None:
    topic, group = await create(bootstrap, fresh("shared"), 4), fresh("group")
    async with reader(bootstrap, group, topic) as first:
        await shares([first], 4)
        async with reader(bootstrap, group, topic) as second:
            await shares([first, second], 4)
            for partition in range(4):
                await produce(bootstrap, topic, [b"shared-%d" % partition], partition)

            async def both() -> bool:
                return len(await first.poll()) + len(await second.poll()) >= 4

            await until_async(both, WAIT_SECONDS, "reading")
            assert len(first.records) == len(second.records) == 2
        await shares([first], 4)
        for partition in range(4):
            await produce(bootstrap, topic, [b"taken-%d" % partition], partition)
        await first.read(6)
        assert sorted(first.values)[2:] == [b"taken-%d" % partition for partition in range(4)]


async def test_committed_offsets_survive_the_consumer(bootstrap: str, fresh: Fresh) -> None:
    topic, group = await create(bootstrap, fresh("committed")), fresh("group")
    await produce(bootstrap, topic, [b"%d" % number for number in range(10)])
    part = TopicPartition(topic, 0)
    async with reader(bootstrap, group, topic, enable_auto_commit=False) as first:
        await first.read(10)
        await first.consumer.commit({part: OffsetAndMetadata(6, "a note")})
        assert await first.consumer.committed(part) == 6
        assert await first.consumer.committed(TopicPartition(topic, 1)) is None
    async with administrator(bootstrap) as admin:
        assert (await admin.list_consumer_group_offsets(group))[part] == OffsetAndMetadata(6, "a note")
    async with reader(bootstrap, group, topic, enable_auto_commit=False) as second:
        assert await second.read(4) == [b"6", b"7", b"8", b"9"]


async def test_seek_watermarks_and_offsets_by_time(bootstrap: str, fresh: Fresh) -> None:
    topic = await create(bootstrap, fresh("seek"))
    async with producing(bootstrap) as producer:
        for number in range(10):
            await producer.send_and_wait(
                topic, b"%d" % number, partition=0, timestamp_ms=1_000_000 + number * 100
            )
    part = TopicPartition(topic, 0)
    async with reader(bootstrap, None) as each:
        each.consumer.assign([part])
        assert await each.consumer.beginning_offsets([part]) == {part: 0}
        assert await each.consumer.end_offsets([part]) == {part: 10}
        for timestamp, offset in {1_000_000: 0, 1_000_001: 1, 1_000_450: 5, 1_000_900: 9, 1: 0}.items():
            found = (await each.consumer.offsets_for_times({part: timestamp}))[part]
            assert found.offset == offset, timestamp
            assert found.timestamp == 1_000_000 + offset * 100
        assert await each.consumer.offsets_for_times({part: 1_000_901}) == {part: None}
        each.consumer.seek(part, 7)
        assert await each.read(3) == [b"7", b"8", b"9"]
        await each.consumer.seek_to_beginning(part)
        each.records.clear()
        assert (await each.read(10))[0] == b"0"
        assert await each.consumer.position(part) == 10


async def test_auto_offset_reset(bootstrap: str, fresh: Fresh) -> None:
    topic = await create(bootstrap, fresh("reset"))
    part = TopicPartition(topic, 0)
    await produce(bootstrap, topic, [b"old"])
    async with reader(bootstrap, None, auto_offset_reset="latest") as latest:
        latest.consumer.assign([part])
        assert await latest.consumer.position(part) == 1
        await produce(bootstrap, topic, [b"new"])
        assert await latest.read(1) == [b"new"]
    async with reader(bootstrap, None, auto_offset_reset="none") as strict:
        strict.consumer.assign([part])
        with pytest.raises(NoOffsetForPartitionError):
            await strict.consumer.getone()
    async with reader(bootstrap, None, auto_offset_reset="none") as strict:
        strict.consumer.assign([part])
        strict.consumer.seek(part, 1_000)
        with pytest.raises(OffsetOutOfRangeError):
            await strict.consumer.getone()


async def test_admin_of_topics(bootstrap: str, fresh: Fresh) -> None:
    topic = await create(bootstrap, fresh("admin"))
    async with administrator(bootstrap) as admin:
        cluster = await admin.describe_cluster()
        assert [f"{each['host']}:{each['port']}" for each in cluster["brokers"]] == [bootstrap]
        assert cluster["cluster_id"]
        assert topic in await admin.list_topics()
        (described,) = await admin.describe_topics([topic])
        assert (described["error_code"], len(described["partitions"])) == (0, 3)
        await admin.create_partitions({topic: NewPartitions(5)})
        (described,) = await admin.describe_topics([topic])
        assert len(described["partitions"]) == 5
        with pytest.raises(KafkaError):
            await admin.create_partitions({topic: NewPartitions(2)})
        again = await admin.create_topics([NewTopic(topic, 1, 1)])
        assert [each[1] for each in again.topic_errors] == [36]
        await produce(bootstrap, topic, [b"%d" % number for number in range(10)])
        part = TopicPartition(topic, 0)
        assert await admin.delete_records({part: RecordsToDelete(4)}) == {part: 4}
        async with reader(bootstrap, None) as each:
            each.consumer.assign([part])
            assert await each.consumer.beginning_offsets([part]) == {part: 4}
            assert await each.read(6) == [b"%d" % number for number in range(4, 10)]
        deleted = await admin.delete_topics([topic])
        assert [each[1] for each in deleted.topic_error_codes] == [0]
        # With Semel it is gone when it is acknowledged. Kafka says so a moment later.
        tries = 50 if "SEMEL_PEER" in os.environ else 1
        while topic in await admin.list_topics():
            tries -= 1
            assert tries, "the topic is still there"
            await asyncio.sleep(0.1)


async def test_admin_of_configs(bootstrap: str, fresh: Fresh) -> None:
    topic = await create(bootstrap, fresh("configs"), 1, **{"max.message.bytes": "5000"})
    async with administrator(bootstrap) as admin:

        async def values() -> dict[str, str]:
            (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
            (resource,) = answer.resources
            assert resource[0] == 0
            return {entry[0]: entry[1] for entry in resource[4]}

        assert (await values())["max.message.bytes"] == "5000"
        wanted = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": "1000000"})
        (answer,) = await admin.alter_configs([wanted])
        assert [each[0] for each in answer.resources] == [0]
        # AlterConfigs replaces: what it does not name is back at its default.
        assert (await values())["retention.ms"] == "1000000"
        assert (await values())["max.message.bytes"] == "1048588"


async def test_admin_of_groups(bootstrap: str, fresh: Fresh) -> None:
    topic, group = await create(bootstrap, fresh("groups")), fresh("group")
    async with reader(bootstrap, group, topic) as each, administrator(bootstrap) as admin:
        await shares([each], 3)
        assert (group, "consumer") in [one[:2] for one in await admin.list_consumer_groups()]
        (answer,) = await admin.describe_consumer_groups([group])
        error, name, state, protocol_type, _, members = answer.groups[0][:6]
        assert (error, name, state, protocol_type) == (0, group, "Stable", "consumer")
        assert len(members) == 1


async def test_an_unknown_topic_is_an_error(bootstrap: str, fresh: Fresh) -> None:
    async with producing(bootstrap, request_timeout_ms=1_000) as producer:
        with pytest.raises((UnknownTopicOrPartitionError, KafkaError)):
            await producer.send_and_wait(fresh("missing"), b"lost")


async def test_topics_are_made_when_that_is_enabled(creating_bootstrap: str, fresh: Fresh) -> None:
    topic = fresh("made")
    assert await produce(creating_bootstrap, topic, [b"first"], 1) == [0]
    async with reader(creating_bootstrap, fresh("group"), topic) as each:
        assert await each.read(1) == [b"first"]


async def test_a_message_that_is_too_large(bootstrap: str, fresh: Fresh) -> None:
    topic = await create(bootstrap, fresh("small"), 1, **{"max.message.bytes": "2000"})
    async with producing(bootstrap, max_request_size=10_000_000) as producer:
        await producer.send_and_wait(topic, bytes(1_000))
        with pytest.raises(MessageSizeTooLargeError):
            await producer.send_and_wait(topic, bytes(3_000))
        await producer.send_and_wait(topic, bytes(1_000))


async def test_a_group_carries_on_when_the_broker_was_restarted(tmp_path: Path, fresh: Fresh) -> None:
    options = ["--set", "group.initial.rebalance.delay.ms=0", "--set", "group.min.session.timeout.ms=500"]
    with BrokerProcess(tmp_path / "data", *options) as broker:
        async with AsyncExitStack() as stack:
            bootstrap = broker.bootstrap
            topic, group = await create(bootstrap, fresh("restarted"), 4), fresh("group")
            members = [
                await stack.enter_async_context(
                    reader(bootstrap, group, topic, session_timeout_ms=10_000, enable_auto_commit=False)
                )
                for _ in range(2)
            ]
            await shares(members, 4)

            async def values() -> list[bytes]:
                for member in members:
                    await member.poll()
                return sorted(value for member in members for value in member.values)

            async def send_and_read(word: str, count: int) -> None:
                for partition in range(4):
                    await produce(bootstrap, topic, [f"{word}-{partition}".encode()], partition)

                async def enough() -> bool:
                    return len(await values()) >= count

                await until_async(enough, WAIT_SECONDS, f"reading {word}")

            await send_and_read("before", 4)
            for member in members:
                await member.consumer.commit()
            await asyncio.to_thread(broker.stop)
            with pytest.raises(OSError, match="refused"):
                socket.create_connection(("127.0.0.1", broker.port), 1).close()
            await asyncio.to_thread(broker.start)
            await send_and_read("later", 8)
            wanted = sorted(f"{word}-{at}".encode() for word in ("before", "later") for at in range(4))
            assert await values() == wanted
            await shares(members, 4)
            for member in members:
                await member.consumer.commit()
