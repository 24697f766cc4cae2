"""One partition in commit order: the records to return, and the position from which to resume.

In the log, records are in write order, and each transaction is followed by a marker with its outcome. In
commit order the records of a transaction are at the position of its commit marker, and records outside
transactions at their own:

    offset         0    1    2    3    4         5         6
    written        a1   b1   x    a2   b2        commit B  commit A
    commit order             x                   b1 b2     a1 a2

So the records of a transaction are held until its end is read (`commit_order_batches`). Their batches are
decoded one at a time when they are returned.

A position holds the start of the oldest held transaction, from which the log is read again, and the offset up
to which everything is done. Transactions that ended before that offset were returned or dropped, and records
outside transactions before it were returned. While a transaction is being returned, `offset` is that of its
marker, and `shown` is its last record that was returned.
"""

from collections.abc import Iterator
from typing import NamedTuple

from semel.client.consume.commit_order_batches import Check, CommitOrderBatches, CommittedBatch, Mark
from semel.client.consume.fetching import ConsumedRecord
from semel.client.consume.offsets import Partition
from semel.client.consume.spool import Spool
from semel.wire.records import iter_records
from semel.wire.schema import Buffer

NOTHING_SHOWN = -1


class CommitOrderPosition(NamedTuple):
    """Where to resume without loss and without repetition."""

    start: int  # the start of the oldest transaction that has not ended; else the same as `offset`
    offset: int  # everything that ends or lies before it is done
    shown: int = NOTHING_SHOWN  # the last record returned of the transaction that ends at `offset`


class CommitOrderLog:
    """Reads one partition from a position."""

    def __init__(
        self,
        partition: Partition,
        position: CommitOrderPosition,
        spool: Spool,
        *,
        is_journal: bool = False,
        check: Check | None = None,
    ) -> None:
        self.partition = partition
        self._batches = CommitOrderBatches(
            position.start, spool, done=position.offset, is_journal=is_journal, check=check
        )
        self._next = position.start  # after the last record returned outside transactions
        self._done = position.offset  # of an earlier reader: what ends before it is not returned again
        self._shown = position.shown

    @property
    def next_offset(self) -> int:
        """The offset from which the log must be read next."""
        return max(self._batches.next_offset, self._next)

    @property
    def position(self) -> CommitOrderPosition:
        """The position after the last returned record."""
        oldest = next(iter(self._batches.open.values()), None)
        offset = max(self.next_offset, self._done)
        shown = self._shown if offset == self._done else NOTHING_SHOWN
        return CommitOrderPosition(oldest.first_offset if oldest else self.next_offset, offset, shown)

    @property
    def open_transactions(self) -> dict[int, int]:
        """The transactions whose end has not been read yet: producer id and first offset."""
        return {each.producer_id: each.first_offset for each in self._batches.open.values()}

    def read(self, data: Buffer, mark: Mark | None = None) -> Iterator[ConsumedRecord]:
        """Return the records that this part of the log releases; the position advances as they are taken."""
        for batch in self._batches.read(data, mark):
            if batch.marker_offset is None:
                yield from self._outside(batch)
            else:
                yield from self._committed(batch, batch.marker_offset)

    def forget_ended(self, high_watermark: int, last_stable_offset: int) -> None:
        """Drop transactions whose markers are gone, by the bounds in one response."""
        self._batches.forget_ended(high_watermark, last_stable_offset)

    def close(self) -> None:
        """Drop held batches."""
        self._batches.close()

    def _outside(self, batch: CommittedBatch) -> Iterator[ConsumedRecord]:
        topic, number = self.partition
        for record in iter_records(batch.data, batch.at):
            if record.offset >= max(self.next_offset, self._done):
                self._next = record.offset + 1
                yield ConsumedRecord(topic, number, *record)

    def _committed(self, batch: CommittedBatch, marker_offset: int) -> Iterator[ConsumedRecord]:
        shown = self._shown if marker_offset == self._done else NOTHING_SHOWN
        first = max(batch.first_offset, shown + 1)
        topic, number = self.partition
        for record in iter_records(batch.data, batch.at):
            if record.offset >= first:
                self._done, self._shown = marker_offset, record.offset
                yield ConsumedRecord(topic, number, *record)
