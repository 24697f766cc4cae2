"""kill -9 under load: nothing acknowledged is lost, nothing is doubled, offsets are dense.

Eight idempotent librdkafka producers write numbered records while the broker is killed and started again.
``SEMEL_KILLS`` says how often; ``make chaos`` takes fifty.
"""

import os
import random
import threading
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from support.process import BrokerProcess

KILLS = int(os.environ.get("SEMEL_KILLS", "4"))
PRODUCERS = 8
PARTITIONS = 4
ACKNOWLEDGED_BETWEEN_KILLS = 300


class Writer(threading.Thread):
    """One idempotent producer that writes its number and a count until it is told to stop."""

    def __init__(self, number: int, bootstrap: str, progress: threading.Semaphore) -> None:
        super().__init__(name=f"writer {number}")
        self.number = number
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
                self.producer.produce(
                    "numbers",
                    f"{self.number}-{count}",
                    partition=count % PARTITIONS,
                    on_delivery=self.delivered,
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


def read_all(bootstrap: str) -> dict[int, list[tuple[int, str]]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
    found: dict[int, list[tuple[int, str]]] = {}
    try:
        for partition in range(PARTITIONS):
            where = TopicPartition("numbers", partition, 0)
            _, end = consumer.get_watermark_offsets(where, timeout=30)
            records = found[partition] = []
            consumer.assign([where])
            while len(records) < end:
                message = consumer.poll(30)
                assert message is not None, f"partition {partition}: nothing after {len(records)} of {end}"
                assert message.error() is None
                offset, value = message.offset(), message.value()
                assert offset is not None
                assert value is not None
                records.append((offset, value.decode()))
    finally:
        consumer.close()
    return found


@pytest.mark.timeout(120 + 20 * KILLS)
def test_kill_under_idempotent_load(tmp_path: Path) -> None:
    seed = int(os.environ.get("SEMEL_SEED", random.SystemRandom().randrange(2**32)))
    chance = random.Random(seed)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    with BrokerProcess(tmp_path / "data") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("numbers", PARTITIONS)])["numbers"].result(30)
        progress = threading.Semaphore(0)
        writers = [Writer(number, broker.bootstrap, progress) for number in range(PRODUCERS)]
        for writer in writers:
            writer.start()
        try:
            for _ in range(KILLS):
                # The moment of the kill is a count of acknowledgements, so every round has made progress.
                for _ in range(chance.randrange(1, ACKNOWLEDGED_BETWEEN_KILLS)):
                    assert progress.acquire(timeout=60), "no acknowledgement for a minute"
                broker.kill()
                broker.start()
            for _ in range(ACKNOWLEDGED_BETWEEN_KILLS):
                assert progress.acquire(timeout=60), "no acknowledgement after the last restart"
        finally:
            for writer in writers:
                writer.stopping.set()
            for writer in writers:
                writer.join()
        assert [writer.failed for writer in writers] == [[]] * PRODUCERS
        assert [writer.left_over for writer in writers] == [0] * PRODUCERS
        found = read_all(broker.bootstrap)

    for partition, records in found.items():
        assert [offset for offset, _ in records] == list(range(len(records))), (
            f"partition {partition} is not dense"
        )
    values = Counter(value for records in found.values() for _, value in records)
    assert [value for value, times in values.items() if times > 1] == []
    at = {(partition, offset): value for partition, records in found.items() for offset, value in records}
    lost = [each for writer in writers for each in writer.acknowledged if at.get(each[:2]) != each[2]]
    assert lost == []
    assert sum(len(writer.acknowledged) for writer in writers) >= ACKNOWLEDGED_BETWEEN_KILLS
    for partition, records in found.items():
        for writer in writers:
            mine = [int(value.split("-")[1]) for _, value in records if value.startswith(f"{writer.number}-")]
            assert mine == sorted(mine), (
                f"partition {partition} has the records of writer {writer.number} out of order"
            )
