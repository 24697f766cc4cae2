"""Index read-ahead: ledger rows for the next fetches of a sequential reader.

A sequential reader queries the index once per fetch, on a thread, which takes as long as copying the data. A
fetch that continues where another one ended is taken for sequential. The index is then queried for several
fetches at once, and the remaining rows are kept for the offset at which the next fetch starts.

A row is valid until compaction replaces its batch or the log start passes it. So rows are kept with the
number of compactions of the partition, and are not used with another number. Readers compare the log start
before and after reading, as they do for fresh rows, and apply their own bound, because the rows may have been
read for a reader that sees further.

Rows are used once. A reader whose bytes were released plans again from the ledger.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from semel.core.types import PartitionKey
from semel.store.contract import StoredBatch

PIECES: Final = 8
"""Fetches of a sequential reader that one query of the index serves."""
READERS_MAX: Final = 1_024
ROWS_MAX: Final = 65_536
"""Of all readers: some 16 MiB. The oldest entries are evicted first."""


class Rows(NamedTuple):
    """The rows from one offset on; empty if a fetch ended there and no rows were read ahead."""

    rows: Sequence[StoredBatch]
    size_bytes: int
    compactions: int


class IndexReadAhead:
    """Maps a partition and an offset to the rows from there on."""

    def __init__(self, readers_max: int = READERS_MAX, rows_max: int = ROWS_MAX) -> None:
        self._readers_max = readers_max
        self._rows_max = rows_max
        self._kept: OrderedDict[tuple[PartitionKey, int], Rows] = OrderedDict()
        self.size = 0
        """Rows that are kept."""

    def take(self, partition: PartitionKey, offset: int) -> Rows | None:
        """The rows from this offset on; None if no fetch has ended there."""
        kept = self._kept.pop((partition, offset), None)
        if kept is not None:
            self.size -= len(kept.rows)
        return kept

    def keep(
        self, partition: PartitionKey, offset: int, rows: Sequence[StoredBatch], compactions: int
    ) -> None:
        """Note that a fetch ended at this offset, and keep the rows that follow."""
        before = self.take(partition, offset)
        kept = Rows(rows, sum(row.location.length for row in rows), compactions)
        if before is not None and before.compactions == compactions and len(before.rows) > len(rows):
            # They belong to another reader at the same offset.
            kept = before
        self._kept[partition, offset] = kept
        self.size += len(kept.rows)
        while len(self._kept) > self._readers_max or self.size > self._rows_max:
            _, oldest = self._kept.popitem(last=False)
            self.size -= len(oldest.rows)
