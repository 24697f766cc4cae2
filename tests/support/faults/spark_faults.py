"""The data source with faults: at the point named in a file, it dies or raises, once.

All of it happens in Spark's own processes. All points are calls that Spark makes: the write of a task, the
commit and the abort of the driver. `spark_points` covers what lies between the requests of a commit, by
acting on those requests.

In the committing process, `os._exit` looks like the death of the driver; the abort that Spark requests
afterwards dies too, because a dead driver requests nothing.
"""

import os
from collections.abc import MutableMapping
from pathlib import Path
from time import sleep
from typing import Any

from semel.spark import SemelDataSource
from semel.spark.sink.sink import BatchWriter, StreamWriter

FILE = "fault.file"
DEAD = "dead"
WAITING = "waiting"


class FaultySource(SemelDataSource):
    """Semel's data source with a fault; the option `fault.file` names the file that holds the fault."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.fault = Path(options[FILE]) if FILE in options else None
        super().__init__({name: value for name, value in options.items() if name.lower() != FILE})

    @classmethod
    def name(cls) -> str:
        return "semel-faulty"

    def writer(self, schema: Any, overwrite: bool) -> BatchWriter:
        writer = super().writer(schema, overwrite)
        if self.fault is None:
            return writer
        return FaultyBatchWriter(self.fault, writer._options, schema)

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:  # noqa: N802
        writer = super().streamWriter(schema, overwrite)
        if self.fault is None:
            return writer
        return FaultyWriter(self.fault, writer._options, schema)


class FaultyBatchWriter(BatchWriter):
    """The test kills the process that commits; this makes the abort die."""

    def __init__(self, fault: Path, options: Any, schema: Any) -> None:
        super().__init__(options, schema)
        self.fault = fault

    def abort(self, messages: Any) -> None:
        if self.fault.exists() and self.fault.read_text() == DEAD:
            self.fault.unlink()
            os._exit(1)
        super().abort(messages)


class FaultyWriter(StreamWriter):
    def __init__(self, fault: Path, options: Any, schema: Any) -> None:
        super().__init__(options, schema)
        self.fault = fault

    def write(self, iterator: Any) -> Any:
        written = super().write(iterator)
        if self._is_told("task"):
            self.fault.unlink()
            os._exit(1)
        return written

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
        place = self._told()
        if place == "before_decision":
            self._die()
        if place == "wait_before_decision":
            self._wait()
        super().commit(messages, batchId)
        if place == "after_decision":
            self._die()
        if place == "raise_after":
            self.fault.unlink()
            raise RuntimeError("a fault after all was done")

    def abort(self, messages: Any, batchId: int) -> None:  # noqa: N803
        if self._is_told(DEAD):
            self.fault.unlink()
            os._exit(1)
        super().abort(messages, batchId)

    def _told(self) -> str:
        return self.fault.read_text() if self.fault.exists() else ""

    def _is_told(self, place: str) -> bool:
        return self._told() == place

    def _die(self) -> None:
        self.fault.write_text(DEAD)
        os._exit(1)

    def _wait(self) -> None:
        self.fault.write_text(WAITING)
        while self._is_told(WAITING):
            sleep(0.02)
