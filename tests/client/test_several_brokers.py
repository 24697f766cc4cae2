"""Clients and brokers among which leaders and coordinators move. See `support.models.ownership`."""

import asyncio
import threading
import time
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient
from support.models.ownership import NOBODY, SharedLog, shared_log
from support.waiting import until

from semel.client import (
    LATEST,
    Admin,
    Client,
    CommitOrderConsumer,
    Consumer,
    KafkaError,
    NewTopic,
    Producer,
    TransactionalProducer,
)
from semel.client.produce import producer as producing

QUICK = {
    "group_initial_rebalance_delay_ms": 0,
    "group_min_session_timeout_ms": 500,
    "group_consumer_heartbeat_interval_ms": 200,
}


@pytest.fixture
def log() -> Iterator[SharedLog]:
    with shared_log(2, **QUICK) as log:
        yield log


@pytest.fixture
def client(log: SharedLog) -> Iterator[Client]:
    with Client(log.bootstrap_servers, timeout_s=20) as client:
        Admin(client).topics.create(NewTopic("t", partitions=4))
        for partition in (1, 3):
            log.move_leader("t", partition, 2)
        yield client


@pytest.fixture
def name() -> str:
    return f"id-{uuid.uuid4().hex[:8]}"


class Moves:
    """Moves leaders and coordinators to and fro, until the test is done.

    Each pause is longer than the one before. A client waits 100 ms between metadata and its next request;
    at a constant pace it can fall into step with the moves and come too late every time.
    """

    def __init__(self, log: SharedLog, *names: str, pause_s: float = 0.15) -> None:
        self._log, self._names, self._pause_s = log, names, pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        node_id = 1
        while not self._stop.is_set():
            node_id = 3 - node_id
            for partition in range(4):
                self._log.move_leader("t", partition, node_id if partition % 2 else 3 - node_id)
            for name in self._names:
                self._log.move_coordinator(name, node_id)
            self._stop.wait(self._pause_s)
            self._pause_s *= 1.1


# -- semel.client -----------------------------------------------------------------------------------------


def test_own_records_reach_their_leaders_while_these_move(log: SharedLog, client: Client) -> None:
    with Moves(log):
        with Producer(client) as producer:
            for number in range(200):
                producer.send("t", b"%d" % number, partition=number % 4)
                if number % 10 == 0:
                    producer.flush()
                    time.sleep(0.02)
        with Consumer(client, "t") as consumer:
            found = [int(record.value or b"") for record in consumer.read_to_end()]
    assert sorted(found) == list(range(200))


def test_own_poll_survives_a_partition_without_a_leader(log: SharedLog, client: Client) -> None:
    with Producer(client) as producer:
        for partition in range(4):
            producer.send("t", b"%d" % partition, partition=partition)
    log.move_leader("t", 1, NOBODY)
    client.forget_topic("t")
    found: list[int] = []

    def read(count: int) -> bool:
        found.extend(record.partition for record in consumer.poll(0.2))
        return len(found) == count

    consumer = Consumer(client)
    consumer.assign(("t", partition) for partition in range(4))
    for partition in range(4):
        consumer.seek(("t", partition), 0)
    until(lambda: read(3))
    assert sorted(found) == [0, 2, 3]
    log.move_leader("t", 1, 2)
    until(lambda: read(4))
    consumer.close()


