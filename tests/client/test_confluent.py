"""confluent-kafka (librdkafka) against a real broker: what an application does with it, end to end.

Groups are in `test_confluent_groups.py`, administration in `test_confluent_admin.py`. The same scenarios are
in `test_aiokafka.py` and `test_kafka_python.py`, as far as those clients have them.
"""

import time

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    TIMESTAMP_LOG_APPEND_TIME,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from support.clients.confluent import Fresh, Reader, create, produce, reader
from support.clients.raw import RawClient
from support.clients.reading import WAIT_SECONDS
from support.waiting import until

from semel.wire.compression import Codec


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def test_records_come_back_as_they_were_sent(bootstrap: str, topic: str, fresh: Fresh) -> None:
    reports: list[Message] = []

    def report(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        reports.append(message)

    producer = Producer({"bootstrap.servers": bootstrap})
    sent = []
    for number in range(30):
        headers: list[tuple[str, str | bytes | None]]
        headers = [("a", b"1"), ("a", b"2"), ("empty", b""), ("none", None)] if number % 2 else []
        record = (
            number % 3,
            f"key-{number}".encode(),
            f"value-{number}".encode(),
            1_700_000_000_000 + number,
        )
        sent.append((*record, headers))
        partition, key, value, timestamp = record
        producer.produce(topic, value, key, partition, report, timestamp=timestamp, headers=headers)
    producer.produce(topic, None, b"tombstone", 0, report, timestamp=1_700_000_000_100)
    producer.produce(topic, b"", None, 0, report, timestamp=1_700_000_000_101)
    assert producer.flush(WAIT_SECONDS) == 0
    with reader(bootstrap, fresh("group"), topic) as each:
        each.read(32)
        got = sorted(
            (m.partition(), m.key(), m.value(), m.timestamp()[1], m.headers() or [])
            for m in each.messages
            if m.key() is not None and m.value() is not None
        )
        assert got == sorted(sent)
        assert [m.value() for m in each.messages if m.key() == b"tombstone"] == [None]
        assert [m.value() for m in each.messages if m.key() is None] == [b""]
        assert {(m.partition(), m.offset()) for m in each.messages} == {
            (m.partition(), m.offset()) for m in reports
        }
        by_partition: dict[int | None, list[int | None]] = {}
        for message in each.messages:
            by_partition.setdefault(message.partition(), []).append(message.offset())
        assert by_partition == {0: list(range(12)), 1: list(range(10)), 2: list(range(10))}


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_behaviour_96_librdkafka_really_compresses(
    bootstrap: str, topic: str, fresh: Fresh, raw: RawClient, codec: str
) -> None:
    values = [b"the same again and again %d " % number * 20 for number in range(50)]
    produce(bootstrap, topic, values, **{"compression.type": codec, "linger.ms": 100})
    headers = raw.headers(topic)
    assert {header.codec for header in headers} == {Codec[codec.upper()]}
    assert sum(header.length for header in headers) < sum(map(len, values)) / 4
    with reader(bootstrap, fresh("group"), topic) as each:
        assert each.read(50) == values


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(bootstrap: str, topic: str, fresh: Fresh, acks: str) -> None:
    values = [b"%d" % number for number in range(20)]
    reports = produce(bootstrap, topic, values, acks=acks)
    if acks != "0":
        assert [report.offset() for report in reports] == list(range(20))
    with reader(bootstrap, fresh("group"), topic) as each:
        assert each.read(20) == values


def test_an_idempotent_producer(bootstrap: str, topic: str, raw: RawClient) -> None:
    config = {"enable.idempotence": True, "linger.ms": 0, "batch.num.messages": 10}
    reports = produce(bootstrap, topic, (b"%d" % number for number in range(500)), **config)
    assert [report.offset() for report in reports] == list(range(500))
    headers = raw.headers(topic)
    assert len({header.producer_id for header in headers}) == 1
    assert headers[0].producer_id >= 0
    assert [header.base_sequence for header in headers] == [header.base_offset for header in headers]


def test_seek_watermarks_and_offsets_by_time(bootstrap: str, topic: str, fresh: Fresh) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(10):
        producer.produce(topic, b"%d" % number, partition=0, timestamp=1_000_000 + number * 100)
        # One batch for each record, so that the answer has to be found between batches.
        assert producer.flush(WAIT_SECONDS) == 0
    with reader(bootstrap, fresh("group")) as each:
        part = TopicPartition(topic, 0)
        assert each.consumer.get_watermark_offsets(part, WAIT_SECONDS, cached=False) == (0, 10)
        times = {1_000_000: 0, 1_000_001: 1, 1_000_450: 5, 1_000_900: 9, 1_000_901: OFFSET_END, 1: 0}
        for timestamp, offset in times.items():
            found = each.consumer.offsets_for_times([TopicPartition(topic, 0, timestamp)], WAIT_SECONDS)
            assert [(one.offset, one.error) for one in found] == [(offset, None)], timestamp
        each.consumer.assign([TopicPartition(topic, 0, 7)])
        assert each.read(3) == [b"7", b"8", b"9"]
        each.consumer.seek(TopicPartition(topic, 0, 2))
        each.messages.clear()
        assert each.read(8) == [b"%d" % number for number in range(2, 10)]
        each.consumer.seek(TopicPartition(topic, 0, OFFSET_BEGINNING))
        each.messages.clear()
        assert each.read(10)[0] == b"0"
        assert each.consumer.position([part])[0].offset == 10


def test_auto_offset_reset(bootstrap: str, topic: str, fresh: Fresh) -> None:
    produce(bootstrap, topic, [b"old"])
    with reader(bootstrap, fresh("group"), topic, **{"auto.offset.reset": "latest"}) as latest:
        until(lambda: latest.partitions == {0, 1, 2}, WAIT_SECONDS, "joining")
        # Where the end was found is known only when something was read, so send until it is.
        until(lambda: produce(bootstrap, topic, [b"new"]) and latest.poll(0.2), WAIT_SECONDS, "reading")
        assert set(latest.values) == {b"new"}
    with reader(bootstrap, fresh("group"), topic) as earliest:
        assert earliest.read(1)[0] == b"old"
    with reader(bootstrap, fresh("group"), **{"auto.offset.reset": "error"}) as strict:
        strict.consumer.assign([TopicPartition(topic, 0, 1_000)])
        errors = until(
            lambda: [each.error() for each in strict.consumer.consume(1, 0.1) if each.error()], WAIT_SECONDS
        )
        assert errors[0].code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)


