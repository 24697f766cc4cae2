"""Idempotent load, and the proof that none of it was lost or doubled.

Writers send their number and a count. Acknowledged records are remembered with their offsets; at the end the
whole log is read and compared with them.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

TOPIC = "numbers"


class Writer(threading.Thread):
    """One idempotent producer that writes its number and a count until it is stopped."""

    def __init__(self, number: int, bootstrap: str, partitions: int, progress: threading.Semaphore) -> None:
        super().__init__(name=f"writer {number}")
        self.number = number
        self.partitions = partitions
        self.progress = progress
        self.stopping = threading.Event()
        self.acknowledged: list[tuple[int, int, str]] = []
        self.failed: list[str] = []
        self.left_over = -1
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": 300_000,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "queue.buffering.max.messages": 2_000,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        count = 0
        while not self.stopping.is_set():
            try:
                value = f"{self.number}-{count}"
                self.producer.produce(
                    TOPIC, value, partition=count % self.partitions, on_delivery=self.delivered
                )
                count += 1
            except BufferError:
                self.producer.poll(0.05)
            self.producer.poll(0)
        self.left_over = self.producer.flush(120)

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        value = message.value()
        assert value is not None
        if error is not None:
            self.failed.append(f"{value!r}: {error}")
            return
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        self.acknowledged.append((partition, offset, value.decode()))
        self.progress.release()


class Load:
    """Writers at work."""

    def __init__(self, bootstrap: str, writers: int, partitions: int) -> None:
        self.bootstrap = bootstrap
        self.partitions = partitions
        self._progress = threading.Semaphore(0)
        self.writers = [Writer(number, bootstrap, partitions, self._progress) for number in range(writers)]

    def wait_for(self, acknowledgements: int) -> None:
        for _ in range(acknowledgements):
            assert self._progress.acquire(timeout=60), "no acknowledgement for a minute"

    def check(self) -> None:
        """Check that acknowledged records are at their offsets, nothing is doubled, and offsets are dense."""
        assert [writer.failed for writer in self.writers] == [[]] * len(self.writers)
        assert [writer.left_over for writer in self.writers] == [0] * len(self.writers)
        found = self._read_all()
        for partition, records in found.items():
            assert [offset for offset, _ in records] == list(range(len(records))), f"gaps in {partition}"
            for writer in self.writers:
                mine = [value for _, value in records if value.startswith(f"{writer.number}-")]
                counts = [int(value.split("-")[1]) for value in mine]
                assert counts == sorted(counts), f"partition {partition} is out of order"
        values = Counter(value for records in found.values() for _, value in records)
        assert [value for value, times in values.items() if times > 1] == []
        at = {(partition, offset): value for partition, records in found.items() for offset, value in records}
        acknowledged = [each for writer in self.writers for each in writer.acknowledged]
        assert [each for each in acknowledged if at.get(each[:2]) != each[2]] == []

    def _read_all(self) -> dict[int, list[tuple[int, str]]]:
        config = {"bootstrap.servers": self.bootstrap, "group.id": "reader", "enable.auto.commit": False}
        consumer = Consumer(config)
        found: dict[int, list[tuple[int, str]]] = {}
        try:
            for partition in range(self.partitions):
                where = TopicPartition(TOPIC, partition, 0)
                _, end = consumer.get_watermark_offsets(where, timeout=30)
                records = found[partition] = []
                consumer.assign([where])
                while len(records) < end:
                    message = consumer.poll(30)
                    assert message is not None, f"nothing after {len(records)} of {end} in {partition}"
                    assert message.error() is None
                    offset, value = message.offset(), message.value()
                    assert offset is not None
                    assert value is not None
                    records.append((offset, value.decode()))
        finally:
            consumer.close()
        return found


@contextmanager
def idempotent_load(bootstrap: str, writers: int = 4, partitions: int = 2) -> Iterator[Load]:
    """Run writers until the end of the block."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, partitions)])[TOPIC].result(30)
    load = Load(bootstrap, writers, partitions)
    _each(load.writers, threading.Thread.start)
    try:
        yield load
    finally:
        for writer in load.writers:
            writer.stopping.set()
        _each(load.writers, threading.Thread.join)


def _each(writers: list[Writer], act: Callable[[threading.Thread], None]) -> None:
    for writer in writers:
        act(writer)
