"""The sinks of a declared pipeline in a scenario: what each is to hold, and what it holds.

Every sink gets every record of a batch, in its own form, so the records of all sinks can be compared: a
batch that counts in one of them and not in another is *torn*. A sink that was added later, or was away for
some batches, has *skipped* what was counted meanwhile. Records that cannot be parsed go to the dead letters
and nowhere else.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from deltalake import DeltaTable
from pyspark.sql import DataFrame, functions
from support.spark.jobs import committed

from semel.client import Client, Consumer
from semel.pipeline import Delta, Sink, Topic

#: The columns of the input, as its JSON is parsed.
SCHEMA: Final = "number BIGINT, key STRING"
VALUE: Final = "CAST(number AS STRING) AS value"


class Kind(Enum):
    """What a sink is, and which result of the pipeline it gets."""

    TOPIC = "topic"
    TABLE = "table"
    MERGED = "merged table"
    DISTINCT = "topic without repetitions"
    TOTALS = "merged table of totals"
    TOTALS_TOPIC = "topic of totals"
    DEAD = "topic of dead letters"

    @property
    def is_table(self) -> bool:
        """Whether it is a Delta table."""
        return self in (Kind.TABLE, Kind.MERGED, Kind.TOTALS)

    @property
    def has_totals(self) -> bool:
        """Whether it gets the numbers of each key, and not each number."""
        return self in (Kind.TOTALS, Kind.TOTALS_TOPIC)

    @property
    def has_state(self) -> bool:
        """Whether its result keeps state."""
        return self.has_totals or self is Kind.DISTINCT


@dataclass(eq=False)
class WorldSink:
    """A sink, by the name that the declaration has for it now."""

    name: str
    kind: Kind
    place: str
    """The topic, or the directory of the table."""
    is_wired: bool = True
    """Whether the declaration has it now."""
    skipped: set[int] = field(default_factory=set)
    """Records that were counted while the declaration did not have it."""
    destroyed: dict[str, set[int]] = field(default_factory=dict)
    """What it had when it was deleted, by the pipeline.id of that time. Under it, that must be noticed."""
    known: set[int] = field(default_factory=set)
    """What was counted when it was removed."""
    since: int = 0
    """How often the state had been lost before it was added."""

    def declared(self) -> Sink:
        """Return it as a declaration has it."""
        if self.kind is Kind.TABLE:
            return Delta(self.place)
        if self.kind is Kind.MERGED:
            return Delta(self.place, merge_on="id")
        if self.kind is Kind.TOTALS:
            return Delta(self.place, merge_on="key")
        return Topic(self.place)

    def result(self, rows: DataFrame) -> DataFrame:
        """Return what the function of the pipeline returns for it."""
        if self.kind is Kind.MERGED:
            return rows.selectExpr("number AS id", VALUE)
        if self.kind is Kind.DISTINCT:
            return rows.dropDuplicates(["number"]).selectExpr(VALUE)
        if self.kind.has_totals:
            found = rows.groupBy("key").agg(
                functions.array_sort(functions.collect_list("number")).alias("all")
            )
            return found.selectExpr("key", "array_join(CAST(all AS ARRAY<STRING>), ',') AS value")
        return rows.selectExpr(VALUE)

    def values(self, bootstrap: str) -> list[tuple[str, str]]:
        """Return the keys, if it has any, and values that another program reads there, in their order."""
        if self.kind.is_table:
            if not DeltaTable.is_deltatable(self.place):
                return []
            rows = DeltaTable(self.place).to_pyarrow_table().to_pylist()
            return [(str(row.get("key", row.get("id", ""))), row["value"]) for row in rows]
        with Client(bootstrap) as client:
            if not client.describe([self.place]).topics:
                return []
            if self.kind.has_totals:
                with Consumer(client, self.place) as consumer:
                    return [(_text(each.key), _text(each.value)) for each in consumer.read_to_end()]
        found = committed(bootstrap, self.place)
        return [("", value.decode()) for value, count in found.items() for _ in range(count)]

    def found(self, bootstrap: str) -> Counter[int]:
        """Return the numbers that it holds, and how often."""
        values = self.values(bootstrap)
        if not self.kind.has_totals:
            return Counter(int(value) for _, value in values)
        # A key may have many records; within each of them a number occurs once.
        found: Counter[int] = Counter()
        for _, value in values:
            found |= Counter(numbers_of(value))
        return found

    def totals(self, bootstrap: str) -> dict[str, list[int]]:
        """Return the newest numbers of each key."""
        return {key: numbers_of(value) for key, value in self.values(bootstrap)}


def numbers_of(value: str) -> list[int]:
    """Return the numbers of a total."""
    return [int(each) for each in value.split(",") if each]


def _text(value: bytes | None) -> str:
    return (value or b"").decode()


def few(numbers: Iterable[int]) -> str:
    """Return some of these numbers, for a message."""
    some = sorted(numbers)
    return ", ".join(map(str, some[:8])) + (", …" if len(some) > 8 else "")


def is_bad(number: int) -> bool:
    """Whether the record of a number cannot be parsed."""
    return number % 5 == 4


def value_of(number: int) -> bytes:
    """Return the value of a record: JSON; or only the number, which is no JSON object."""
    return b"%d" % number if is_bad(number) else b'{"number": %d, "key": "%d"}' % (number, number % 3)


def check_sinks(
    sinks: Sequence[WorldSink],
    found: dict[str, Counter[int]],
    *,
    parses: bool,
    excused: set[int],
    pipeline_id: str,
    had_batch: bool,
) -> str:
    """Return what differs between the sinks; empty if every record is in all of them or in none."""
    counted = set().union(*found.values()) - excused
    wrong = []
    for sink in sinks:
        if not sink.is_wired or sink.kind.has_totals:
            continue
        # What was deleted with a sink is missed by the first batch, unless the pipeline is another one now.
        gone = {
            number
            for name, numbers in sink.destroyed.items()
            if name != pipeline_id or not had_batch
            for number in numbers
        }
        due = {each for each in counted if not parses or is_bad(each) == (sink.kind is Kind.DEAD)}
        due -= sink.skipped
        there = found[sink.place].keys() - excused
        if lost := due - there - gone:
            wrong.append(f"the {sink.kind.value} {sink.name} lacks {few(lost)}")
        if foreign := there - due:
            wrong.append(f"the {sink.kind.value} {sink.name} has {few(foreign)}, which is not for it")
        if doubled := {number for number, count in found[sink.place].items() if count > 1}:
            wrong.append(f"the {sink.kind.value} {sink.name} has {few(doubled)} more than once")
    return "; ".join(wrong)


def check_totals(sink: WorldSink, bootstrap: str, counted: set[int], epochs: Sequence[set[int]]) -> str:
    """Return what is wrong with the totals; empty if nothing is.

    `epochs` has what was counted whenever the state was lost. Later totals have only what came after.
    """
    expected: dict[str, list[int]] = {}
    bounds = [*epochs, counted]
    for start, end in zip(bounds[sink.since :], bounds[sink.since + 1 :], strict=False):
        by_key: dict[str, list[int]] = {}
        for number in sorted((end & counted) - start):
            by_key.setdefault(str(number % 3), []).append(number)
        expected |= by_key
    found = sink.totals(bootstrap)
    wrong = [
        f"of key {key} {found.get(key)}, not {expected.get(key)}"
        for key in sorted({*found, *expected})
        if found.get(key) != expected.get(key)
    ]
    return f"the {sink.kind.value} {sink.name} has {'; '.join(wrong)}" if wrong else ""
