"""Rows ahead: where the next batches of a reader lie, learned together with those it asked for.

Who reads a long way asks for one piece after another, and each time the ledger has to be asked on a thread,
which takes as long as copying the piece. So whoever goes on where an answer ended is taken for such a reader.
The ledger is asked for several pieces at once, and the rest is kept for the offset at which the next begins.

What must stay true. A row says where a batch lies until compaction replaces the batch or the log start passes
it. So rows are kept with the number of compactions that the reader's partition had, and are of no use to one
with another number. The log start is compared by whoever reads, before and after, as it is for new rows. And
each reader holds rows against its own bound: they may have been found by one that sees further.

What is kept is given once. A reader that found its bytes gone and looks again asks the ledger.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from semel.core.types import PartitionKey
from semel.store.interface import StoredBatch

PIECES: Final = 8
"""Answers that a reader of a long way gets out of one question to the ledger."""
READERS_MAX: Final = 1_024
ROWS_MAX: Final = 65_536
"""Of all readers: some 16 MiB. Whoever asked longest ago gives way."""


class Rows(NamedTuple):
    """What is known for one offset; perhaps only that a reader will go on there."""

    rows: Sequence[StoredBatch]
    size_bytes: int
    compactions: int


class IndexReadAhead:
    """Partition and offset to the rows from there."""

    def __init__(self, readers_max: int = READERS_MAX, rows_max: int = ROWS_MAX) -> None:
        self._readers_max = readers_max
        self._rows_max = rows_max
        self._kept: OrderedDict[tuple[PartitionKey, int], Rows] = OrderedDict()
        self.size = 0
        """Rows that are kept."""

    def take(self, partition: PartitionKey, offset: int) -> Rows | None:
        """What is known from this offset on; None if no answer has ended there."""
        kept = self._kept.pop((partition, offset), None)
        if kept is not None:
            self.size -= len(kept.rows)
        return kept

    def keep(
        self, partition: PartitionKey, offset: int, rows: Sequence[StoredBatch], compactions: int
    ) -> None:
        """An answer ended at this offset, and these rows follow it."""
        before = self.take(partition, offset)
        kept = Rows(rows, sum(row.location.length for row in rows), compactions)
        if before is not None and before.compactions == compactions and len(before.rows) > len(rows):
            # Of another reader, which is as far.
            kept = before
        self._kept[partition, offset] = kept
        self.size += len(kept.rows)
        while len(self._kept) > self._readers_max or self.size > self._rows_max:
            _, oldest = self._kept.popitem(last=False)
            self.size -= len(oldest.rows)
