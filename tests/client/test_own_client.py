"""`semel.client` against a real broker: what its users do, and what happens when the broker goes away."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.client import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    Admin,
    Client,
    ClientError,
    Codec,
    CommittedOffset,
    Consumer,
    ErrorCode,
    KafkaError,
    NewTopic,
    Producer,
    Start,
)
from semel.client.admin.group_offsets import commit_offsets
from semel.client.consume import consumer as consuming
from semel.client.consume import membership
from semel.client.consume.membership import ClassicMember, ConsumerMember


@pytest.fixture
def client(semel_broker: semel.Embedded) -> Iterator[Client]:
    with Client(semel_broker.bootstrap_servers, timeout_s=10) as client:
        yield client


def write(client: Client, topic: str, count: int, **options: Any) -> None:
    with Producer(client) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, **options)


def values(consumer: Consumer) -> list[bytes | None]:
    return [record.value for record in consumer.read_to_end()]


@pytest.mark.parametrize("codec", list(Codec))
def test_records_come_back_as_they_were_sent(client: Client, codec: Codec) -> None:
    with Producer(client, codec=codec) as producer:
        for number in range(100):
            producer.send(
                "t", b"v%d" % number, key=b"k", headers=[("a", b"1"), ("a", None)], timestamp_ms=1000 + number
            )
        producer.send("t", None, key=b"k")
        producer.send("t", b"")
    with Consumer(client, "t") as consumer:
        records = list(consumer.read_to_end())
    assert [record.offset for record in records] == list(range(102))
    assert [record.value for record in records] == [*(b"v%d" % n for n in range(100)), None, b""]
    assert records[7].headers == (("a", b"1"), ("a", None))
    assert records[7].timestamp == 1007
    assert (records[100].key, records[101].key) == (b"k", None)


def test_a_batch_larger_than_a_fetch_is_read(client: Client) -> None:
    Admin(client).topics.create(NewTopic("t", configs={"max.message.bytes": "6000000"}))
    with Producer(client) as producer:
        producer.send("t", b"x" * 5_000_000)
        producer.send("t", b"small")
    with Consumer(client, "t") as consumer:
        assert [len(record.value or b"") for record in consumer.read_to_end()] == [5_000_000, 5]


def test_what_is_too_large_is_refused_and_the_rest_goes_on(client: Client) -> None:
    producer = Producer(client)
    large = producer.send("t", b"x" * 2_000_000)
    with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
        producer.flush()
    assert large.error is not None
    assert producer.send("t", b"small").result().offset == 0
    producer.close()


def test_seek_and_positions(client: Client) -> None:
    write(client, "t", 10)
    with Consumer(client, "t") as consumer:
        assert [record.value for record in consumer.poll(max_records=3)] == [b"0", b"1", b"2"]
        assert consumer.position(("t", 0)) == 3
        consumer.seek(("t", 0), 8)
        assert values(consumer) == [b"8", b"9"]
        consumer.seek(("t", 0), EARLIEST)
        assert next(iter(consumer)).value == b"0"
        consumer.seek(("t", 0), LATEST)
        assert consumer.poll(0.05) == []
        with pytest.raises(ValueError, match="not assigned"):
            consumer.seek(("t", 9), 0)


def test_a_lost_position_is_reset_or_told(client: Client) -> None:
    """OFFSET_OUT_OF_RANGE: the log was cut in front of the reader."""
    write(client, "t", 10)
    readers = [Consumer(client, "t", start=start) for start in (Start.EARLIEST, Start.LATEST)]
    strict = Consumer(client, start="error")
    strict.assign([("t", 0)])
    for consumer in (*readers, strict):
        consumer.seek(("t", 0), 2)
    assert Admin(client).topics.delete_records({("t", 0): 5}) == {("t", 0): 5}
    assert [record.offset for record in readers[0].poll()] == [5, 6, 7, 8, 9]
    assert readers[1].poll(0.05) == []
    assert readers[1].position(("t", 0)) == 10
    with pytest.raises(KafkaError) as raised:
        strict.poll()
    assert raised.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_offsets_by_time(client: Client) -> None:
    for at in (1000, 3000, 2000):
        write(client, "t", 1, timestamp_ms=at)
    find = Admin(client).topics.offsets
    assert find({("t", 0): EARLIEST})[("t", 0)].offset == 0
    assert find({("t", 0): LATEST})[("t", 0)].offset == 3
    assert find({("t", 0): 1500})[("t", 0)] == (1, 3000)
    assert find({("t", 0): 9999})[("t", 0)].offset == -1
    assert find({("t", 0): MAX_TIMESTAMP})[("t", 0)] == (1, 3000)


def test_commit_by_hand(client: Client) -> None:
    write(client, "t", 10)
    with Consumer(client, "t", group_id="g", auto_commit=False) as consumer:
        assert len(consumer.poll(max_records=4)) == 4
        assert consumer.committed() == {}
        consumer.commit()
        assert consumer.committed()[("t", 0)].offset == 4
        consumer.poll()
    with Consumer(client, "t", group_id="g", auto_commit=False) as consumer:
        assert consumer.poll()[0].offset == 4
        consumer.commit({("t", 0): CommittedOffset(6, "a note")})
    assert Admin(client).groups.offsets("g") == {("t", 0): CommittedOffset(6, "a note", -1)}
    with pytest.raises(ClientError, match="without group_id"):
        Consumer(client, "t").commit()


def test_an_automatic_commit_is_of_what_was_handed_out_and_not_after_an_error(client: Client) -> None:
    write(client, "t", 10)
    with Consumer(client, "t", group_id="g") as consumer:
        iterator = iter(consumer)
        for _ in range(3):
            next(iterator)
    assert Admin(client).groups.offsets("g")[("t", 0)].offset == 3

    def work() -> None:
        with Consumer(client, "t", group_id="g") as consumer:
            next(iter(consumer))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert Admin(client).groups.offsets("g")[("t", 0)].offset == 3
    assert Admin(client).groups.describe("g").members == ()


def read_in_thread(
    servers: str,
    member: type[ClassicMember] | type[ConsumerMember],
    seen: list[bytes],
    done: Callable[[], bool],
) -> threading.Thread:
    """A member of group `g` with a client of its own, as another process would have."""

    def work() -> None:
        with Client(servers, timeout_s=10) as client, Consumer(client, group_id="g") as consumer:
            consumer._member = member(client, "g", ["t"])
            while not done():
                seen.extend(record.value or b"" for record in consumer.poll(0.1))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("member", [ConsumerMember, ClassicMember])
def test_two_members_share_and_the_one_that_stays_takes_over(
    semel_broker: semel.Embedded,
    client: Client,
    member: type[ClassicMember] | type[ConsumerMember],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both protocols of groups, KIP-848 and the classic one."""
    monkeypatch.setattr(membership, "CLASSIC_HEARTBEAT_S", 0.1)
    admin = Admin(client)
    admin.topics.create(NewTopic("t", partitions=4))
    first_seen: list[bytes] = []
    second_seen: list[bytes] = []
    stop_first, stop_second = threading.Event(), threading.Event()
    servers = semel_broker.bootstrap_servers
    threads = [
        read_in_thread(servers, member, first_seen, stop_first.is_set),
        read_in_thread(servers, member, second_seen, stop_second.is_set),
    ]
    deadline = time.monotonic() + 60

    def wait_for(condition: Callable[[], bool]) -> None:
        while not condition():
            assert time.monotonic() < deadline
            assert all(thread.is_alive() for thread in threads)
            stop_first.wait(0.02)

    def shares() -> list[int]:
        try:
            return sorted(len(each.partitions) for each in admin.groups.describe("g").members)
        except KafkaError:  # nobody has joined yet
            return []

    wait_for(lambda: shares() == [2, 2])
    with Producer(client) as producer:
        for number in range(40):
            producer.send("t", b"%d" % number, partition=number % 4)
    wait_for(lambda: len(first_seen) + len(second_seen) >= 40)
    assert sorted(first_seen + second_seen) == sorted(b"%d" % number for number in range(40))
    assert len(first_seen) == 20

    stop_second.set()
    threads.pop().join(30)
    wait_for(lambda: shares() == [4])
    with Producer(client) as producer:
        for number in range(4):
            producer.send("t", b"more", partition=number)
    wait_for(lambda: first_seen.count(b"more") == 4)
    stop_first.set()
    threads.pop().join(30)
    assert sum(at.offset for at in admin.groups.offsets("g").values()) == 44


