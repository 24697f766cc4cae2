"""The data source with faults: it dies or raises where a file tells it to, once, in Spark's own processes.

A fault is named by its place. `os._exit` in the process that commits is what a dying driver looks like from
there; the abort that Spark asks for afterwards dies too, because a dead driver asks for nothing.
"""

import os
from collections.abc import Callable, MutableMapping
from pathlib import Path
from time import sleep
from typing import Any

from semel.client.transaction_coordinator import Coordinator
from semel.spark import SemelDataSource, pipeline, sink
from semel.spark import decision as decisions
from semel.spark.sink import StreamWriter

#: Places in the process that commits.
IN_COMMIT = ("before_decision", "in_decision", "after_decision", "between_ends", "after_ends")
FILE = "fault.file"
DEAD = "dead"


class FaultySource(SemelDataSource):
    """Semel's data source, and the fault of the file that it is given as an option."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.fault = Path(options[FILE]) if FILE in options else None
        super().__init__({name: value for name, value in options.items() if name.lower() != FILE})

    @classmethod
    def name(cls) -> str:
        return "semel-faulty"

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:  # noqa: N802
        writer = super().streamWriter(schema, overwrite)
        if self.fault is None:
            return writer
        return FaultyWriter(self.fault, writer._options, schema)


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
        faults = {
            "raise_after": self._die,
            "hang_after_decision": self._hang,
            "wait_before_decision": self._wait,
        }
        if place not in (*IN_COMMIT, *faults):
            super().commit(messages, batchId)
            return
        with _Patched(place, faults.get(place, self._die)):
            super().commit(messages, batchId)
        if place == "wait_before_decision":
            return
        if place == "raise_after":
            self.fault.unlink()
            raise RuntimeError("a fault after all was done")
        self._die()

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

    def _hang(self) -> None:
        self.fault.write_text("hanging")
        sleep(600)

    def _wait(self) -> None:
        self.fault.write_text("waiting")
        while self._is_told("waiting"):
            sleep(0.02)


class _Patched:
    """As long as this is open, a function of the protocol calls the fault, or does at its second call."""

    def __init__(self, place: str, fault: Callable[[], None]) -> None:
        self._place = place
        self._fault = fault
        self._kept: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> None:
        match self._place:
            case "before_decision":
                self._patch(decisions, "make", self._instead)
            case "wait_before_decision":
                self._patch(decisions, "make", self._before)
            case "in_decision":
                self._patch(Coordinator, "end", self._instead)
            case "after_decision" | "hang_after_decision":
                self._patch(pipeline, "finish", self._instead)
            case "between_ends":
                self._patch(pipeline, "end_transaction", self._second)

    def __exit__(self, *_: object) -> None:
        for where, name, original in self._kept:
            setattr(where, name, original)

    def _patch(self, where: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = getattr(where, name)
        self._kept.append((where, name, original))
        setattr(where, name, make(original))

    def _instead(self, original: Any) -> Any:
        return lambda *_, **__: self._fault()

    def _before(self, original: Any) -> Any:
        def make(*arguments: Any) -> None:
            self._fault()
            original(*arguments)

        return make

    def _second(self, original: Any) -> Any:
        calls: list[int] = []

        def end(*arguments: Any, **named: Any) -> None:
            if calls:
                self._fault()
            calls.append(1)
            original(*arguments, **named)

        return end


assert sink.pipeline is pipeline, "the sink calls what is patched here"
