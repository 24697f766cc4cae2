"""Connections do not take the last file descriptors: the store needs them, and without them it has to end."""

import contextlib
import os
import resource
import socket
import time
from pathlib import Path

from support.brokers.process import BrokerProcess
from support.clients.raw import RawClient, batch

from semel.server.sockets import RESERVED
from semel.wire.errors import ErrorCode

LIMIT = RESERVED + 50
SMALL = ("--set", "semel.chunk.bytes.max=65536")


def test_many_connections_do_not_end_the_broker(tmp_path: Path) -> None:
    """Found by chaos: whoever opened enough of them ended the broker with its next chunk."""
    with (
        BrokerProcess(tmp_path / "data", *SMALL) as broker,
        RawClient(broker.bootstrap) as client,
        contextlib.ExitStack() as connections,
    ):
        client.create_topic("t")
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
        opened = [
            connections.enter_context(socket.create_connection(("127.0.0.1", broker.port), 10))
            for _ in range(2 * LIMIT)
        ]
        opened[-1].settimeout(10)
        # One too many is closed, and is not left waiting.
        assert opened[-1].recv(1) == b""
        now = int(time.time() * 1000)
        for number in range(20):
            answer = client.produce("t", batch(value=os.urandom(30_000), timestamp=now))
            assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, number)
        assert len(list((tmp_path / "data" / "chunks").iterdir())) > 5


def test_a_broker_takes_all_that_the_system_gives(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1_024, hard - 1), hard))
    try:
        with BrokerProcess(tmp_path / "data") as broker:
            assert resource.prlimit(broker.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
