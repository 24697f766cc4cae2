"""Snapshots: every transaction is wholly there or not at all, across partitions and topics."""

import json
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer as ConfluentProducer
from pyspark.sql import SparkSession
from support.spark.jobs import create
from support.spark.snapshots import Reading

from semel.client import Admin, Client, NewTopic, Producer, TransactionalProducer
from semel.embedded import Embedded
from semel.spark import OptionError
from semel.spark.partition_offsets import id_text
from semel.spark.source import snapshot
from semel.spark.source.snapshot import Ended, Tail

pytestmark = pytest.mark.spark

MARKER, JOURNAL = "accounts", "ledger"
BOTH = f"{MARKER},{JOURNAL}"
PARTITIONS = 3


@pytest.fixture
def servers(semel_broker: Embedded) -> str:
    create(semel_broker.bootstrap_servers, (MARKER, PARTITIONS))
    with Client(semel_broker.bootstrap_servers) as client:
        journal = NewTopic(JOURNAL, partitions=PARTITIONS, configs={"semel.visibility": "journal"})
        Admin(client).topics.create(journal)
    return semel_broker.bootstrap_servers


@contextmanager
def writer(servers: str, name: str) -> Iterator[TransactionalProducer]:
    with Client(servers) as client, TransactionalProducer(client, name) as producer:
        yield producer


def send(producer: TransactionalProducer, value: bytes, *where: tuple[str, int]) -> None:
    for topic, partition in where:
        producer.send(topic, value, partition=partition)
    producer.flush()


def test_an_open_transaction_hides_nothing_that_is_committed(servers: str) -> None:
    """The read of each partition up to its stable offset is torn here; the snapshot is not."""
    both = ((MARKER, 0), (MARKER, 1), (JOURNAL, 0))
    with (
        writer(servers, "open") as open_,
        writer(servers, "other") as other,
        writer(servers, "third") as third,
    ):
        open_.begin()
        send(open_, b"open", (MARKER, 0), (JOURNAL, 0))
        for value in (b"one", b"two"):
            other.begin()
            send(other, value, *both)
            other.commit()
        other.begin()
        send(other, b"aborted", *both)
        other.abort()
        third.begin()
        send(third, b"unfinished", *both)
        with Client(servers) as client, Producer(client) as plain:
            plain.send(MARKER, b"plain", partition=0)
        torn = Counter(Reading(servers, BOTH, snapshot="false").values())
        assert torn == {b"one": 2, b"two": 2}
        found = Reading(servers, BOTH)
        assert Counter(found.values()) == {b"one": 3, b"two": 3, b"plain": 1}
        # What is written and committed later is not in it, whenever it is read.
        third.commit()
        open_.commit()
        assert Counter(found.values()) == {b"one": 3, b"two": 3, b"plain": 1}
        assert Counter(Reading(servers, BOTH).values()) == {
            b"one": 3,
            b"two": 3,
            b"plain": 1,
            b"unfinished": 3,
            b"open": 2,
        }


def test_what_has_ended_is_split_and_the_tail_is_not(servers: str) -> None:
    with writer(servers, "open") as open_, writer(servers, "other") as other:
        with Client(servers) as client, Producer(client) as plain:
            for number in range(40):
                plain.send(MARKER, b"%d" % number, partition=0)
            topic_id = id_text(client.topic(MARKER).topic_id)
        open_.begin()
        send(open_, b"open", (MARKER, 0))
        other.begin()
        send(other, b"behind", (MARKER, 0))
        other.commit()
        found = Reading(servers, MARKER, minPartitions="4")
        assert found.ranges == [
            *(Ended(MARKER, 0, start, start + 10, topic_id) for start in range(0, 40, 10)),
            Tail(MARKER, 0, 40, 43, topic_id),
        ]
        assert found.values() == [*(b"%d" % number for number in range(40)), b"behind"]
        start = json.dumps({MARKER: {"0": 41, "1": 0, "2": 0}})
        later = Reading(servers, MARKER, startingOffsets=start)
        assert (later.ranges, later.values()) == ([Tail(MARKER, 0, 41, 43, topic_id)], [b"behind"])


