"""`semel cluster`: what operators see of a cluster, and how they relieve a broker."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from support.brokers.cluster_members import Member, database, members, semel
from support.browser.console import console
from support.clients.raw import RawClient
from support.clients.raw_log import Log
from support.faults.tcp_proxy import TcpProxy
from support.waiting import until

from semel.cli.cluster import cluster_status
from semel.client import Admin, Client, Consumer, NewTopic, Producer
from semel.core.entities import SHARDS
from semel.store.cluster import inspection
from semel.store.cluster.postgres import reaching
from semel.store.cluster.postgres.opening import open_database
from semel.store.contract import StoreRefused
from semel.wire.errors import ErrorCode

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def ledger(postgres_dsn: str) -> Iterator[str]:
    with database(postgres_dsn) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def brokers(ledger: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Member]]:
    with members(ledger, tmp_path_factory.mktemp("chunks"), 0, 1, 2) as brokers:
        yield brokers


def status(ledger: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(semel("cluster", "status", "--ledger", ledger, "--json").stdout)
    return found


def shards(ledger: str) -> dict[int, int]:
    return {each["node"]: each["shards"] for each in cluster_status(ledger)["brokers"]}


def states(ledger: str) -> dict[int, str]:
    return {each["node"]: each["state"] for each in cluster_status(ledger)["brokers"]}


def all_own_some(ledger: str) -> bool:
    found = shards(ledger)
    return len(found) == 3 and min(found.values()) > 50 and sum(found.values()) == SHARDS


def test_status(ledger: str, brokers: list[Member]) -> None:
    until(lambda: all_own_some(ledger), what="a balance")
    found = status(ledger)
    assert found["unowned_shards"] == 0
    assert found["term"] == 1
    for member, broker in zip(brokers, found["brokers"], strict=True):
        assert broker["broker_id"] == member.node_id
        assert broker["state"] == "live"
        assert broker["endpoints"] == {"PLAINTEXT": member.bootstrap}
        assert broker["internal"].startswith("127.0.0.1:")
        assert 0 < broker["lease_ms"] <= 3_000
        assert broker["notices"] == 0
    assert {"batches", "brokers", "topics"} <= {each["name"] for each in found["tables"]}
    shown = semel("cluster", "status", "--ledger", ledger).stdout
    assert found["cluster_id"] in shown
    assert brokers[2].bootstrap in shown
    assert f"{SHARDS}, 0 without an owner" in shown


def test_status_names_the_oldest_snapshot(ledger: str, brokers: list[Member]) -> None:
    async def look() -> tuple[dict[str, Any], str]:
        connection: Any = await asyncpg.connect(ledger, server_settings={"application_name": "report"})
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT")
        asked = await asyncio.to_thread(status, ledger)
        shown = await asyncio.to_thread(semel, "cluster", "status", "--ledger", ledger)
        await connection.close()
        return asked["snapshots"]["oldest"], shown.stdout

    oldest, shown = asyncio.run(look())
    assert (oldest["holder"], oldest["name"]) == ("session", "report")
    assert f"session 'report' with pid {oldest['pid']}" in shown


def test_the_console_shows_shards_and_leases(ledger: str, brokers: list[Member]) -> None:
    until(lambda: all_own_some(ledger), what="a balance")
    bootstrap = brokers[0].bootstrap
    with console(bootstrap, cluster_status=partial(cluster_status, ledger)) as browsing:
        found = browsing.get("/cluster.json").json
        assert {each["id"] for each in found["brokers"]} == {0, 1, 2}
        shared = found["shared"]
        assert shared["overview"]["shards"] == f"{SHARDS}, 0 without an owner"
        assert sum(each["shards"] for each in shared["brokers"]) == SHARDS
        assert all(each["lease"] for each in shared["brokers"])
        page = browsing.get("/cluster").text
        assert f"<td>PLAINTEXT={brokers[2].bootstrap}</td>" in page.replace(' class="wrap"', "")
    for elsewhere, problem in (("", "there is no cluster in this database"), ("-none", "does not exist")):
        away = f"{ledger.rpartition('/')[0]}/postgres{elsewhere}"
        with console(bootstrap, cluster_status=partial(cluster_status, away)) as browsing:
            page = browsing.get("/cluster").text
            assert "The ledger of the cluster could not be read" in page
            assert problem in page


def test_a_broker_is_drained_while_clients_work_and_takes_shards_again(
    ledger: str, brokers: list[Member]
) -> None:
    until(lambda: all_own_some(ledger), what="a balance")
    with Client(",".join(each.bootstrap for each in brokers)) as client:
        Admin(client).topics.create(NewTopic("orders", 12))
        with Producer(client) as producer:
            for number in range(50):
                producer.send("orders", str(number).encode(), key=str(number).encode())
            drained = semel("cluster", "drain", "2", "--ledger", ledger)
            assert drained.stdout == "Broker 2 owns no shards.\n"
            for number in range(50, 100):
                producer.send("orders", str(number).encode(), key=str(number).encode())
        assert states(ledger) == {0: "live", 1: "live", 2: "draining"}
        assert [each > 0 for each in shards(ledger).values()] == [True, True, False]
        with Consumer(client, "orders") as consumer:
            assert sorted(int(each.value or b"") for each in consumer.read_to_end()) == list(range(100))
    semel("cluster", "undrain", "2", "--ledger", ledger)
    until(lambda: all_own_some(ledger), what="a balance")


def test_a_fetch_that_waits_is_answered_when_its_partition_moves(ledger: str, brokers: list[Member]) -> None:
    """Otherwise its consumer would learn only after fetch.max.wait.ms where to read on."""
    until(lambda: all_own_some(ledger), what="a balance")
    with Client(brokers[2].bootstrap) as client:
        Admin(client).topics.create(NewTopic("followed", 12))
        moving = next(index for index in range(12) if client.leader("followed", index) == 2)
    with RawClient(brokers[2].bootstrap) as raw:
        request = Log(raw, "followed", moving).request(max_wait_ms=HOUR_MS, min_bytes=1)
        raw.send(request, 11)
        semel("cluster", "drain", "2", "--ledger", ledger)
        # Every change of owners ends the wait, and the first of them may be one of other partitions.
        assert raw.receive_frame() is not None
        (topic,) = raw.ask(request, 11).responses
        assert topic.partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    semel("cluster", "undrain", "2", "--ledger", ledger)
    until(lambda: all_own_some(ledger), what="a balance")


def test_a_broker_that_starts_again_is_not_drained(ledger: str, brokers: list[Member]) -> None:
    until(lambda: all_own_some(ledger), what="a balance")
    semel("cluster", "drain", "1", "--ledger", ledger)
    assert brokers[1].stop() == 0
    assert states(ledger) == {0: "live", 1: "gone", 2: "live"}
    brokers[1].start()
    until(lambda: all_own_some(ledger), what="a balance")


def test_a_dead_broker_is_shown(ledger: str, brokers: list[Member]) -> None:
    until(lambda: all_own_some(ledger), what="a balance")
    brokers[0].kill()
    until(lambda: states(ledger)[0] in ("dead", "gone"), what="the end of the lease")
    ran = semel("cluster", "drain", "0", "--ledger", ledger, code=1)
    assert ran.stderr == "Error: Broker 0 does not run; those that run: 1, 2\n"
    until(lambda: shards(ledger)[0] == 0 and sum(shards(ledger).values()) == SHARDS, what="a replacement")
    brokers[0].start()


def test_nobody_to_take_the_shards(ledger: str, tmp_path: Path, postgres_dsn: str) -> None:
    with database(postgres_dsn) as alone, members(alone, tmp_path, 0):
        ran = semel("cluster", "drain", "0", "--ledger", alone, code=1)
        assert ran.stderr == "Error: No other broker can take the shards of broker 0\n"


@contextmanager
def locked(ledger: str, table: str) -> Iterator[None]:
    """A session keeps others from reading a table."""
    with asyncio.Runner() as runner:
        connection: Any = runner.run(asyncpg.connect(ledger))
        runner.run(connection.execute(f"BEGIN; LOCK TABLE semel.{table}"))
        try:
            yield
        finally:
            runner.run(connection.close())


def test_a_ledger_that_does_not_answer(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def make_tables(dsn: str) -> None:
        await (await open_database(dsn, "semel", 1)).close()

    monkeypatch.setattr(reaching, "COMMAND_SECONDS", 0.5)
    with database(postgres_dsn) as silent:
        asyncio.run(make_tables(silent))
        with locked(silent, "brokers"):
            with pytest.raises(RuntimeError, match=r"has not answered a query in time.* Try again"):
                cluster_status(silent)
            ran = semel("cluster", "drain", "0", "--timeout", "1s", "--ledger", silent, code=1)
            assert "Broker 0 may not be asked: try again." in ran.stderr


def test_a_ledger_that_goes_away(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = urlsplit(postgres_dsn)
    assert server.hostname is not None
    assert server.port is not None
    with TcpProxy((server.hostname, server.port)) as proxy:
        dsn = postgres_dsn.replace(f":{server.port}", f":{proxy.port}")

        async def cut() -> None:
            async with inspection.connected(dsn, "semel"):
                pytest.fail("it was connected")

        async def connect(*arguments: str) -> Any:
            connection = await reaching.connect(*arguments)
            proxy.cut()
            return connection

        monkeypatch.setattr(inspection, "connect", connect)
        with pytest.raises(StoreRefused):
            asyncio.run(cut())


def test_errors_are_sentences(postgres_dsn: str) -> None:
    with database(postgres_dsn) as empty:
        ran = semel("cluster", "status", "--ledger", empty, code=1)
        assert "there is no cluster in this database" in ran.stderr.lower()
    ran = semel("cluster", "status", "--ledger", "postgresql://semel@127.0.0.1:1/x", code=1)
    assert "PostgreSQL cannot be reached" in ran.stderr
    ran = semel("cluster", "status", "--ledger", "postgresql://semel:hidden@127.0.0.1:1/x", code=2)
    assert "PGPASSWORD" in " ".join(ran.stderr.split())
    assert "hidden" not in ran.stderr
    assert "Missing option" in semel("cluster", "status", code=2).stderr
