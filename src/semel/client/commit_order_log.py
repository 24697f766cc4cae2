"""One partition in commit order: what to show when, and where to begin again.

A log has the records of transactions in the order in which they were written, and behind each transaction a
marker that says how it ended. In commit order the records of a transaction stand where its commit marker
stands, and records outside transactions where they are:

    offset         0    1    2    3    4         5         6
    written        a1   b1   x    a2   b2        commit B  commit A
    commit order             x                   b1 b2     a1 a2

So the records of a transaction are held until its end is read. Held batches stay as they came, closed, in
memory or on disk (`spool`), and are opened one at a time when they are shown.

A position says where to begin again: the start of the oldest transaction that is held, from where the log is
read again, and the offset up to which everything is done. What ended before that offset was shown or dropped,
and so were the plain records before it. In the middle of showing a transaction the offset is that of its
marker, and a third number tells how far it was shown.
"""

from collections.abc import Iterator
from typing import NamedTuple

from semel.client.fetching import ConsumedRecord
from semel.client.offsets import Partition
from semel.client.spool import Held, Spool
from semel.wire.records import BatchHeader, iter_batches, iter_records, read_marker
from semel.wire.schema import Buffer

NOTHING_SHOWN = -1


class CommitOrderPosition(NamedTuple):
    """Where to go on without loss and without repetition."""

    start: int  # where the oldest transaction that has not ended begins; else the same as `offset`
    offset: int  # what ends or stands before it is done
    shown: int = NOTHING_SHOWN  # the last record that was shown of the transaction that ends at `offset`


class _OpenTransaction(NamedTuple):
    first_offset: int
    epoch: int
    held: Held


class CommitOrderLog:
    """Reads one partition from a position on."""

    def __init__(
        self, partition: Partition, position: CommitOrderPosition, spool: Spool, *, is_journal: bool = False
    ) -> None:
        self.partition = partition
        self._spool = spool
        self._is_journal = is_journal  # what is in such a log is committed, in commit order, without markers
        self._next = position.start
        self._done = position.offset  # from an earlier reader; everything before it is only read again
        self._shown = position.shown
        self._open: dict[int, _OpenTransaction] = {}  # by producer id, the oldest first

    @property
    def next_offset(self) -> int:
        """The offset from which more of the log is needed."""
        return self._next

    @property
    def position(self) -> CommitOrderPosition:
        """Where to go on behind the last record that was shown."""
        oldest = next(iter(self._open.values()), None)
        offset = max(self._next, self._done)
        shown = self._shown if offset == self._done else NOTHING_SHOWN
        return CommitOrderPosition(oldest.first_offset if oldest else self._next, offset, shown)

    @property
    def open_transactions(self) -> dict[int, int]:
        """The transactions whose end was not read yet: producer id and first offset."""
        return {producer_id: each.first_offset for producer_id, each in self._open.items()}

    def read(self, data: Buffer) -> Iterator[ConsumedRecord]:
        """The records to show after these batches of the log; the position moves as they are taken."""
        for at, header in iter_batches(data):
            if header.last_offset < self._next:
                continue
            if header.is_control:
                yield from self._end(header, data, at)
            elif header.is_transactional and not self._is_journal:
                self._hold(header, data, at)
            else:
                yield from self._show(header, data, at)
            self._next = header.last_offset + 1

    def close(self) -> None:
        """Let go of what is held."""
        for each in self._open.values():
            each.held.drop()
        self._open.clear()

    def _hold(self, header: BatchHeader, data: Buffer, at: int) -> None:
        transaction = self._open.get(header.producer_id)
        if transaction is not None and transaction.epoch != header.producer_epoch:
            # Another transaction, and the end of this one was never read: compaction has taken it since, with
            # everything before it, so there is nothing of it to show.
            transaction.held.drop()
            del self._open[header.producer_id]
            transaction = None
        if transaction is None:
            first = max(header.base_offset, self._next)
            transaction = _OpenTransaction(first, header.producer_epoch, self._spool.hold())
            self._open[header.producer_id] = transaction
        transaction.held.add(bytes(memoryview(data)[at : at + header.length]))

    def _show(self, header: BatchHeader, data: Buffer, at: int) -> Iterator[ConsumedRecord]:
        topic, number = self.partition
        for record in iter_records(data, at):
            if record.offset >= max(self._next, self._done):
                self._next = record.offset + 1
                yield ConsumedRecord(topic, number, *record)

    def _end(self, header: BatchHeader, data: Buffer, at: int) -> Iterator[ConsumedRecord]:
        marker = read_marker(data, at)
        transaction = self._open.get(header.producer_id)
        if marker is None or transaction is None:
            return
        if marker.commit and header.base_offset >= self._done:
            shown = self._shown if header.base_offset == self._done else NOTHING_SHOWN
            first = max(transaction.first_offset, shown + 1)
            topic, number = self.partition
            for batch in transaction.held.batches():
                for record in iter_records(batch):
                    if record.offset >= first:
                        self._done, self._shown = header.base_offset, record.offset
                        yield ConsumedRecord(topic, number, *record)
        transaction.held.drop()
        del self._open[header.producer_id]
