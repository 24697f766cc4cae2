"""A sink for Delta tables with faults: at the point named in a file, it dies or waits, once.

All of it happens in Spark's own processes.

A fault is named by its point. In the committing process, `os._exit` looks like the death of the driver; the
abort that Spark requests afterwards does nothing in this sink, dead or alive.
"""

import os
from collections.abc import Callable, MutableMapping
from pathlib import Path
from time import sleep
from typing import Any

from semel.spark.delta import DeltaDataSource, batch_commit
from semel.spark.delta.data_source import DeltaOptions
from semel.spark.delta.sink import StreamWriter
from semel.spark.delta.table import Table

#: Points in the committing process, where it dies.
IN_COMMIT = ("before_commit", "before_follow", "after_follow")
FILE = "fault.file"
WAITING = "waiting"


class FaultyDelta(DeltaDataSource):
    """The data source with a fault; the option `fault.file` names the file that holds the fault."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.fault = Path(options[FILE])
        super().__init__({name: value for name, value in options.items() if name.lower() != FILE})

    @classmethod
    def name(cls) -> str:
        return "semel-delta-faulty"

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:  # noqa: N802
        super().streamWriter(schema, overwrite)
        return FaultyWriter(self.fault, DeltaOptions.of(self.options, is_stream=True), schema)


class FaultyWriter(StreamWriter):
    def __init__(self, fault: Path, options: DeltaOptions, schema: Any) -> None:
        super().__init__(options, schema)
        self.fault = fault

    def write(self, iterator: Any) -> Any:
        written = super().write(iterator)
        if self._told() == "task":
            self._die()
        return written

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
        place = self._told()
        kept = (Table.commit, batch_commit._follow)
        try:
            if place == "before_commit":
                Table.commit = self._instead(self._die)  # type: ignore[method-assign]
            if place == "wait_before_commit":
                self._wait()
            if place in ("before_follow", "hang_before_follow"):
                batch_commit._follow = self._instead(self._die if place == "before_follow" else self._wait)
            super().commit(messages, batchId)
        finally:
            Table.commit, batch_commit._follow = kept  # type: ignore[method-assign]
        if place == "after_follow":
            self._die()
        if place == "raise_after":
            self.fault.unlink()
            raise RuntimeError("a fault after all was done")

    def _told(self) -> str:
        return self.fault.read_text() if self.fault.exists() else ""

    def _instead(self, fault: Callable[[], None]) -> Any:
        return lambda *_, **__: fault()

    def _die(self) -> None:
        self.fault.unlink()
        os._exit(1)

    def _wait(self) -> None:
        self.fault.write_text(WAITING)
        while self._told() == WAITING:
            sleep(0.02)