def test_a_topic_that_was_made_anew_is_another_topic(client: Client) -> None:
    """Topic ids (KIP-516): what a client knew of the old one does not reach the new one."""
    producer = Producer(client)
    producer.send("t", b"old").result()
    admin = Admin(client)
    with Client(f"{client.connection().host}:{client.connection().port}") as other:
        Admin(other).topics.delete("t")
        Admin(other).topics.create("t")
    assert producer.send("t", b"new").result().offset == 0
    producer.close()
    with Consumer(client, "t") as consumer:
        assert values(consumer) == [b"new"]
    assert [topic.name for topic in admin.topics.all()] == ["t"]


def test_producer_and_consumer_outlive_a_restart_of_the_broker(tmp_path: Path) -> None:
    broker = semel.embedded(tmp_path).start()
    port = broker.port
    with Client(broker.bootstrap_servers, timeout_s=10) as client, Client(broker.bootstrap_servers) as reader:
        producer = Producer(client)
        producer.send("t", b"before").result()
        consumer = Consumer(reader, "t")
        assert [record.value for record in consumer.poll()] == [b"before"]
        broker.close()
        broker = semel.embedded(tmp_path, port=port).start()
        assert producer.send("t", b"after").result().offset == 1
        found: list[bytes | None] = []
        deadline = time.monotonic() + 30
        while not found and time.monotonic() < deadline:
            found = [record.value for record in consumer.poll(1)]
        assert found == [b"after"]
        consumer.close()
        producer.close()
    broker.close()


