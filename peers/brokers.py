"""The brokers that the peers use: Semel, alone and as a cluster of three, and Apache Kafka.

All have similar settings, and each broker has its own wiretap.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.brokers.cluster import Cluster, running
from support.brokers.process import BrokerProcess
from support.clients.raw import RawClient
from support.waiting import until

from peers.kafka import KafkaProcess
from peers.wiretap import Wiretap
from semel.wire.errors import ErrorCode
from semel.wire.messages import FindCoordinatorRequest

START_SECONDS = 60.0
GROUP, TRANSACTION = 0, 1
COMMON = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}
QUICK = {
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.session.timeout.ms": "2000",
    "group.consumer.min.session.timeout.ms": "1000",
    "share.coordinator.state.topic.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
"""Shorter than Apache Kafka's defaults, so that tests need not wait."""


@dataclass(frozen=True)
class Broker:
    """One running broker, or a cluster of them, as clients see it."""

    name: str
    taps: Sequence[Wiretap]
    direct: str
    """The brokers' own addresses, without the wiretaps: for requests that must not be counted."""

    @property
    def bootstrap(self) -> str:
        return ",".join(tap.bootstrap for tap in self.taps)

    @property
    def is_semel(self) -> bool:
        return self.name != "kafka"

    def asked_by(self, client_id: str) -> Counter[tuple[int, int]]:
        """Return how often a client has sent each (api key, version) so far, at all brokers together."""
        return sum((tap.asked_by(client_id) for tap in self.taps), Counter())


@contextmanager
def run_semel(directory: Path, **settings: str) -> Iterator[Broker]:
    with Wiretap() as tap:
        options = ["--advertise", tap.bootstrap]
        for name, value in (COMMON | settings).items():
            options += ["--set", f"{name}={value}"]
        with BrokerProcess(directory / "semel", *options) as process:
            tap.forward(process.port)
            yield Broker("semel", [tap], process.bootstrap)


@contextmanager
def run_cluster(directory: Path, **settings: str) -> Iterator[Broker]:
    """Run three brokers over their own PostgreSQL server and a directory of objects."""
    with ExitStack() as stack:
        cluster = Cluster(directory, settings=COMMON | settings)
        taps = []
        for member in cluster.brokers:
            tap = stack.enter_context(Wiretap())
            tap.forward(member.port)
            member.options = (*member.options, "--advertise", tap.bootstrap)
            taps.append(tap)
        stack.enter_context(running(cluster))
        yield Broker("cluster", taps, cluster.bootstrap)


@contextmanager
def run_kafka(
    class_path: str, directory: Path, listeners: Mapping[str, int] | None = None, **settings: str
) -> Iterator[Broker]:
    """Run Apache Kafka in its own process, one node, with transaction.version 2.

    Further `listeners` are given by protocol and port; they have no wiretap.
    """
    with Wiretap() as tap:
        kafka = KafkaProcess(
            class_path,
            directory,
            {**QUICK, **COMMON, **settings},
            advertised=tap.bootstrap,
            listeners=listeners,
        )
        tap.forward(kafka.port)
        with kafka:
            until(lambda: serves(kafka), START_SECONDS, "the start of Apache Kafka")
            yield Broker("kafka", [tap], kafka.bootstrap)


def serves(kafka: KafkaProcess) -> bool:
    """Whether it accepts a connection and has created the topics of its coordinators."""
    kafka.check_alive()
    try:
        with RawClient(kafka.bootstrap) as client:
            found = [
                client.ask(FindCoordinatorRequest(key="first", key_type=kind), 2)
                for kind in (GROUP, TRANSACTION)
            ]
    except (OSError, AssertionError):
        return False
    return all(each.error_code == ErrorCode.NONE for each in found)
