"""Two equal brokers with many topics, groups and open transactions; one has a console with many browsers."""

import http.client
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from bench.console.browsers import READY
from bench.subjects import ROOT, Semel, Subject
from semel.client import Admin, Client, NewTopic, TransactionalProducer

TOPICS, PARTITIONS, GROUPS, TRANSACTIONS, BROWSERS = 5_000, 10, 500, 2_000, 50
TOPICS_AT_A_TIME = 100
TIMEOUT_MS = 900_000
FOLLOWED = "many-00000"
SETTLE_SECONDS = 10.0


class Large(Semel):
    """5,000 topics of 10 partitions, 500 groups, 2,000 open transactions."""

    name, title = "semel-large", "Semel, large"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._client: Client | None = None

    def start(self) -> None:
        super().start()
        self._client = Client(self.bootstrap)
        _fill(self._client)

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()
        super().stop()


class WithConsole(Large):
    """The same with `semel console`, which is suspended while another subject is measured."""

    name, title = "semel-console", "Semel, large, with a console and 50 browsers"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._console: subprocess.Popen[str] | None = None
        self.address = ""

    def start(self) -> None:
        super().start()
        command = [sys.executable, "-m", "semel", "console", "--bootstrap", self.bootstrap]
        self._console = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
        )
        assert self._console.stdout is not None
        self.address = self._console.stdout.readline().split()[-1]
        for path in ("/", "/groups", "/transactions"):
            self.page(path)
        time.sleep(SETTLE_SECONDS)  # until the console has sampled everything once
        self._suspend()

    def stop(self) -> None:
        if self._console is not None:
            self._resume()
            self._console.terminate()
            self._console.communicate(timeout=30)
        super().stop()

    def page(self, path: str) -> float:
        """Request a page; return how long that took, in ms."""
        connection = http.client.HTTPConnection(urlsplit(self.address).netloc, timeout=60)
        try:
            began = time.perf_counter()
            connection.request("GET", path)
            response = connection.getresponse()
            response.read()
            assert response.status == 200, path
            return (time.perf_counter() - began) * 1e3
        finally:
            connection.close()

    @contextmanager
    def looked_at(self, browsers: int = BROWSERS) -> Iterator[None]:
        """Resume the console, and have this many browsers follow a topic."""
        self._resume()
        command = [sys.executable, "-m", "bench.console.browsers", self.address, self.bootstrap, FOLLOWED]
        process = subprocess.Popen(
            [*command, str(browsers)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == READY
            yield
        finally:
            process.communicate(timeout=60)
            self._suspend()

    def _suspend(self) -> None:
        assert self._console is not None
        psutil.Process(self._console.pid).suspend()

    def _resume(self) -> None:
        assert self._console is not None
        psutil.Process(self._console.pid).resume()


def _fill(client: Client) -> None:
    admin = Admin(client)
    for first in range(0, TOPICS, TOPICS_AT_A_TIME):
        names = [f"many-{number:05}" for number in range(first, first + TOPICS_AT_A_TIME)]
        admin.topics.create(*(NewTopic(name, PARTITIONS) for name in names))
    for number in range(GROUPS):
        topic = f"many-{number * 10 % TOPICS:05}"
        admin.groups.set_offsets(f"group-{number:03}", {(topic, each): 0 for each in range(PARTITIONS)})
    for number in range(TRANSACTIONS):
        producer = TransactionalProducer(client, f"open-{number:04}", transaction_timeout_ms=TIMEOUT_MS)
        producer.begin()
        producer.send(f"many-{number + 1:05}", b"open", partition=0)
        producer.flush()


LARGE: tuple[type[Subject], ...] = (Large, WithConsole)