def test_a_tail_that_does_not_fit_in_memory_is_held_on_disk(
    servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "MEMORY_BYTES", 10_000)
    monkeypatch.setattr(snapshot, "ROWS_MAX", 7)
    expected: Counter[bytes] = Counter()
    with writer(servers, "open") as open_:
        open_.begin()
        send(open_, b"open", (MARKER, 0))
        producers = [(each, Client(servers)) for each in range(3)]
        transactional = [TransactionalProducer(client, f"writer {each}") for each, client in producers]
        for producer in transactional:
            producer.begin()
        for number in range(30):
            for each, producer in enumerate(transactional):
                value = b"%d of %d " % (number, each) + bytes(500)
                send(producer, value, (MARKER, 0))
                expected[value] += each != 1
        transactional[0].commit()
        transactional[1].abort()
        transactional[2].commit()
        assert Counter(Reading(servers, MARKER).values()) == +expected
        for producer, (_, client) in zip(transactional, producers, strict=True):
            producer.close()
            client.close()


@pytest.mark.parametrize("topics", [[MARKER], [JOURNAL], [MARKER, JOURNAL]], ids="+".join)
def test_transfers_add_up_to_nothing_in_every_snapshot(servers: str, topics: list[str]) -> None:
    """Transfers are under way all the time; some are aborted, and some stay open for long."""
    places = [(topic, partition) for topic in topics for partition in range(PARTITIONS)]
    stop = threading.Event()
    problems: list[BaseException] = []

    def transfer(name: int) -> None:
        chance = random.Random(name)
        try:
            with writer(servers, f"bank {name}") as producer:
                number = 0
                while not stop.is_set():
                    number += 1
                    producer.begin()
                    parties = chance.sample(places, k=chance.randint(2, len(places)))
                    amounts = [chance.randint(1, 100) for _ in parties[1:]]
                    for place, amount in zip(parties, [-sum(amounts), *amounts], strict=True):
                        about = {"id": f"{name}/{number}", "amount": amount, "legs": len(parties)}
                        send(producer, json.dumps(about).encode(), place)
                    # One in ten stays open until others have committed behind it.
                    if chance.random() < 0.1:
                        stop.wait(0.05)
                    if chance.random() < 0.2:
                        producer.abort()
                    else:
                        producer.commit()
        except BaseException as error:  # noqa: BLE001 - told below, by the test
            problems.append(error)

    threads = [threading.Thread(target=transfer, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    try:
        transfers = snapshots = 0
        deadline = time.monotonic() + 60
        while (snapshots < 12 or transfers < 40) and time.monotonic() < deadline and not problems:
            transfers = check(Reading(servers, ",".join(topics)).rows())
            snapshots += 1
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not problems, problems
    assert snapshots >= 12
    assert check(Reading(servers, ",".join(topics)).rows()) >= transfers >= 40


def check(rows: list[dict[str, Any]]) -> int:
    """Every transfer is there with all its legs, and adds up to nothing; how many there are."""
    legs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    assert len({(row["topic"], row["partition"], row["offset"]) for row in rows}) == len(rows)
    for row in rows:
        about = json.loads(row["value"])
        legs[about["id"]].append(about)
    for name, found in legs.items():
        assert len(found) == found[0]["legs"], f"transfer {name} is torn"
        assert sum(each["amount"] for each in found) == 0
    return len(legs)


def test_spark_reads_snapshots(spark: SparkSession, servers: str) -> None:
    with writer(servers, "open") as open_, writer(servers, "other") as other:
        open_.begin()
        send(open_, b"open", (MARKER, 0))
        other.begin()
        send(other, b"both", (MARKER, 0), (JOURNAL, 1))
        other.commit()
        reader = spark.read.format("semel").option("kafka.bootstrap.servers", servers)
        frame = reader.option("subscribe", f"{MARKER},{JOURNAL}").option("snapshot", "true").load()
        rows = frame.orderBy("topic").collect()
        assert [(bytes(row.value), row.topic, row.partition) for row in rows] == [
            (b"both", MARKER, 0),
            (b"both", JOURNAL, 1),
        ]


def test_another_broker_is_refused() -> None:
    other = ConfluentProducer({"bootstrap.servers": "unused:1", "test.mock.num.brokers": 1})
    brokers = other.list_topics("in", timeout=10).brokers
    address = ",".join(f"{each.host}:{each.port}" for each in brokers.values())
    with pytest.raises(OptionError, match="snapshot=true"):
        Reading(address, "in")
