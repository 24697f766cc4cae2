"""The two programs that a user runs, `semel serve` and `semel pipeline run`, as processes that are killed."""

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rich.markup import escape

from demo.security import PIPELINE, Secured
from tools.spark_classes import java_options

STOP_SECONDS = 120.0


class Program:
    """A program, together with all processes that it starts."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path, settings: Mapping[str, str]) -> None:
        self.name = name
        self.log = log
        self._command = [sys.executable, "-m", "semel", *arguments]
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; its output goes to its log."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._settings},
                start_new_session=True,  # so that it and its JVM can be killed at once
            )

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while it runs."""
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        """Send SIGKILL to it, and to its JVM if it has one. Spark's workers notice that, and exit."""
        self._end(signal.SIGKILL)

    def stop(self) -> int | None:
        """Ask it to stop, and wait; return the exit code. None if it did not exit in time, and was killed."""
        if self._process is None:
            return 0
        self._process.terminate()
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, how)
            self._process.wait()

    def words(self) -> list[str]:
        """The lines of its log."""
        return self.log.read_text(errors="replace").splitlines() if self.log.exists() else []

    def last_words(self) -> str:
        """The last line of its log."""
        return escape("".join(self.words()[-1:]))


def broker(directory: Path, port: int, secured: Secured) -> Program:
    """The broker, whose first user is added here."""
    data = ["--data", str(directory / "log")]
    secured.add_administrator(*data)
    arguments = ["serve", *data, *_listen(port, secured)]
    return Program("the broker", arguments, directory / "broker.log", {})


def _listen(port: int, secured: Secured) -> list[str]:
    listen = ["--listen", f"sasl_ssl://127.0.0.1:{port}", "--log-level", "warning"]
    return [*listen, *secured.broker_options]


def member(
    number: int, port: int, ledger: str, chunks: str, settings: Mapping[str, str], secured: Secured
) -> Program:
    """A broker of a cluster."""
    directory = secured.directory
    arguments = ["serve", "--ledger", ledger, "--chunks", chunks, "--set", f"node.id={number}"]
    arguments += _listen(port, secured)
    return Program(f"broker {number}", arguments, directory / f"broker-{number}.log", settings)


def driver(bootstrap: str, secured: Secured) -> Program:
    """The pipeline on Spark: a driver in Python, a JVM, and their workers."""
    directory = secured.directory
    arguments = ["--command-config", str(secured.client_file(PIPELINE))]
    arguments += ["pipeline", "run", str(Path(__file__).with_name("shop.py")), "--json"]
    arguments += ["--bootstrap", bootstrap, "--checkpoint", str(directory / "checkpoints")]
    arguments += ["--trigger", "500 milliseconds", "--master", "local[2]"]
    arguments += ["--log", str(directory / "spark.log")]
    # As many shuffle partitions as cores.
    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": java_options(),
        "spark.sql.codegen.wholeStage": "false",
    }
    for name, value in settings.items():
        arguments += ["--conf", f"{name}={value}"]
    lake = {"SHOP_LAKE": str(directory / "lake")}
    return Program("the Spark driver", arguments, directory / "driver.log", lake)


def free_port() -> int:
    """Return a port on which no process listens, and which is never assigned to an outgoing connection.

    The system takes ports for outgoing connections from its own range, which begins at 32768 or above. One of
    them could take a port of that range while the broker is down, and the broker could not start again.
    """
    for port in random.sample(range(20_000, 32_000), 1_000):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no port between 20000 and 32000 is free")
