"""A full disk refuses records and nothing else, and the broker goes on by itself when there is room.

The disk is full because a switch says so, which works on every machine, or because a small file system of
its own is full, where one may be mounted.
"""

import errno
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import Producer
from support.brokers.faulty import FaultyBroker
from support.brokers.process import BrokerProcess
from support.clients.raw import RawClient
from support.clients.raw import batch as batch_of_long_ago
from support.clients.raw_groups import ClassicMember, ConsumerMember, commit_offset, join_request
from support.stores.allocated import allocated
from support.waiting import until

from semel.wire.errors import ErrorCode
from semel.wire.frames import decode_response_header
from semel.wire.messages import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    IncrementalAlterConfigsAlterableConfig,
    IncrementalAlterConfigsAlterConfigsResource,
    IncrementalAlterConfigsRequest,
    JoinGroupResponse,
    MetadataRequest,
)

STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR
MIB = 1024 * 1024


OPTIONS = ("--set", "group.initial.rebalance.delay.ms=0", "--set", "group.min.session.timeout.ms=500")
# A chunk is taken in one step, so small chunks feel a full disk soon.
SMALL = ("--set", "semel.chunk.bytes.max=65536")


def batch(value: bytes = b"value") -> bytes:
    """One record of now: those of long ago are deleted by retention."""
    return batch_of_long_ago(value=value, timestamp=int(time.time() * 1000))


def fill_up(client: RawClient, topic: str, size: int = 16_000) -> int:
    """Produce until the broker refuses; how many batches it took."""
    for taken in count():
        answer = client.produce(topic, batch(os.urandom(size)))
        if answer.error_code != ErrorCode.NONE:
            assert answer.error_code == STORAGE_ERROR
            assert answer.base_offset == -1
            return taken
    raise AssertionError


def test_everything_but_produce_goes_on(tmp_path: Path) -> None:
    with FaultyBroker(tmp_path / "data", *OPTIONS, *SMALL) as broker, RawClient(broker.bootstrap) as client:
        client.create_topic("t")
        assert client.produce("t", batch(b"before")).base_offset == 0
        classic = ClassicMember(client, "classic")
        consumer = ConsumerMember(client, "consumer", "t")
        broker.fill()
        assert fill_up(client, "t") < 10
        end = client.fetch("t", 0).high_watermark
        for _ in range(50):
            assert client.produce("t", batch(bytes(40_000))).error_code == STORAGE_ERROR
            assert classic.heartbeat() == ErrorCode.NONE
            assert consumer.heartbeat() == ErrorCode.NONE
        assert client.fetch("t", 0).high_watermark == end
        assert len(client.headers("t")) == end
        assert client.ask(MetadataRequest(topics=None), 9).topics[0].error_code == ErrorCode.NONE
        # What needs only a line in the ledger has room: the reserve is for that.
        assert commit_offset(client, "other", "t", 1) == ErrorCode.NONE
        client.create_topic("u")
        broker.make_room()
        assert client.produce("t", batch(bytes(40_000))).base_offset == end
        assert classic.heartbeat() == ErrorCode.NONE
        assert consumer.heartbeat() == ErrorCode.NONE


def test_producers_that_try_again_do_not_disturb_a_rebalance(tmp_path: Path) -> None:
    """A join that waits is still answered, and not by COORDINATOR_NOT_AVAILABLE (KIP-134's delay)."""
    delay = ("--set", "group.initial.rebalance.delay.ms=700")
    with FaultyBroker(tmp_path / "data", *delay, *SMALL) as broker:
        broker.fill()
        with RawClient(broker.bootstrap) as joining, RawClient(broker.bootstrap) as client:
            client.create_topic("t")
            joining.send(join_request("group"), 3)
            for _ in range(20):
                assert client.produce("t", batch()).error_code == STORAGE_ERROR
            frame = joining.receive_frame()
            assert frame is not None
            _, position = decode_response_header(frame, 11, 3)
            joined = JoinGroupResponse.decode(frame, 3, position)
            assert (joined.error_code, joined.generation_id) == (ErrorCode.NONE, 1)


def test_an_idempotent_producer_waits_for_room(tmp_path: Path) -> None:
    """librdkafka tries again by itself; when there is room everything arrives, once and in order."""
    with FaultyBroker(tmp_path / "data", *SMALL) as broker, RawClient(broker.bootstrap) as client:
        client.create_topic("t")
        broker.fill()
        reports: list[tuple[object, int | None]] = []
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "enable.idempotence": True,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 50,
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        for number in range(200):
            producer.produce(
                "t",
                f"{number}",
                on_delivery=lambda error, message: reports.append((error, message.offset())),
            )
            producer.poll(0)
        assert producer.flush(0.5) == 200, "delivered on a full disk"
        broker.make_room()
        assert producer.flush(30) == 0
        assert reports == [(None, offset) for offset in range(200)]


