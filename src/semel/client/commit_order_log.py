"""One partition in commit order: what to show when, and where to begin again.

A log has the records of transactions in the order in which they were written, and behind each transaction a
marker that says how it ended. In commit order the records of a transaction stand where its commit marker
stands, and records outside transactions where they are:

    offset         0    1    2    3    4         5         6
    written        a1   b1   x    a2   b2        commit B  commit A
    commit order             x                   b1 b2     a1 a2

So the records of a transaction are held until its end is read (`commit_order_batches`). Their batches are
opened one at a time when they are shown.

A position says where to begin again: the start of the oldest transaction that is held, from where the log is
read again, and the offset up to which everything is done. What ended before that offset was shown or dropped,
and so were the plain records before it. In the middle of showing a transaction the offset is that of its
marker, and a third number tells how far it was shown.
"""

from collections.abc import Iterator
from typing import NamedTuple

from semel.client.commit_order_batches import Check, CommitOrderBatches, CommittedBatch, Mark
from semel.client.fetching import ConsumedRecord
from semel.client.offsets import Partition
from semel.client.spool import Spool
from semel.wire.records import iter_records
from semel.wire.schema import Buffer

NOTHING_SHOWN = -1


class CommitOrderPosition(NamedTuple):
    """Where to go on without loss and without repetition."""

    start: int  # where the oldest transaction that has not ended begins; else the same as `offset`
    offset: int  # what ends or stands before it is done
    shown: int = NOTHING_SHOWN  # the last record that was shown of the transaction that ends at `offset`


class CommitOrderLog:
    """Reads one partition from a position on."""

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
        self._next = position.start  # behind the last record that was shown outside transactions
        self._done = position.offset  # from an earlier reader; everything before it is only read again
        self._shown = position.shown

    @property
    def next_offset(self) -> int:
        """The offset from which more of the log is needed."""
        return max(self._batches.next_offset, self._next)

    @property
    def position(self) -> CommitOrderPosition:
        """Where to go on behind the last record that was shown."""
        oldest = next(iter(self._batches.open.values()), None)
        offset = max(self.next_offset, self._done)
        shown = self._shown if offset == self._done else NOTHING_SHOWN
        return CommitOrderPosition(oldest.first_offset if oldest else self.next_offset, offset, shown)

    @property
    def open_transactions(self) -> dict[int, int]:
        """The transactions whose end was not read yet: producer id and first offset."""
        return {each.producer_id: each.first_offset for each in self._batches.open.values()}

    def read(self, data: Buffer, mark: Mark | None = None) -> Iterator[ConsumedRecord]:
        """The records to show after these batches of the log; the position moves as they are taken."""
        for batch in self._batches.read(data, mark):
            if batch.marker_offset is None:
                yield from self._outside(batch)
            else:
                yield from self._committed(batch, batch.marker_offset)

    def forget_ended(self, high_watermark: int, last_stable_offset: int) -> None:
        """Drop transactions whose markers are gone, by the bounds of one answer of the broker."""
        self._batches.forget_ended(high_watermark, last_stable_offset)

    def close(self) -> None:
        """Let go of what is held."""
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
