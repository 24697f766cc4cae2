"""Writes the rows of one task to Parquet files in the table's directory. No commit names them yet.

Every attempt has unique file names, so that attempts cannot overwrite each other's files. A file is announced
before it is created (`leftovers`), so that it can be found if it is never committed.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from semel.spark.delta.leftovers import Attempt, announce, file_name
from semel.spark.delta.partitions import Values, directory_of, split
from semel.spark.delta.schema import in_utc
from semel.spark.delta.stats import stats_of
from semel.spark.delta.storage import Storage, reaching
from semel.spark.errors import PipelineError, TableUnreachable

#: Files that a task has open at once when it writes to many partitions. A closed file is not opened again.
OPEN_MAX = 64


@dataclass(frozen=True, slots=True)
class Added:
    """A complete file: what a commit records about it."""

    path: str
    size: int
    values: Values
    stats: str


@dataclass(slots=True)
class _Open:
    path: str
    stream: Any
    writer: Any
    footers: list[Any]
    with_nan: set[str] = field(default_factory=set)


class TaskFiles:
    """The files of one attempt."""

    def __init__(
        self, storage: Storage, attempt: Attempt, partition_by: Sequence[str], required: Sequence[str]
    ) -> None:
        self._storage = storage
        self._attempt = attempt
        self._partition_by = partition_by
        self._required = required
        self._open: dict[Values, _Open] = {}
        self._added: list[Added] = []
        self._announced: list[str] = []
        self._announcements = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows to the files of their partitions."""
        for name in self._required:
            if batch.column(name).null_count:
                raise PipelineError(
                    f"the column {name!r} of the table is not nullable, and a row has a null there"
                )
        parts = list(split(batch.cast(in_utc(batch.schema)), self._partition_by))
        paths = self._announce([values for values, _ in parts if values not in self._open])
        for values, part in parts:
            if values not in self._open:
                # The file of these values may have been closed since, to make room for another.
                path = paths.get(values) or self._announce([values])[values]
                self._begin(values, path, part.schema)
            file = self._open[values]
            file.with_nan.update(_columns_with_nan(part))
            with reaching(self._storage.location):
                file.writer.write_batch(part)

    def close(self) -> list[Added]:
        """Finish all files."""
        for values in list(self._open):
            self._finish(values)
        return self._added

    def discard(self) -> None:
        """Delete the files of this attempt; it has failed, so they will not be committed."""
        for file in self._open.values():
            with suppress(OSError, pa.ArrowException):
                file.writer.close()
            with suppress(OSError, pa.ArrowException):
                file.stream.close()
        with suppress(TableUnreachable):
            for path in self._announced:
                self._storage.delete(path)

    def _announce(self, partitions: Sequence[Values]) -> dict[Values, str]:
        """Announce new files, and return their names."""
        attempt, paths = self._attempt, {}
        for number, values in enumerate(partitions, len(self._announced)):
            name = file_name(attempt.app, attempt.number, attempt.key, number)
            paths[values] = directory_of(self._partition_by, values) + name
        if paths:
            announce(self._storage, attempt, self._announcements, paths.values())
            self._announcements += 1
            self._announced.extend(paths.values())
        return paths

    def _begin(self, values: Values, path: str, schema: pa.Schema) -> None:
        if len(self._open) >= OPEN_MAX:
            self._finish(next(iter(self._open)))
        stream = self._storage.open(path)
        footers: list[Any] = []
        # Without Arrow's own schema: readers use that of the table.
        writer = pq.ParquetWriter(stream, schema, store_schema=False, metadata_collector=footers)
        self._open[values] = _Open(path, stream, writer, footers)

    def _finish(self, values: Values) -> None:
        file = self._open.pop(values)
        with reaching(self._storage.location):
            file.writer.close()
            size = file.stream.tell()
            file.stream.close()
        self._storage.flush(file.path)
        (footer,) = file.footers
        stats = stats_of(footer, file.writer.schema, file.with_nan)
        self._added.append(Added(file.path, size, values, stats))


def _columns_with_nan(batch: pa.RecordBatch) -> Iterable[str]:
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
            yield name
