"""PostgreSQL is away for longer than a lease: all brokers are still there afterwards."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers.cluster import query
from support.brokers.cluster_members import Member, members, semel
from support.servers.postgres import PostgresServer, postgres_server, why_not
from support.waiting import until

from semel.cli.cluster import cluster_status
from semel.client import Admin, Client, ClientError, Consumer, KafkaError, NewTopic, Producer

LEASE_SECONDS = 3.0
"""A shorter one could be over while a broker on a busy machine pauses."""


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with postgres_server() as server:
        yield server


@pytest.mark.parametrize("mode", [pytest.param("fast", marks=pytest.mark.slow), "immediate"])
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
        wait_for_leases(brokers)
        server.start()
        with Producer(client) as producer:
            for number in range(12):
                producer.send("orders", b"%d again" % number, partition=number)
        with Consumer(client, "orders") as consumer:
            assert len(list(consumer.read_to_end())) == 24
        # Whoever has renewed its lease after the others were over is replaced by nobody any more.
        until(lambda: is_whole(server), what="a cluster of three with leases")
        logs = "".join(each.log.read_text() for each in brokers)
        assert "was replaced" not in logs
        assert [each.process and each.process.poll() for each in brokers] == [None] * 3, logs


def test_writes_that_are_forbidden_for_longer_than_a_lease(server: PostgresServer, tmp_path: Path) -> None:
    """A renewal is a write, so brokers serve nobody then, and go on afterwards."""
    (tmp_path / "chunks").mkdir()
    options = ("--set", f"semel.lease.ms={LEASE_SECONDS * 1000:.0f}")
    with members(server.dsn, tmp_path / "chunks", 0, 1, options=options) as brokers:
        bootstrap = ",".join(each.bootstrap for each in brokers)
        with Client(bootstrap) as client:
            Admin(client).topics.create(NewTopic("orders", 4))
            with Producer(client) as producer:
                for number in range(4):
                    producer.send("orders", b"%d" % number, partition=number)
        allow_writes(server, False)
        wait_for_leases(brokers)
        assert how_many(bootstrap) is None
        allow_writes(server, True)
        until(lambda: how_many(bootstrap) == 4)
        with Client(bootstrap) as client, Producer(client) as producer:
            producer.send("orders", b"more", partition=0)
        assert until(lambda: how_many(bootstrap)) == 5
        assert [each.process and each.process.poll() for each in brokers] == [None] * 2


def wait_for_leases(brokers: list[Member]) -> None:
    for each in brokers:
        until(lambda broker=each: "the lease is over" in broker.log.read_text(), what="the end of a lease")  # type: ignore[misc]  # a default: mypy infers no such lambda


def is_whole(server: PostgresServer) -> bool:
    status = cluster_status(server.dsn)
    states = [each["state"] for each in status["brokers"]]
    return states == ["live"] * 3 and status["overview"]["shards"] == "256, 0 without an owner"


def allow_writes(server: PostgresServer, are_allowed: bool) -> None:
    query(server.dsn, f"ALTER SYSTEM SET default_transaction_read_only = {'off' if are_allowed else 'on'}")
    query(server.dsn, "SELECT pg_reload_conf()")


def how_many(bootstrap: str) -> int | None:
    """The records of a topic; None if nobody answers."""
    try:
        with Client(bootstrap, timeout_s=1) as client, Consumer(client, "orders") as consumer:
            return len(list(consumer.read_to_end()))
    except (ClientError, KafkaError):
        return None


def test_a_server_that_stops_keeping_commits_ends_its_brokers(server: PostgresServer, tmp_path: Path) -> None:
    (tmp_path / "chunks").mkdir()
    place = ("--ledger", server.dsn, "--chunks", (tmp_path / "chunks").as_uri())
    with members(server.dsn, tmp_path / "chunks", 0) as (broker,):
        query(server.dsn, "ALTER SYSTEM SET fsync = off")
        query(server.dsn, "SELECT pg_reload_conf()")
        assert broker.process is not None
        assert broker.process.wait(60) == 78
        assert "the broker stops: PostgreSQL runs with fsync off" in broker.log.read_text()
    refused = semel("serve", *place, "--listen", "127.0.0.1:0", code=78).stderr
    assert "semel.ledger.unsafe=fsync" in refused
    allowed = ("--set", "semel.ledger.unsafe=fsync")
    with members(server.dsn, tmp_path / "chunks", 1, options=allowed) as (broker,):
        assert "PostgreSQL runs with fsync off: a crash" in broker.log.read_text()
        assert "UNSAFE: fsync is off" in semel("cluster", "status", "--ledger", server.dsn).stdout
