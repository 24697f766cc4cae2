"""What compaction leaves of a log: the newest record of each key. Pure: batches in, batches out.

How a pass goes. First the part of the log that compaction has not seen yet (the *dirty* part) is read, and
the newest offset of each key in it is noted (``Newest``). Then the log is gone through once from its start
to the end of that part (``Pass``), batch by batch. A record stays if no newer one with its key was noted.
All that is looked at lies below the last stable offset, so the outcome of every transaction in it is known.

What goes besides:

- records of aborted transactions, at once;
- records without a key, which nothing can ever replace;
- tombstones, when their batch's *delete horizon* has come. It is set by the pass that first meets them, to
  ``delete.retention.ms`` later. By then no older record of the key is left, and readers had that time to
  see it;
- markers, in the same way, but only once a pass meets no batch of their transaction before them: a marker
  that goes before its data would make aborted records committed ones.

What must stay true:

- No offset changes. A batch keeps its range when records in it go; one that is empty goes as a whole.
- The last batch of a pass stays, whole if nothing of it would be left: a reader that wants to reach the end
  of what it was told is there must find something to step over the gap with.
- A pass that is broken off does no harm. What it took away has a newer record in the log, and the next pass
  begins where this one did. A horizon above the part that was compacted before may come from a client, so
  it does not count.
- A batch that cannot be opened stays as it is.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

from semel.core.data import Data
from semel.core.types import Buffer, Rewritten
from semel.wire.errors import ProtocolError
from semel.wire.records import BatchHeader, read_header
from semel.wire.reducing import NO_HORIZON, Opened, open_batch, reduced

_DIGEST_BYTES: Final = 32
"""Longer keys are known by their digest, so that the memory for a key is bounded. Shorter ones are exact."""


class Batch(Data):
    """A batch of the log and its bytes, in which the base offset is not stamped."""

    base_offset: int
    last_offset: int
    max_timestamp: int
    data: Buffer


class Replaced(Data):
    """What becomes of some batches. Those that are not named stay as they are."""

    rewritten: tuple[Rewritten, ...] = ()
    records: tuple[Buffer, ...] = ()
    """The bytes of those that are rewritten, in the same order."""
    removed: tuple[int, ...] = ()
    """By their base offsets."""
    freed_bytes: int = 0
    """What all of these took before."""
    unreadable: tuple[int, ...] = ()
    """Those that could not be opened, by their base offsets."""


def known_by(key: bytes) -> bytes:
    """What stands for a key where keys are compared."""
    return key if len(key) < _DIGEST_BYTES else blake2b(key, digest_size=_DIGEST_BYTES).digest()


class Outcomes:
    """Which batches belong to aborted transactions, told in the order of the log.

    ``aborted`` are pairs of producer id and first offset, in the order of the offsets, of all transactions
    with a marker at or after the first batch that is asked about.
    """

    def __init__(self, aborted: Sequence[tuple[int, int]]) -> None:
        self._coming = deque(aborted)
        self._aborted: set[int] = set()

    def is_aborted(self, base_offset: int, header: BatchHeader) -> bool:
        """Whether this is data that nobody may read. A marker ends what is known of its producer."""
        while self._coming and self._coming[0][1] <= base_offset:
            self._aborted.add(self._coming.popleft()[0])
        if header.is_control:
            self._aborted.discard(header.producer_id)
            return False
        return header.is_transactional and header.producer_id in self._aborted


class Newest:
    """The newest offset of each key in the dirty part."""

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self.offsets: dict[bytes, int] = {}

    @property
    def is_full(self) -> bool:
        """Whether the pass should end here. One batch may go beyond: a pass has at least one."""
        return len(self.offsets) >= self._keys_max

    def note(self, batches: Iterable[Batch], aborted: Sequence[tuple[int, int]]) -> int:
        """Note the keys of the next batches, until there are too many; the offset behind the last noted."""
        outcomes = Outcomes(aborted)
        end_offset = -1
        for batch in batches:
            header = read_header(batch.data)
            if not outcomes.is_aborted(batch.base_offset, header) and not header.is_control:
                self._note(batch)
            end_offset = batch.last_offset + 1
            if self.is_full:
                break
        return end_offset

    def _note(self, batch: Batch) -> None:
        try:
            # All of them before the first is noted: nobody can read a batch that is damaged at its end.
            mine = {
                known_by(entry.key): batch.base_offset + entry.offset_delta
                for entry in open_batch(batch.data).entries()
                if entry.key is not None
            }
        except ProtocolError:
            return
        self.offsets.update(mine)


class Pass:
    """One pass over the log, from its start to ``end_offset``, in the order of the log."""

    def __init__(
        self,
        newest: Newest,
        *,
        cleaned_offset: int,
        end_offset: int,
        now: int,
        delete_retention_ms: int,
    ) -> None:
        self._newest = newest.offsets
        self._cleaned_offset = cleaned_offset
        self._end_offset = end_offset
        self._now = now
        self._horizon = now + delete_retention_ms
        self._with_data: set[int] = set()
        """Producers of whose transaction there was data, and not the marker yet."""
        self._with_data_before: frozenset[int] = frozenset()
        self._has_unreadable = False
        """Then a tombstone behind it may be all that hides a value in it, from readers that can open it."""

    def undo(self) -> None:
        """The last batches did not become what was said: they are looked at again."""
        self._with_data = set(self._with_data_before)

    def compact(self, batches: Iterable[Batch], aborted: Sequence[tuple[int, int]]) -> Replaced:
        """What becomes of the next batches."""
        self._with_data_before = frozenset(self._with_data)
        outcomes = Outcomes(aborted)
        rewritten: list[Rewritten] = []
        records: list[Buffer] = []
        removed: list[int] = []
        unreadable: list[int] = []
        freed = 0
        for batch in batches:
            header = read_header(batch.data)
            is_aborted = outcomes.is_aborted(batch.base_offset, header)
            try:
                left = self._left_of(batch, header, is_aborted=is_aborted)
            except ProtocolError:
                unreadable.append(batch.base_offset)
                self._has_unreadable = True
                continue
            if left is batch.data:
                continue
            freed += len(batch.data)
            if left is None:
                removed.append(batch.base_offset)
                continue
            latest = read_header(left).max_timestamp
            # What has no time is as old as its arrival.
            latest = batch.max_timestamp if latest < 0 else min(latest, batch.max_timestamp)
            rewritten.append(Rewritten(batch.base_offset, batch.last_offset, latest, len(left)))
            records.append(left)
        return Replaced(tuple(rewritten), tuple(records), tuple(removed), freed, tuple(unreadable))

    def _left_of(self, batch: Batch, header: BatchHeader, *, is_aborted: bool) -> Buffer | None:
        """The batch itself if nothing changes, another one, or None if it goes."""
        is_last = batch.last_offset + 1 >= self._end_offset
        # The horizon of a batch that compaction has not seen yet is somebody else's.
        horizon = header.delete_horizon if batch.base_offset < self._cleaned_offset else None
        if header.is_control:
            has_data = header.producer_id in self._with_data
            self._with_data.discard(header.producer_id)
            if has_data or is_last:
                return batch.data
            if horizon is None:
                return self._with_horizon(batch, open_batch(batch.data))
            return None if horizon <= self._now else batch.data
        if header.is_transactional:
            self._with_data.add(header.producer_id)
        if is_aborted:
            return batch.data if is_last else None
        opened = open_batch(batch.data)
        stays, has_tombstone = self._stays(batch.base_offset, opened, horizon)
        if not any(stays):
            return batch.data if is_last else None
        if has_tombstone and horizon is None:
            return self._with_horizon(batch, opened, stays)
        return batch.data if all(stays) else reduced(opened, stays, None)

    def _stays(self, base_offset: int, opened: Opened, horizon: int | None) -> tuple[bytearray, bool]:
        """A byte for each record that says if it stays, and whether a tombstone does."""
        newest = self._newest
        is_due = horizon is not None and horizon <= self._now and not self._has_unreadable
        stays = bytearray()
        has_tombstone = False
        for entry in opened.entries():
            offset = base_offset + entry.offset_delta
            is_kept = entry.key is not None and newest.get(known_by(entry.key), offset) <= offset
            if is_kept and entry.is_tombstone:
                is_kept = not is_due
                has_tombstone = has_tombstone or is_kept
            stays.append(is_kept)
        return stays, has_tombstone

    def _with_horizon(self, batch: Batch, opened: Opened, stays: bytearray | None = None) -> Buffer:
        """The same with the time from which its tombstones, or the marker in it, may go."""
        kept = stays if stays is not None else bytearray(b"\x01" * opened.header.record_count)
        try:
            return reduced(opened, kept, self._horizon)
        except ValueError:
            # A client may call any time its own. Then the tombstones stay for good, and a horizon that the
            # client made up must go: the next pass would take it for ours.
            has_claimed = opened.header.delete_horizon is not None
            return batch.data if all(kept) and not has_claimed else reduced(opened, kept, NO_HORIZON)
