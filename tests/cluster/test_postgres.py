"""PostgreSQL that is restarted, crashes, loses a session, is away or slow, while clients work."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from support.brokers.cluster import Cluster, running
from support.clients.raw_log import Log
from support.clients.raw_transactions import RawProducer
from support.clients.routed import RoutedClient
from support.clients.share_jobs import WAIT_SECONDS, new_group, put, results, taken
from support.waiting import until
from support.workloads.cluster_load import loaded

from semel.client import (
    Client,
    MustAbort,
    ProducerFenced,
    ShareConsumer,
    TransactionAborted,
    TransactionalProducer,
)
from semel.wire.errors import ErrorCode

from .conftest import make_spread

FENCED = {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE}
PARTITIONS = 6
LONG_LEASE_SECONDS = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers over a PostgreSQL server of their own, with proxies."""
    directory: Path = tmp_path_factory.mktemp("cluster")
    with running(Cluster(directory, proxied=True)) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _all_run(cluster: Cluster) -> Iterator[None]:
    """A broker that was replaced while PostgreSQL was away has ended, and is started for the next test."""
    yield
    cluster.heal()


def kill_backend(cluster: Cluster) -> None:
    cluster.kill_backend()


def crash(cluster: Cluster) -> None:
    cluster.crash_postgres()


def restart(cluster: Cluster) -> None:
    cluster.postgres.stop()
    cluster.postgres.start()


@pytest.mark.parametrize(
    "fail", [crash, *(pytest.param(each, marks=pytest.mark.slow) for each in (restart, kill_backend))]
)
def test_clients_go_on_when_postgresql(cluster: Cluster, fail: Callable[[Cluster], None]) -> None:
    # After a crash, clients are fenced without another instance: what was open may be incomplete.
    with loaded(cluster, tells_timeouts=fail is restart) as load:
        fail(cluster)
        load.go_on()


def test_a_crash_aborts_what_was_open(cluster: Cluster) -> None:
    """Work inside a transaction is not flushed. So a crash begins a term, and nothing older can commit."""
    topic = make_spread(cluster)
    with RoutedClient(cluster.bootstrap) as raw:
        done = RawProducer(raw, generation=2)
        for partition in range(PARTITIONS):
            done.write(topic, b"done", partition=partition)
        done.commit()
        open_ = [RawProducer(raw, generation=generation) for generation in (1, 2)]
        for producer in open_:
            for partition in range(PARTITIONS):
                producer.write(topic, b"open", partition=partition)
        cluster.crash_postgres()
        for producer in open_:
            assert producer.end(commit=True).error_code in FENCED
        logs = [Log(raw, topic, partition) for partition in range(PARTITIONS)]
        until(lambda: all(log.is_settled for log in logs), what="the abort")
        assert [log.values() for log in logs] == [[b"done"]] * PARTITIONS
        # The next instances go on.
        for producer in open_:
            heir = RawProducer(raw, producer.transactional_id, producer.generation)
            heir.write(topic, b"heir")
            heir.commit()
        assert logs[0].values() == [b"done", b"heir", b"heir"]


def test_a_crash_frees_records_of_share_groups(cluster: Cluster) -> None:
    """Unflushed acknowledgements may be lost, so a term begins and aborts all open transactions."""
    jobs, done = make_spread(cluster), make_spread(cluster)
    with Client(cluster.bootstrap, patience_s=WAIT_SECONDS) as client:
        group = new_group(client)
        values = put(client, jobs)
        consumer = ShareConsumer(client, group, jobs)
        zombie = TransactionalProducer(client, "worker")
        zombie.begin()
        held = taken(consumer, PARTITIONS)
        zombie.acknowledge(consumer, *held)
        cluster.crash_postgres()
        with pytest.raises((TransactionAborted, ProducerFenced, MustAbort)):
            zombie.commit()
        with TransactionalProducer(client, "worker") as producer:
            again = taken(consumer, PARTITIONS)
            with producer.transaction():
                for each in again:
                    producer.send(done, each.value)
                producer.acknowledge(consumer, *again)
        found = results(client, done)
        assert (len(found), set(found)) == (PARTITIONS, values)


def test_a_clean_restart_keeps_what_was_open(cluster: Cluster) -> None:
    topic = make_spread(cluster)
    with RoutedClient(cluster.bootstrap) as raw:
        producers = [RawProducer(raw, generation=generation) for generation in (1, 2)]
        for producer in producers:
            for partition in range(PARTITIONS):
                producer.write(topic, b"open", partition=partition)
        restart(cluster)
        for producer in producers:
            producer.commit()
        for partition in range(PARTITIONS):
            assert Log(raw, topic, partition).values() == [b"open", b"open"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cut", "silence"])
def test_a_broker_cut_off_from_postgresql_is_replaced(cluster: Cluster, how: str) -> None:
    """It serves nobody after its lease. When it is back, it ends and is started again."""
    lonely = cluster.brokers[0]
    with loaded(cluster) as load:
        getattr(lonely.to_postgres, how)()
        until(lambda: lonely.node_id not in cluster.owners(), what="a successor")
        load.go_on()
        lonely.to_postgres.mend()
        load.go_on()
    assert "Traceback" not in lonely.log.read_text()


def test_a_short_silence_replaces_nobody(postgres_dsn: str, tmp_path: Path) -> None:
    """Work waits for its answer. Leases are long, so that a pause of the test is no long silence."""
    settings = {"semel.lease.ms": f"{LONG_LEASE_SECONDS * 1000:.0f}"}
    with running(Cluster(tmp_path, proxied=True, settings=settings), postgres_dsn) as cluster:
        before = cluster.owners()
        with loaded(cluster, copies=False) as load:
            for each in cluster.brokers:
                each.to_postgres.silence()
            for each in cluster.brokers:
                until(partial(getattr, each.to_postgres, "held"), what="a query without an answer")
            for each in cluster.brokers:
                each.to_postgres.mend()
            load.go_on()
        assert cluster.owners() == before


@pytest.mark.long
def test_a_slow_postgresql_makes_clients_slow_and_nothing_else(cluster: Cluster) -> None:
    before = cluster.owners()
    with loaded(cluster, kinds=["own", "librdkafka"], copies=False) as load:
        for each in cluster.brokers:
            each.to_postgres.delay_seconds = 0.03
        load.go_on(3)
        for each in cluster.brokers:
            each.to_postgres.delay_seconds = 0.0
    assert cluster.owners() == before
