"""The primary of PostgreSQL fails over, comes back and is there again: no broker of a cluster uses it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers.cluster_members import members
from support.servers.failover import END_HALF, Pair, execute, pair
from support.waiting import until

from semel.client import Admin, Client, Consumer, NewTopic, Producer

SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'semel'"


@pytest.fixture
def servers() -> Iterator[Pair]:
    with pair() as servers:
        yield servers


def test_an_old_primary_that_comes_back_is_not_used(servers: Pair, tmp_path: Path) -> None:
    (tmp_path / "chunks").mkdir()
    with (
        members(servers.address(), tmp_path / "chunks", 0, 1) as brokers,
        Client(",".join(each.bootstrap for each in brokers)) as client,
    ):
        Admin(client).topics.create(NewTopic("orders", 4))
        produce(client, "before")
        servers.fail_over()
        produce(client, "after")
        servers.return_alone()
        assert execute(servers.standby.dsn, END_HALF) > 0
        for number in range(5):
            produce(client, f"later {number}")
        # Sessions that they have opened meanwhile.
        until(lambda: execute(servers.standby.dsn, SESSIONS) >= 2)
        # But for those that look which server it is.
        until(lambda: execute(servers.primary.dsn, SESSIONS) == 0)
        assert commits(servers.primary.dsn) < commits(servers.standby.dsn)
        with Consumer(client, "orders") as consumer:
            assert len(list(consumer.read_to_end())) == 4 * 7
        assert [each.process and each.process.poll() for each in brokers] == [None] * 2


def produce(client: Client, what: str) -> None:
    with Producer(client) as producer:
        for partition in range(4):
            producer.send("orders", what.encode(), partition=partition)


def commits(dsn: str) -> Any:
    return execute(dsn, "SELECT sum(sequence) FROM semel.commits")
