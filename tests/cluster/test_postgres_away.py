"""PostgreSQL is away for longer than a lease: all brokers are still there afterwards."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.members import members, semel
from support.postgres import PostgresServer, postgres_server, why_not
from support.waiting import until

from semel.client import Admin, Client, Consumer, NewTopic, Producer

LEASE_SECONDS = 1.0


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with postgres_server() as server:
        yield server


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_no_broker_replaces_another_that_could_not_renew_its_lease(
    server: PostgresServer, mode: str, tmp_path: Path
) -> None:
    (tmp_path / "chunks").mkdir()
    options = ("--set", f"semel.lease.ms={LEASE_SECONDS * 1000:.0f}")
    with (
        members(server.dsn, tmp_path / "chunks", 0, 1, 2, options=options) as brokers,
        Client(",".join(each.bootstrap for each in brokers)) as client,
    ):
        Admin(client).topics.create(NewTopic("orders", 12))
        with Producer(client) as producer:
            for number in range(12):
                producer.send("orders", b"%d" % number, partition=number)
        server.stop(mode=mode)
        # Nothing tells when the lease of everybody is over.
        time.sleep(2 * LEASE_SECONDS)
        server.start()
        with Producer(client) as producer:
            for number in range(12):
                producer.send("orders", b"%d again" % number, partition=number)
        with Consumer(client, "orders") as consumer:
            assert len(list(consumer.read_to_end())) == 24
        time.sleep(2 * LEASE_SECONDS)
        assert [each.process and each.process.poll() for each in brokers] == [None] * 3, brokers[
            0
        ].log.read_text()
        status = semel("cluster", "status", "--ledger", server.dsn).stdout
        assert until(lambda: status.count(" live ")) == 3
        assert "256, 0 without an owner" in status
