"""Money moves between accounts of several leaders, and all of it is there whenever somebody adds it up.

The auditor looks at all accounts as of one commit. Its sum is zero at every moment, whatever happens.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.brokers.cluster import Cluster, Member
from support.clients.raw import RawClient
from support.workloads import money
from support.workloads.cluster_load import loaded

from semel.client import Client, Consumer, Producer
from semel.client.offsets import END_TOGETHER
from semel.server.run import EXIT_OK

from .conftest import Create

HOUR_SECONDS = 3600
MINUTE_MS = 60_000
WRONG_CLOCK = Path(__file__).parents[1] / "support" / "brokers" / "wrong_clock_main.py"


@pytest.mark.slow
@pytest.mark.parametrize("visibility", ["marker", "journal"])
def test_no_snapshot_shows_half_a_transfer_while_a_broker_is_killed(
    cluster: Cluster, visibility: str
) -> None:
    victim, other, _ = cluster.brokers
    with loaded(cluster, visibility=visibility, copies=False) as load:
        accounts = load.money.partitions
        assert len({cluster.leader(*key).node_id for key in accounts}) > 1, "all accounts have one leader"
        load.audit()
        victim.kill()
        load.audit()
        load.go_on()
        # Any broker tells the ends of all, also when the leader of some is dead.
        with RawClient(other.bootstrap) as client:
            ends = money.ends_together(client, accounts, END_TOGETHER)
        assert ends is not None
        assert ends.keys() == set(accounts)
        load.audit()
        victim.start()
        load.audit()
    cluster.settle()


@contextmanager
def wrong_clock(member: Member, seconds: int) -> Iterator[None]:
    """A broker with a clock that is wrong, and then with its own again."""
    right = member.program
    try:
        assert member.stop() == EXIT_OK
        member.program = (sys.executable, str(WRONG_CLOCK), str(seconds))
        member.start()
        yield
    finally:
        member.program = right
        member.restart()


def test_a_clock_that_is_an_hour_wrong_is_told_and_not_used(cluster: Cluster, spread: Create) -> None:
    member = cluster.brokers[1]
    topic = spread(message_timestamp_type="LogAppendTime")
    with wrong_clock(member, HOUR_SECONDS):
        cluster.settle()
        assert append_times_are_right(cluster, topic)
    assert "is 3600 s ahead of that of PostgreSQL" in member.log.read_text()
    cluster.settle()


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [HOUR_SECONDS, -HOUR_SECONDS])
def test_a_clock_that_is_an_hour_wrong_on_one_broker(cluster: Cluster, spread: Create, seconds: int) -> None:
    """It says so. Transactions live as long as they may, also if it takes them over, or gives them away."""
    member = cluster.brokers[1]
    topic = spread(message_timestamp_type="LogAppendTime")
    with loaded(cluster, copies=False) as load, wrong_clock(member, seconds):
        cluster.settle()
        load.go_on()
        assert append_times_are_right(cluster, topic)
        # What another broker has begun comes to this one, and goes to the others at the end.
        cluster.brokers[0].kill()
        load.go_on()
        load.audit()
        cluster.brokers[0].start()
    said = member.log.read_text()
    where = "ahead of" if seconds > 0 else "behind"
    assert f"the clock of this machine is 3600 s {where} that of PostgreSQL" in said
    assert "Traceback" not in said
    cluster.settle()


def append_times_are_right(cluster: Cluster, topic: str) -> bool:
    """Whether the records of every leader have the time of today."""
    with Client(cluster.bootstrap) as client:
        with Producer(client) as producer:
            for partition in range(6):
                producer.send(topic, b"v", partition=partition, timestamp_ms=0)
        with Consumer(client, topic) as consumer:
            found = list(consumer.read_to_end())
    assert {each.partition for each in found} == set(range(6))
    return all(abs(each.timestamp - time.time() * 1000) < MINUTE_MS for each in found)
