"""Apache Kafka from the jars of its release: nodes that are broker and controller, alone or together."""

import base64
import shutil
import signal
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from support.brokers.process import free_port

HOST = "127.0.0.1"
STOP_SECONDS = 60.0
PROTOCOLS = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"
ONE_NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
"""Settings that a single node needs; everything else has Kafka's defaults."""
REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
}
"""Settings of three nodes with three replicas."""


class Quorum(NamedTuple):
    """The nodes of a cluster: its id, and the port of each node's controller by the node's id."""

    cluster_id: str
    ports: Mapping[int, int]


class KafkaProcess:
    """A Kafka node that can be stopped and started again, on the same ports and directory.

    The directory is formatted at the first start. `advertised` is the address in responses to clients, if it
    is not the node's own. Further `listeners` are given by protocol and port. A node of a `quorum` has its id
    in the settings.
    """

    def __init__(
        self,
        class_path: str,
        directory: Path,
        settings: Mapping[str, str],
        *,
        advertised: str | None = None,
        listeners: Mapping[str, int] | None = None,
        java_options: Sequence[str] = ("-Xmx1g",),
        quorum: Quorum | None = None,
    ) -> None:
        java = shutil.which("java")
        assert java is not None, "java is not installed"
        self._java = [java, *java_options, "-cp", class_path]
        self._directory = directory
        self._quorum = quorum
        self.port = free_port()
        self._controller_port = quorum.ports[int(settings["node.id"])] if quorum else free_port()
        self.log = directory / "kafka.log"
        self.data = directory / "data"
        self._properties = directory / "server.properties"
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        self._write_properties(settings, advertised or self.bootstrap, listeners or {})

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def prepare(self) -> None:
        """Format the directory, unless it was formatted before."""
        if not self.data.exists():
            self._format()

    def start(self) -> None:
        """Start the process, without waiting until it answers."""
        self.prepare()
        with self.log.open("a") as log:
            command = [*self._java, "kafka.Kafka", str(self._properties)]
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def check_alive(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, f"Apache Kafka stopped: {self.log.read_text()[-2_000:]}"

    def stop(self) -> None:
        """Ask it to stop, and wait."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        assert process is not None
        process.send_signal(how)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_running:
            self.kill()

    def _write_properties(
        self, settings: Mapping[str, str], advertised: str, listeners: Mapping[str, int]
    ) -> None:
        more = [f"{name}://{HOST}:{number}" for name, number in listeners.items()]
        plain = [f"PLAINTEXT://{self.bootstrap}", f"CONTROLLER://{HOST}:{self._controller_port}"]
        protocols = [PROTOCOLS, *(f"{each}:{each}" for each in listeners)]
        lines = {
            **ONE_NODE,
            "listeners": ",".join([*plain, *more]),
            "advertised.listeners": ",".join([f"PLAINTEXT://{advertised}", *more]),
            "listener.security.protocol.map": ",".join(protocols),
            **self._voters(),
            "log.dirs": str(self.data),
            **settings,
        }
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))

    def _voters(self) -> Mapping[str, str]:
        if self._quorum is None:
            return {"controller.quorum.bootstrap.servers": f"{HOST}:{self._controller_port}"}
        voters = (f"{node_id}@{HOST}:{port}" for node_id, port in self._quorum.ports.items())
        return {"controller.quorum.voters": ",".join(voters)}

    def _format(self) -> None:
        """Format the directory with a cluster id, and thereby transaction.version 2."""
        storage = [*self._java, "kafka.tools.StorageTool"]
        kind = [] if self._quorum else ["--standalone"]
        cluster_id = self._quorum.cluster_id if self._quorum else new_cluster_id()
        subprocess.run(
            [*storage, "format", *kind, f"--cluster-id={cluster_id}", "-c", str(self._properties)],
            capture_output=True,
            check=True,
        )


def new_cluster_id() -> str:
    """Return 16 random bytes in Kafka's notation."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def three_nodes(class_path: str, directory: Path, java_options: Sequence[str]) -> list[KafkaProcess]:
    """Return a cluster with three replicas, which answers when two have the data."""
    quorum = Quorum(new_cluster_id(), {node_id: free_port() for node_id in (1, 2, 3)})
    return [
        KafkaProcess(
            class_path,
            directory / f"node-{node_id}",
            {**REPLICATED, "node.id": str(node_id)},
            java_options=java_options,
            quorum=quorum,
        )
        for node_id in quorum.ports
    ]
