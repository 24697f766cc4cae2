"""What is deleted gives its disk back, and readers are told where the log begins now.

Space is measured as the file system counts it: blocks of the chunk files.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from support.brokers.process import BrokerProcess
from support.clients.raw import RawClient, batch
from support.stores.allocated import allocated
from support.waiting import until

import semel
from semel.store.embedded.chunk_header import pack_slot, unpack_slot
from semel.wire.errors import ErrorCode
from semel.wire.messages import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
)

KIB, MIB = 1024, 1024 * 1024
OFTEN = {"log.retention.check.interval.ms": 100, "semel.chunk.bytes.max": MIB}
BATCH = 64 * KIB


def now() -> int:
    return int(time.time() * 1000)


def write(client: RawClient, topic: str, count: int, timestamp: int | None = None) -> None:
    for _ in range(count):
        at = now() if timestamp is None else timestamp
        answer = client.produce(topic, batch(value=os.urandom(BATCH), timestamp=at))
        assert answer.error_code == ErrorCode.NONE


class Shop:
    """A broker, a way to ask it, and a topic with configs."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self.bootstrap = bootstrap
        self.directory = directory
        self.client = RawClient(bootstrap)
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def create(self, name: str, **configs: Any) -> None:
        dotted = {key.replace("_", "."): str(value) for key, value in configs.items()}
        self.admin.create_topics([NewTopic(name, 1, 1, config=dotted)])[name].result(30)


class KillableShop(Shop):
    """In a process of its own."""

    def __init__(self, broker: BrokerProcess) -> None:
        super().__init__(broker.bootstrap, broker.directory)
        self.broker = broker

    def restart(self) -> None:
        self.client.close()
        self.broker.kill()
        self.broker.start()
        self.client = RawClient(self.broker.bootstrap)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with semel.embedded(tmp_path / "data", settings=OFTEN) as broker:
        shop = Shop(broker.bootstrap_servers, tmp_path / "data")
        yield shop
        shop.client.close()


@pytest.fixture
def killable_shop(tmp_path: Path) -> Iterator[KillableShop]:
    options = [text for name, value in OFTEN.items() for text in ("--set", f"{name}={value}")]
    with BrokerProcess(tmp_path / "data", *options) as broker:
        shop = KillableShop(broker)
        yield shop
        shop.client.close()


def test_by_size(shop: Shop) -> None:
    shop.create("t", retention_bytes=4 * BATCH)
    write(shop.client, "t", 40)
    until(lambda: shop.client.log_start("t") >= 36, what="retention by size")
    # The oldest that remain are whole batches, and no more than was allowed.
    kept = 40 - shop.client.log_start("t")
    assert 3 <= kept <= 4
    until(lambda: allocated(shop.directory) <= 2 * MIB, what="giving space back")
    assert len(shop.client.fetch("t", 40 - kept).records or b"") >= BATCH
    assert shop.client.fetch("t", 0).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_by_time(killable_shop: KillableShop) -> None:
    """Records older than retention.ms go; the first that is not, and all behind it, stay."""
    shop = killable_shop
    shop.create("t", retention_ms=3_600_000)
    write(shop.client, "t", 20, timestamp=now() - 7_200_000)
    write(shop.client, "t", 3)
    write(shop.client, "t", 1, timestamp=now() - 7_200_000)
    until(lambda: shop.client.log_start("t") == 20, what="retention by time")
    until(lambda: allocated(shop.directory) <= 2 * MIB, what="giving space back")
    assert shop.client.fetch("t", 20).high_watermark == 24
    shop.restart()
    assert shop.client.log_start("t") == 20


