"""confluent-kafka (librdkafka) against a real broker: what an application does with it, end to end.

The same scenarios are in `test_aiokafka.py` and `test_kafka_python.py`, as far as those clients have them.
librdkafka alone has cooperative rebalancing, static members and the group protocol of KIP-848 in Python.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from support.process import BrokerProcess
from support.raw import RawClient
from support.waiting import until

from semel.wire.compression import Codec

Fresh = Callable[[str], str]
WAIT_SECONDS = 30.0
TRANSPORT = {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT}
"""What librdkafka says while there is no broker; not an answer of one."""


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def topic(admin: AdminClient, fresh: Fresh) -> str:
    """A topic with three partitions."""
    return create(admin, fresh("confluent"), 3)


def create(admin: AdminClient, name: str, partitions: int = 1, **configs: str) -> str:
    done(admin.create_topics([NewTopic(name, partitions, 1, config=configs)]))
    return name


def done(futures: Mapping[Any, Any]) -> dict[Any, Any]:
    """The results, or the first exception."""
    return {key: future.result(WAIT_SECONDS) for key, future in futures.items()}


def code(error: pytest.ExceptionInfo[KafkaException]) -> int:
    return int(error.value.args[0].code())


def produce(bootstrap: str, topic: str, values: Iterable[bytes], **config: Any) -> list[Message]:
    """Send, wait for all, give what was reported in the order of reports."""
    partition = config.pop("partition", 0)
    reports: list[Message] = []

    def report(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        reports.append(message)

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **config})
    for value in values:
        producer.produce(topic, value, partition=partition, on_delivery=report)
    assert producer.flush(WAIT_SECONDS) == 0
    return reports


class Reader:
    """A consumer that notes what it got and complains about every error."""

    def __init__(self, bootstrap: str, group: str, **config: Any) -> None:
        self.errors: list[KafkaError] = []
        self.messages: list[Message] = []
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "error_cb": self.errors.append,
                **({} if config.get("group.protocol") == "consumer" else FAST_CLASSIC),
                **config,
            }
        )

    def poll(self, seconds: float = 0.05) -> list[Message]:
        for message in self.consumer.consume(100, seconds):
            assert message.error() is None, message.error()
            self.messages.append(message)
        return self.messages

    def read(self, count: int) -> list[bytes]:
        until(lambda: len(self.poll()) >= count, WAIT_SECONDS, f"reading {count} records")
        return self.values

    @property
    def values(self) -> list[bytes]:
        return [bytes(message.value() or b"") for message in self.messages]

    @property
    def partitions(self) -> set[int]:
        self.poll(0.02)
        return {each.partition for each in self.consumer.assignment()}


FAST_CLASSIC = {"session.timeout.ms": 3_000, "heartbeat.interval.ms": 200}


@contextmanager
def reader(bootstrap: str, group: str, topic: str | None = None, **config: Any) -> Iterator[Reader]:
    each = Reader(bootstrap, group, **config)
    if topic is not None:
        each.consumer.subscribe([topic])
    try:
        yield each
    finally:
        each.consumer.close()


def test_records_come_back_as_they_were_sent(bootstrap: str, topic: str, fresh: Fresh) -> None:
    reports: list[Message] = []

    def report(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        reports.append(message)

    producer = Producer({"bootstrap.servers": bootstrap})
    sent = []
    for number in range(30):
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
        by_partition: dict[int, list[int]] = {}
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


def test_two_members_share_and_take_over(bootstrap: str, admin: AdminClient, fresh: Fresh) -> None:
    topic, group = create(admin, fresh("shared"), 4), fresh("group")
    with reader(bootstrap, group, topic) as first:
        until(lambda: first.partitions == {0, 1, 2, 3}, WAIT_SECONDS, "all partitions for one")
        with reader(bootstrap, group, topic) as second:
            until(lambda: shared(first, second, 4), WAIT_SECONDS, "sharing")
            for partition in range(4):
                produce(bootstrap, topic, [b"shared-%d" % partition], partition=partition)
            until(lambda: len(first.poll()) + len(second.poll()) >= 4, WAIT_SECONDS, "reading")
            assert len(first.messages) == len(second.messages) == 2
            second.consumer.commit(asynchronous=False)
        until(lambda: first.partitions == {0, 1, 2, 3}, WAIT_SECONDS, "taking over")
        for partition in range(4):
            produce(bootstrap, topic, [b"taken-%d" % partition], partition=partition)
        first.read(6)
        assert sorted(first.values)[2:] == [b"taken-%d" % partition for partition in range(4)]
        assert not first.errors


def shared(first: Reader, second: Reader, count: int) -> bool:
    """Both have some, and together they have each partition once."""
    one, two = first.partitions, second.partitions
    return bool(one) and bool(two) and not one & two and one | two == set(range(count))


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_every_assignment_strategy(bootstrap: str, admin: AdminClient, fresh: Fresh, strategy: str) -> None:
    topic, group = create(admin, fresh("strategy"), 6), fresh("group")
    config = {"partition.assignment.strategy": strategy}
    with ExitStack() as stack:
        members = [stack.enter_context(reader(bootstrap, group, topic, **config)) for _ in range(3)]

        def balanced() -> bool:
            parts = [member.partitions for member in members]
            return sorted(map(len, parts)) == [2, 2, 2] and len(set.union(*parts)) == 6

        until(balanced, WAIT_SECONDS, "two partitions for each of three")
        members.pop().consumer.close()

        def rebalanced() -> bool:
            parts = [member.partitions for member in members]
            return sorted(map(len, parts)) == [3, 3] and len(set.union(*parts)) == 6

        until(rebalanced, WAIT_SECONDS, "three partitions for each of two")
        assert not [error for member in members for error in member.errors]


def test_cooperative_members_keep_what_they_have(bootstrap: str, admin: AdminClient, fresh: Fresh) -> None:
    """KIP-429: when a second member comes, the first gives up two of four partitions and never the others."""
    topic, group = create(admin, fresh("cooperative"), 4), fresh("group")
    config = {"partition.assignment.strategy": "cooperative-sticky"}
    revoked: list[int] = []
    first = Reader(bootstrap, group, **config)
    first.consumer.subscribe(
        [topic], on_revoke=lambda _, parts: revoked.extend(each.partition for each in parts)
    )
    until(lambda: len(first.partitions) == 4, WAIT_SECONDS, "all partitions for one")
    with reader(bootstrap, group, topic, **config) as second:
        until(lambda: shared(first, second, 4), WAIT_SECONDS, "sharing")
        assert len(revoked) == 2
        assert set(revoked) == second.partitions
    first.consumer.close()


def test_a_static_member_comes_back_without_a_rebalance(
    bootstrap: str, admin: AdminClient, fresh: Fresh
) -> None:
    """KIP-345: it leaves without saying so, and has the same partitions when it is back in time."""
    topic, group = create(admin, fresh("static"), 4), fresh("group")
    config = {"session.timeout.ms": 10_000}
    rebalances: list[object] = []
    first = Reader(bootstrap, group, **config, **{"group.instance.id": "one"})
    first.consumer.subscribe([topic], on_assign=lambda *_: rebalances.append(1))
    with reader(bootstrap, group, topic, **config, **{"group.instance.id": "two"}) as second:
        until(lambda: shared(first, second, 4), WAIT_SECONDS, "sharing")
        before = second.partitions
        count = len(rebalances)
        second.consumer.close()
        with reader(bootstrap, group, topic, **config, **{"group.instance.id": "two"}) as again:
            until(lambda: again.partitions == before, WAIT_SECONDS, "coming back")
            produce(bootstrap, topic, [b"kept"], partition=min(before))
            assert again.read(1) == [b"kept"]
            first.poll()
            assert len(rebalances) == count
            described = done(admin.describe_consumer_groups([group]))[group]
            assert sorted(each.group_instance_id for each in described.members) == ["one", "two"]
    first.consumer.close()


def test_a_static_member_is_fenced_by_its_successor(bootstrap: str, topic: str, fresh: Fresh) -> None:
    config = {"group.instance.id": "only", "session.timeout.ms": 10_000}
    group = fresh("group")
    first = Reader(bootstrap, group, **config)
    first.consumer.subscribe([topic])
    until(lambda: len(first.partitions) == 3, WAIT_SECONDS, "joining")
    with reader(bootstrap, group, topic, **config) as second:
        until(lambda: len(second.partitions) == 3, WAIT_SECONDS, "taking over")

        def fenced() -> bool:
            errors = [each.error() for each in first.consumer.consume(10, 0.1) if each.error()] + first.errors
            return any(each.code() == KafkaError._FATAL or each.fatal() for each in errors)

        until(fenced, WAIT_SECONDS, "fencing")
    first.consumer.close()


def test_consumer_protocol_two_members_share_and_take_over(
    bootstrap: str, admin: AdminClient, fresh: Fresh
) -> None:
    """KIP-848, behaviour of the new group protocol with a real client."""
    topic, group = create(admin, fresh("consumer"), 4), fresh("group")
    config = {"group.protocol": "consumer"}
    with reader(bootstrap, group, topic, **config) as first:
        until(lambda: first.partitions == {0, 1, 2, 3}, WAIT_SECONDS, "all partitions for one")
        with reader(bootstrap, group, topic, **config) as second:
            until(lambda: shared(first, second, 4), WAIT_SECONDS, "sharing")
            for partition in range(4):
                produce(bootstrap, topic, [b"shared-%d" % partition], partition=partition)
            until(lambda: len(first.poll()) + len(second.poll()) >= 4, WAIT_SECONDS, "reading")
            assert len(first.messages) == len(second.messages) == 2
            described = done(admin.describe_consumer_groups([group]))[group]
            assert described.type is ConsumerGroupType.CONSUMER
            assert described.state is ConsumerGroupState.STABLE
            assert len(described.members) == 2
            second.consumer.commit(asynchronous=False)
        until(lambda: first.partitions == {0, 1, 2, 3}, WAIT_SECONDS, "taking over")
        for partition in range(4):
            produce(bootstrap, topic, [b"taken-%d" % partition], partition=partition)
        first.read(6)
        assert sorted(first.values)[2:] == [b"taken-%d" % partition for partition in range(4)]
        first.consumer.commit(asynchronous=False)
        assert not first.errors
    with reader(bootstrap, group, topic, **config) as last:
        until(lambda: last.partitions == {0, 1, 2, 3}, WAIT_SECONDS, "coming back")
        produce(bootstrap, topic, [b"after"])
        assert last.read(1) == [b"after"]


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_consumer_protocol_assignors(bootstrap: str, admin: AdminClient, fresh: Fresh, assignor: str) -> None:
    topic, group = create(admin, fresh("consumer"), 6), fresh("group")
    config = {"group.protocol": "consumer", "group.remote.assignor": assignor}
    with ExitStack() as stack:
        members = [stack.enter_context(reader(bootstrap, group, topic, **config)) for _ in range(3)]

        def balanced() -> bool:
            parts = [member.partitions for member in members]
            return sorted(map(len, parts)) == [2, 2, 2] and len(set.union(*parts)) == 6

        until(balanced, WAIT_SECONDS, "two partitions for each of three")


def test_consumer_protocol_follows_new_topics_of_a_pattern(
    bootstrap: str, admin: AdminClient, fresh: Fresh
) -> None:
    prefix = fresh("pattern")
    create(admin, f"{prefix}-1")
    with reader(bootstrap, fresh("group"), f"^{prefix}-.*", **{"group.protocol": "consumer"}) as each:
        until(lambda: len(each.partitions) == 1, WAIT_SECONDS, "the first topic")
        create(admin, f"{prefix}-2", 2)
        produce(bootstrap, f"{prefix}-2", [b"second"], partition=1)
        assert each.read(1) == [b"second"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_committed_offsets_survive_the_consumer(
    bootstrap: str, topic: str, fresh: Fresh, admin: AdminClient, protocol: str
) -> None:
    group = fresh("group")
    produce(bootstrap, topic, [b"%d" % number for number in range(10)])
    config = {"enable.auto.commit": False, "group.protocol": protocol}
    with reader(bootstrap, group, topic, **config) as first:
        first.read(10)
        part = TopicPartition(topic, 0, 6, metadata="a note")
        first.consumer.commit(offsets=[part], asynchronous=False)
        stored = first.consumer.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], WAIT_SECONDS)
        assert [(each.offset, each.error) for each in stored] == [(6, None), (-1001, None)]
        assert stored[0].metadata == "a note"
    with reader(bootstrap, group, topic, **config) as second:
        assert second.read(4) == [b"6", b"7", b"8", b"9"]


def test_auto_commit_on_close(bootstrap: str, topic: str, fresh: Fresh) -> None:
    group = fresh("group")
    produce(bootstrap, topic, [b"%d" % number for number in range(5)])
    with reader(bootstrap, group, topic) as first:
        first.read(5)
    produce(bootstrap, topic, [b"5"])
    with reader(bootstrap, group, topic) as second:
        assert second.read(1) == [b"5"]


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


def test_describe_cluster_and_topics(bootstrap: str, admin: AdminClient, fresh: Fresh) -> None:
    topic = create(admin, fresh("described"), 3)
    cluster = admin.describe_cluster(include_authorized_operations=True).result(WAIT_SECONDS)
    assert cluster.cluster_id
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [bootstrap]
    assert cluster.controller.id == cluster.nodes[0].id
    listed = admin.list_topics(timeout=WAIT_SECONDS)
    assert listed.cluster_id == cluster.cluster_id
    assert sorted(listed.topics[topic].partitions) == [0, 1, 2]
    described = done(admin.describe_topics(TopicCollection([topic])))[topic]
    assert (described.name, len(described.partitions), described.is_internal) == (topic, 3, False)
    assert described.topic_id is not None
    for partition in described.partitions:
        assert partition.leader.id == cluster.nodes[0].id
        assert [node.id for node in partition.isr] == [cluster.nodes[0].id]


def test_topics_are_refused_with_the_right_codes(admin: AdminClient, topic: str) -> None:
    cases = {
        NewTopic(topic, 1, 1): KafkaError.TOPIC_ALREADY_EXISTS,
        NewTopic("not a name", 1, 1): KafkaError.TOPIC_EXCEPTION,
        NewTopic("zero", 0, 1): KafkaError.INVALID_PARTITIONS,
        NewTopic("config", 1, 1, config={"no.such.config": "1"}): KafkaError.INVALID_CONFIG,
        NewTopic("value", 1, 1, config={"retention.ms": "soon"}): KafkaError.INVALID_CONFIG,
    }
    for new, expected in cases.items():
        with pytest.raises(KafkaException) as error:
            done(admin.create_topics([new]))
        assert code(error) == expected, new.topic
    done(admin.create_topics([NewTopic("only-validated", 1, 1)], validate_only=True))
    assert "only-validated" not in admin.list_topics(timeout=WAIT_SECONDS).topics


def test_configs(admin: AdminClient, topic: str) -> None:
    def values() -> dict[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        (found,) = done(admin.describe_configs([resource])).values()
        return {name: entry.value for name, entry in found.items()}

    def change(name: str, value: str | None, operation: AlterConfigOpType) -> None:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        done(
            admin.incremental_alter_configs(
                [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])]
            )
        )

    before = values()
    assert (before["cleanup.policy"], before["retention.ms"]) == ("delete", "604800000")
    change("retention.ms", "1000000", AlterConfigOpType.SET)
    change("cleanup.policy", "compact", AlterConfigOpType.APPEND)
    assert values()["retention.ms"] == "1000000"
    assert set(values()["cleanup.policy"].split(",")) == {"delete", "compact"}
    change("cleanup.policy", "compact", AlterConfigOpType.SUBTRACT)
    change("retention.ms", None, AlterConfigOpType.DELETE)
    assert values() == before
    for name, value in {"retention.ms": "soon", "no.such.config": "1"}.items():
        with pytest.raises(KafkaException) as error:
            change(name, value, AlterConfigOpType.SET)
        assert code(error) == KafkaError.INVALID_CONFIG


def test_configs_of_the_broker_are_shown(admin: AdminClient) -> None:
    node = admin.list_topics(timeout=WAIT_SECONDS).controller_id
    (found,) = done(admin.describe_configs([ConfigResource(ResourceType.BROKER, str(node))])).values()
    assert found["message.max.bytes"].value == "1048588"
    assert found["group.initial.rebalance.delay.ms"].value == "0"


def test_create_partitions(bootstrap: str, admin: AdminClient, topic: str, fresh: Fresh) -> None:
    done(admin.create_partitions([NewPartitions(topic, 5)]))
    assert len(admin.list_topics(topic, WAIT_SECONDS).topics[topic].partitions) == 5
    assert produce(bootstrap, topic, [b"new partition"], partition=4)[0].offset() == 0
    for count in 5, 3:
        with pytest.raises(KafkaException) as error:
            done(admin.create_partitions([NewPartitions(topic, count)]))
        assert code(error) == KafkaError.INVALID_PARTITIONS
    with pytest.raises(KafkaException) as error:
        done(admin.create_partitions([NewPartitions(fresh("missing"), 3)]))
    assert code(error) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_delete_records_and_list_offsets(
    bootstrap: str, admin: AdminClient, topic: str, fresh: Fresh
) -> None:
    produce(bootstrap, topic, [b"%d" % number for number in range(10)])
    part = TopicPartition(topic, 0)

    def offset(spec: OffsetSpec) -> int:
        (found,) = done(admin.list_offsets({part: spec})).values()
        return int(found.offset)

    assert (offset(OffsetSpec.earliest()), offset(OffsetSpec.latest())) == (0, 10)
    deleted = done(admin.delete_records([TopicPartition(topic, 0, 4)]))
    assert [each.low_watermark for each in deleted.values()] == [4]
    assert (offset(OffsetSpec.earliest()), offset(OffsetSpec.latest())) == (4, 10)
    with reader(bootstrap, fresh("group"), topic) as each:
        assert each.read(6) == [b"%d" % number for number in range(4, 10)]
    with pytest.raises(KafkaException) as error:
        done(admin.delete_records([TopicPartition(topic, 0, 11)]))
    assert code(error) == KafkaError.OFFSET_OUT_OF_RANGE
    assert [
        each.low_watermark
        for each in done(admin.delete_records([TopicPartition(topic, 0, OFFSET_END)])).values()
    ] == [10]
    committed = done(
        admin.list_offsets({part: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED)
    )
    assert [each.offset for each in committed.values()] == [10]


def test_max_timestamp(bootstrap: str, admin: AdminClient, topic: str) -> None:
    """KIP-734: the record with the highest timestamp need not be the last."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for timestamp in 3_000, 9_000, 5_000:
        producer.produce(topic, b"x", partition=0, timestamp=timestamp)
        assert producer.flush(WAIT_SECONDS) == 0
    (found,) = done(admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.max_timestamp()})).values()
    assert (found.offset, found.timestamp) == (1, 9_000)