def test_a_broker_that_stays_away_is_told(tmp_path: Path) -> None:
    broker = semel.embedded(tmp_path).start()
    with Client(broker.bootstrap_servers) as client:
        producer = Producer(client)
        producer.send("t", b"x").result()
        consumer = Consumer(client, "t")
        consumer.poll()
        broker.close()
        # Only now: before, an answer may take as long as a busy machine needs.
        client.timeout_s = producer._delivery_timeout_s = 0.3
        lost = producer.send("t", b"y")
        with pytest.raises(ClientError):
            lost.result()
        with pytest.raises(ClientError):
            consumer.poll(60)


def test_configs_of_topics_and_brokers(client: Client) -> None:
    admin = Admin(client)
    admin.topics.create(NewTopic("t", configs={"retention.ms": "1"}))
    admin.configs.alter_topic("t", values={"retention.bytes": "2"}, remove=["retention.ms"])
    found = {each.name: each for each in admin.configs.of_topic("t")}
    assert found["retention.bytes"].value == "2"
    assert not found["retention.bytes"].is_default
    assert found["retention.ms"].source != "topic"
    with pytest.raises(KafkaError, match=r"no\.such\.thing"):
        admin.configs.alter_topic("t", values={"no.such.thing": "1"})
    (node,) = admin.cluster().nodes
    assert any(each.name == "num.partitions" for each in admin.configs.of_broker(node.node_id))


def test_offsets_of_a_lost_partition_do_not_count_as_committed(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin, both = Admin(client), [("t", 0), ("t", 1)]
    admin.topics.create(NewTopic("t", 2))
    for _, partition in both:
        write(client, "t", 2, partition=partition)
    refused: list[Any] = []

    def is_stale_at_first(*arguments: Any) -> None:
        if not refused:
            refused.append(arguments)
            raise KafkaError(ErrorCode.STALE_MEMBER_EPOCH, "the epoch has changed")
        commit_offsets(*arguments)

    with Consumer(client, "t", group_id="g", auto_commit=False) as consumer:
        assert len(values(consumer)) == 4
        with monkeypatch.context() as patch:
            patch.setattr(consuming, "commit_offsets", is_stale_at_first)
            patch.setattr(consumer, "_follow_group", lambda: consumer._take_assignment(both[:1]))
            consumer.commit()
        assert refused
        assert admin.groups.offsets("g").keys() == {("t", 0)}
        consumer._take_assignment(both)
        assert len(values(consumer)) == 2
        consumer.commit()
        assert {key: each.offset for key, each in admin.groups.offsets("g").items()} == dict.fromkeys(both, 2)


def test_groups_from_outside(client: Client) -> None:
    write(client, "t", 3)
    groups = Admin(client).groups
    groups.set_offsets("g", {("t", 0): 2})
    assert [each.group_id for each in groups.all()] == ["g"]
    assert groups.offsets("g", [("t", 0), ("u", 0)]) == {("t", 0): CommittedOffset(2, "", -1)}
    groups.delete_offsets("g", [("t", 0)])
    assert groups.offsets("g") == {}
    groups.set_offsets("g", {("t", 0): 1})
    groups.delete("g")
    with pytest.raises(KafkaError, match="'g'"):
        groups.describe("g")