def test_own_producer_writes_where_there_is_a_leader(
    log: SharedLog, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.move_leader("t", 1, NOBODY)
    client.forget_topic("t")
    producer = Producer(client)
    producer.send("t", b"lost", partition=1)
    kept = producer.send("t", b"kept", partition=0)
    # When that has arrived, the time of the other is up.
    clock = SimpleNamespace(
        monotonic=lambda: time.monotonic() + (3_600 if kept.done else 0), sleep=time.sleep
    )
    monkeypatch.setattr(producing, "time", clock)
    with pytest.raises(KafkaError, match="t/1"):
        producer.flush()
    assert kept.result().offset == 0
    producer.close()


def test_own_client_does_without_a_broker_that_is_gone(log: SharedLog, client: Client, name: str) -> None:
    log.move_coordinator(name, 2)
    with Consumer(client, "t", group_id=name) as consumer:
        until(lambda: consumer.poll(0.1) == [] and len(consumer.assignment) == 4)
        with Producer(client) as producer:
            producer.send("t", b"1", partition=1).result()
        until(lambda: consumer.poll(0.1))
        log.crash(2)
        log.remove_node(2)
        for partition in (1, 3):
            log.move_leader("t", partition, 1)
        log.move_coordinator(name, 1)
        with Producer(client) as producer:
            producer.send("t", b"2", partition=1).result()
        until(lambda: consumer.poll(0.1))
    admin = Admin(client)
    assert [each.group_id for each in admin.groups.all()] == [name]
    assert admin.transactions.all() == []
    assert admin.topics.delete_records({("t", partition): -1 for partition in range(4)})["t", 1] == 2
    admin.topics.create("new")


def test_own_lists_are_those_of_all_brokers(log: SharedLog, client: Client) -> None:
    log.move_coordinator("a", 2)
    for each in ("a", "b"):
        Admin(client).groups.set_offsets(each, {("t", 0): 1})
        with TransactionalProducer(client, each) as producer:
            producer.begin()
            producer.commit()
    admin = Admin(client)
    assert [each.group_id for each in admin.groups.all()] == ["a", "b"]
    assert [each.transactional_id for each in admin.transactions.all()] == ["a", "b"]


def test_own_transactions_over_several_brokers(log: SharedLog, client: Client, name: str) -> None:
    with Moves(log, name, f"{name}-group"):
        with TransactionalProducer(client, name) as producer:
            for number in range(20):
                producer.begin()
                for partition in range(4):
                    producer.send("t", b"%d" % number, partition=partition)
                producer.send_offsets({("t", 0): number}, f"{name}-group")
                producer.commit()
        for kind in (Consumer, CommitOrderConsumer):
            with kind(client, "t") as consumer:
                found = [(record.partition, int(record.value or b"")) for record in consumer.read_to_end()]
            assert sorted(found) == [(partition, number) for partition in range(4) for number in range(20)]
        assert Admin(client).groups.offsets(f"{name}-group")["t", 0].offset == 19


# -- other clients ----------------------------------------------------------------------------------------


def _filled(client: Client, count: int = 40) -> None:
    with Producer(client) as producer:
        for number in range(count):
            producer.send("t", b"%d" % number, partition=number % 4)


def test_librdkafka_writes_while_leaders_move(log: SharedLog, client: Client) -> None:
    failed: list[Any] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": log.bootstrap_servers, "enable.idempotence": True, "linger.ms": 0}
    )
    with Moves(log):
        for number in range(200):
            producer.produce(
                "t", b"%d" % number, partition=number % 4, on_delivery=lambda error, _: failed.append(error)
            )
            producer.poll(0.005)
        assert producer.flush(30) == 0
    assert [error for error in failed if error] == []
    with Consumer(client, "t") as consumer:
        found = [int(record.value or b"") for record in consumer.read_to_end()]
    assert sorted(found) == list(range(200))
    assert all(found.index(each) < found.index(each + 4) for each in range(196))


def test_librdkafka_reads_each_record_once_while_leaders_and_coordinator_move(
    log: SharedLog, client: Client, name: str
) -> None:
    """Leader epochs grow, records keep epoch 0: positions are validated, and never reset."""
    _filled(client, 8)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": log.bootstrap_servers,
            "group.id": name,
            # A reset of a position would be an error.
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition("t", partition, 0) for partition in range(4)])
    found: list[int] = []

    def commit(message: confluent_kafka.Message) -> bool:
        try:
            consumer.commit(message=message, asynchronous=False)
        except confluent_kafka.KafkaException as error:
            # The coordinator moves more often than librdkafka tries.
            if error.args[0].code() != confluent_kafka.KafkaError.NOT_COORDINATOR:
                raise
            return False
        return True

    def read(count: int) -> bool:
        message = consumer.poll(0.1)
        if message is not None:
            assert message.error() is None, message.error()
            found.append(int(message.value() or b""))
            if found[-1] % 8 >= 4:  # every second of each partition, and the last
                until(lambda: commit(message))
        return len(found) == count

    with Moves(log, name):
        until(lambda: read(8))
        for number in range(8, 16):
            with Producer(client) as producer:
                producer.send("t", b"%d" % number, partition=number % 4)
            read(-1)
        until(lambda: read(16))
    consumer.close()
    assert sorted(found) == list(range(16))
    # Whoever continues from the committed positions finds nothing left, whatever leads now.
    for partition in range(4):
        log.move_leader("t", partition, 1 + partition % 2)
    again = confluent_kafka.Consumer(
        {"bootstrap.servers": log.bootstrap_servers, "group.id": name, "auto.offset.reset": "error"}
    )
    wanted = [confluent_kafka.TopicPartition("t", partition) for partition in range(4)]
    again.assign(again.committed(wanted, timeout=20))
    assert all((message := again.poll(0.1)) is None or message.error() is None for _ in range(3))
    assert sum(each.offset for each in again.position(wanted) if each.offset >= 0) in (0, 16)
    again.close()


