"""The workers of a transactional load: writers of four kinds, and a copier.

Writers write transactions over all partitions and abort every third. The copier reads what they commit and
writes it to another topic, with its offsets in the same transactions, every third of which it aborts too. A
record names its writer, its transaction, the intended outcome and the number of partitions, so the log alone
shows what is torn, doubled, or should not be there.
"""

import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka import KafkaError as LibrdkafkaError

from semel.client import Client, TransactionalProducer
from semel.client.errors import ClientError, KafkaError, MustAbort, OutcomeUnknown, is_retriable
from semel.wire.errors import ErrorCode
from support.clients.raw_transactions import RawProducer
from support.clients.stubborn import StubbornClient
from support.waiting import until

PARTITIONS = 3
RECORDS = 2
"""Records in each partition, for each transaction."""
WAIT_SECONDS = 60.0
PATIENCE_SECONDS = 3 * WAIT_SECONDS
"""The limit for repeated calls, so that a broker that stays away fails the test."""
LIBRDKAFKA: dict[str, str | int | float | bool] = {
    "linger.ms": 1,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 20,
    # With the default, librdkafka 2.16 may never return from a call when its only broker has gone away.
    "metadata.recovery.strategy": "none",
    "log_level": 0,
}


class Noted(NamedTuple):
    """The content of a record."""

    writer: int
    number: int
    is_commit: bool
    partitions: int
    partition: int
    record: int

    def encode(self) -> bytes:
        return "/".join(str(int(each)) for each in self).encode()

    @classmethod
    def decode(cls, value: bytes) -> "Noted":
        writer, number, is_commit, partitions, partition, record = map(int, value.split(b"/"))
        return cls(writer, number, bool(is_commit), partitions, partition, record)


class Worker(threading.Thread):
    """A thread that keeps its failure and reports its progress."""

    def __init__(self, name: str, progress: threading.Semaphore) -> None:
        super().__init__(name=name)
        self.progress = progress
        self.stopping = threading.Event()
        self.failure = ""
        self.ended = 0
        """Transactions that have ended, with either outcome."""
        self.given_up = 0
        """Transactions that the client could not end as intended, after a whole message timeout."""
        self.replaced = 0
        """Instances of the client that had to be replaced because of that."""

    def run(self) -> None:
        try:
            self.work()
        except BaseException:  # noqa: BLE001 - the test that waits has to hear of it
            self.failure = traceback.format_exc()

    def work(self) -> None:
        raise NotImplementedError


class Writer(Worker, ABC):
    """One transactional id that writes one transaction after another."""

    def __init__(
        self, number: int, bootstrap: str, topic: str, progress: threading.Semaphore, message_timeout_ms: int
    ) -> None:
        super().__init__(f"writer {number}", progress)
        self.number = number
        self.bootstrap = bootstrap
        self.topic = topic
        self.message_timeout_ms = message_timeout_ms
        self.transactional_id = f"writer-{number}"
        self.committed: list[int] = []
        self.aborted: list[int] = []
        self.doing = 0
        """The current transaction. If the writer fails, its outcome is unknown."""

    def work(self) -> None:
        with self.opened():
            while not self.stopping.is_set():
                self._transaction(self.doing, is_commit=self.doing % 3 != 1)
                self.doing += 1

    def _transaction(self, number: int, *, is_commit: bool) -> None:
        self.begin()
        for partition in range(PARTITIONS):
            notes = [
                Noted(self.number, number, is_commit, PARTITIONS, partition, index)
                for index in range(RECORDS)
            ]
            self.write(partition, [note.encode() for note in notes])
            self.progress.release()
        has_ended = self.end(is_commit=is_commit)
        (self.committed if is_commit and has_ended else self.aborted).append(number)
        self.ended += 1
        self.progress.release()

    @contextmanager
    def opened(self) -> Iterator[None]:
        yield

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def write(self, partition: int, values: list[bytes]) -> None: ...

    @abstractmethod
    def end(self, *, is_commit: bool) -> bool:
        """Return when the outcome is known; False if it is not a commit, whatever was intended."""


