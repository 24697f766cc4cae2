"""kafka-python against a real broker: the scenarios of `test_confluent.py` that it has.

It is the client that uses incremental fetch sessions (KIP-227), and the newest versions of ListOffsets and of
the classic group APIs.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient, OffsetSpec
from kafka.codec import has_gzip, has_lz4, has_snappy, has_zstd
from kafka.errors import (
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)
from kafka.structs import OffsetAndMetadata
from support.brokers.process import BrokerProcess
from support.clients.kafka_python import (
    Fresh,
    Member,
    administrator,
    create,
    produce,
    producing,
    reader,
    shared,
)
from support.clients.raw import RawClient
from support.clients.reading import WAIT_SECONDS, check_came_back
from support.waiting import until

from semel.wire.compression import Codec


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    with administrator(bootstrap) as client:
        yield client


def test_records_come_back_as_they_were_sent(bootstrap: str, topic: str, fresh: Fresh) -> None:
    sent = []
    with producing(bootstrap) as producer:
        for number in range(30):
            headers = [("a", b"1"), ("a", b"2"), ("empty", b"")] if number % 2 else []
            key, value, timestamp = b"key-%d" % number, b"value-%d" % number, 1_700_000_000_000 + number
            answer = producer.send(topic, value, key, headers, number % 3, timestamp).get(WAIT_SECONDS)
            sent.append((answer.partition, answer.offset, key, value, timestamp, headers))
        producer.send(topic, None, b"tombstone", partition=0).get(WAIT_SECONDS)
    assert [each[:2] for each in sent] == [(number % 3, number // 3) for number in range(30)]
    with reader(bootstrap, fresh("group"), topic) as each:
        each.read(31)
        check_came_back(sent, each.records)


def codec_parameter(name: str, is_installed: bool) -> Any:
    """kafka-python finds a library for each codec, or refuses to use it."""
    missing = pytest.mark.skipif(not is_installed, reason=f"kafka-python has no library for {name}")
    return pytest.param(name, marks=missing)


@pytest.mark.parametrize(
    "codec",
    [
        codec_parameter("gzip", has_gzip()),
        codec_parameter("snappy", has_snappy()),
        codec_parameter("lz4", has_lz4()),
        codec_parameter("zstd", has_zstd()),
    ],
)
def test_behaviour_96_kafka_python_really_compresses(
    bootstrap: str, topic: str, fresh: Fresh, raw: RawClient, codec: str
) -> None:
    values = [b"the same again and again %d " % number * 20 for number in range(50)]
    produce(bootstrap, topic, values, compression_type=codec, linger_ms=100)
    headers = raw.headers(topic)
    assert {header.codec for header in headers} == {Codec[codec.upper()]}
    assert sum(header.length for header in headers) < sum(map(len, values)) / 4
    with reader(bootstrap, fresh("group"), topic) as each:
        assert each.read(50) == values


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_acks(bootstrap: str, topic: str, fresh: Fresh, acks: int | str) -> None:
    values = [b"%d" % number for number in range(20)]
    offsets = produce(bootstrap, topic, values, acks=acks, enable_idempotence=False)
    if acks != 0:
        assert offsets == list(range(20))
    with reader(bootstrap, fresh("group"), topic) as each:
        assert each.read(20) == values


def test_an_idempotent_producer(bootstrap: str, topic: str, raw: RawClient, admin: KafkaAdminClient) -> None:
    values = [b"%d" % number for number in range(200)]
    offsets = produce(bootstrap, topic, values, enable_idempotence=True, batch_size=200)
    assert offsets == list(range(200))
    headers = raw.headers(topic)
    (producer_id,) = {header.producer_id for header in headers}
    assert producer_id >= 0
    assert [header.base_sequence for header in headers] == [header.base_offset for header in headers]
    part = TopicPartition(topic, 0)
    (state,) = admin.describe_producers([part])[part].active_producers
    assert (state.producer_id, state.producer_epoch, state.last_sequence) == (producer_id, 0, 199)


def test_two_members_share_and_take_over(bootstrap: str, admin: KafkaAdminClient, fresh: Fresh) -> None:
    topic, group = create(admin, fresh("shared"), 4), fresh("group")
    with Member(bootstrap, group, topic) as first:
        until(lambda: shared([first], 4), WAIT_SECONDS, "all partitions for one")
        with Member(bootstrap, group, topic) as second:
            until(lambda: shared([first, second], 4), WAIT_SECONDS, "sharing")
            for partition in range(4):
                produce(bootstrap, topic, [b"shared-%d" % partition], partition)
            until(lambda: len(first.records) + len(second.records) >= 4, WAIT_SECONDS, "reading")
            assert len(first.records) == len(second.records) == 2
        until(lambda: shared([first], 4), WAIT_SECONDS, "taking over")
        for partition in range(4):
            produce(bootstrap, topic, [b"taken-%d" % partition], partition)
        until(lambda: len(first.records) >= 6, WAIT_SECONDS, "reading what was taken over")
        assert sorted(first.values)[2:] == [b"taken-%d" % partition for partition in range(4)]


def test_committed_offsets_survive_the_consumer(
    bootstrap: str, topic: str, fresh: Fresh, admin: KafkaAdminClient
) -> None:
    group, part = fresh("group"), TopicPartition(topic, 0)
    produce(bootstrap, topic, [b"%d" % number for number in range(10)])
    with reader(bootstrap, group, topic, enable_auto_commit=False) as first:
        first.read(10)
        first.consumer.commit({part: OffsetAndMetadata(6, "a note", -1)})
        assert first.consumer.committed(part) == 6
        assert first.consumer.committed(TopicPartition(topic, 1)) is None
    stored = admin.list_group_offsets({group: None})[group]
    assert {key: (value.offset, value.metadata) for key, value in stored.items()} == {part: (6, "a note")}
    with reader(bootstrap, group, topic, enable_auto_commit=False) as second:
        assert second.read(4) == [b"6", b"7", b"8", b"9"]


def test_seek_watermarks_and_offsets_by_time(bootstrap: str, topic: str, admin: KafkaAdminClient) -> None:
    with producing(bootstrap) as producer:
        for number in range(10):
            timestamp = 1_000_000 + number * 100
            producer.send(topic, b"%d" % number, partition=0, timestamp_ms=timestamp).get(WAIT_SECONDS)
    part = TopicPartition(topic, 0)
    with reader(bootstrap, None) as each:
        each.consumer.assign([part])
        assert each.consumer.beginning_offsets([part]) == {part: 0}
        assert each.consumer.end_offsets([part]) == {part: 10}
        for timestamp, offset in {1_000_000: 0, 1_000_001: 1, 1_000_450: 5, 1_000_900: 9, 1: 0}.items():
            found = each.consumer.offsets_for_times({part: timestamp})[part]
            assert (found.offset, found.timestamp) == (offset, 1_000_000 + offset * 100)
        assert each.consumer.offsets_for_times({part: 1_000_901})[part] is None
        each.consumer.seek(part, 7)
        assert each.read(3) == [b"7", b"8", b"9"]
        each.consumer.seek_to_beginning(part)
        each.records.clear()
        assert each.read(10)[0] == b"0"
        assert each.consumer.position(part) == 10
    for spec, offset in {OffsetSpec.EARLIEST: 0, OffsetSpec.LATEST: 10, OffsetSpec.MAX_TIMESTAMP: 9}.items():
        assert admin.list_partition_offsets({part: spec})[part].offset == offset


def test_auto_offset_reset(bootstrap: str, topic: str) -> None:
    part = TopicPartition(topic, 0)
    produce(bootstrap, topic, [b"old"])
    with reader(bootstrap, None, auto_offset_reset="latest") as latest:
        latest.consumer.assign([part])
        assert latest.consumer.position(part) == 1
        produce(bootstrap, topic, [b"new"])
        assert latest.read(1) == [b"new"]
    with reader(bootstrap, None, auto_offset_reset="none") as strict:
        strict.consumer.assign([part])
        with pytest.raises(NoOffsetForPartitionError):
            until(strict.poll, WAIT_SECONDS)
    with reader(bootstrap, None, auto_offset_reset="none") as strict:
        strict.consumer.assign([part])
        strict.consumer.seek(part, 1_000)
        with pytest.raises(OffsetOutOfRangeError):
            until(strict.poll, WAIT_SECONDS)


def test_an_unknown_topic_is_an_error(bootstrap: str, fresh: Fresh) -> None:
    with producing(bootstrap, max_block_ms=1_000) as producer, pytest.raises(KafkaTimeoutError):
        producer.send(fresh("missing"), b"lost").get(WAIT_SECONDS)


def test_topics_are_made_when_that_is_enabled(creating_bootstrap: str, fresh: Fresh) -> None:
    topic = fresh("made")
    assert produce(creating_bootstrap, topic, [b"first"], 1) == [0]
    with reader(creating_bootstrap, fresh("group"), topic) as each:
        assert each.read(1) == [b"first"]


def test_a_message_that_is_too_large(bootstrap: str, admin: KafkaAdminClient, fresh: Fresh) -> None:
    topic = create(admin, fresh("small"), 1, **{"max.message.bytes": "2000"})
    with producing(bootstrap, max_request_size=10_000_000, enable_idempotence=False) as producer:
        producer.send(topic, bytes(1_000)).get(WAIT_SECONDS)
        with pytest.raises(MessageSizeTooLargeError):
            producer.send(topic, bytes(3_000)).get(WAIT_SECONDS)
        producer.send(topic, bytes(1_000)).get(WAIT_SECONDS)


def test_a_group_carries_on_when_the_broker_was_restarted(tmp_path: Path, fresh: Fresh) -> None:
    options = ["--set", "group.initial.rebalance.delay.ms=0", "--set", "group.min.session.timeout.ms=500"]
    with BrokerProcess(tmp_path / "data", *options) as broker, ExitStack() as stack:
        bootstrap = broker.bootstrap
        with administrator(bootstrap) as admin:
            topic, group = create(admin, fresh("restarted"), 4), fresh("group")
        members = [
            stack.enter_context(Member(bootstrap, group, topic, session_timeout_ms=10_000)) for _ in range(2)
        ]
        until(lambda: shared(members, 4), WAIT_SECONDS, "sharing")

        def send_and_read(word: str, each: int) -> None:
            for partition in range(4):
                produce(bootstrap, topic, [f"{word}-{partition}".encode()], partition)

            def committed() -> bool:
                with administrator(bootstrap) as admin:
                    offsets = admin.list_group_offsets({group: None})[group]
                return {part.partition: one.offset for part, one in offsets.items()} == dict.fromkeys(
                    range(4), each
                )

            until(committed, WAIT_SECONDS, f"reading and committing {word}")

        send_and_read("before", 1)
        broker.stop()
        broker.start()
        send_and_read("later", 2)
        values = sorted(value for member in members for value in member.values)
        assert values == sorted(f"{word}-{at}".encode() for word in ("before", "later") for at in range(4))
        until(lambda: shared(members, 4), WAIT_SECONDS, "sharing afterwards")
