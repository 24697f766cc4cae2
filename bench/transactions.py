"""What transactions cost: beside a plain durable write, beside the mock cluster, and for plain readers."""

import statistics
import time
from functools import partial

from confluent_kafka import Producer

from bench.arrivals import Arrivals
from bench.raw import RawClient, RawProducer, batch
from bench.rows import Row, spread
from bench.subjects import create_topics, mock_cluster, semel
from bench.together import together

PARTITIONS = 5
RECORDS = 10
VALUE = b"x" * 100
VALUES = [VALUE] * RECORDS
# The mock cluster gives every topic four partitions, so five are four of one topic and one of another.
PLACES = [*(("wide", partition) for partition in range(4)), ("narrow", 0)]
TOPICS = {"wide": 4, "narrow": 1}
PRODUCERS = 8
WARM = 20
COUNT = 200


def beside_a_plain_write(rounds: int) -> Row:
    """Write and commit in turn on one connection, so that both see the same machine."""
    ratios: list[float] = []
    plain: list[float] = []
    for number in range(rounds):
        with semel() as subject:
            client = RawClient(subject.bootstrap)
            client.create_topic("raw", PARTITIONS)
            producer = RawProducer(client, f"raw-{number}")
            written = [batch(VALUES)] * PARTITIONS
            of_plain: list[float] = []
            of_transactions: list[float] = []
            for at in range(WARM + COUNT):
                seconds = client.produce("raw", written)
                both = producer.write("raw", VALUES, PARTITIONS) + producer.commit()
                if at >= WARM:
                    of_plain.append(seconds)
                    of_transactions.append(both)
            client.close()
        ratios.append(statistics.median(of_transactions) / statistics.median(of_plain))
        plain.append(statistics.median(of_plain))
    return Row(
        f"raw client, {RECORDS} records in each of {PARTITIONS} partitions: time of a committed"
        " transaction over that of a plain durable produce of the same records",
        f"ratio {spread(ratios)}; the plain one {statistics.median(plain) * 1e3:,.2f} ms",
        statistics.median(ratios),
        1.7,
        False,
    )


def transactional(bootstrap: str, transactional_id: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "log_level": 0,
        }
    )
    producer.init_transactions(30)
    return producer


def one_transaction(producer: Producer) -> float:
    """Run a transaction that writes to all places; return the seconds."""
    started = time.perf_counter()
    producer.begin_transaction()
    for topic, partition in PLACES:
        for _ in range(RECORDS):
            producer.produce(topic, VALUE, partition=partition)
    producer.commit_transaction(30)
    return time.perf_counter() - started


def one_producer_beside_the_mock(rounds: int) -> Row:
    ratios: list[float] = []
    ours: list[float] = []
    for _ in range(rounds):
        with semel() as subject, mock_cluster(TOPICS) as mock:
            create_topics(subject.bootstrap, TOPICS)
            with_us, with_mock = transactional(subject.bootstrap, "one"), transactional(mock, "one")
            seconds: list[tuple[float, float]] = []
            for at in range(WARM + COUNT):
                pair = one_transaction(with_us), one_transaction(with_mock)
                if at >= WARM:
                    seconds.append(pair)
        ours.append(statistics.median(each for each, _ in seconds))
        ratios.append(ours[-1] / statistics.median(each for _, each in seconds))
    return Row(
        f"one librdkafka producer, {RECORDS} records in each of {PARTITIONS} partitions: time of a"
        " transaction over that with the mock cluster",
        f"ratio {spread(ratios)}; {statistics.median(ours) * 1e3:,.2f} ms",
        statistics.median(ratios),
        1.5,
        False,
    )


def eight_producers_beside_the_mock(rounds: int, seconds: float) -> Row:
    ratios: list[float] = []
    ours: list[float] = []
    for _ in range(rounds):
        with semel() as subject, mock_cluster(TOPICS) as mock:
            create_topics(subject.bootstrap, TOPICS)
            floor = transactions_per_second(mock, seconds)
            ours.append(transactions_per_second(subject.bootstrap, seconds))
        ratios.append(ours[-1] / floor)
    return Row(
        f"{PRODUCERS} librdkafka producers, {RECORDS} records in each of {PARTITIONS} partitions:"
        " transactions per second, beside the mock cluster",
        f"ratio {spread(ratios)}; {statistics.median(ours):,.0f} transactions/s durable",
        statistics.median(ratios),
        0.6,
    )


def transactions_per_second(bootstrap: str, seconds: float) -> float:
    """Return the rate of all producers together, each with a thread."""
    clients = [transactional(bootstrap, f"eight-{number}") for number in range(PRODUCERS)]
    for client in clients:
        one_transaction(client)
    done = [0] * PRODUCERS
    end = time.perf_counter() + seconds

    def work(number: int) -> None:
        while time.perf_counter() < end:
            one_transaction(clients[number])
            done[number] += 1

    started = time.perf_counter()
    together([partial(work, number) for number in range(PRODUCERS)])
    return sum(done) / (time.perf_counter() - started)


def readers_beside_an_open_transaction(open_seconds: float) -> list[Row]:
    """Write two journal topics in turn, while a transaction stays open in one of them."""
    with semel() as subject:
        client = RawClient(subject.bootstrap)
        for topic in ("blocked", "free"):
            client.create_topic(topic, 1, semel_visibility="journal")
        opened = RawProducer(client, "open")
        opened.write("blocked", VALUES)
        writer = RawProducer(client, "writer")
        readers = {
            topic: Arrivals(subject.bootstrap, topic, max_wait_ms=500) for topic in ("blocked", "free")
        }
        delays: dict[str, list[float]] = {topic: [] for topic in readers}
        end = time.perf_counter() + open_seconds
        while time.perf_counter() < end:
            for topic, reader in readers.items():
                writer.write(topic, [VALUE])
                asked = time.perf_counter()
                writer.commit()
                delays[topic].append(reader.delay_since(asked, len(delays[topic])))
        came = len(readers["blocked"].came)
        written = len(delays["blocked"])
        opened.commit()
        readers["blocked"].delay_since(time.perf_counter(), written + RECORDS - 1)
        for reader in readers.values():
            reader.close()
        client.close()
    medians = {topic: statistics.median(each[WARM:]) for topic, each in delays.items()}
    which = f"a journal topic with one transaction left open for {open_seconds:,.0f} seconds"
    return [
        Row(
            f"{which}: records that its reader got of those that others committed meanwhile",
            f"{came:,} of {written:,}",
            came / written,
            1.0,
        ),
        Row(
            f"{which}: delay from commit to reader, over that of a topic without",
            f"{medians['blocked'] * 1e3:,.2f} ms and {medians['free'] * 1e3:,.2f} ms",
            medians["blocked"] / medians["free"],
            1.2,
            False,
        ),
    ]