def test_records_without_a_timestamp_are_as_old_as_their_arrival(shop: Shop) -> None:
    """-1 is "no timestamp" and not "very old": Kafka takes the time at which the segment was written."""
    shop.create("t")
    shop.create("beside", retention_ms=1)
    write(shop.client, "t", 3, timestamp=-1)
    write(shop.client, "beside", 1, timestamp=now() - 1_000)
    until(lambda: shop.client.log_start("beside") == 1, what="a round of retention")
    assert shop.client.log_start("t") == 0
    write(shop.client, "t", 1)
    write(shop.client, "beside", 1, timestamp=now() - 1_000)
    until(lambda: shop.client.log_start("beside") == 2, what="a round of retention")
    assert shop.client.log_start("t") == 0


def test_delete_records_and_delete_topics_free_disk(killable_shop: KillableShop) -> None:
    shop = killable_shop
    shop.create("t")
    shop.create("u")
    for _ in range(20):
        # The two lie side by side in every chunk.
        write(shop.client, "t", 1)
        write(shop.client, "u", 1)
    both = allocated(shop.directory)
    assert both >= 40 * BATCH
    wanted = DeleteRecordsPartition(partition_index=0, offset=15)
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name="t", partitions=[wanted])], timeout_ms=5_000
    )
    answer = shop.client.ask(request, 1).topics[0].partitions[0]
    assert (answer.error_code, answer.low_watermark) == (ErrorCode.NONE, 15)
    until(
        lambda: allocated(shop.directory) <= both - 14 * BATCH,
        what="freeing what DeleteRecords deleted",
    )
    assert [header.base_offset for header in shop.client.headers("u")] == list(range(20))
    assert shop.client.fetch("t", 14).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    shop.client.ask(DeleteTopicsRequest(topic_names=["u"], timeout_ms=5_000), 5)
    until(lambda: allocated(shop.directory) <= 5 * BATCH + 2 * MIB, what="freeing a deleted topic")
    shop.restart()
    assert shop.client.log_start("t") == 15
    assert shop.client.fetch("t", 15).error_code == ErrorCode.NONE
    assert shop.client.fetch("u", 0).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(("reset", "first"), [("earliest", 12), ("latest", 20)])
def test_a_consumer_below_the_log_start_recovers(shop: Shop, reset: str, first: int) -> None:
    """OFFSET_OUT_OF_RANGE, then auto.offset.reset: what every client does."""
    shop.create("t")
    write(shop.client, "t", 20)
    consumer = Consumer(
        {
            "bootstrap.servers": shop.bootstrap,
            "group.id": "g",
            "auto.offset.reset": reset,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition("t", 0, 3)])
        message = until(lambda: consumer.poll(0.1), what="reading before")
        assert message.offset() == 3
        where = TopicPartition("t", 0, 12)
        assert next(iter(shop.admin.delete_records([where]).values())).result(30).low_watermark == 12
        consumer.assign([TopicPartition("t", 0, 5)])

        def read() -> Message | None:
            if reset == "latest":
                # Where the end is for the consumer it finds out in its own time; what comes after is read.
                write(shop.client, "t", 1)
            return consumer.poll(0.1)

        message = until(read, what="reading afterwards")
        assert message.error() is None
        offset = message.offset()
        assert offset is not None
        assert offset == first or (reset == "latest" and offset > first)
    finally:
        consumer.close()


def test_chunks_that_nobody_points_at_are_swept_at_the_start(killable_shop: KillableShop) -> None:
    """A crash between the bytes and the ledger leaves such a file; so does one between ledger and unlink."""
    shop = killable_shop
    shop.create("t")
    write(shop.client, "t", 3)
    chunks = shop.directory / "chunks"
    orphan, foreign = chunks / f"{900:016}.chunk", chunks / "README"
    first = min(chunks.glob("*.chunk"))
    mine = unpack_slot(first.read_bytes()[:512])
    assert mine is not None
    orphan.write_bytes(pack_slot(mine._replace(chunk_id=900, number=0)) + bytes(MIB))
    foreign.write_text("not a chunk")
    shop.restart()
    assert not orphan.exists()
    assert foreign.exists()
    assert len(shop.client.headers("t")) == 3
    write(shop.client, "t", 1)
    assert len(shop.client.headers("t")) == 4
