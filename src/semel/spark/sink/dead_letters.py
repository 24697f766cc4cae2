"""Records that a pipeline cannot process: they stop it, are counted, or become dead letters.

A dead letter is a record with the original key and value. Its headers say what is wrong, and where the record
was: topic, partition, offset and timestamp. It is written by the batch that would have processed the record,
and counts with the batch.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from semel.client import Client
from semel.pipeline import FAIL, SKIP
from semel.spark.errors import BadRecords
from semel.spark.options import SinkOptions
from semel.spark.sink.batch_commit import BatchPlan
from semel.spark.sink.sink import AttemptWriter, Written

#: How many records an error names.
NAMED_MAX: Final = 10
#: The headers of a dead letter, and the columns of a bad record that the last four come from.
REASON: Final = "semel.reason"
PLACES: Final = {
    "semel.topic": "topic",
    "semel.partition": "partition",
    "semel.offset": "offset",
    "semel.timestamp": "timestamp",
}
_TEXT_MAX: Final = 200
_NUMBERS: Final = frozenset({"tinyint", "smallint", "int", "bigint", "float", "double"})


@dataclass(frozen=True, slots=True)
class BadOutput:
    """The bad records of a batch, and what becomes of them."""

    rows: DataFrame
    bad: str
    types: Mapping[str, str]  # of the columns that the values should have had
    options: SinkOptions | None  # of the topic for dead letters

    def plan(self, client: Client, plan: BatchPlan) -> "PlannedBad":
        """Return the output for the tasks."""
        return PlannedBad(self.bad, self.types, self.options)


@dataclass(frozen=True, slots=True)
class PlannedBad:
    """The bad records, as the tasks get them."""

    bad: str
    types: Mapping[str, str]
    options: SinkOptions | None

    def begin(self, plan: BatchPlan, number: int) -> "BadWriter":
        """Return a writer for this attempt."""
        attempt = None if self.options is None else AttemptWriter(plan, self.options, f".{number}")
        return BadWriter(self.bad, self.types, attempt)


@dataclass(slots=True)
class BadWriter:
    """Handles the bad records of one attempt."""

    bad: str
    types: Mapping[str, str]
    attempt: AttemptWriter | None
    named: list[str] = field(default_factory=list)
    count: int = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Add records."""
        self.count += rows.num_rows
        if self.attempt is not None:
            self.attempt.write(self._letters(rows))
        elif self.bad == FAIL:
            for each in rows.slice(0, NAMED_MAX - len(self.named)).to_pylist():
                reason = why_bad(each["value"], self.types)
                self.named.append(f"{each['topic']}/{each['partition']} offset {each['offset']}: {reason}")

    def prepare(self) -> Written | None:
        """Finish. BadRecords if the pipeline is to stop."""
        if self.bad == FAIL:
            raise BadRecords(
                f"{self.count} records of a task cannot be parsed. {'; '.join(self.named)}. Set bad= at the "
                f"source to the name of a topic that gets such records, or to {SKIP!r} to leave them out"
            )
        return None if self.attempt is None else self.attempt.prepare()

    def _letters(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        headers = [
            [
                {"key": REASON, "value": why_bad(each["value"], self.types).encode()},
                *({"key": name, "value": _text(each[column])} for name, column in PLACES.items()),
            ]
            for each in rows.to_pylist()
        ]
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        columns = [rows.column("key"), rows.column("value"), pa.array(headers, kind)]
        return pa.RecordBatch.from_arrays(columns, ["key", "value", "headers"])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Discard what was written, after an error."""
        if self.attempt is not None:
            self.attempt.__exit__(kind, error, trace)


def _text(value: Any) -> bytes:
    if hasattr(value, "timestamp"):
        return b"%d" % round(value.timestamp() * 1000)
    return str(value).encode()


def why_bad(value: bytes, types: Mapping[str, str]) -> str:
    """Say why a value is not JSON of these columns."""
    try:
        found = json.loads(value.decode())
    except UnicodeDecodeError:
        return "the value is not UTF-8"
    except (ValueError, RecursionError) as error:
        return f"the value is not JSON: {error}"[:_TEXT_MAX]
    if not isinstance(found, dict):
        return "the value is no JSON object"
    for name, kind in types.items():
        if name in found and not _may_be(found[name], kind):
            return f"{name} is {json.dumps(found[name])}, and should be {kind}"[:_TEXT_MAX]
    return "the value does not fit the schema"


def _may_be(value: Any, kind: str) -> bool:
    """Whether a JSON value may be of a type of Spark. True if that is not certain."""
    if value is None:
        return True
    if kind in _NUMBERS:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == "boolean":
        return isinstance(value, bool)
    if kind.startswith("array"):
        return isinstance(value, list)
    if kind.startswith(("struct", "map")):
        return isinstance(value, dict)
    return kind == "string" or isinstance(value, (str, int, float))
