"""Convert batches to runs and back. A run is one row of the ledger that stands for many batches.

The batches of a run are adjacent, in offsets and in bytes. So arrays of their ends, lengths and timestamps
suffice to locate each batch, and readers see batches, however they are stored.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from semel.store.contract import BatchLocation, StoredBatch


def batches_of(row: Mapping[str, Any]) -> Iterator[StoredBatch]:
    """Yield the batches of a row of ``batches``."""
    chunk_id, position = row["chunk_id"], row["position"]
    base_offset: int = row["base_offset"]
    if row["run_ends"] is None:
        location = BatchLocation(chunk_id, position, row["length"])
        yield StoredBatch(base_offset, row["last_offset"], row["max_timestamp"], location)
        return
    start = base_offset
    columns = (row["run_ends"], row["run_lengths"], row["run_timestamps"])
    for end, length, max_timestamp in zip(*columns, strict=True):
        location = BatchLocation(chunk_id, position, length)
        yield StoredBatch(start, base_offset + end, max_timestamp, location)
        start = base_offset + end + 1
        position += length


class Merging(NamedTuple):
    """A row that is to become part of a run."""

    batch: StoredBatch
    peak_timestamp: int
    source: BatchLocation
    """Where its bytes are now: an object, and a range of it."""


def columns_of(run: Sequence[Merging]) -> tuple[Any, ...]:
    """Return the columns from run_ends on: None for a single batch."""
    if len(run) == 1:
        return None, None, None
    base_offset = run[0].batch.base_offset
    return (
        [each.batch.last_offset - base_offset for each in run],
        [each.batch.location.length for each in run],
        [each.batch.max_timestamp for each in run],
    )


def runs_in(rows: Sequence[Merging | None], bytes_max: int, batches_max: int) -> list[list[Merging]]:
    """Divide consecutive rows into runs. None stands for rows that are not merged.

    The rows after the last complete run are left out, because more will follow.
    """
    runs: list[list[Merging]] = []
    run: list[Merging] = []
    size = 0
    for row in rows:
        if run and (
            row is None
            or row.batch.base_offset != run[-1].batch.last_offset + 1
            or size + row.batch.location.length > bytes_max
            or len(run) == batches_max
        ):
            runs.append(run)
            run, size = [], 0
        if row is not None:
            run.append(row)
            size += row.batch.location.length
    if size >= bytes_max or len(run) == batches_max:
        runs.append(run)
    return runs
