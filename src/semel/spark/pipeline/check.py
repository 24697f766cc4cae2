"""Checks a history that is too large for one process, with Spark (`check_files`).

The steps and their functions are those of `semel.check.stages`. Every operation becomes a row with the key of
its check. In a step, rows with the same key are grouped, in the order of the files, and judged by one call.
Its results become rows with other keys for the following steps. A partition's part of the history, and the
order of transactions in journal topics, must fit into the memory of one process.
"""

import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, input_file_name, monotonically_increasing_id

from semel.check import stages
from semel.check.catalogue import Anomaly
from semel.check.cycles import Edge, cycles
from semel.check.history import NAMES, HistoryError, Init, Name, Produce, Topic, from_line, read_history
from semel.check.transactions import Fate, Trace
from semel.check.verdict import Tally, Verdict

ROWS_MAX = 1_000
PART_BYTES = 32 << 20
SCHEMA = "key string, rank long, payload binary"
_ARROW = pa.schema([("key", pa.string()), ("rank", pa.int64()), ("payload", pa.binary())])

GROUP = "group"
ORDER = "order"
ABOUT = "about"
BAD = "bad"
CIRCLE = "circle"

Row: TypeAlias = tuple[str, int, Any]
Judge: TypeAlias = Callable[[Any, list[Any]], Iterator[tuple[str, Any] | Anomaly]]


class About(NamedTuple):
    """What a task knows of the whole history."""

    counts: Counter[tuple[str, str]]
    topics: list[Topic]
    written: set[str]
    fates: Counter[str]
    tally: Tally


def check_files(spark: SparkSession, paths: Sequence[str | Path]) -> Verdict:
    """Check the files of a history for every anomaly of the catalogue."""
    kept = [_read(spark, [str(each) for each in paths]).persist()]
    try:
        found = _collect(kept[:1], ABOUT, BAD)
        _refuse_bad(found[BAD])
        about = _sum(found[ABOUT])
        kept += _steps(kept[0], about, _parts(paths))
        found = _collect(kept[1:], ABOUT, CIRCLE)
        end = _sum(found[ABOUT])
        end.tally.add(cycles(found[CIRCLE]))
        return Verdict.of(about.counts, end.fates, end.tally)
    finally:
        for frame in kept:
            frame.unpersist()


def _steps(rows: DataFrame, about: About, parts: int | None) -> list[DataFrame]:
    """Return the results of every step."""

    def step(kind: str, judge: Judge, *given: DataFrame) -> DataFrame:
        return _step(kind, judge, given, parts).persist()

    fates = step(stages.TRANSACTION, _transaction, rows)
    seen = step(stages.PARTITION, _Partitions(about.topics, about.written), rows, fates)
    whole = step(stages.TRANSACTION, _whole, fates, seen)
    owners = step(stages.OWNER, _owners, rows, whole)
    groups = step(GROUP, _groups, seen, whole)
    order = step(ORDER, _order, seen)
    return [fates, seen, whole, owners, groups, order]


