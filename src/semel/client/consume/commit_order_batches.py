"""The batches of one partition in commit order: transactions are held until their end is read.

In the log, batches are in write order, and each transaction is followed by a marker with its outcome. Here a
transaction is released when its commit marker is read, and dropped when its abort marker is. Batches outside
transactions are released at their position. Held batches stay undecoded, in memory or on disk (`spool`).

Compaction removes aborted records at once and their abort marker some time later. A reader that still holds
such records never sees the removed marker, and the next commit marker of the same producer id and epoch would
release them. So `check` is called before the batches of a transaction are released: it may raise, or replace
the held batches (`compaction_watch`).
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from semel.client.consume.spool import Held, Spool
from semel.wire.records import BatchHeader, iter_batches, read_marker
from semel.wire.schema import Buffer

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
            for each in [each for each in self.open.values() if each.last_offset < last_stable_offset]:
                self._drop(each)

    def close(self) -> None:
        """Drop held batches."""
        for each in list(self.open.values()):
            self._drop(each)

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
                for within, each in iter_batches(batch):
                    yield CommittedBatch(batch, within, each, transaction.first_offset, header.base_offset)
        self._drop(transaction)

    def _drop(self, transaction: OpenTransaction) -> None:
        transaction.held.drop()
        del self.open[transaction.producer_id]