def test_an_unknown_topic_is_an_error(bootstrap: str, fresh: Fresh) -> None:
    missing = fresh("missing")
    failed: list[int | None] = []
    producer = Producer({"bootstrap.servers": bootstrap, "topic.metadata.propagation.max.ms": 500})
    producer.produce(
        missing, b"lost", on_delivery=lambda error, _: failed.append(error.code() if error else None)
    )
    assert producer.flush(WAIT_SECONDS) == 0
    assert failed[0] in (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART)
    each = Reader(bootstrap, fresh("group"))
    each.consumer.subscribe([missing])
    errors = until(
        lambda: [one.error() for one in each.consumer.consume(1, 0.1) if one.error()], WAIT_SECONDS
    )
    assert errors[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    each.consumer.close()


def test_topics_are_made_when_that_is_enabled(creating_bootstrap: str, fresh: Fresh) -> None:
    topic = fresh("made")
    produce(creating_bootstrap, topic, [b"first"], partition=1)
    with reader(creating_bootstrap, fresh("group"), topic) as each:
        assert each.read(1) == [b"first"]
        assert each.partitions == {0, 1}


def test_a_message_that_is_too_large(bootstrap: str, admin: AdminClient, fresh: Fresh) -> None:
    topic = create(admin, fresh("small"), 1, **{"max.message.bytes": "2000"})
    failed: list[int | None] = []
    producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 10_000_000})
    for size in 1_000, 3_000, 1_000:
        producer.produce(
            topic, bytes(size), on_delivery=lambda error, _: failed.append(error.code() if error else None)
        )
        assert producer.flush(WAIT_SECONDS) == 0
    assert failed == [None, KafkaError.MSG_SIZE_TOO_LARGE, None]


def test_large_messages_and_small_fetches(bootstrap: str, topic: str, fresh: Fresh) -> None:
    """KIP-74: a batch larger than every limit of the consumer still comes, or it would be stuck."""
    values = [bytes([number]) * 300_000 for number in range(5)]
    produce(bootstrap, topic, values)
    config = {"fetch.max.bytes": 1_000, "fetch.message.max.bytes": 1_000, "message.max.bytes": 1_000}
    with reader(bootstrap, fresh("group"), topic, **config) as each:
        assert each.read(5) == values


def test_log_append_time(bootstrap: str, admin: AdminClient, fresh: Fresh) -> None:
    topic = create(admin, fresh("append-time"), 1, **{"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1_000)
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "lz4"})
    reports: list[Message] = []
    for _ in range(3):
        producer.produce(topic, b"x" * 100, timestamp=1_000, on_delivery=lambda _, each: reports.append(each))
    assert producer.flush(WAIT_SECONDS) == 0
    after = int(time.time() * 1_000)
    with reader(bootstrap, fresh("group"), topic) as each:
        each.read(3)
        for message in (*each.messages, *reports):
            kind, timestamp = message.timestamp()
            assert kind == TIMESTAMP_LOG_APPEND_TIME
            assert before - 1_000 <= timestamp <= after + 1_000
        (found,) = each.consumer.offsets_for_times([TopicPartition(topic, 0, before - 1_000)], WAIT_SECONDS)
        assert found.offset == 0


def test_many_partitions_keep_their_order(bootstrap: str, admin: AdminClient, fresh: Fresh) -> None:
    topic = create(admin, fresh("many"), 40)
    config = {"enable.idempotence": True, "linger.ms": 2, "compression.type": "zstd"}
    producer = Producer({"bootstrap.servers": bootstrap, **config})
    for number in range(8_000):
        producer.produce(topic, b"%d" % number, partition=number % 40)
        producer.poll(0)
    assert producer.flush(WAIT_SECONDS) == 0
    with reader(bootstrap, fresh("group"), topic) as each:
        each.read(8_000)
    by_partition: dict[int | None, list[tuple[int | None, int]]] = {}
    for message in each.messages:
        value = int(message.value() or b"")
        by_partition.setdefault(message.partition(), []).append((message.offset(), value))
    assert by_partition == {at: [(nth, at + 40 * nth) for nth in range(200)] for at in range(40)}
