"""kill -9 while batches are swapped: the newest of every key outlives it.

Writers put numbers under few keys, so that nearly everything is taken away soon, and one in four of their
transactions is aborted. Compaction and the sweep that gives its space back run all the time, and chunks are
small. After every kill, what a reader finds under a key is what was last acknowledged, or sent later.
``SEMEL_KILLS`` says how often; ``make chaos`` takes fifty.
"""

import random
import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from support.brokers.process import BrokerProcess
from support.chance import fresh_seed
from support.clients.confluent import create
from support.stores.allocated import allocated
from support.waiting import until

from .conftest import FEW, MANY

KEYS = 8
CHUNK = 256 * 1024
OPTIONS = (
    *("--set", f"semel.chunk.bytes.max={CHUNK}"),
    *("--set", "log.cleaner.backoff.ms=10"),
    *("--set", "log.retention.check.interval.ms=20"),
)
CONFIGS: dict[str, Any] = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "0",
}
WAIT_SECONDS = 60.0


class Writer(threading.Thread):
    """Transactions that put one number under every key; what is known of their outcome."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="writer")
        self.bootstrap = bootstrap
        self.stopping = threading.Event()
        self.sent = 0
        self.committed = 0
        self.aborted: set[int] = set()
        self._producer: Producer | None = None

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                self._transaction()
            except KafkaException:
                # Whatever it was, the next producer of the same id settles it.
                self._producer = None
                self.stopping.wait(0.02)

    def _transaction(self) -> None:
        if self._producer is None:
            self._producer = Producer(
                {
                    "bootstrap.servers": self.bootstrap,
                    "transactional.id": "writer",
                    "linger.ms": 0,
                    "compression.type": random.choice(["none", "lz4", "zstd"]),
                    "reconnect.backoff.max.ms": 100,
                }
            )
            self._producer.init_transactions(WAIT_SECONDS)
        producer = self._producer
        producer.begin_transaction()
        self.sent += 1
        number = self.sent
        for key in range(KEYS):
            producer.produce("table", f"{number}".encode() + b" " * 500, f"{key}")
        producer.flush(WAIT_SECONDS)
        if number % 4 == 0:
            self.aborted.add(number)
            producer.abort_transaction(WAIT_SECONDS)
        else:
            producer.commit_transaction(WAIT_SECONDS)
            self.committed = number


def table(bootstrap: str) -> tuple[dict[bytes, int], int]:
    """The newest number under every key, and how many records were read for it."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 10,
            # What is damaged must show.
            "check.crcs": True,
        }
    )
    newest: dict[bytes, int] = {}
    count = 0
    try:
        consumer.assign([TopicPartition("table", 0, 0)])
        while True:
            message = consumer.poll(WAIT_SECONDS)
            assert message is not None, "the end of the log was not reached"
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return newest, count
            newest[bytes(message.key() or b"")] = int(message.value() or b"")
            count += 1
    finally:
        consumer.close()


def check(broker: BrokerProcess, writer: Writer) -> int:
    """Every key has what was committed last when the look began, or something newer; nothing aborted."""
    least = writer.committed
    newest, count = table(broker.bootstrap)
    assert len(newest) == (KEYS if least else len(newest))
    for number in newest.values():
        assert least <= number <= writer.sent
        assert number not in writer.aborted
    # A transaction is there as a whole.
    assert writer.is_alive() or len(set(newest.values())) <= 1
    return count


@pytest.mark.timeout(120 + 20 * MANY)
@FEW
def test_kill_while_compacting(tmp_path: Path, kills: int) -> None:
    seed = fresh_seed()
    chance = random.Random(seed)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    with BrokerProcess(tmp_path / "data", *OPTIONS) as broker:
        create(AdminClient({"bootstrap.servers": broker.bootstrap}), "table", **CONFIGS)
        writer = Writer(broker.bootstrap)
        writer.start()
        try:
            for _ in range(kills):
                target = writer.committed + chance.randrange(5, 40)
                until(lambda at=target: writer.committed >= at, WAIT_SECONDS, "transactions")  # type: ignore[misc]
                broker.kill()
                broker.start()
                check(broker, writer)
            target = writer.committed + 20
            until(lambda: writer.committed >= target, WAIT_SECONDS, "transactions after the last kill")
        finally:
            writer.stopping.set()
            writer.join()
        check(broker, writer)
        # Nothing but the newest is left, give or take what came last, and its space is given back.
        until(lambda: check(broker, writer) <= 2 * KEYS, WAIT_SECONDS, "compaction to come to the end")
        assert writer.sent > 20 * kills / 4
        until(lambda: allocated(broker.directory) <= 2 * CHUNK, WAIT_SECONDS, "giving space back")
