"""Clients that run through a fault and record how long each of their operations took."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from bench.side_by_side.clients import PATIENCE_SECONDS, VALUE, idempotent, transactional, write
from bench.workloads import Place
from semel.client import Client, ClientError, TransactionalProducer
from semel.client import KafkaError as WireError

TRANSACTIONS, WRITES, OWN = "transactions", "writes", "transactions of semel.client"
RECORDS = 10
EACH = 2
"""Producers of each kind."""
OPERATIONS = 20
"""Operations that each client completes before a fault begins, and after it is over."""


@dataclass
class Watch:
    """The results of all operations so far."""

    took: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    """Durations in seconds, by kind."""
    errors: list[str] = field(default_factory=list)
    """Errors that a library has reported to its application."""
    ended: list[int] = field(default_factory=list)
    """Number of operations of each client."""
    failed: list[BaseException] = field(default_factory=list)

    def go_on(self) -> None:
        """Wait until each client has completed some more operations."""
        wanted = [count + OPERATIONS for count in self.ended]
        deadline = time.perf_counter() + PATIENCE_SECONDS
        while any(count < least for count, least in zip(self.ended, wanted, strict=True)):
            assert time.perf_counter() < deadline, f"no progress: {self.ended}, {self.errors[-3:]}"
            if self.failed:
                raise self.failed[0]
            time.sleep(0.01)

    def longest_ms(self, kind: str) -> float:
        return max(self.took[kind]) * 1e3


@contextmanager
def watched(bootstrap: str, places: Sequence[Place], name: str) -> Iterator[Watch]:
    """Run clients until the end of the block."""
    kinds = [kind for kind in KINDS for _ in range(EACH)]
    watch = Watch(ended=[0] * len(kinds))
    over = threading.Event()

    def work(number: int, kind: str) -> None:
        try:
            operate = KINDS[kind](bootstrap, places, f"{name}-{number}", watch.errors)
            # The first operation finds coordinators and leaders.
            operate()
            while not over.is_set():
                began = time.perf_counter()
                operate()
                watch.took[kind].append(time.perf_counter() - began)
                watch.ended[number] += 1
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            watch.failed.append(error)

    threads = [threading.Thread(target=work, args=each, daemon=True) for each in enumerate(kinds)]
    for thread in threads:
        thread.start()
    try:
        watch.go_on()
        for each in watch.took.values():
            each.clear()
        yield watch
    finally:
        over.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)


def _plain_write(bootstrap: str, places: Sequence[Place], name: str, errors: list[str]) -> Callable[[], None]:
    """Write records to every place until all are acknowledged; refused records are written again."""
    producer = idempotent(bootstrap)

    def operate() -> None:
        left = list(places)
        while left:
            refused: list[Place] = []

            def told(error: KafkaError | None, message: Message, refused: list[Place] = refused) -> None:
                if error is not None:
                    errors.append(str(error))
                    refused.append((str(message.topic()), int(message.partition() or 0)))

            for topic, partition in left:
                producer.produce(topic, VALUE, partition=partition, on_delivery=told)
            assert producer.flush(PATIENCE_SECONDS) == 0, "records were not acknowledged"
            left = refused

    return operate


def _transaction(bootstrap: str, places: Sequence[Place], name: str, errors: list[str]) -> Callable[[], None]:
    """Run a transaction, again if it must be aborted."""
    producers = [transactional(bootstrap, name)]

    def operate() -> None:
        while not _is_committed(producers[0], places, errors):
            if errors and errors[-1].startswith(FATAL):
                producers[0] = transactional(bootstrap, name)

    return operate


def _own_transaction(
    bootstrap: str, places: Sequence[Place], name: str, errors: list[str]
) -> Callable[[], None]:
    """Run a transaction with `semel.client`, which is reopened after an error."""
    producers = [TransactionalProducer(Client(bootstrap), name)]
    producers[0].init()

    def is_committed(producer: TransactionalProducer) -> bool:
        try:
            with producer.transaction():
                for topic, partition in places:
                    for _ in range(RECORDS):
                        producer.send(topic, VALUE, partition=partition)
        except (ClientError, WireError) as error:
            errors.append(f"semel.client: {error}")
            return False
        return True

    def operate() -> None:
        while not is_committed(producers[0]):
            producers[0] = TransactionalProducer(Client(bootstrap), name)
            producers[0].init()

    return operate


KINDS: dict[str, Callable[[str, Sequence[Place], str, list[str]], Callable[[], None]]] = {
    TRANSACTIONS: _transaction,
    WRITES: _plain_write,
    OWN: _own_transaction,
}
FATAL = "fatal: "


def _is_committed(producer: Producer, places: Sequence[Place], errors: list[str]) -> bool:
    """Run one transaction; return whether it was committed. Retriable calls are repeated, as documented."""
    try:
        _repeated(producer.begin_transaction)
        write(producer, places, RECORDS)
        _repeated(lambda: producer.commit_transaction(PATIENCE_SECONDS))
    except KafkaException as error:
        reason: KafkaError = error.args[0]
        if not reason.txn_requires_abort():
            errors.append(f"{FATAL}{reason}")
            return False
        errors.append(str(reason))
        _repeated(lambda: producer.abort_transaction(PATIENCE_SECONDS))
        return False
    return True


def _repeated(call: Callable[[], object]) -> None:
    while True:
        try:
            call()
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
        else:
            return
