"""Clients that go on through a fault, and note how long each of their operations took."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from bench.side_by_side.clients import PATIENCE_SECONDS, idempotent, transactional, write
from bench.workloads import Place

TRANSACTIONS, WRITES = "transactions", "writes"
RECORDS = 10
EACH = 2
"""Producers of each kind: with transactions, and without."""
OPERATIONS = 20
"""That everybody ends before a fault begins, and after it is over."""


@dataclass
class Watch:
    """What became of all operations so far."""

    took: dict[str, list[float]] = field(default_factory=lambda: {TRANSACTIONS: [], WRITES: []})
    """Seconds, by kind."""
    errors: list[str] = field(default_factory=list)
    """Those that a library has told its application."""
    ended: list[int] = field(default_factory=list)
    """Operations of each client."""
    failed: list[BaseException] = field(default_factory=list)

    def go_on(self) -> None:
        """Wait until everybody has ended some more operations."""
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
    """Clients at work until the end of the block."""
    watch = Watch(ended=[0] * (2 * EACH))
    over = threading.Event()

    def work(number: int) -> None:
        kind, one = (TRANSACTIONS, _transaction) if number < EACH else (WRITES, _plain_write)
        try:
            operate = one(bootstrap, places, f"{name}-{number}", watch.errors)
            # The first finds coordinators and leaders.
            operate()
            while not over.is_set():
                began = time.perf_counter()
                operate()
                watch.took[kind].append(time.perf_counter() - began)
                watch.ended[number] += 1
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            watch.failed.append(error)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(2 * EACH)]
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
    """Records to every place, all acknowledged in the end; what was refused is written again."""
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
                producer.produce(topic, b"x" * 100, partition=partition, on_delivery=told)
            assert producer.flush(PATIENCE_SECONDS) == 0, "records were not acknowledged"
            left = refused

    return operate


def _transaction(bootstrap: str, places: Sequence[Place], name: str, errors: list[str]) -> Callable[[], None]:
    """A transaction, done again if it has to be aborted."""
    producers = [transactional(bootstrap, name)]

    def operate() -> None:
        while not _is_committed(producers[0], places, errors):
            if errors and errors[-1].startswith(FATAL):
                producers[0] = transactional(bootstrap, name)

    return operate


FATAL = "fatal: "


def _is_committed(producer: Producer, places: Sequence[Place], errors: list[str]) -> bool:
    """Whether the transaction was committed. What may be repeated is, as applications are told to do."""
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
