"""Runs the broker of a scenario: stops it, restores a backup, starts it with another time of day.

A scenario also runs on three brokers over PostgreSQL, and on Apache Kafka, which can only be killed.
"""

import random
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Protocol
from unittest.mock import patch

from support.brokers.cluster import Cluster, running
from support.brokers.process import free_port
from support.waiting import until

import semel
from peers.brokers import COMMON, QUICK, START_SECONDS, serves
from peers.kafka import KafkaProcess
from peers.programs import fetch_kafka
from semel.broker.clock import Clock
from semel.embedded import Embedded

HOUR_MS: Final = 3_600_000


class MovedClock(Clock):
    """The clock of a machine whose time of day is wrong."""

    def __init__(self, shift_ms: int) -> None:
        super().__init__(time_of_day=lambda: time.time() + shift_ms / 1000)


class Host(Protocol):
    """What a scenario runs on."""

    kind: str
    """What is said about it in the steps; empty for an embedded broker."""
    has_extensions: bool
    shift_ms: int

    @property
    def bootstrap(self) -> str:
        """The address, or the addresses."""

    def start(self) -> None:
        """Start it."""

    def stop(self) -> None:
        """Stop it."""

    def interrupt(self) -> None:
        """Kill a broker and start it again; an embedded one is restarted."""

    def back_up(self, directory: Path) -> None:
        """Copy the data, if the scenario may."""

    def restore(self, directory: Path) -> None:
        """Replace the data by a copy."""


class Killable:
    """Brokers in processes of their own, without backups, and with the time of day."""

    has_extensions = True
    shift_ms = 0

    def back_up(self, directory: Path) -> None:
        """Refuse."""
        raise NotImplementedError(f"{type(self).__name__} has no backups")

    restore = back_up


class Three(Killable):
    """Three brokers over PostgreSQL."""

    kind = ", three over PostgreSQL"

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self._chance = chance
        self._cluster = Cluster(directory / "cluster", settings={"auto.create.topics.enable": "false"})
        self._exit = ExitStack()

    @property
    def bootstrap(self) -> str:
        """The addresses."""
        return self._cluster.bootstrap

    def start(self) -> None:
        """Start PostgreSQL and the brokers."""
        self._exit.enter_context(running(self._cluster))

    def stop(self) -> None:
        """End all of them."""
        self._exit.close()

    def interrupt(self) -> None:
        """Kill one broker, or all."""
        for each in self._chance.choice(
            [self._cluster.brokers, [self._chance.choice(self._cluster.brokers)]]
        ):
            each.kill()
            each.start()


class Kafka(Killable):
    """Apache Kafka, one node."""

    kind = ", Apache Kafka"
    has_extensions = False

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self._process = KafkaProcess(fetch_kafka(), directory / "kafka", {**QUICK, **COMMON})

    @property
    def bootstrap(self) -> str:
        """Its address."""
        return self._process.bootstrap

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._process.start()
        until(lambda: serves(self._process), START_SECONDS, "the start of Apache Kafka")

    def stop(self) -> None:
        """Kill it, because nothing of it is needed any more."""
        self._process.kill()

    def interrupt(self) -> None:
        """Kill it and start it again."""
        self.stop()
        self.start()


HOSTS: Final[Mapping[str, Callable[[Path, random.Random], Host]]] = {"cluster": Three, "kafka": Kafka}
"""What a scenario can run on instead of an embedded broker."""


class Broker:
    """An embedded broker over a directory, always on the same port."""

    kind = ""

    def __init__(self, directory: Path, *, has_extensions: bool) -> None:
        self.data = directory / "data"
        self.has_extensions = has_extensions
        self.shift_ms = 0
        self._port = free_port()
        self._running: Embedded | None = None

    @property
    def bootstrap(self) -> str:
        """The broker's address."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start the broker with the current `shift_ms` and `has_extensions`."""
        settings = {
            "auto.create.topics.enable": False,
            "semel.extensions.enable": self.has_extensions,
            "log.cleaner.backoff.ms": 100,
        }
        with patch("semel.broker.broker.Clock", lambda: MovedClock(self.shift_ms)):
            self._running = semel.embedded(self.data, settings=settings, port=self._port).start()

    def stop(self) -> None:
        """Stop the broker, if it runs."""
        if self._running is not None:
            self._running.close()
            self._running = None

    def interrupt(self) -> None:
        """Restart the broker."""
        self.stop()
        self.start()

    def back_up(self, directory: Path) -> None:
        """Stop the broker, copy its data, and start it again."""
        self.stop()
        shutil.copytree(self.data, directory)
        self.start()

    def restore(self, directory: Path) -> None:
        """Stop the broker, replace its data by a copy, and start it again."""
        self.stop()
        shutil.rmtree(self.data)
        shutil.copytree(directory, self.data)
        self.start()
