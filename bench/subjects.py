"""The subjects, each in its own process: Semel, Apache Kafka in two forms, and the client's floor.

The floor is librdkafka's in-memory mock cluster, which does as little as a broker can and keeps nothing.
"""

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench import mock
from bench.raw import RawClient
from peers.kafka import KafkaProcess
from peers.programs import fetch_kafka
from semel.wire.messages import MetadataRequest

ROOT = Path(__file__).parents[1]
KAFKA_VERSION = "4.3.1"
"""The newest version whose broker is in Maven's repository."""
KAFKA_JAVA = ("-server", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
"""The options of Kafka's own start script."""
START_SECONDS = 120.0
READY = "Semel is ready on "
PLAINTEXT: Mapping[str, str] = MappingProxyType({})
"""The settings of a client that needs no security."""


class Subject:
    """A broker process whose processor time, memory and disk can be read."""

    name: ClassVar[str]
    title: ClassVar[str]

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bootstrap = ""
        self.access = PLAINTEXT
        """Security settings of its clients, for librdkafka and `semel.client`; none for plaintext."""
        self.ready_seconds = 0.0
        self._created: set[str] = set()

    @property
    def pid(self) -> int:
        raise NotImplementedError

    @property
    def administration(self) -> Mapping[str, str]:
        """The settings of the client that creates topics."""
        return self.access

    def start(self) -> None:
        """Start the broker, and wait until a client gets an answer; `ready_seconds` is the time that took."""
        self.prepare()
        started = time.perf_counter()
        self._run()
        while not self._answers():
            if time.perf_counter() - started > START_SECONDS:
                raise TimeoutError(f"{self.title} did not answer within {START_SECONDS:g} seconds")
            time.sleep(0.005)
        self.ready_seconds = time.perf_counter() - started

    def prepare(self) -> None:
        """Do what is done once, before the clock starts."""

    def stop(self) -> None:
        """Ask the process to stop, and wait."""
        raise NotImplementedError

    def kill(self) -> None:
        """Kill the process."""
        raise NotImplementedError

    def _run(self) -> None:
        raise NotImplementedError

    def _answers(self) -> bool:
        try:
            client = RawClient(self.bootstrap)
        except OSError:
            return False
        try:
            return bool(client.ask(MetadataRequest(topics=[]), 4).brokers)
        except (OSError, AssertionError):
            return False
        finally:
            client.close()

    def create(self, topics: Mapping[str, int], **configs: str) -> None:
        """Create the topics that this object has not created before."""
        new = {name: count for name, count in topics.items() if name not in self._created}
        if new:
            create_topics(self.bootstrap, new, self.administration, **configs)
            self._created.update(new)

    def delete(self, topics: Iterable[str]) -> None:
        """Delete large topics."""
        names = list(topics)
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0, **self.administration})
        for future in admin.delete_topics(names).values():
            future.result(60)
        self._created.difference_update(names)

    def processor_seconds(self) -> float:
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def resident_bytes(self) -> int:
        return int(psutil.Process(self.pid).memory_info().rss)

    def disk_bytes(self) -> int:
        """Return the disk space of its files, without holes."""
        files = (path for path in self.directory.rglob("*") if path.is_file())
        return sum(path.stat().st_blocks * 512 for path in files)


