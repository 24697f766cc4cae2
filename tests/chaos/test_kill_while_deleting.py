"""kill -9 while records are deleted: what remains is whole, and no disk is lost for good.

Retention runs all the time on one topic while another one, whose records lie in the same chunks, must keep
every record. Chunks are small, so the kills meet chunks being begun, sealed, punched and removed.
``SEMEL_KILLS`` says how often; ``make chaos`` takes fifty.
"""

import os
import random
import threading
import time
from pathlib import Path

import pytest
from support.brokers.process import BrokerProcess
from support.chance import fresh_seed
from support.clients.raw import RawClient, batch, produce_request
from support.stores.allocated import allocated
from support.waiting import until
from support.workloads.load import idempotent_load

from semel.wire.errors import ErrorCode
from semel.wire.messages import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeLogDirsRequest,
)
from semel.wire.records import BatchHeader, iter_batches

from .conftest import FEW, MANY

CHUNK = 256 * 1024
KEPT = 100_000
OPTIONS = (
    *("--set", f"semel.chunk.bytes.max={CHUNK}"),
    *("--set", "log.retention.check.interval.ms=20"),
)


class Churn(threading.Thread):
    """Writes what is deleted soon, whatever becomes of the connection."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="churn")
        self.bootstrap = bootstrap
        self.stopping = threading.Event()

    def run(self) -> None:
        record = batch(value=os.urandom(20_000), timestamp=int(time.time() * 1000))
        while not self.stopping.is_set():
            try:
                with RawClient(self.bootstrap) as client:
                    while not self.stopping.is_set():
                        client.send(produce_request("churn", record), 9)
                        if client.receive_frame() is None:
                            break
            except OSError:
                self.stopping.wait(0.02)


def create(client: RawClient, name: str, **configs: int) -> None:
    pairs = [
        CreatableTopicConfig(name=key.replace("_", "."), value=str(value)) for key, value in configs.items()
    ]
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=pairs)
    assert client.ask(CreateTopicsRequest(topics=[topic]), 5).topics[0].error_code == ErrorCode.NONE


def live_bytes(client: RawClient) -> int:
    (directory,) = client.ask(DescribeLogDirsRequest(topics=None), 4).results
    return sum(each.partition_size for topic in directory.topics for each in topic.partitions)


@pytest.mark.timeout(120 + 20 * MANY)
@FEW
def test_kill_while_deleting(tmp_path: Path, kills: int) -> None:
    seed = fresh_seed()
    chance = random.Random(seed)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    with BrokerProcess(tmp_path / "data", *OPTIONS) as broker:
        with RawClient(broker.bootstrap) as client:
            create(client, "churn", retention_bytes=KEPT)
        churn = Churn(broker.bootstrap)
        churn.start()
        try:
            with idempotent_load(broker.bootstrap, writers=3) as load:
                for _ in range(kills):
                    load.wait_for(chance.randrange(100, 1_000))
                    broker.kill()
                    broker.start()
                load.wait_for(500)
        finally:
            churn.stopping.set()
            churn.join()
        load.check()
        with RawClient(broker.bootstrap) as client:
            # What remains of the topic that is deleted from can be read from its start to its end.
            headers = until(lambda: whole(client), what="a look between two deletions")
            assert sum(header.length for header in headers) <= KEPT + 25_000
            # A block at each end of what was deleted may stay, and the room of the last chunk.
            until(
                lambda: allocated(broker.directory) < 2 * live_bytes(client) + 2 * CHUNK,
                what="giving space back",
            )
            client.ask(DeleteTopicsRequest(topic_names=["churn", "numbers"], timeout_ms=5_000), 5)
            until(lambda: allocated(broker.directory) <= CHUNK, what="giving everything back")


def whole(client: RawClient) -> list[BatchHeader]:
    start = client.log_start("churn")
    headers: list[BatchHeader] = []
    while True:
        answer = client.fetch("churn", start)
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return []
        assert answer.error_code == ErrorCode.NONE
        found = [header for _, header in iter_batches(answer.records or b"")]
        if not found:
            assert start == answer.high_watermark
            return headers
        assert found[0].base_offset == start
        headers += found
        start = found[-1].last_offset + 1