def _parts(paths: Sequence[str | Path]) -> int | None:
    """Return the number of parts of a step, by the size of the files if they are visible here."""
    local = [Path(each) for each in paths]
    if not all(each.exists() for each in local):
        return None
    return max(2, sum(each.stat().st_size for each in local) // PART_BYTES)


# ---- rows


def _key(kind: str, *name: Name) -> str:
    return json.dumps([kind, *name])


def _read(spark: SparkSession, paths: list[str]) -> DataFrame:
    lines = spark.read.text(paths)
    numbered = lines.select(
        "value", monotonically_increasing_id().alias("rank"), input_file_name().alias("file")
    )
    return numbered.mapInArrow(_route, SCHEMA)


def _route(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Convert every line to rows, one for each key of its operation; report invalid lines by their file."""
    return _batches(_routed(batches))


def _routed(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    about = About(Counter(), [], set(), Counter(), Tally())
    bad: set[str] = set()
    for batch in batches:
        for line, rank, file in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if not line or line.isspace():
                continue
            try:
                operation = from_line(line)
            except HistoryError as error:
                if file not in bad:
                    bad.add(file)
                    yield (_key(BAD), rank, (file, str(error)))
                continue
            if isinstance(operation, Topic):
                about.topics.append(operation)
                continue
            about.counts[NAMES[type(operation)], operation.outcome] += 1
            if isinstance(operation, Produce):
                about.written.add(operation.topic)
            for key in stages.routes(operation):
                yield (_key(*key), rank, operation)
    yield (_key(ABOUT), 0, about)


def _batches(rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    given = iter(rows)
    while taken := [(key, rank, pickle.dumps(value)) for key, rank, value in islice(given, ROWS_MAX)]:
        columns = zip(zip(*taken, strict=True), _ARROW.types, strict=True)
        yield pa.RecordBatch.from_arrays([pa.array(*each) for each in columns], schema=_ARROW)


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    together = frames[0]
    for each in frames[1:]:
        together = together.unionAll(each)
    return together


def _collect(frames: Sequence[DataFrame], *kinds: str) -> dict[str, list[Any]]:
    """Return the values of rows of these kinds, in one job."""
    names = {_key(kind): kind for kind in kinds}
    found: dict[str, list[Any]] = {kind: [] for kind in kinds}
    for row in _union([each.where(col("key").isin(*names)) for each in frames]).collect():
        found[names[row["key"]]].append(pickle.loads(bytes(row["payload"])))
    return found


def _sum(parts: Iterable[About]) -> About:
    total = About(Counter(), [], set(), Counter(), Tally())
    for each in parts:
        total.counts.update(each.counts)
        total.topics.extend(each.topics)
        total.written.update(each.written)
        total.fates.update(each.fates)
        total.tally.merge(each.tally)
    return total


def _refuse_bad(lines: Iterable[tuple[str, str]]) -> None:
    """Raise HistoryError for invalid lines; a truncated last line is accepted."""
    for file, error in lines:
        path = Path(unquote(file.removeprefix("file://")))
        if not path.exists():
            raise HistoryError(f"{file}: {error}")
        for _ in read_history([path]):
            pass


# ---- steps


def _step(kind: str, judge: Judge, given: Sequence[DataFrame], parts: int | None) -> DataFrame:
    """Group rows of one kind by key, and judge each group with one call."""
    rows = _union([each.where(col("key").startswith(f'["{kind}", ')) for each in given])
    together = rows.repartition("key") if parts is None else rows.repartition(parts, "key")

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _batches(_judged(batches, judge))

    return together.sortWithinPartitions("key", "rank").mapInArrow(run, SCHEMA)


def _judged(batches: Iterable[pa.RecordBatch], judge: Judge) -> Iterator[Row]:
    about = About(Counter(), [], set(), Counter(), Tally())
    columns = ((batch.column("key"), batch.column("payload")) for batch in batches)
    rows = (row for keys, values in columns for row in zip(keys.to_pylist(), values.to_pylist(), strict=True))
    for key, group in groupby(rows, key=lambda row: row[0]):
        name = json.loads(key)[1:]
        for found in judge(name, [pickle.loads(payload) for _, payload in group]):
            if isinstance(found, Anomaly):
                about.tally.add([found])
            elif found[0] == ABOUT:
                about.fates[found[1]] += 1
            else:
                yield (found[0], 0, found[1])
    yield (_key(ABOUT), 0, about)


def _transaction(name: Any, given: list[Any]) -> Iterator[tuple[str, Any] | Anomaly]:
    fate, found = stages.judge_transaction(name[0], given)
    yield from found
    yield (_key(stages.TRANSACTION, fate.transaction), fate)
    for partition in fate.written:
        yield (_key(stages.PARTITION, *partition), fate)


class _Partitions:
    """The step of partitions, which needs to know the topics."""

    def __init__(self, topics: list[Topic], written: set[str]) -> None:
        self._topics, self._written = topics, written

    def __call__(self, name: Any, given: list[Any]) -> Iterator[tuple[str, Any] | Anomaly]:
        fates = {each.transaction: each for each in given if isinstance(each, Fate)}
        steps = [each for each in given if not isinstance(each, Fate)]
        topic = stages.declared(self._topics, self._written, name[0])
        result = stages.judge_partition((name[0], name[1]), steps, fates, topic)
        yield from result.anomalies
        for trace in result.traces:
            yield (_key(stages.TRANSACTION, trace.transaction), trace)
        for edge in result.edges:
            yield (_key(ORDER, edge.before), edge)
            yield (_key(ORDER, edge.after), edge)
        if result.input is not None:
            yield (_key(GROUP, *name), result.input)


def _whole(name: Any, given: list[Any]) -> Iterator[tuple[str, Any] | Anomaly]:
    (first,) = (each for each in given if isinstance(each, Fate))
    fate, found = stages.judge_whole(first, [each for each in given if isinstance(each, Trace)])
    yield from found
    yield (ABOUT, fate.outcome)
    if fate.transactional_id is not None:
        yield (_key(stages.OWNER, fate.transactional_id), fate)
    for partition in fate.claimed:
        yield (_key(GROUP, *partition), fate)


def _owners(name: Any, given: list[Any]) -> Iterator[tuple[str, Any] | Anomaly]:
    inits = [each for each in given if isinstance(each, Init)]
    yield from stages.judge_owners(name[0], inits, [each for each in given if isinstance(each, Fate)])


def _groups(name: Any, given: list[Any]) -> Iterator[tuple[str, Any] | Anomaly]:
    fates = {each.transaction: each for each in given if isinstance(each, Fate)}
    for each in given:
        if isinstance(each, stages.Input):
            yield from stages.judge_groups(each, fates)


def _order(name: Any, given: list[Any]) -> Iterator[tuple[str, Any] | Anomaly]:
    """Return edges that may be part of a cycle: those from transactions with predecessors."""
    edges = [each for each in given if isinstance(each, Edge)]
    if any(each.after == name[0] for each in edges):
        yield from ((_key(CIRCLE), each) for each in edges if each.before == name[0])
