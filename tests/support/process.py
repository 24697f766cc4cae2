"""A real ``semel serve`` in a process of its own, to be killed."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class BrokerProcess:
    """Start, kill and start again, always on the same port and the same directory."""

    program: Sequence[str] = (sys.executable, "-m", "semel")
    scheme = ""  # "ssl://" for a listener with TLS

    def __init__(self, directory: Path, *options: str, port: int | None = None) -> None:
        self.directory = directory
        self.log = directory.parent / f"{directory.name}.log"
        self.port = port or free_port()
        self.options = options
        self.process: subprocess.Popen[str] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [*self.program, "serve", "--data", str(self.directory)]
        command += ["--listen", f"{self.scheme}{self.bootstrap}", "--log-level", "warning", *self.options]
        log = self.log.open("a")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        log.close()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.strip() == f"Semel is ready on {self.bootstrap}", f"instead of being ready: {line!r}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def wait(self, seconds: float = 30.0) -> int:
        """It ends by itself; its exit code."""
        assert self.process is not None
        assert self.process.stdout is not None
        code = self.process.wait(timeout=seconds)
        self.process.stdout.close()
        self.process = None
        return code

    def kill(self) -> None:
        """No goodbye."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Ask it to stop, and wait."""
        return self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> int:
        process = self.process
        assert process is not None
        assert process.stdout is not None
        os.kill(process.pid, how)
        code = process.wait(timeout=30)
        process.stdout.close()
        self.process = None
        return code

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.kill()