def test_groups_are_listed_described_and_deleted(
    bootstrap: str, admin: AdminClient, topic: str, fresh: Fresh
) -> None:
    group = fresh("group")
    produce(bootstrap, topic, [b"0", b"1"])
    with reader(bootstrap, group, topic, **{"client.id": "somebody"}) as each:
        each.read(2)
        each.consumer.commit(asynchronous=False)
        listed = admin.list_consumer_groups().result(WAIT_SECONDS)
        assert not listed.errors
        states = {one.group_id: (one.state, one.is_simple_consumer_group) for one in listed.valid}
        assert states[group] == (ConsumerGroupState.STABLE, False)
        described = done(admin.describe_consumer_groups([group]))[group]
        assert described.state is ConsumerGroupState.STABLE
        assert described.type is ConsumerGroupType.CLASSIC
        (member,) = described.members
        assert member.client_id == "somebody"
        assert {(one.topic, one.partition) for one in member.assignment.topic_partitions} == {
            (topic, 0),
            (topic, 1),
            (topic, 2),
        }
        with pytest.raises(KafkaException) as error:
            done(admin.delete_consumer_groups([group]))
        assert code(error) == KafkaError.NON_EMPTY_GROUP
    described = done(admin.describe_consumer_groups([group]))[group]
    assert (described.state, described.members) == (ConsumerGroupState.EMPTY, [])
    stable = admin.list_consumer_groups(states={ConsumerGroupState.STABLE}).result(WAIT_SECONDS)
    assert group not in {one.group_id for one in stable.valid}
    done(admin.delete_consumer_groups([group]))
    assert group not in {one.group_id for one in admin.list_consumer_groups().result(WAIT_SECONDS).valid}
    with pytest.raises(KafkaException) as error:
        done(admin.delete_consumer_groups([group]))
    assert code(error) == KafkaError.GROUP_ID_NOT_FOUND


