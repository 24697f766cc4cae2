"""Transactions back to back, by each client: librdkafka, Apache Kafka's own in Java, and `semel.client`.

The two clients in Python have a thread for each producer. The Java program is compiled when first needed,
keeps running during all measurements, and gets one line for each request.
"""

import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

from confluent_kafka import Producer

from bench.figures import quantile
from bench.subjects import KAFKA_VERSION, PLAINTEXT
from bench.together import together
from bench.workloads import Place
from peers.programs import build_java, fetch_kafka
from semel.client import Client, Security, TransactionalProducer

VALUE = b"x" * 100
WARM = 4
"""Transactions of each producer before the clock starts: for metadata, coordinators and connections."""
PATIENCE_SECONDS = 120.0


@dataclass(frozen=True)
class Timed:
    """The result of timed transactions."""

    count: int
    seconds: float
    p50_ms: float
    p99_ms: float

    @property
    def rate(self) -> float:
        return self.count / self.seconds


class Load(NamedTuple):
    """The transactions to run."""

    bootstrap: str
    places: Sequence[Place]
    records: int
    """Records to each place."""
    producers: int
    seconds: float
    name: str
    """The prefix of transactional ids."""
    access: Mapping[str, str] = PLAINTEXT
    """The client's security settings."""


Run = Callable[[Load], Timed]
Transaction = Callable[[], None]
Opening = Callable[[int], AbstractContextManager[Transaction]]


def librdkafka(load: Load, *, plain: bool = False) -> Timed:
    """Run transactions, or plain groups of records, each acknowledged before the next is written."""

    @contextmanager
    def opened(number: int) -> Iterator[Transaction]:
        producer = (
            idempotent(load.bootstrap, load.access)
            if plain
            else transactional(load.bootstrap, f"{load.name}-{number}", load.access)
        )

        def group() -> None:
            write(producer, load.places, load.records)
            left = producer.flush(PATIENCE_SECONDS)
            assert left == 0, f"{left} records were not acknowledged"

        def transaction() -> None:
            producer.begin_transaction()
            write(producer, load.places, load.records)
            producer.commit_transaction(PATIENCE_SECONDS)

        yield group if plain else transaction

    return by_the_clock(opened, load.producers, load.seconds)


def idempotent(bootstrap: str, access: Mapping[str, str] = PLAINTEXT) -> Producer:
    return Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0, **access})


def transactional(bootstrap: str, transactional_id: str, access: Mapping[str, str] = PLAINTEXT) -> Producer:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "log_level": 0, **access}
    )
    producer.init_transactions(PATIENCE_SECONDS)
    return producer


def write(producer: Producer, places: Sequence[Place], records: int) -> None:
    """Write this many records to each place."""
    for topic, partition in places:
        for _ in range(records):
            producer.produce(topic, VALUE, partition=partition)


def semel_client(load: Load) -> Timed:
    """Run transactions with `semel.client`, version 2."""

    @contextmanager
    def opened(number: int) -> Iterator[Transaction]:
        name = f"{load.name}-{number}"
        with (
            Client(load.bootstrap, security=Security.of(load.access)) as client,
            TransactionalProducer(client, name) as producer,
        ):
            assert producer.version == 2

            def transaction() -> None:
                producer.begin()
                for topic, partition in load.places:
                    for _ in range(load.records):
                        producer.send(topic, VALUE, partition=partition)
                producer.commit()

            yield transaction

    return by_the_clock(opened, load.producers, load.seconds)


def by_the_clock(opening: Opening, producers: int, seconds: float) -> Timed:
    """Time the transactions of all producers together, from the moment when all are warm."""
    ready = threading.Barrier(producers)
    took: list[list[float]] = [[] for _ in range(producers)]
    began = [0.0] * producers
    ended = [0.0] * producers

    def work(number: int) -> None:
        with opening(number) as transaction:
            for _ in range(WARM):
                transaction()
            ready.wait(PATIENCE_SECONDS)
            began[number] = now = time.perf_counter()
            end = now + seconds
            while now < end:
                transaction()
                before, now = now, time.perf_counter()
                took[number].append(now - before)
            ended[number] = now

    together([partial(work, number) for number in range(producers)])
    every = [each for one in took for each in one]
    p50_ms, p99_ms = quantile(every, 0.5) * 1e3, quantile(every, 0.99) * 1e3
    return Timed(len(every), max(ended) - min(began), p50_ms, p99_ms)


class JavaClient:
    """Apache Kafka's own client, with transactions of version 2."""

    def __init__(self) -> None:
        class_path = fetch_kafka(KAFKA_VERSION)
        source = Path(__file__).parents[1] / "java" / "Transactions.java"
        self._process = subprocess.Popen(
            build_java(class_path, source), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def __call__(self, load: Load, *, plain: bool = False) -> Timed:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        bootstrap, places, records, producers, seconds, name, access = load
        assert not access, "the program in Java has no settings for security"
        where = ",".join(f"{topic}:{partition}" for topic, partition in places)
        kind = "plain" if plain else "transactions"
        question = f"{bootstrap} {where} {records} {producers} {seconds} {name} {WARM} {kind}\n"
        self._process.stdin.write(question)
        self._process.stdin.flush()
        # The client logs to the same stream, so an answer names its request.
        logged: list[str] = []
        for line in self._process.stdout:
            if line.startswith(f"answer {name} "):
                return _timed(line.split()[2:], logged)
            logged.append(line)
        raise AssertionError(f"the program in Java ended: {''.join(logged)[-2_000:]}")


def _timed(answer: list[str], logged: list[str]) -> Timed:
    """Return the figures of an answer; if it has none, show what was logged."""
    assert answer[0] == "ok", " ".join(answer) + "\n" + "".join(logged)[-2_000:]
    count, took, p50_ms, p99_ms = map(float, answer[1:])
    return Timed(int(count), took, p50_ms, p99_ms)
