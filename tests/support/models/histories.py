"""Short notations for operations, for histories that are shown in a test.

A step takes one tick of the clock, unless a test gives its time: it starts at `at`, and ends at the same
moment or at `to`.
"""

from collections.abc import Sequence
from typing import Any

from semel.check import (
    Abort,
    Assign,
    Begin,
    Claim,
    Commit,
    Ends,
    Init,
    OffsetCommit,
    OffsetFetch,
    Operation,
    Poll,
    Produce,
    SendOffsets,
    Topic,
    Trim,
)

TOPIC = "t"
JOURNAL = "j"
JOURNAL_TOPIC = Topic(JOURNAL, "journal")


class Steps:
    """Collects operations, one tick after another."""

    def __init__(self, *steps: Operation) -> None:
        self.operations = list(steps)
        self.now = 0

    def _times(self, at: int | None, to: int | None) -> tuple[int, int]:
        self.now = max(self.now + 1, at or 0)
        started = self.now if at is None else at
        self.now = max(self.now, to or started)
        return started, started if to is None else to

    def _add(self, operation: Operation) -> "Steps":
        self.operations.append(operation)
        return self

    def send(
        self,
        *values: str,
        offset: int | None = None,
        tx: str | None = None,
        outcome: Any = "ok",
        by: str = "w",
        topic: str = TOPIC,
        at: int | None = None,
        to: int | None = None,
        **rest: Any,
    ) -> "Steps":
        times = self._times(at, to)
        return self._add(Produce(by, *times, outcome, topic, 0, values, offset, tx, **rest))

    def init(self, by: str, outcome: Any = "ok", timeout: int | None = None, name: str = "id") -> "Steps":
        return self._add(Init(by, *self._times(None, None), outcome, name, timeout=timeout))

    def begin(self, tx: str, by: str = "w", name: str = "id") -> "Steps":
        return self._add(Begin(by, *self._times(None, None), "ok", tx, name))

    def commit(
        self,
        tx: str,
        outcome: Any = "ok",
        error: str | None = None,
        by: str = "w",
        at: int | None = None,
        to: int | None = None,
    ) -> "Steps":
        return self._add(Commit(by, *self._times(at, to), outcome, tx, error))

    def abort(self, tx: str, outcome: Any = "ok", by: str = "w") -> "Steps":
        return self._add(Abort(by, *self._times(None, None), outcome, tx))

    def claim(
        self, tx: str, first: int | None, until: int, outcome: Any = "ok", topic: str = TOPIC, by: str = "w"
    ) -> "Steps":
        claims = (Claim(topic, 0, first, until),)
        return self._add(SendOffsets(by, *self._times(None, None), outcome, tx, "g", claims))

    def assign(self, position: int | None = 0, by: str = "r", topic: str = TOPIC) -> "Steps":
        return self._add(Assign(by, *self._times(None, None), "ok", topic, 0, position))

    def poll(
        self,
        *records: tuple[int, str],
        by: str = "r",
        topic: str = TOPIC,
        at: int | None = None,
        to: int | None = None,
        **rest: Any,
    ) -> "Steps":
        return self._add(Poll(by, *self._times(at, to), "ok", topic, 0, records, **rest))

    def set_position(self, position: int, outcome: Any = "ok", is_only: bool = False) -> "Steps":
        times = self._times(None, None)
        return self._add(OffsetCommit("a", *times, outcome, "g", TOPIC, 0, position, is_only_attempt=is_only))

    def fetch_position(self, position: int | None, topic: str = TOPIC, **rest: Any) -> "Steps":
        return self._add(OffsetFetch("a", *self._times(None, None), "ok", "g", topic, 0, position, **rest))

    def ends(
        self, low: int | None, stable: int | None, high: int | None, topic: str = TOPIC, **rest: Any
    ) -> "Steps":
        return self._add(Ends("a", *self._times(None, None), "ok", topic, 0, low, stable, high, **rest))

    def trim(self, before: int) -> "Steps":
        return self._add(Trim("a", *self._times(None, None), "ok", TOPIC, 0, before))


def names(found: Sequence[Any]) -> set[str]:
    """Return the names of these anomalies."""
    return {each.name for each in found}
