"""What is measured: a real ``semel serve``, and librdkafka's in-memory mock cluster as the floor."""

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic


class Semel:
    """A broker process whose processor time and memory can be read."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bootstrap = ""
        self.ready_seconds = 0.0
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        started = time.perf_counter()
        command = [
            sys.executable,
            "-m",
            "semel",
            "serve",
            "--data",
            str(self.directory),
            "--listen",
            "127.0.0.1:0",
        ]
        self._process = subprocess.Popen(
            [*command, "--log-level", "error"], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self.ready_seconds = time.perf_counter() - started
        prefix = "Semel is ready on "
        assert line.startswith(prefix), line
        self.bootstrap = line.removeprefix(prefix).strip()

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(timeout=60)
        self._process = None

    def processor_seconds(self) -> float:
        times = self._ps().cpu_times()
        return float(times.user + times.system)

    def resident_bytes(self) -> int:
        return int(self._ps().memory_info().rss)

    def _ps(self) -> psutil.Process:
        assert self._process is not None
        return psutil.Process(self._process.pid)


@contextmanager
def semel() -> Iterator[Semel]:
    with tempfile.TemporaryDirectory(prefix="semel-bench-", dir=Path.cwd()) as directory:
        subject = Semel(Path(directory) / "data")
        subject.start()
        try:
            yield subject
        finally:
            subject.stop()


@contextmanager
def mock_cluster(topics: Iterable[str]) -> Iterator[str]:
    """The address of a mock cluster; it lives as long as the client that carries it.

    It knows no CreateTopics: a topic is made with four partitions when somebody asks for it.
    """
    carrier = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock:9092"})
    metadata = carrier.list_topics(timeout=10)
    broker = next(iter(metadata.brokers.values()))
    bootstrap = f"{broker.host}:{broker.port}"
    for topic in topics:
        carrier.list_topics(topic, timeout=10)
    yield bootstrap
    del carrier


def create_topics(bootstrap: str, topics: dict[str, int]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(name, count) for name, count in topics.items()]).values():
        future.result(30)


def own_processor_seconds() -> float:
    """Of this process: the clients."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