class Child(Subject):
    """A subject that is a child process, which prints its address on its first line."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid


def serve(directory: Path, protocol: str = "plaintext", **settings: str) -> list[str]:
    """Return the command that runs Semel on a free port, which it prints in its first line.

    Names of settings have underscores.
    """
    command = [sys.executable, "-m", "semel", "serve", "--data", str(directory)]
    command += ["--listen", f"{protocol}://127.0.0.1:0", "--log-level", "error"]
    return [
        *command,
        *(word for n, v in settings.items() for word in ("--set", f"{n.replace('_', '.')}={v}")),
    ]


class Semel(Child):
    """A real ``semel serve``, which answers after the data is on disk."""

    name, title = "semel", "Semel"

    @property
    def command(self) -> list[str]:
        """The command that runs it."""
        return serve(self.directory)

    def _run(self) -> None:
        self._process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith(READY), line
        self.bootstrap = line.removeprefix(READY).strip()

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        assert process is not None
        process.send_signal(how)
        process.wait(timeout=60)
        assert process.stdout is not None
        process.stdout.close()


class Kafka(Subject):
    """Apache Kafka, one node, in its default configuration: it answers before anything is flushed."""

    name, title = "kafka", "Apache Kafka"
    settings: ClassVar[Mapping[str, str]] = {}

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._kafka = self._made(fetch_kafka(KAFKA_VERSION))
        self.bootstrap = self._kafka.bootstrap

    def _made(self, class_path: str) -> KafkaProcess:
        return KafkaProcess(class_path, self.directory, self.settings, java_options=KAFKA_JAVA)

    @property
    def pid(self) -> int:
        return self._kafka.pid

    def prepare(self) -> None:
        self._kafka.prepare()

    def _run(self) -> None:
        self._kafka.start()

    def _answers(self) -> bool:
        self._kafka.check_alive()
        return super()._answers()

    def stop(self) -> None:
        self._kafka.stop()

    def kill(self) -> None:
        self._kafka.kill()


class FlushingKafka(Kafka):
    """Apache Kafka with Semel's guarantee: what is answered has been flushed."""

    name, title = "kafka-flush", "Apache Kafka, flush on every message"
    settings: ClassVar[Mapping[str, str]] = {"log.flush.interval.messages": "1"}


class Mock(Child):
    """The fastest broker for librdkafka. It has no isolation, no disk and hardly any groups."""

    name, title = "mock", "librdkafka's mock cluster"

    def _run(self) -> None:
        command = [sys.executable, "-m", "bench.mock"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert self._process.stdout is not None
        self.bootstrap = self._process.stdout.readline().strip()

    def stop(self) -> None:
        process, self._process = self._process, None
        assert process is not None
        process.communicate("", timeout=60)

    def kill(self) -> None:
        self.stop()

    def create(self, topics: Mapping[str, int], **configs: str) -> None:
        assert all(count <= mock.PARTITIONS for count in topics.values()), "the mock cluster has four each"
        asking = Producer({"bootstrap.servers": self.bootstrap, "log_level": 0})
        for topic in topics:
            asking.list_topics(topic, timeout=10)

    def delete(self, topics: Iterable[str]) -> None:
        """Do nothing: the mock cluster cannot delete; what it keeps of a partition is bounded."""


SUBJECTS: tuple[type[Subject], ...] = (Semel, Kafka, FlushingKafka, Mock)


@contextmanager
def running(make: Callable[[Path], Subject]) -> Iterator[Subject]:
    """Run a subject in its own directory on the disk of the checkout; remove both at the end."""
    with tempfile.TemporaryDirectory(prefix="semel-bench-", dir=ROOT) as directory:
        subject = make(Path(directory) / "data")
        try:
            subject.start()
        except BaseException:
            with suppress(AssertionError):  # a process that was never started need not be killed
                subject.kill()
            raise
        try:
            yield subject
        finally:
            subject.stop()


@contextmanager
def semel() -> Iterator[Subject]:
    with running(Semel) as subject:
        yield subject


@contextmanager
def mock_cluster(topics: Iterable[str]) -> Iterator[str]:
    """Run a mock cluster in this process; yield its address. It lives as long as its `carrier` client."""
    carrier = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock:9092"})
    metadata = carrier.list_topics(timeout=10)
    broker = next(iter(metadata.brokers.values()))
    bootstrap = f"{broker.host}:{broker.port}"
    for topic in topics:
        carrier.list_topics(topic, timeout=10)
    yield bootstrap
    del carrier


def create_topics(
    bootstrap: str, topics: Mapping[str, int], access: Mapping[str, str] = PLAINTEXT, **configs: str
) -> None:
    """Create topics; names of configs have underscores."""
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, **access})
    wanted = [NewTopic(name, count, config=settings) for name, count in topics.items()]
    for future in admin.create_topics(wanted).values():
        future.result(30)