# -- a file system that is really full --------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 80 MiB, of which the ledger's WAL takes 17 and the WAL 32."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounting = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=80m", "semel-test", str(disk)], capture_output=True, check=False
    )
    if mounting.returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


class CrampedBroker(BrokerProcess):
    """A broker on a small disk, with a log elsewhere."""

    def __init__(self, disk: Path, *options: str) -> None:
        super().__init__(disk / "data", *options)
        self.log = disk.parent / "data.log"


def delete_records(client: RawClient) -> None:
    wanted = DeleteRecordsPartition(partition_index=0, offset=-1)
    topics = [DeleteRecordsTopic(name="t", partitions=[wanted])]
    answer = client.ask(DeleteRecordsRequest(topics=topics, timeout_ms=5_000), 1)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE


def limit_size(client: RawClient) -> None:
    config = IncrementalAlterConfigsAlterableConfig(
        name="retention.bytes", config_operation=0, value=str(MIB)
    )
    resource = IncrementalAlterConfigsAlterConfigsResource(
        resource_type=2, resource_name="t", configs=[config]
    )
    answer = client.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    assert answer.responses[0].error_code == ErrorCode.NONE


def delete_topic(client: RawClient) -> None:
    answer = client.ask(DeleteTopicsRequest(topic_names=["t"], timeout_ms=5_000), 5)
    assert answer.responses[0].error_code == ErrorCode.NONE


@pytest.mark.parametrize("free", [delete_records, limit_size, delete_topic])
def test_what_deletes_works_on_a_full_disk_and_heals_it(
    small_disk: Path, free: Callable[[RawClient], None]
) -> None:
    options = ("--set", f"semel.chunk.bytes.max={4 * MIB}", "--set", f"semel.disk.reserve.bytes={8 * MIB}")
    often = ("--set", "log.retention.check.interval.ms=100")
    with (
        CrampedBroker(small_disk, *options, *often) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        client.create_topic("t")
        client.create_topic("kept")
        client.produce("kept", batch(b"kept"))
        taken = fill_up(client, "t", size=500_000)
        assert taken > 30
        full = allocated(small_disk / "data")
        free(client)
        until(lambda: client.produce("kept", batch(bytes(500_000))).error_code == 0, what="healing")
        # Whole blocks are given back, in chunks that other topics share too.
        until(lambda: allocated(small_disk / "data") < full - 10 * MIB, what="giving space back")
        assert len(client.headers("kept")) == 2


def test_a_disk_that_others_have_filled_to_the_last_byte(small_disk: Path) -> None:
    """Not even the ledger can grow: writes are refused, the broker lives, nothing acknowledged is lost."""
    options = ("--set", f"semel.chunk.bytes.max={MIB}", "--set", "semel.disk.reserve.bytes=0", *OPTIONS)
    with CrampedBroker(small_disk, *options) as broker, RawClient(broker.bootstrap) as client:
        client.create_topic("t")
        client.create_topic("noted", 100)
        acknowledged = [client.produce("t", batch(b"first")).base_offset]
        classic = ClassicMember(client, "classic")
        fill_file(small_disk / "somebody-elses")
        # The ledger's log has its space from the start, and large notes beside offsets fill it.
        note = os.urandom(2_000).hex()
        group = count()
        for times in (100, 1):
            until(
                lambda times=times: commit_offset(client, f"{next(group)}", "noted", 1, note, times),  # type: ignore[misc]  # a default: mypy infers no such lambda
                what="a full ledger",
            )
        # There is room in the chunk for these, and none in the ledger.
        acknowledged += range(1, 1 + fill_up(client, "t", size=1_000))
        for _ in range(20):
            assert client.produce("t", batch()).error_code == STORAGE_ERROR
        assert classic.heartbeat() == ErrorCode.NONE
        assert len(client.headers("t")) == len(acknowledged)
        (small_disk / "somebody-elses").unlink()
        acknowledged.append(client.produce("t", batch(b"room again")).base_offset)
        assert commit_offset(client, "g", "t", 1) == ErrorCode.NONE
        assert classic.heartbeat() == ErrorCode.NONE
        broker.kill()
        broker.start()
        with RawClient(broker.bootstrap) as again:
            assert [header.base_offset for header in again.headers("t")] == acknowledged
            assert classic.heartbeat(again) == ErrorCode.NONE


def fill_file(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size in (MIB, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017 - it is how the loop ends