def test_librdkafka_transactions_while_owners_move(log: SharedLog, client: Client, name: str) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": log.bootstrap_servers, "transactional.id": name, "linger.ms": 0}
    )
    with Moves(log, name):
        producer.init_transactions(30)
        for number in range(10):
            producer.begin_transaction()
            for partition in range(4):
                producer.produce("t", b"%d" % number, partition=partition)
            producer.commit_transaction(30)
    with Consumer(client, "t") as consumer:
        found = [(record.partition, int(record.value or b"")) for record in consumer.read_to_end()]
    assert sorted(found) == [(partition, number) for partition in range(4) for number in range(10)]


def test_librdkafka_lists_what_all_brokers_have(log: SharedLog, client: Client) -> None:
    log.move_coordinator("a", 2)
    for each in ("a", "b"):
        Admin(client).groups.set_offsets(each, {("t", 0): 1})
    admin = AdminClient({"bootstrap.servers": log.bootstrap_servers})
    listed = admin.list_consumer_groups(request_timeout=20).result()
    assert sorted(each.group_id for each in listed.valid) == ["a", "b"]
    shown = admin.list_topics("t", timeout=20)
    assert {each.id: each.leader for each in shown.topics["t"].partitions.values()} == {
        0: 1,
        1: 2,
        2: 1,
        3: 2,
    }
    log.move_leader("t", 0, NOBODY)
    assert admin.list_topics("t", timeout=20).topics["t"].partitions[0].leader == -1


async def test_aiokafka_writes_and_reads_while_owners_move(log: SharedLog, client: Client, name: str) -> None:
    servers = log.bootstrap_servers.split(",")
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True)
    consumer = aiokafka.AIOKafkaConsumer(
        "t", bootstrap_servers=servers, group_id=name, auto_offset_reset="earliest", session_timeout_ms=6_000
    )
    await producer.start()
    await consumer.start()
    try:
        with Moves(log, name, pause_s=1.0):
            for number in range(40):
                await asyncio.sleep(0.05)
                await producer.send_and_wait("t", b"%d" % number, partition=number % 4)
            found: list[int] = []
            async with asyncio.timeout(60):
                while len(found) < 40:
                    records = await consumer.getmany(timeout_ms=100)
                    found += [int(each.value) for some in records.values() for each in some]
        # Without this, stop() would wait forever for a coordinator that has moved (FINDINGS.md).
        await consumer.commit()
    finally:
        await consumer.stop()
        await producer.stop()
    assert sorted(found) == list(range(40))


def test_kafka_python_writes_and_reads_while_owners_move(log: SharedLog, client: Client, name: str) -> None:
    servers = log.bootstrap_servers.split(",")
    producer = kafka.KafkaProducer(bootstrap_servers=servers)
    consumer = kafka.KafkaConsumer(
        "t", bootstrap_servers=servers, group_id=name, auto_offset_reset="earliest", session_timeout_ms=6_000
    )
    try:
        with Moves(log, name):
            for number in range(40):
                producer.send("t", b"%d" % number, partition=number % 4).get(30)
            found: list[int] = []

            def read() -> bool:
                # A long poll, because kafka-python loses a rebalance that ends between two polls (see
                # support.clients.kafka_python).
                records = consumer.poll(timeout_ms=10_000)
                found.extend(int(each.value) for some in records.values() for each in some)
                return len(found) >= 40

            until(read, 60)
    finally:
        consumer.close()
        producer.close()
    assert sorted(found) == list(range(40))


def test_ends_of_partitions_with_several_leaders(log: SharedLog, client: Client) -> None:
    _filled(client)
    found = Admin(client).topics.offsets({("t", partition): LATEST for partition in range(4)})
    assert {each.offset for each in found.values()} == {10}
