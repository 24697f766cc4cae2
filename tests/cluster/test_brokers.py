"""Brokers that die, stop, sleep and join while clients work: nothing is lost or doubled, clients go on.

Money moves between accounts of several leaders. An auditor looks at all accounts as of one commit: their sum
is zero at every moment, whatever happens.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.brokers.cluster import Cluster, Member
from support.clients.raw import RawClient
from support.clients.raw_log import Log
from support.clients.raw_transactions import RawProducer
from support.clients.routed import RoutedClient
from support.waiting import until
from support.workloads import money
from support.workloads.cluster_load import loaded
from support.workloads.load import idempotent_load

from semel.client import Client, Consumer, Producer
from semel.client.consume.offsets import END_TOGETHER
from semel.server.run import EXIT_BROKEN, EXIT_LOCKED, EXIT_OK

from .conftest import Create

Tell = Callable[[str, object], None]
HOUR_SECONDS = 3600
MINUTE_MS = 60_000
WRONG_CLOCK = Path(__file__).parents[1] / "support" / "brokers" / "wrong_clock_main.py"


def test_clients_go_on_when_a_broker_is_killed(cluster: Cluster, record_property: Tell) -> None:
    victim, other, _ = cluster.brokers
    with loaded(cluster) as load:
        accounts = load.money.partitions
        victim.kill()
        load.audit()
        load.go_on()
        # Any broker tells the ends of all, also when the leader of some is dead.
        with RawClient(other.bootstrap) as client:
            ends = money.ends_together(client, accounts, END_TOGETHER)
        assert ends is not None
        assert ends.keys() == set(accounts)
        victim.start()
    record_property("slowest transaction", f"{load.slowest_seconds:.1f} s")
    cluster.settle()


@pytest.mark.long
def test_idempotent_producers_go_on_when_a_broker_is_killed(cluster: Cluster) -> None:
    victim = cluster.brokers[1]
    with idempotent_load(cluster.bootstrap, writers=2, partitions=6) as load:
        load.wait_for(100)
        victim.kill()
        load.wait_for(100)
        victim.start()
        load.wait_for(100)
    load.check()
    cluster.settle()


def test_no_error_reaches_applications_when_brokers_are_restarted_in_turn(
    cluster: Cluster, record_property: Tell
) -> None:
    with loaded(cluster) as load:
        for each in cluster.brokers:
            assert each.stop() == EXIT_OK, each.log.read_text()
            each.start()
            load.go_on()
        record_property("slowest transaction", f"{load.slowest_seconds:.1f} s")
        assert load.troubles == []
    cluster.settle()


@pytest.mark.slow
def test_a_broker_joins_under_load(cluster: Cluster) -> None:
    with loaded(cluster, copies=False) as load:
        member = cluster.add()
        cluster.settle()
        load.go_on()
        assert member.stop() == EXIT_OK
        cluster.brokers.remove(member)
        load.go_on()
        assert load.troubles == []
    cluster.settle()


@pytest.mark.parametrize("seconds", [0.0, pytest.param(30.0, marks=pytest.mark.long)])
def test_a_broker_that_wakes_up_in_a_commit_finds_itself_replaced(
    cluster: Cluster, spread: Create, seconds: float
) -> None:
    """It writes nothing, tells nobody anything, says why, and ends; its supervisor starts it again."""
    sleeper = cluster.brokers[2]
    others = ",".join(each.bootstrap for each in cluster.brokers if each is not sleeper)
    topic = spread()
    with loaded(cluster) as load:
        load.go_on()
        # A commit is on its way, and arrives after the broker was replaced.
        sleeper.to_postgres.silence()
        until(lambda: sleeper.to_postgres.held, what="a commit")
        sleeper.pause()
        wakes_at = time.monotonic() + seconds
        until(lambda: sleeper.node_id not in cluster.owners(), what="heirs")
        transactions_go_on(others, topic)
        time.sleep(max(0.0, wakes_at - time.monotonic()))
        sleeper.to_postgres.mend()
        sleeper.resume()
        code = sleeper.wait()
        said = sleeper.log.read_text()
        sleeper.start()
        load.go_on()
    assert code == EXIT_BROKEN
    assert "the broker stops: " in said
    assert "another process took" in said
    assert "Traceback" not in said
    assert f"broker {sleeper.node_id} has not renewed its lease and was replaced" in cluster.logs()
    cluster.settle()


def transactions_go_on(bootstrap: str, topic: str) -> None:
    """Somebody who does not wait for the sleeper writes to all partitions, also those that it led."""
    with RoutedClient(bootstrap) as client:
        producer = RawProducer(client)
        for partition in range(6):
            producer.write(topic, b"meanwhile", partition=partition)
        producer.commit()
        assert [Log(client, topic, each).values() for each in range(6)] == [[b"meanwhile"]] * 6


@pytest.mark.slow
def test_two_brokers_with_one_node_id(cluster: Cluster) -> None:
    """The second does not start, and says which id is taken."""
    twin = Member(cluster, cluster.brokers[0].node_id)
    twin.log = cluster.directory / "twin.log"
    twin.launch()
    assert twin.wait() == EXIT_LOCKED
    said = twin.log.read_text()
    assert f"another process runs as broker {twin.node_id}" in said
    assert "give this one another node.id" in said
    assert not cluster.brokers[0].has_ended


@pytest.mark.slow
def test_a_broker_is_started_again_before_its_lease_is_over(cluster: Cluster) -> None:
    """It waits for the lease of its dead predecessor, and nobody else is disturbed."""
    victim = cluster.brokers[1]
    before = cluster.owners()
    victim.kill()
    victim.start()
    cluster.settle()
    assert set(cluster.owners()) == set(before)


@pytest.mark.parametrize("how", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_broker_that_stops_gives_its_shards_away_at_once(cluster: Cluster, how: signal.Signals) -> None:
    member = cluster.brokers[0]
    replaced = f"broker {member.node_id} has not renewed its lease and was replaced"
    before = cluster.logs().count(replaced)
    os.kill(member.pid, how)
    assert member.wait() == EXIT_OK
    assert None not in cluster.owners()
    assert member.node_id not in cluster.owners()
    # Nobody had to wait for its lease, however long the process took to end.
    assert cluster.logs().count(replaced) == before
    member.start()
    cluster.settle()


# -- clocks and audits ------------------------------------------------------------------------------------


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