class RawWriter(Writer):
    """Single requests without a library, each repeated after a broken connection."""

    generation = 1

    @contextmanager
    def opened(self) -> Iterator[None]:
        with StubbornClient(self.bootstrap) as client:
            self.producer = RawProducer(client, self.transactional_id, self.generation)
            yield

    def begin(self) -> None:
        pass

    def write(self, partition: int, values: list[bytes]) -> None:
        self.producer.write(self.topic, *values, partition=partition)

    def end(self, *, is_commit: bool) -> bool:
        if is_commit:
            self.producer.commit()
        else:
            self.producer.abort()
        return True


class RawWriter2(RawWriter):
    """The same in the second generation of the protocol."""

    generation = 2


class OwnWriter(Writer):
    """Semel's client. It too gives up records after a timeout, and raises that it must abort."""

    @contextmanager
    def opened(self) -> Iterator[None]:
        timeout_s = self.message_timeout_ms / 1000
        with (
            Client(self.bootstrap) as client,
            TransactionalProducer(
                client, self.transactional_id, linger_s=0.001, timeout_s=timeout_s
            ) as producer,
        ):
            self.producer = producer
            yield

    def begin(self) -> None:
        self.must_abort = False
        self.producer.begin()

    def write(self, partition: int, values: list[bytes]) -> None:
        if self.must_abort:
            return
        try:
            for value in values:
                self.producer.send(self.topic, value, partition=partition)
            self.producer.flush()
        except MustAbort as error:
            if error.code is not ErrorCode.REQUEST_TIMED_OUT:
                raise
            self.must_abort = True
            self.given_up += 1

    def end(self, *, is_commit: bool) -> bool:
        is_committed = is_commit and not self.must_abort
        call = self.producer.commit if is_committed else self.producer.abort
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                call()
                return is_committed
            except (KafkaError, ClientError) as error:
                is_open = isinstance(error, OutcomeUnknown) if is_committed else is_retriable(error)
                if not is_open or time.monotonic() > deadline:
                    raise


class LibrdkafkaProducer:
    """A transactional producer of librdkafka, used as its documentation says.

    After a retriable error, repeat the call. After an abortable error, abort. After any other, start another
    instance with the same id, which fences this one and aborts its open transaction. The last two are
    expected only when librdkafka gave up messages after a whole message timeout (tests/client/FINDINGS.md
    says when). Such a transaction cannot have committed, because librdkafka sends no commit for it. Any other
    failure is raised.
    """

    def __init__(
        self, worker: Worker, bootstrap: str, transactional_id: str, message_timeout_ms: int
    ) -> None:
        self._worker = worker
        self._config = {
            **LIBRDKAFKA,
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "message.timeout.ms": message_timeout_ms,
        }
        self._flush_seconds = 2 * message_timeout_ms / 1000 + WAIT_SECONDS
        self._messages_given_up = 0
        self._open()

    def _open(self) -> None:
        self._producer = Producer(self._config)
        patiently(lambda: self._producer.init_transactions(WAIT_SECONDS))

    def begin(self) -> None:
        self._messages_given_up = 0
        self._producer.begin_transaction()

    def produce(self, topic: str, value: bytes | None, partition: int) -> None:
        self._producer.produce(topic, value, partition=partition, on_delivery=self._delivered)

    def _delivered(self, error: LibrdkafkaError | None, message: Message) -> None:
        if error is not None and error.code() == LibrdkafkaError._MSG_TIMED_OUT:
            self._messages_given_up += 1

    def poll(self) -> None:
        self._producer.poll(0)

    def send_offsets(self, consumer: Consumer, positions: list[TopicPartition]) -> bool:
        """Return False if librdkafka gave the transaction up, so that it is over."""
        group = consumer.consumer_group_metadata()
        return self._done(lambda: self._producer.send_offsets_to_transaction(positions, group, WAIT_SECONDS))

    def end(self, *, is_commit: bool) -> bool:
        """End the transaction; return False if librdkafka gave it up, so that it is not committed."""
        if is_commit:
            return self._done(lambda: self._producer.commit_transaction(WAIT_SECONDS))
        # Without a flush, librdkafka discards what it has not sent, and nothing would be aborted.
        assert self._producer.flush(self._flush_seconds) == 0
        return self._done(lambda: self._producer.abort_transaction(WAIT_SECONDS))

    def _done(self, call: Callable[[], None]) -> bool:
        try:
            patiently(call)
        except KafkaException as error:
            # Messages given up may not have been reported yet. poll() reports fatal errors too.
            with suppress(KafkaException):
                self.poll()
            if not self._messages_given_up:
                raise
            self._worker.given_up += 1
            if not (error.args[0].txn_requires_abort() and self._is_aborted()):
                self._worker.replaced += 1
                self._open()
            return False
        return True

    def _is_aborted(self) -> bool:
        try:
            patiently(lambda: self._producer.abort_transaction(WAIT_SECONDS))
        except KafkaException:
            return False
        return True