def test_offsets_of_a_group_are_listed_and_altered(
    bootstrap: str, admin: AdminClient, topic: str, fresh: Fresh
) -> None:
    group = fresh("group")
    produce(bootstrap, topic, [b"%d" % number for number in range(5)])

    def offsets(*partitions: TopicPartition) -> dict[int, int]:
        request = ConsumerGroupTopicPartitions(group, list(partitions) or None)
        (found,) = done(admin.list_consumer_group_offsets([request])).values()
        return {each.partition: each.offset for each in found.topic_partitions}

    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 3), TopicPartition(topic, 1, 0)])
    done(admin.alter_consumer_group_offsets([wanted]))
    assert offsets() == {0: 3, 1: 0}
    assert offsets(TopicPartition(topic, 0), TopicPartition(topic, 2)) == {0: 3, 2: -1001}
    with reader(bootstrap, group, topic) as each:
        assert each.read(2) == [b"3", b"4"]
        (refused,) = done(admin.alter_consumer_group_offsets([wanted])).values()
        codes = {part.error.code() for part in refused.topic_partitions}
        assert codes == {KafkaError.UNKNOWN_MEMBER_ID}


def test_a_deleted_topic_is_gone_for_everyone(bootstrap: str, admin: AdminClient, topic: str) -> None:
    produce(bootstrap, topic, [b"doomed"])
    done(admin.delete_topics([topic]))
    assert topic not in admin.list_topics(timeout=WAIT_SECONDS).topics
    with pytest.raises(KafkaException) as error:
        done(admin.delete_topics([topic]))
    assert code(error) == KafkaError.UNKNOWN_TOPIC_OR_PART
    create(admin, topic, 1)
    assert produce(bootstrap, topic, [b"new life"])[0].offset() == 0


