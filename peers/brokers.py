"""The brokers that the peers meet: Semel and Apache Kafka, each behind a wiretap, with like settings."""

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.process import BrokerProcess, free_port
from support.raw import RawClient
from support.waiting import until

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
KAFKA_ALONE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.session.timeout.ms": "2000",
    "group.consumer.min.session.timeout.ms": "1000",
}


@dataclass(frozen=True)
class Broker:
    """One running broker, as clients see it."""

    name: str
    tap: Wiretap
    direct: str
    """Its own address, past the wiretap: for requests that nobody counts."""

    @property
    def bootstrap(self) -> str:
        return self.tap.bootstrap

    @property
    def is_semel(self) -> bool:
        return self.name == "semel"


@contextmanager
def run_semel(directory: Path, **settings: str) -> Iterator[Broker]:
    with Wiretap() as tap:
        options = ["--advertise", tap.bootstrap]
        for name, value in (COMMON | settings).items():
            options += ["--set", f"{name}={value}"]
        with BrokerProcess(directory / "semel", *options) as process:
            tap.broker_port = process.port
            yield Broker("semel", tap, process.bootstrap)


@contextmanager
def run_kafka(
    class_path: str, directory: Path, listeners: Mapping[str, int] | None = None, **settings: str
) -> Iterator[Broker]:
    """Apache Kafka in a process of its own, one node, with transaction.version 2.

    Further `listeners` are given by protocol and port; no wiretap is in front of them.
    """
    java = shutil.which("java")
    assert java is not None
    directory.mkdir(parents=True, exist_ok=True)
    port, controller_port = free_port(), free_port()
    with Wiretap() as tap:
        properties = directory / "server.properties"
        more = [f"{name}://127.0.0.1:{number}" for name, number in (listeners or {}).items()]
        plain = [f"PLAINTEXT://127.0.0.1:{port}", f"CONTROLLER://127.0.0.1:{controller_port}"]
        protocols = [
            KAFKA_ALONE["listener.security.protocol.map"],
            *(f"{each}:{each}" for each in listeners or ()),
        ]
        lines = {
            **KAFKA_ALONE,
            "listeners": ",".join([*plain, *more]),
            "advertised.listeners": ",".join([f"PLAINTEXT://{tap.bootstrap}", *more]),
            "listener.security.protocol.map": ",".join(protocols),
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
            "log.dirs": str(directory / "data"),
            **COMMON,
            **settings,
        }
        properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        run = [java, "-Xmx1g", "-cp", class_path]
        storage = [*run, "kafka.tools.StorageTool"]
        cluster = subprocess.run([*storage, "random-uuid"], capture_output=True, text=True, check=True)
        subprocess.run(
            [*storage, "format", "--standalone", "-t", cluster.stdout.strip(), "-c", str(properties)],
            capture_output=True,
            check=True,
        )
        tap.broker_port = port
        with (directory / "kafka.log").open("w") as log:
            process = subprocess.Popen(
                [*run, "kafka.Kafka", str(properties)], stdout=log, stderr=subprocess.STDOUT
            )
        try:
            until(lambda: _serves(f"127.0.0.1:{port}", process), START_SECONDS, "the start of Apache Kafka")
            yield Broker("kafka", tap, f"127.0.0.1:{port}")
        finally:
            process.kill()
            process.wait()


def _serves(bootstrap: str, process: "subprocess.Popen[bytes]") -> bool:
    """Whether it takes a connection and has made the topics that its coordinators need."""
    assert process.poll() is None, "Apache Kafka stopped instead of starting: see kafka.log"
    try:
        with RawClient(bootstrap) as client:
            found = [
                client.ask(FindCoordinatorRequest(key="first", key_type=kind), 2)
                for kind in (GROUP, TRANSACTION)
            ]
    except (OSError, AssertionError):
        return False
    return all(each.error_code == ErrorCode.NONE for each in found)
