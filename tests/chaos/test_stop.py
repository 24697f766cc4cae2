"""SIGTERM, SIGSTOP, and two at once: the ways in which a process ends, pauses, or may not begin.

A polite stop is equal in outcome to kill -9 (see ``test_kill``): nothing acknowledged is lost, nothing is
doubled. It answers what was begun, exits with 0, and is quick, whoever waits for whatever.
``SEMEL_STOPS`` says how often.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.brokers.process import BrokerProcess, free_port
from support.chance import fresh_seed
from support.clients.raw import RawClient, batch
from support.clients.raw_groups import ClassicMember, join_request
from support.workloads.load import idempotent_load

from semel.server.run import EXIT_LOCKED, EXIT_OK
from semel.wire.errors import ErrorCode
from semel.wire.frames import decode_response_header
from semel.wire.messages import FetchPartition, FetchRequest, FetchTopic, JoinGroupResponse

GIVEN = os.environ.get("SEMEL_STOPS")
MANY = int(GIVEN or 4)
BETWEEN = 300


@pytest.mark.timeout(120 + 20 * MANY)
@pytest.mark.parametrize("stops", [MANY] if GIVEN else [2, pytest.param(MANY, marks=pytest.mark.slow)])
def test_sigterm_under_idempotent_load(tmp_path: Path, stops: int) -> None:
    seed = fresh_seed()
    chance = random.Random(seed)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    with BrokerProcess(tmp_path / "data") as broker:
        with idempotent_load(broker.bootstrap) as load:
            for _ in range(stops):
                load.wait_for(chance.randrange(1, BETWEEN))
                assert broker.stop() == EXIT_OK
                broker.start()
            load.wait_for(BETWEEN)
        load.check()


def long_poll(topic: str) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=60_000, min_bytes=1, topics=[FetchTopic(topic=topic, partitions=[wanted])]
    )


def test_sigterm_does_not_wait_for_those_who_wait(tmp_path: Path) -> None:
    """A fetch that waits for records, a join that waits for members, a client that waits for nothing."""
    delay = ("--set", "group.initial.rebalance.delay.ms=60000")
    with (
        BrokerProcess(tmp_path / "data", *delay) as broker,
        RawClient(broker.bootstrap) as fetching,
        RawClient(broker.bootstrap) as joining,
        RawClient(broker.bootstrap) as client,
    ):
        client.create_topic("t")
        fetching.send(long_poll("t"), 11)
        joining.send(join_request("group"), 3)
        # Answered after the two before it were read: they wait by now.
        client.create_topic("u")
        assert broker.stop() == EXIT_OK
        # They are answered, so nobody waited for the end of the grace, when they would have been cut off:
        # nothing came, and the coordinator is to be looked for again.
        assert fetching.receive_frame() is not None
        frame = joining.receive_frame()
        assert frame is not None
        _, position = decode_response_header(frame, 11, 3)
        joined = JoinGroupResponse.decode(frame, 3, position)
        assert joined.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_pause_longer_than_a_session_loses_nothing(tmp_path: Path) -> None:
    """SIGSTOP, as a machine that sleeps does it: the broker goes on, members come back by themselves."""
    options = ("--set", "group.initial.rebalance.delay.ms=0", "--set", "group.min.session.timeout.ms=500")
    with BrokerProcess(tmp_path / "data", *options) as broker, RawClient(broker.bootstrap) as client:
        with idempotent_load(broker.bootstrap, writers=2) as load:
            load.wait_for(BETWEEN)
            member = ClassicMember(client, "group", session_timeout_ms=800)
            os.kill(broker.pid, signal.SIGSTOP)
            try:
                time.sleep(2)
            finally:
                os.kill(broker.pid, signal.SIGCONT)
            load.wait_for(BETWEEN)
            # Kafka too counts the time in which it did not run: the member is gone, and may join again.
            if member.heartbeat() != ErrorCode.NONE:
                assert ClassicMember(client, "group").heartbeat() == ErrorCode.NONE
        load.check()


def test_one_process_per_directory(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("t")
            command = [sys.executable, "-m", "semel", "serve", "--data", str(tmp_path / "data")]
            command += ["--listen", f"127.0.0.1:{free_port()}", "--log-level", "error"]
            second = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
            assert second.returncode == EXIT_LOCKED
            assert second.stdout == ""
            *_, told = second.stderr.splitlines()
            assert f"{tmp_path / 'data'} is in use by process {broker.pid}" in told
            assert "Traceback" not in second.stderr
            assert client.produce("t", batch()).base_offset == 0
        broker.kill()
        # The lock is gone with the process: no file is left that would have to be removed by hand.
        broker.start()
        with RawClient(broker.bootstrap) as client:
            assert len(client.headers("t")) == 1