def test_an_unknown_topic_is_an_error(bootstrap: str, fresh: Fresh) -> None:
    missing = fresh("missing")
    failed: list[int] = []
    producer = Producer({"bootstrap.servers": bootstrap, "topic.metadata.propagation.max.ms": 500})
    producer.produce(missing, b"lost", on_delivery=lambda error, _: failed.append(error.code()))
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
    by_partition: dict[int, list[tuple[int, int]]] = {}
    for message in each.messages:
        by_partition.setdefault(message.partition(), []).append((message.offset(), int(message.value())))
    assert by_partition == {at: [(nth, at + 40 * nth) for nth in range(200)] for at in range(40)}


DYING = """
import sys
from confluent_kafka import Consumer
bootstrap, group, protocol, topic = sys.argv[1:]
config = {"bootstrap.servers": bootstrap, "group.id": group, "group.protocol": protocol}
if protocol == "classic":
    config |= {"session.timeout.ms": 2000, "heartbeat.interval.ms": 200}
consumer = Consumer(config)
consumer.subscribe([topic], on_assign=lambda _, parts: parts and print(len(parts), flush=True))
while True:
    consumer.poll(0.1)
"""


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_partitions_of_a_member_that_died_are_taken_over(
    bootstrap: str, admin: AdminClient, fresh: Fresh, protocol: str
) -> None:
    """It does not say goodbye, so the coordinator finds out by the session timeout."""
    topic, group = create(admin, fresh("dying"), 4), fresh("group")
    with reader(bootstrap, group, topic, **{"group.protocol": protocol}) as survivor:
        until(lambda: len(survivor.partitions) == 4, WAIT_SECONDS, "joining")
        command = [sys.executable, "-c", DYING, bootstrap, group, protocol, topic]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as dying:
            try:
                until(lambda: len(survivor.partitions) == 2, WAIT_SECONDS, "sharing")
                assert dying.stdout is not None
                assert dying.stdout.readline() in ("1\n", "2\n")
            finally:
                dying.kill()
        until(lambda: len(survivor.partitions) == 4, WAIT_SECONDS, "taking over")
        assert not survivor.errors


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_group_carries_on_when_the_broker_was_restarted(
    tmp_path: Path, fresh: Fresh, protocol: str, how: str
) -> None:
    options = ["--set", "group.initial.rebalance.delay.ms=0", "--set", "group.min.session.timeout.ms=500"]
    options += ["--set", "group.consumer.heartbeat.interval.ms=200"]
    config = {"group.protocol": protocol, "reconnect.backoff.max.ms": 200, "reconnect.backoff.ms": 50}
    if protocol == "classic":
        config |= {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 200}
    with BrokerProcess(tmp_path / "data", *options) as broker, ExitStack() as stack:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        topic, group = create(admin, fresh("restarted"), 4), fresh("group")
        members = [stack.enter_context(reader(broker.bootstrap, group, topic, **config)) for _ in range(2)]
        until(lambda: shared(*members, 4), WAIT_SECONDS, "sharing")

        def send(word: str) -> None:
            for partition in range(4):
                value = f"{word}-{partition}".encode()
                produce(broker.bootstrap, topic, [value], partition=partition)

        def read() -> list[bytes]:
            return sorted(value for member in members if member.poll() or True for value in member.values)

        send("before")
        until(lambda: len(read()) == 4, WAIT_SECONDS, "reading before")
        for member in members:
            member.consumer.commit(asynchronous=False)
        started = time.monotonic()
        getattr(broker, how)()
        broker.start()
        send("later")
        until(lambda: len(read()) >= 8, WAIT_SECONDS, "reading afterwards")
        assert read() == sorted(f"{word}-{at}".encode() for word in ("before", "later") for at in range(4))
        assert time.monotonic() - started < WAIT_SECONDS
        until(lambda: shared(*members, 4), WAIT_SECONDS, "sharing afterwards")
        for member in members:
            member.consumer.commit(asynchronous=False)
            assert {error.code() for error in member.errors} <= TRANSPORT
