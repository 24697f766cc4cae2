"""A real ``semel serve`` in a process of its own, which tests may kill."""

import fcntl
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, Self

from support.waiting import LIMIT_SECONDS

PORTS: Final = range(20_000, 32_000)
"""Outgoing connections get ports from 32768 on. One of them could take a port while its server is down."""
_RESERVATIONS: Final = Path(tempfile.gettempdir()) / f"semel-test-ports-{os.getuid()}"
_reserved: dict[int, BinaryIO] = {}
"""The ports of this process, and the file with their locks."""


def free_port() -> int:
    """Return a port that no other server gets while this process lives, also while its own server is down."""
    for port in random.SystemRandom().sample(PORTS, 1_000):
        if port not in _reserved and reserve(port):
            with socket.socket() as probe, suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    raise OSError(f"no port between {PORTS.start} and {PORTS.stop} is free")


def reserve(port: int) -> bool:
    """Reserve a port for this process, by a lock that ends with it. False if another process has it."""
    # One file for all ports: closing any handle of it would end all locks of the process.
    file = next(iter(_reserved.values()), None) or _RESERVATIONS.open("ab+")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    _reserved[port] = file
    return True


class BrokerProcess:
    """A broker process that can be killed and started again, always on the same port and directory."""

    program: Sequence[str] = (sys.executable, "-m", "semel")
    scheme = ""  # "ssl://" for a listener with TLS
    environment: Mapping[str, str] = {}

    def __init__(self, directory: Path, *options: str, port: int | None = None) -> None:
        self.directory = directory
        self.log = directory.parent / f"{directory.name}.log"
        self.port = port or free_port()
        self.options = options
        self.process: subprocess.Popen[str] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def storage(self) -> Sequence[str]:
        """The options that say where the data is."""
        return ("--data", str(self.directory))

    def start(self) -> None:
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Start the process without waiting until it is ready."""
        command = [*self.program, "serve", *self.storage]
        command += ["--listen", f"{self.scheme}{self.bootstrap}", "--log-level", "warning", *self.options]
        environment = {**os.environ, **self.environment}
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )

    def wait_until_ready(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.strip() == f"Semel is ready on {self.bootstrap}", f"instead of being ready: {line!r}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def wait(self, seconds: float = LIMIT_SECONDS) -> int:
        """Wait until the process exits by itself; return its exit code."""
        assert self.process is not None
        assert self.process.stdout is not None
        code = self.process.wait(timeout=seconds)
        self.process.stdout.close()
        self.process = None
        return code

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Send SIGTERM, and wait until the process exits."""
        return self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> int:
        process = self.process
        assert process is not None
        assert process.stdout is not None
        # It may have exited already, and poll() may have reaped it; send_signal() allows for both.
        process.send_signal(how)
        code = process.wait(timeout=LIMIT_SECONDS)
        process.stdout.close()
        self.process = None
        return code

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.kill()
