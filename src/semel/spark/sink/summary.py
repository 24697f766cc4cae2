"""What a batch has done, in numbers for people. It is stored with the decision, and nothing depends on it.

So the command line and the console show it from the cluster alone, wherever the pipeline runs. Rows are known
when the batch is decided. Duration, late rows and state are known when it has ended, from Spark: the next
decision has them. Storing them by themselves would be another commit for every batch.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self


class Ended(NamedTuple):
    """What Spark has reported of a batch after its end."""

    batch_id: int
    duration_ms: int
    late: int  # rows that came after the watermark and were dropped
    state_rows: int
    state_bytes: int  # in memory

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> Self:
        """Parse a progress report of Spark."""
        operators = report["stateOperators"]

        def total(name: str) -> int:
            return sum(int(each.get(name, 0)) for each in operators)

        return cls(
            int(report["batchId"]),
            int(report["durationMs"].get("triggerExecution", 0)),
            total("numRowsDroppedByWatermark"),
            total("numRowsTotal"),
            total("memoryUsedBytes"),
        )


def is_idle(report: Mapping[str, Any]) -> bool:
    """Whether a report is of no batch: Spark also reports while it waits for input."""
    return "addBatch" not in report["durationMs"]


@dataclass(frozen=True, slots=True)
class Summary:
    """Numbers of a batch, and what the batch before has ended with."""

    written: Mapping[str, int] = field(default_factory=dict)  # rows by topic, and by location of a table
    dead: int = 0  # records that could not be parsed
    before: Ended | None = None

    def to_json(self) -> list[Any]:
        """Return it as JSON."""
        return [self.written, self.dead, self.before]

    @classmethod
    def of_json(cls, found: Any) -> "Summary | None":
        """Parse it. None if it is not there, or of a form that this version does not know."""
        try:
            written, dead, before, *_ = found
            return cls(
                {str(output): int(rows) for output, rows in written.items()},
                int(dead),
                None if before is None else Ended(*map(int, before[: len(Ended._fields)])),
            )
        except (TypeError, ValueError, AttributeError):
            return None


def total(found: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Add up the rows that tasks have written, by output."""
    rows: Counter[str] = Counter()
    for each in found:
        rows.update(each)
    return dict(rows)