def patiently(call: Callable[[], None]) -> None:
    """Repeat a librdkafka call while its error is retriable."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return call()
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise


class LibrdkafkaWriter(Writer):
    """A writer with confluent-kafka."""

    @contextmanager
    def opened(self) -> Iterator[None]:
        self.producer = LibrdkafkaProducer(
            self, self.bootstrap, self.transactional_id, self.message_timeout_ms
        )
        yield

    def begin(self) -> None:
        self.producer.begin()

    def write(self, partition: int, values: list[bytes]) -> None:
        for value in values:
            self.producer.produce(self.topic, value, partition)
        self.producer.poll()

    def end(self, *, is_commit: bool) -> bool:
        return self.producer.end(is_commit=is_commit)


class Copier(Worker):
    """Consume, transform, produce: one topic becomes another, exactly once."""

    GROUP = "copier"

    def __init__(
        self,
        bootstrap: str,
        source: str,
        target: str,
        progress: threading.Semaphore,
        message_timeout_ms: int,
    ) -> None:
        super().__init__("copier", progress)
        self.bootstrap = bootstrap
        self.source = source
        self.target = target
        self.message_timeout_ms = message_timeout_ms
        self.copied = 0

    def work(self) -> None:
        config = {**LIBRDKAFKA, "bootstrap.servers": self.bootstrap, "isolation.level": "read_committed"}
        del config["linger.ms"]
        config |= {"group.id": self.GROUP, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        consumer = Consumer(config)
        try:
            producer = LibrdkafkaProducer(self, self.bootstrap, "copier", self.message_timeout_ms)
            self._rewind(consumer)
            while not self.stopping.is_set():
                messages = [each for each in consumer.consume(200, 0.1) if each.error() is None]
                if messages:
                    self._copy(consumer, producer, messages, is_commit=self.ended % 3 != 1)
        finally:
            consumer.close()

    def _copy(
        self, consumer: Consumer, producer: LibrdkafkaProducer, messages: list[Message], *, is_commit: bool
    ) -> None:
        producer.begin()
        ends: dict[int, int] = {}
        for message in messages:
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            producer.produce(self.target, message.value(), partition)
            ends[partition] = offset + 1
        positions = [TopicPartition(self.source, partition, end) for partition, end in ends.items()]
        is_whole = producer.send_offsets(consumer, positions) and producer.end(is_commit=is_commit)
        if is_whole and is_commit:
            self.copied += len(messages)
        else:
            self._rewind(consumer)
        self.ended += 1
        self.progress.release()

    def _rewind(self, consumer: Consumer) -> None:
        """Continue reading from the committed offsets."""
        partitions = [TopicPartition(self.source, index) for index in range(PARTITIONS)]

        def assign() -> bool:
            # The committed offsets are unavailable while the broker is away.
            with suppress(KafkaException):
                found = consumer.committed(partitions, 5)
                consumer.assign(
                    [TopicPartition(each.topic, each.partition, max(each.offset, 0)) for each in found]
                )
                return True
            return False

        until(assign, WAIT_SECONDS, "finding the positions")
