"""Runs the broker of a scenario: stops it, restores a backup, starts it with another time of day."""

import shutil
import time
from pathlib import Path
from typing import Final
from unittest.mock import patch

from support.brokers.process import free_port

import semel
from semel.broker.clock import Clock
from semel.embedded import Embedded

HOUR_MS: Final = 3_600_000


class MovedClock(Clock):
    """The clock of a machine whose time of day is wrong."""

    def __init__(self, shift_ms: int) -> None:
        super().__init__(time_of_day=lambda: time.time() + shift_ms / 1000)


class Broker:
    """An embedded broker over a directory, always on the same port."""

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
