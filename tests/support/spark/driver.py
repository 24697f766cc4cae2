"""A driver with its own JVM and Python workers, which tests may kill.

with DriverProcess(pipeline) as driver:
    ...
    driver.kill()
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Self

import psutil

from support.spark.jobs import ENVIRONMENT, MASTER, Pipeline, start_spark
from support.waiting import until

END_SECONDS = 120.0


class DriverProcess:
    """Runs a declared pipeline in a process of its own."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        is_endless: bool = False,
        master: str = MASTER,
        settings: Mapping[str, str] | None = None,
        is_remote: bool = False,
    ) -> None:
        self._declared = {
            "master": master,
            "is_remote": is_remote,
            "settings": dict(settings or {}),
            "bootstrap": pipeline.bootstrap,
            "directory": str(pipeline.checkpoint.parent),
            "name": pipeline.name,
            "source_options": pipeline.source_options,
            "sink_options": pipeline.sink_options,
            "kind": [type(pipeline).__module__, type(pipeline).__name__],
            "change": [pipeline.change.__module__, pipeline.change.__name__],
            "trigger": {"processingTime": "0 seconds"} if is_endless else {"availableNow": True},
        }
        self.log = pipeline.checkpoint.parent / "driver.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "support.spark.driver", json.dumps(self._declared)],
                env={**os.environ, **ENVIRONMENT},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def processes(self) -> list[psutil.Process]:
        """Return the driver, its JVM, and the JVM's Python processes, parents first."""
        assert self._process is not None
        try:
            driver = psutil.Process(self._process.pid)
            return [driver, *driver.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def kill(self, *, but: psutil.Process | None = None) -> None:
        """Send SIGKILL to all processes at once, except one that is to become a zombie."""
        found = [each for each in self.processes() if each != but]
        for each in found:
            # A suspended parent starts no processes, and does not tell its children to stop.
            _try(each, "suspend")
        # Children first: if a parent dies and leaves an orphaned process group with a stopped member, the
        # kernel sends SIGHUP to the whole group, and a zombie in it would end.
        for each in reversed(found):
            _end(each)
        self.wait()

    def wait(self) -> int:
        """Wait until the driver exits; return its exit code."""
        assert self._process is not None
        return self._process.wait(END_SECONDS)

    def check(self) -> None:
        """Check that the driver has not exited."""
        assert self.is_alive, f"the driver has ended:\n{self.log.read_text()[-4_000:]}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_alive:
            self.kill()


def _try(process: psutil.Process, what: str) -> None:
    try:
        getattr(process, what)()
    except psutil.NoSuchProcess:
        return


def _end(process: psutil.Process) -> None:
    """Kill a process and wait until it is dead, whether or not its parent has reaped it."""
    _try(process, "kill")
    try:
        until(lambda: process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD), END_SECONDS)
    except psutil.NoSuchProcess:
        return


def main(declared: str) -> None:
    asked = json.loads(declared)
    spark = start_spark(asked["master"], asked["settings"], is_remote=asked["is_remote"])
    module, name = asked["kind"]
    kind: type[Pipeline] = getattr(import_module(module), name)
    pipeline = kind(spark, asked["bootstrap"], Path(asked["directory"]), asked["name"])
    pipeline.source_options = asked["source_options"]
    pipeline.sink_options = asked["sink_options"]
    module, name = asked["change"]
    pipeline.change = getattr(import_module(module), name)
    pipeline.start(**asked["trigger"]).awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1])
