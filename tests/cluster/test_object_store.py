"""S3 that fails under load, or cannot be used at all."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers.cluster import Cluster, Member, running, s3_environment
from support.faults.faulty_s3 import Fault, FaultyS3
from support.servers.s3 import S3Server
from support.workloads.cluster_load import loaded

from semel.client import Admin, Client, Consumer, NewTopic, Producer
from semel.server.run import EXIT_OK

from .conftest import make_spread

SETTINGS = {"semel.inline.bytes.max": 200, "semel.roll.interval.ms": 500}
"""Most commits go to S3 at once, and the others soon."""
MANY = 20
LARGE = b"l" * 300_000


@pytest.fixture(scope="module")
def faulty(s3: S3Server) -> Iterator[FaultyS3]:
    with FaultyS3(s3) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def cluster(
    postgres_dsn: str, faulty: FaultyS3, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    made = Cluster(
        tmp_path_factory.mktemp("cluster"),
        brokers=2,
        chunks=f"{faulty.address}-load",
        environment=s3_environment(faulty.options),
        settings=SETTINGS,
    )
    with running(made, postgres_dsn) as cluster:
        yield cluster


@pytest.mark.parametrize(
    ("method", "fault"),
    [
        ("PUT", Fault.UNAVAILABLE),
        ("PUT", Fault.LOST_ANSWER),
        ("GET", Fault.SHORT),
        pytest.param("GET", Fault.UNAVAILABLE, marks=pytest.mark.long),
        pytest.param("GET", Fault.CUT, marks=pytest.mark.long),
    ],
)
def test_clients_go_on_when_s3_fails(cluster: Cluster, faulty: FaultyS3, method: str, fault: Fault) -> None:
    with loaded(cluster, kinds=["own", "librdkafka"], copies=False) as load:
        faulty.spoil(method, fault, times=MANY)
        load.go_on()
        faulty.heal()
        load.go_on()


def test_large_records_are_read_back(cluster: Cluster, faulty: FaultyS3) -> None:
    topic = make_spread(cluster)
    before = faulty.count("PUT")
    with Client(cluster.bootstrap, timeout_s=30) as client:
        with Producer(client) as producer:
            for partition in range(6):
                producer.send(topic, b"%d" % partition * 300_000, partition=partition)
        with Consumer(client, topic) as consumer:
            found = [record.value for record in consumer.read_to_end()]
    assert sorted(each[:1] for each in found if each) == [b"%d" % each for each in range(6)]
    assert [len(each or b"") for each in found] == [300_000] * 6
    assert faulty.count("PUT") > before


def test_nobody_waits_for_the_upload_of_another(
    cluster: Cluster, faulty: FaultyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_spread(cluster)
    begun, may_end = threading.Event(), threading.Event()
    judge = faulty.judge

    def slow(method: str, path: str) -> Fault | None:
        if method == "PUT":
            begun.set()
            assert may_end.wait(60)
        return judge(method, path)

    def write_large() -> None:
        with Client(cluster.bootstrap, timeout_s=60) as client, Producer(client) as producer:
            producer.send(topic, LARGE, partition=0)
            producer.flush()
            producer.send(topic, b"last", partition=0)

    monkeypatch.setattr(faulty, "judge", slow)
    writer = threading.Thread(target=write_large)
    writer.start()
    try:
        assert begun.wait(60)
        with Client(cluster.bootstrap, timeout_s=30) as client:
            with Producer(client) as producer:
                for partition in range(6):
                    producer.send(topic, b"small", partition=partition)
                    # Together they would not be small.
                    producer.flush()
            with Consumer(client, topic) as consumer:
                assert [record.value for record in consumer.read_to_end()] == [b"small"] * 6
            assert writer.is_alive()
            may_end.set()
            writer.join(60)
            with Consumer(client, topic) as consumer:
                found = [record.value for record in consumer.read_to_end() if record.partition == 0]
            assert found == [b"small", LARGE, b"last"]
    finally:
        may_end.set()
        writer.join(60)


def member_over(dsn: str, directory: Path, s3: S3Server, chunks: str, **environment: str) -> Member:
    """A broker with another object store. It has an id of its own."""
    given = s3_environment(s3.options) | environment
    cluster = Cluster(directory, brokers=1, chunks=chunks, environment=given)
    cluster.dsn = dsn
    return cluster.brokers[0]


def test_a_broker_starts_while_its_object_store_is_away(
    postgres_dsn: str, s3: S3Server, tmp_path: Path
) -> None:
    """Small commits do not need it. The log says that it is missing."""
    chunks = "s3://semel/away"
    with member_over(postgres_dsn, tmp_path, s3, chunks, AWS_ENDPOINT="http://127.0.0.1:1") as member:
        with Client(member.bootstrap, timeout_s=20) as client:
            Admin(client).topics.create(NewTopic("away", 1))
            with Producer(client) as producer:
                producer.send("away", b"small")
            with Consumer(client, "away") as consumer:
                assert [record.value for record in consumer.read_to_end()] == [b"small"]
        assert member.stop() == EXIT_OK
    said = member.log.read_text()
    assert chunks in said
    assert "large commits are refused until it does" in said
