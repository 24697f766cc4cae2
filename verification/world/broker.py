"""The broker of a scenario: it can be stopped, set back to a backup, and started with another time of day."""

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
    """A clock of a machine whose time of day was set wrong."""

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
        """What clients are given."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Serve, with the clock and the extensions that are set."""
        settings = {
            "auto.create.topics.enable": False,
            "semel.extensions.enable": self.has_extensions,
            "log.cleaner.backoff.ms": 100,
        }
        with patch("semel.broker.broker.Clock", lambda: MovedClock(self.shift_ms)):
            self._running = semel.embedded(self.data, settings=settings, port=self._port).start()

    def stop(self) -> None:
        """Stop serving. May be called again."""
        if self._running is not None:
            self._running.close()
            self._running = None

    def back_up(self, directory: Path) -> None:
        """Copy the data while the broker is stopped."""
        self.stop()
        shutil.copytree(self.data, directory)
        self.start()

    def restore(self, directory: Path) -> None:
        """Go back to a copy of the data."""
        self.stop()
        shutil.rmtree(self.data)
        shutil.copytree(directory, self.data)
        self.start()
