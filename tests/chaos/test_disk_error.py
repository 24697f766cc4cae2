"""A disk that fails: the process ends without an answer, and the next start finds out what is true.

A write that was refused may still reach the disk, so nobody may be told anything about it. What was
acknowledged before is there afterwards; what was not may be there or not, and an idempotent producer that
sends it again has it once.
"""

import errno
import resource
from pathlib import Path
from typing import Any

import pytest
from support.brokers.faulty import FaultyBroker
from support.brokers.process import BrokerProcess
from support.clients.raw import RawClient, batch, produce_request
from support.clients.raw_groups import ClassicMember, commit_offset

from semel.server.run import EXIT_BROKEN
from semel.wire.errors import ErrorCode
from semel.wire.messages import CreatableTopic, CreateTopicsRequest, ListGroupsRequest


def check_survivors(broker: BrokerProcess, producer_id: int, acknowledged: int) -> None:
    """After a start: what was acknowledged, and perhaps the one that was not; sending that again is safe."""
    with RawClient(broker.bootstrap) as client:
        offsets = [header.base_offset for header in client.headers("t")]
        assert offsets[:acknowledged] == list(range(acknowledged))
        assert len(offsets) <= acknowledged + 1
        again = batch(acknowledged, producer_id=producer_id, producer_epoch=0)
        answer = client.produce("t", again)
        assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, acknowledged)
        assert len(client.headers("t")) == acknowledged + 1


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("write", errno.ENOSPC),
        ("flush", errno.EIO),
        pytest.param("write", errno.EIO, marks=pytest.mark.slow),
        pytest.param("flush", errno.ENOSPC, marks=pytest.mark.slow),
    ],
)
def test_a_chunk_that_cannot_be_written_ends_the_process(tmp_path: Path, call: str, code: int) -> None:
    """Also ENOSPC: room was taken before, so a disk that is full now breaks its word."""
    with FaultyBroker(tmp_path / "data") as broker:
        with RawClient(broker.bootstrap) as client, RawClient(broker.bootstrap) as reader:
            client.create_topic("t")
            producer_id = client.new_producer()
            fields: dict[str, Any] = {"producer_id": producer_id, "producer_epoch": 0}
            for number in range(3):
                assert client.produce("t", batch(number, **fields)).base_offset == number
            broker.fail(call, code)
            client.send(produce_request("t", batch(3, **fields)), 9)
            assert client.receive_frame() is None
            assert reader.receive_frame() is None
        assert broker.wait() == EXIT_BROKEN
        broker.repair()
        broker.start()
        check_survivors(broker, producer_id, 3)


def limit_file_size(broker: BrokerProcess, size: int) -> None:
    """From now on no byte behind this one can be written to any file."""
    _, hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (size, hard))


@pytest.mark.parametrize("what", ["records", "topic", "offset", "heartbeat"])
def test_a_ledger_that_cannot_be_written_ends_the_process(tmp_path: Path, what: str) -> None:
    """An error that the kernel makes, not a test: writes beyond a size fail with EFBIG."""
    topic = CreatableTopic(name="u", num_partitions=1, replication_factor=1)
    delay = ("--set", "group.initial.rebalance.delay.ms=0")
    with BrokerProcess(tmp_path / "data", *delay) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("t")
            producer_id = client.new_producer()
            fields: dict[str, Any] = {"producer_id": producer_id, "producer_epoch": 0}
            for number in range(3):
                assert client.produce("t", batch(number, **fields)).base_offset == number
            assert commit_offset(client, "g", "t", 3) == ErrorCode.NONE
            member = ClassicMember(client, "members")
            # Asks the ledger, which has everything then and writes nothing more by itself.
            assert len(client.ask(ListGroupsRequest(), 4).groups) == 2
            limit_file_size(broker, 1)
            if what == "heartbeat":
                # Needs no write, so it is answered by a broker that could not.
                assert member.heartbeat() == ErrorCode.NONE
                assert client.fetch("t").high_watermark == 3
                what = "records"
            if what == "records":
                client.send(produce_request("t", batch(3, **fields)), 9)
                assert client.receive_frame() is None
            elif what == "topic":
                client.send(CreateTopicsRequest(topics=[topic]), 5)
                assert client.receive_frame() is None
            else:
                with pytest.raises(AssertionError, match="closed the connection"):
                    commit_offset(client, "g", "t", 4)
        assert broker.wait() == EXIT_BROKEN
        broker.start()
        check_survivors(broker, producer_id, 3)
        with RawClient(broker.bootstrap) as client:
            assert member.heartbeat(client) == ErrorCode.NONE


def test_a_disk_that_fails_while_it_starts_is_told_and_left_alone(tmp_path: Path) -> None:
    with FaultyBroker(tmp_path / "data") as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("t")
            assert client.produce("t", batch()).base_offset == 0
        broker.kill()
        (tmp_path / "data" / "ledger.db").rename(tmp_path / "kept")
        (tmp_path / "data" / "ledger.db").mkdir()
        with pytest.raises(AssertionError, match="instead of being ready: ''"):
            broker.start()
        assert broker.wait() == EXIT_BROKEN
        assert "cannot be opened" in broker.log.read_text().splitlines()[-1]
        (tmp_path / "data" / "ledger.db").rmdir()
        (tmp_path / "kept").rename(tmp_path / "data" / "ledger.db")
        broker.start()
        with RawClient(broker.bootstrap) as client:
            assert len(client.headers("t")) == 1
