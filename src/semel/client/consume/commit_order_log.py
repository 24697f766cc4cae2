"""One partition in commit order: what to return when, and the position from which to resume.

In the log, records are in write order, and each transaction is followed by a marker with its outcome. In
commit order the records of a transaction are at the position of its commit marker, and records outside
transactions at their own:

    offset         0    1    2    3    4         5         6
    written        a1   b1   x    a2   b2        commit B  commit A
    commit order             x                   b1 b2     a1 a2

`CommitOrderBatches` holds the batches of a transaction, in memory or on disk (`spool`), until it reads their
end: a commit marker releases them, an abort marker drops them. `CommitOrderLog` decodes released batches, one
at a time, and knows the position.

A position holds the start of the oldest held transaction, from which the log is read again, and the offset up
to which everything is done. Transactions that ended before that offset were returned or dropped, and records
outside transactions before it were returned. While a transaction is being returned, `offset` is that of its
marker, and `shown` is its last record that was returned.

Compaction removes aborted records at once and their abort marker some time later. A reader that still holds
such records never sees the removed marker, and the next commit marker of the same producer id and epoch would
release them. So `check` is called before the batches of a transaction are released: it may raise, or replace
the held batches (`compaction`).
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from semel.client.consume.fetch import ConsumedRecord
from semel.client.consume.offsets import Partition
from semel.client.consume.spool import Held, Spool
from semel.wire.records import BatchHeader, iter_batches, iter_records, read_marker
from semel.wire.schema import Buffer

NOTHING_SHOWN = -1
NO_END = 2**63 - 1


class Mark(NamedTuple):
    """What a reader knew just before a fetch."""

    compactions: int | None  # of the partition; None if not queried
    at_s: float  # of the monotonic clock


class OpenTransaction:
    """The batches of a transaction whose end has not been read yet."""

    __slots__ = ("epoch", "first_offset", "held", "last_offset", "mark", "producer_id")

    def __init__(self, header: BatchHeader, first_offset: int, held: Held, mark: Mark | None) -> None:
        self.producer_id = header.producer_id
        self.epoch = header.producer_epoch
        self.first_offset = first_offset
        self.last_offset = first_offset
        self.held = held
        self.mark = mark  # of the fetch that brought its first batch


Check = Callable[[OpenTransaction], None]


class CommittedBatch(NamedTuple):
    """A released batch: its position in a buffer, and its transaction."""

    data: Buffer
    at: int
    header: BatchHeader
    first_offset: int = -1  # of its transaction, as far as it was read
    marker_offset: int | None = None  # of the commit; None outside transactions


class CommitOrderBatches:
    """Reads one partition from an offset up to an end."""

    def __init__(
        self,
        start: int,
        spool: Spool,
        *,
        end: int = NO_END,
        done: int = 0,
        is_journal: bool = False,
        check: Check | None = None,
    ) -> None:
        """Transactions that end before `done` are skipped: an earlier reader has released them."""
        self.next_offset = start
        self.open: dict[int, OpenTransaction] = {}  # by producer id, the oldest first
        self._end = end
        self._done = done
        self._spool = spool
        self._is_journal = is_journal  # such a log is in commit order, committed, and without markers
        self._check = check

    def read(self, data: Buffer, mark: Mark | None = None) -> Iterator[CommittedBatch]:
        """Return the batches that this part of the log releases. `next_offset` advances as they are taken."""
        for at, header in iter_batches(data):
            if header.last_offset < self.next_offset:
                continue
            if header.base_offset >= self._end:
                # Everything before the end was read, or is deleted.
                self.next_offset = self._end
                return
            if header.is_control:
                yield from self._ended(header, data, at)
            elif header.is_transactional and not self._is_journal:
                self._hold(header, data, at, mark)
            else:
                yield CommittedBatch(data, at, header)
            self.next_offset = header.last_offset + 1

    def forget_ended(self, high_watermark: int, last_stable_offset: int) -> None:
        """Drop transactions whose markers compaction has removed, by the bounds in one response.

        A transaction below the last stable offset has ended, and its marker is below the high watermark. If
        the reader is at the high watermark and has not read the marker, compaction has removed it, which it
        does only when all records of the transaction are gone.
        """
        if self.next_offset >= high_watermark:
            for transaction in list(self.open.values()):
                if transaction.last_offset < last_stable_offset:
                    self._drop(transaction)

    def close(self) -> None:
        """Drop held batches."""
        for transaction in list(self.open.values()):
            self._drop(transaction)

    def _hold(self, header: BatchHeader, data: Buffer, at: int, mark: Mark | None) -> None:
        transaction = self.open.get(header.producer_id)
        if transaction is not None and transaction.epoch != header.producer_epoch:
            # The producer has begun a new transaction, and the marker of the held one was not in the log:
            # compaction has removed it, and all its records before, so nothing is left to release.
            self._drop(transaction)
            transaction = None
        first = max(header.base_offset, self.next_offset)
        if transaction is None:
            transaction = OpenTransaction(header, first, self._spool.hold(), mark)
            self.open[header.producer_id] = transaction
        transaction.last_offset = header.last_offset
        transaction.held.add(bytes(memoryview(data)[at : at + header.length]))

    def _ended(self, header: BatchHeader, data: Buffer, at: int) -> Iterator[CommittedBatch]:
        marker = read_marker(data, at)
        transaction = self.open.get(header.producer_id)
        if marker is None or transaction is None:
            return
        if marker.commit and header.base_offset >= self._done:
            if self._check is not None:
                self._check(transaction)
            for batch in transaction.held.batches():
                for within, held in iter_batches(batch):
                    yield CommittedBatch(batch, within, held, transaction.first_offset, header.base_offset)
        self._drop(transaction)

    def _drop(self, transaction: OpenTransaction) -> None:
        transaction.held.drop()
        del self.open[transaction.producer_id]


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
        return {number: transaction.first_offset for number, transaction in self._batches.open.items()}

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
