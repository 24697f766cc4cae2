"""A table as one of the outputs of a batch (`sink.batch`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from semel.client import Client
from semel.spark.delta.data_source import DeltaOptions, import_sink
from semel.spark.delta.files import Added, TaskFiles
from semel.spark.delta.leftovers import Attempt
from semel.spark.delta.merging import Merge
from semel.spark.delta.position import TablePlan
from semel.spark.delta.storage import Storage
from semel.spark.sink.batch_commit import BatchPlan
from semel.spark.sink.dead_letters import Guard, GuardedWriter
from semel.spark.sink.decision import TableState
from semel.spark.sink.sink import TaskAttempt


def options_of(options: Mapping[str, str]) -> DeltaOptions:
    """Parse the options of a table in a batch. OptionError if deltalake is not installed."""
    import_sink()
    return DeltaOptions.of(options, is_stream=True)


class Message(NamedTuple):
    """What a task tells the driver: its key, and the files that it has written."""

    key: str
    added: tuple[Added, ...]


@dataclass(frozen=True, slots=True)
class TableOutput:
    """A table, as the driver sees it."""

    rows: DataFrame
    options: DeltaOptions
    merge: Merge | None
    guard: Guard

    def plan(self, client: Client, plan: BatchPlan) -> "PlannedTable":
        """Open or create the table, and plan its next commit."""
        from semel.spark.delta.prepared import plan_table  # Late: it needs deltalake.

        found = plan_table(client, self.options, self.rows.schema, plan)
        # Rows that are to be merged are no part of the table yet, so their files have all columns.
        parts = () if self.merge else found.partition_by
        keys = self.merge.keys if self.merge else ()
        return PlannedTable(self.options.location, found, parts, keys, self.guard)

    def prepare(self, planned: "PlannedTable", messages: Sequence[Message]) -> TableState:
        """Store the commit that the decision will name."""
        from semel.spark.delta.prepared import prepare

        winners = [each.key for each in messages if each.added]
        added = [file for each in messages for file in each.added]
        return prepare(self.options, self.rows.schema, planned.plan, winners, added, self.merge)


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """A table, as the tasks get it."""

    location: str
    plan: TablePlan
    partition_by: tuple[str, ...]
    keys: tuple[str, ...]  # by which rows are merged
    guard: Guard

    def begin(self, plan: BatchPlan, number: int) -> GuardedWriter:
        """Begin the files of this attempt."""
        mine = self.plan
        attempt = Attempt(mine.app, mine.number, mine.run, *TaskAttempt.current())
        files = TaskFiles(Storage(self.location), attempt, self.partition_by, mine.required)
        return self.guard.begin(TableWriter(attempt.key, files, self.keys, mine.required), plan, number)


@dataclass(frozen=True, slots=True)
class TableWriter:
    """The files of one attempt."""

    key: str
    files: TaskFiles
    keys: tuple[str, ...]
    required: tuple[str, ...]

    def faults(self, rows: pa.RecordBatch) -> dict[int, str]:
        """Return the rows that the table cannot have, by their place, with the reason."""
        reasons = {
            name: f"column {name!r} is null, and the table allows no null there" for name in self.required
        }
        reasons |= {name: f"the row has no {name}, by which rows are merged" for name in self.keys}
        return {
            at: reason
            for name, reason in reasons.items()
            if rows.column(name).null_count
            for at in pc.indices_nonzero(rows.column(name).is_null()).to_pylist()
        }

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows."""
        self.files.write(rows)

    def prepare(self) -> Message:
        """Close the files; return the message to the driver."""
        return Message(self.key, tuple(self.files.close()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Delete the files after an error."""
        if error is not None:
            self.files.discard()
