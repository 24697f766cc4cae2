"""The points of a batch with several sinks at which its driver can die, each named by a call that it makes.

`spark_points` names points by requests to the broker. Tables have none, so these points are calls: of the
steps of a batch, of the preparation and the commit of each table, and of the deletion of staged files. A
call is caught once, before or after it is made. The completion of a decided batch by the next start makes
the same calls, so a point after the decision can be caught there again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, Final
from unittest.mock import patch

BATCH: Final = "semel.spark.sink.batch"
COMMIT: Final = "semel.spark.sink.batch_commit"
DECISION: Final = "semel.spark.sink.decision"
PREPARED: Final = "semel.spark.delta.prepared"
STORAGE: Final = "semel.spark.delta.storage"
TABLE: Final = "semel.spark.delta.table"


@dataclass(frozen=True)
class Call:
    """A call of a batch, and whether it is caught before or after it was made."""

    owner: str
    """The module, or the module and the class."""
    name: str
    is_made: bool = False
    earlier: int = 0
    """How many such calls precede it in the batch."""


#: The names of points at which nothing is decided. Then the next start aborts and writes the batch again.
BEFORE: Final = {
    "before the write": Call(f"{BATCH}:Batch", "_run"),
    "before a table is prepared": Call(PREPARED, "prepare"),
    "between the preparations": Call(PREPARED, "prepare", earlier=1),
    "when a prepared commit is stored": Call(f"{STORAGE}:Storage", "flush", is_made=True),
    "before the decision": Call(COMMIT, "decide"),
}
#: Those at which the batch counts, which the next start completes. The tables are committed to in the order
#: of the declaration: first `table`, then `merged`.
AFTER: Final = {
    "before the tables": Call(COMMIT, "complete_tables"),
    "before a table": Call(f"{TABLE}:Table", "commit"),
    "after a table": Call(f"{TABLE}:Table", "commit", is_made=True),
    "between the tables": Call(PREPARED, "_complete", earlier=1),
    "before a merge": Call(f"{TABLE}:Table", "merge"),
    "after a merge": Call(f"{TABLE}:Table", "merge", is_made=True),
    "before a staged file is deleted": Call(f"{STORAGE}:Storage", "delete"),
    "between the deletions": Call(f"{STORAGE}:Storage", "delete", earlier=1),
    "between later deletions": Call(f"{STORAGE}:Storage", "delete", earlier=4),
    "when all is done": Call(COMMIT, "complete_tables", is_made=True),
}
#: With Kafka's requests alone, the decision and the ends of its transactions are several requests.
PORTABLE: Final = {
    **BEFORE,
    "when it is decided": Call(DECISION, "make", is_made=True),
    "between the ends": Call(COMMIT, "end_transaction", earlier=1),
    "after the ends": Call(COMMIT, "finish", is_made=True),
    **AFTER,
}
EXTENDED: Final = {**BEFORE, "when it is decided": Call(DECISION, "make_together", is_made=True), **AFTER}
POINTS: Final = {"portable": PORTABLE, "extended": EXTENDED}


class DriverDied(Exception):
    """In place of the death of the driver, where it runs in the process of the test."""


@contextmanager
def catching(call: Call, act: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Act at a call, once. Returns whether that has happened.

    A driver that is dead aborts nothing, so after `DriverDied` neither does this one.
    """
    owner = resolve_name(call.owner)
    original, abandon = getattr(owner, call.name), resolve_name(f"{COMMIT}:abandon")
    left, has_died = [call.earlier + 1], [False]

    def caught(*arguments: Any, **named: Any) -> Any:
        left[0] -= 1
        is_it = left[0] == 0
        if is_it and not call.is_made:
            strike()
        result = original(*arguments, **named)
        if is_it and call.is_made:
            strike()
        return result

    def strike() -> None:
        try:
            act()
        except DriverDied:
            has_died[0] = True
            raise

    def abandon_if_alive(*arguments: Any) -> None:
        if not has_died[0]:
            abandon(*arguments)

    with patch.object(owner, call.name, caught), patch(f"{COMMIT}.abandon", abandon_if_alive):
        yield lambda: left[0] <= 0


def die() -> None:
    """End the driver as far as its pipeline is concerned."""
    raise DriverDied("the driver ends here")
