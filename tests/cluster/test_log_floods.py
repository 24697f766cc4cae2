"""What fails again and again does not fill the log."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers.cluster_members import Member, database, members
from support.clients.raw import RawClient, batch

from semel.client import Client
from semel.server.logs import SENTENCE_LINES
from semel.wire.errors import ErrorCode

LARGE = 600_000
"""Bytes that are uploaded before their commit."""


@pytest.fixture
def ledger(postgres_dsn: str, tmp_path: Path) -> Iterator[str]:
    (tmp_path / "chunks").mkdir()
    with database(postgres_dsn) as dsn:
        yield dsn


def warnings(broker: Member) -> list[str]:
    return [line for line in broker.log.read_text().splitlines() if " warning " in line]


def test_a_broker_that_stops_says_nothing_of_housekeeping(ledger: str, tmp_path: Path) -> None:
    with members(ledger, tmp_path / "chunks", 0, 1) as (one, other):
        # It waits for its clients when it has given its shards away.
        with Client(other.bootstrap) as client:
            client.describe(topics=())
            other.stop()
        assert [line for line in warnings(other) if "housekeeping" in line] == []
        assert one.process is not None
        assert one.process.poll() is None


def test_an_object_store_that_refuses_everything_is_reported_now_and_then(
    ledger: str, tmp_path: Path
) -> None:
    with members(ledger, tmp_path / "chunks", 0) as (broker,), RawClient(broker.bootstrap) as client:
        client.create_topic("t")
        now = int(time.time() * 1000)
        assert client.produce("t", batch(value=b"small", timestamp=now)).error_code == ErrorCode.NONE
        (tmp_path / "chunks").rename(tmp_path / "away")
        large = batch(value=os.urandom(LARGE), timestamp=now)
        for _ in range(2 * SENTENCE_LINES):
            assert client.produce("t", large).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        (tmp_path / "away").rename(tmp_path / "chunks")
    refused = [line for line in warnings(broker) if "could not be uploaded" in line]
    assert len(refused) == SENTENCE_LINES, broker.log.read_text()
