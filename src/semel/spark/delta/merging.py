"""The rows of a batch that are merged into a table by key: one row for each key, and which of them delete."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from semel.pipeline import Delta
from semel.spark.delta.storage import Storage
from semel.spark.errors import OptionError, PipelineError, TableChanged

#: The column that says whether a row deletes. No column of a Delta table can have this name.
DELETED: Final = "deleted "
_PLACE: Final = "place "


@dataclass(frozen=True, slots=True)
class Merge:
    """How rows are merged: the columns that are equal, and the one that decides between rows of a batch."""

    keys: tuple[str, ...]
    order_by: str | None


def merge_of(sink: Delta, schema: StructType) -> Merge | None:
    """Return how the rows of a sink are merged; None if they are added."""
    if not sink.keys:
        if sink.order_by is not None:
            raise OptionError(f"order_by of the table {sink.path} is for tables with merge_on")
        return None
    for what, names in (("merge_on", sink.keys), ("order_by", (sink.order_by,) if sink.order_by else ())):
        if missing := [name for name in names if name not in schema.names]:
            raise OptionError(
                f"{what} of the table {sink.path} names {missing[0]!r}; the rows have "
                f"{', '.join(schema.names) or 'no columns'}"
            )
    if len(set(sink.keys)) < len(sink.keys) or {*sink.keys, sink.order_by} >= set(schema.names):
        raise OptionError(
            f"merge_on of the table {sink.path} must name different columns, and leave at least one other"
        )
    return Merge(sink.keys, sink.order_by)


def check_keys(storage: Storage, paths: Sequence[str], merge: Merge) -> None:
    """PipelineError if several rows have the same key and nothing decides between them."""
    if merge.order_by is None:
        found = _read(storage, paths, merge.keys)
        counts = found.group_by(list(merge.keys)).aggregate([([], "count_all")])
        twice = counts.filter(pc.greater(counts.column("count_all"), 1))
        if twice.num_rows:
            (example,) = twice.slice(0, 1).select(list(merge.keys)).to_pylist()
            raise PipelineError(
                f"a batch has several rows for {example} of the table {storage.location}, and nothing says "
                "which counts. Set order_by to the column whose greatest value counts, or aggregate the rows"
            )


def rows_of(storage: Storage, paths: Sequence[str], merge: Merge) -> pa.Table:
    """Return one row for each key, with the column `DELETED`."""
    found = _read(storage, paths, None)
    if merge.order_by is not None:
        order = pc.sort_indices(found, [(merge.order_by, "ascending", "at_start")])
        found = found.take(order)
        found = found.append_column(_PLACE, pa.array(range(found.num_rows), pa.int64()))
        last = found.group_by(list(merge.keys)).aggregate([(_PLACE, "max")])
        found = found.take(last.column(f"{_PLACE}_max")).drop_columns([_PLACE])
    others = [name for name in found.column_names if name not in (*merge.keys, merge.order_by)]
    deleted = pc.is_null(found.column(others[0]))
    for name in others[1:]:
        deleted = pc.and_(deleted, pc.is_null(found.column(name)))
    return found.append_column(DELETED, deleted)


def _read(storage: Storage, paths: Sequence[str], columns: Sequence[str] | None) -> pa.Table:
    wanted = None if columns is None else list(columns)
    tables = []
    for path in paths:
        content = storage.read(path)
        if content is None:
            raise TableChanged(f"its file {path} is gone")
        tables.append(pq.read_table(pa.BufferReader(content), columns=wanted))
    return pa.concat_tables(tables)
