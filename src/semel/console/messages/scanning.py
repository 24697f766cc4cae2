"""Scans ranges of a topic for records that match, newest or oldest first; a scan can be continued.

A scan reads in rounds. Each round scans a part of every partition and emits the matches in the order of their
timestamps; within a partition they stay in the order of their offsets. After every round, `Scan.left` is
exactly the ranges that were not scanned yet. So a scan that stopped at a limit continues there, without
skipping or repeating a record.

Oldest first, a round is one fetch. Newest first, a round reads a window before the end of each partition; the
windows grow while they hold few bytes, and shrink if they hold many.
"""

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Generic, Protocol, TypeVar

from semel.client import FetchLimits
from semel.console.messages.filters import Filter
from semel.console.messages.limits import ROWS_MAX, ScanLimits
from semel.console.messages.reading import MarkedRecord, Piece, Reader

T = TypeVar("T")

ROWS_PER_ROUND: Final = 4000
"""The most matches of one round over all partitions, as rows of a page. They are in memory together."""
RECORDS_PER_ROUND: Final = 20_000
"""The same, as records of an export."""
TAKEN_BYTES_MAX: Final = 16 << 20
"""The most bytes of the matches of one round, oldest first: an export keeps whole records."""
WINDOW_FIRST: Final = 64
WINDOW_MAX: Final = 50_000
WINDOW_BYTES_MAX: Final = 16 << 20
"""A window with more bytes is made smaller and read again."""
CHECKED_EVERY: Final = 512
"""Records between two checks of the limits."""
CHECKED_SECONDS: Final = 0.02
"""Time between two checks of the limits: a search may take a second for one record, unpredictably."""
_SMALL: Final = FetchLimits(max_wait_ms=100, max_bytes=8 << 20, partition_max_bytes=1 << 20)
_LARGE: Final = FetchLimits(max_wait_ms=100, max_bytes=16 << 20, partition_max_bytes=4 << 20)


class Stop(Protocol):
    """Set when the result is no longer wanted."""

    def is_set(self) -> bool:
        """Whether to stop now."""

    def wait(self, timeout: float) -> bool:
        """Sleep, but wake when it is set."""


class Order(StrEnum):
    """Where a scan begins."""

    NEWEST = "newest"
    OLDEST = "oldest"


class Reason(StrEnum):
    """Why a scan ended."""

    END = "end"
    MATCHES = "matches"
    RECORDS = "records"
    BYTES = "bytes"
    TIME = "time"
    STOPPED = "stopped"


@dataclass(slots=True)
class Range:
    """Offsets of a partition from `begin` up to, but not including, `end`."""

    begin: int
    end: int

    @property
    def size(self) -> int:
        """The number of offsets in the range."""
        return max(0, self.end - self.begin)

    def shared(self, begin: int, end: int) -> int:
        """How many offsets it has in common with another range."""
        return max(0, min(self.end, end) - max(self.begin, begin))


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a scan is, in offsets, and what it has cost."""

    scanned: int
    total: int
    records: int
    matched: int
    hidden: int
    read_bytes: int
    seconds: float


@dataclass(slots=True)
class _Taken(Generic[T]):
    """Matches of one partition in one round, in the order of the scan, and how far it was scanned."""

    rows: list[tuple[int, int, T]] = field(default_factory=list)  # timestamp, offset, row
    covered: int = 0
    aborted: list[Range] = field(default_factory=list)


class Scan(Generic[T]):
    """One scan. Iterate over `rounds`; then `reason` says why it ended, and `left` where."""

    def __init__(
        self,
        reader: Reader,
        ranges: Mapping[int, Range],
        wanted: Filter,
        make: Callable[[MarkedRecord], T],
        limits: ScanLimits,
        order: Order,
        stop: Stop,
    ) -> None:
        self.left = {number: Range(each.begin, each.end) for number, each in ranges.items()}
        self.reason = Reason.END
        self._reader = reader
        self._wanted = wanted
        self._make = make
        self._limits = limits
        self._order = order
        self._stop = stop
        self._total = sum(each.size for each in self.left.values())
        self._records = self._matched = self._hidden = self._taken_bytes = 0
        self._began = time.monotonic()
        self._fetch = _SMALL if limits.matches <= 100 else _LARGE
        self._windows = dict.fromkeys(self.left, WINDOW_FIRST)
        self._pieces: dict[int, Piece] = {}
        self._next_look = self._began + CHECKED_SECONDS
        self._is_asked = self._is_begun = self._is_least = False
        self._cut: int | None = None

    @property
    def progress(self) -> Progress:
        """How far the scan is now."""
        left = sum(each.size for each in self.left.values())
        return Progress(
            scanned=self._total - left,
            total=self._total,
            records=self._records,
            matched=self._matched,
            hidden=self._hidden,
            read_bytes=self._reader.read_bytes,
            seconds=time.monotonic() - self._began,
        )

    def rounds(self) -> Iterator[list[T]]:
        """Scan, and yield the matches of every round, which may be none."""
        while any(each.size for each in self.left.values()):
            if (reason := self._exceeded()) is not None:
                if self._is_stuck(reason):
                    self._is_least = True
                    yield self._emit(self._backward())
                self.reason = reason
                return
            before = self.progress.scanned
            taken = self._forward() if self._order is Order.OLDEST else self._backward()
            yield self._emit(taken)
            if self.progress.scanned == before and self._exceeded() is None:
                self._stop.wait(0.1)  # Perhaps a partition has no leader, and the others are done.
        self.reason = Reason.END

    def _is_stuck(self, reason: Reason) -> bool:
        """Whether a limit was reached before any window was complete: continuing would never end."""
        by_cost = reason in (Reason.RECORDS, Reason.BYTES, Reason.TIME)
        return by_cost and self._order is Order.NEWEST and self._is_begun and not self.progress.scanned

    def _exceeded(self) -> Reason | None:
        limits = self._limits
        if self._stop.is_set():
            return Reason.STOPPED
        if self._matched >= limits.matches:
            return Reason.MATCHES
        if self._is_least:
            return None
        if self._records >= limits.records:
            return Reason.RECORDS
        if self._reader.read_bytes >= limits.read_bytes:
            return Reason.BYTES
        # Fetch at least once, however late it is: a scan that is continued must make progress.
        is_late = self._is_asked and time.monotonic() - self._began >= limits.seconds
        return Reason.TIME if is_late else None

    def _ask(self, positions: Mapping[int, int]) -> list[Piece]:
        self._is_asked = True
        return self._reader.fetch(positions, self._fetch)

    def _emit(self, taken: Mapping[int, _Taken[T]]) -> list[T]:
        """Merge by time up to the limit, and move the ranges past what was emitted."""
        sign = 1 if self._order is Order.OLDEST else -1
        streams = [
            [(sign * timestamp, number, offset, row) for timestamp, offset, row in each.rows]
            for number, each in taken.items()
        ]
        rows: list[T] = []
        last: dict[int, int] = {}
        counts: dict[int, int] = dict.fromkeys(taken, 0)
        for _, number, offset, row in heapq.merge(*streams, key=lambda entry: entry[0]):
            if self._matched >= self._limits.matches:
                break
            self._matched += 1
            rows.append(row)
            last[number] = offset
            counts[number] += 1
        for number, each in taken.items():
            whole = counts[number] == len(each.rows)
            left = self.left[number]
            begin, end = left.begin, left.end
            if self._order is Order.OLDEST:
                at = each.covered if whole else last.get(number, begin - 1) + 1
                left.begin = end = max(begin, at)
            else:
                at = each.covered if whole else last.get(number, end)
                left.end = begin = min(end, at)
            # Count only what was passed: what a limit has cut off is read again.
            self._hidden += sum(aborted.shared(begin, end) for aborted in each.aborted)
        return rows

    @property
    def _rows_max(self) -> int:
        of_all = ROWS_PER_ROUND if self._limits.matches <= ROWS_MAX else RECORDS_PER_ROUND
        return max(8, min(self._limits.matches - self._matched, of_all // max(1, len(self.left))))

    # ---- oldest first

    def _forward(self) -> dict[int, _Taken[T]]:
        # Keep the pieces that the last round did not finish.
        self._pieces = {
            number: piece
            for number, piece in self._pieces.items()
            if self.left[number].size and piece.begin <= self.left[number].begin < piece.next_offset
        }
        positions = {
            number: each.begin
            for number, each in self.left.items()
            if each.size and number not in self._pieces
        }
        if positions:
            for piece in self._ask(positions):
                self._pieces[piece.partition] = piece
        taken: dict[int, _Taken[T]] = {}
        self._taken_bytes = 0
        for number, piece in self._pieces.items():
            if self._taken_bytes < TAKEN_BYTES_MAX:
                each = self.left[number]
                taken[number] = self._take_first(piece, each.begin, each.end)
        return taken

    def _take_first(self, piece: Piece, begin: int, end: int) -> _Taken[T]:
        taken: _Taken[T] = _Taken(covered=min(piece.next_offset, end), aborted=self._aborted(piece))
        most = self._rows_max
        for marked in self._looked_at(piece, begin, end):
            if self._wanted.matches(marked):
                taken.rows.append((marked.record.timestamp, marked.last_offset, self._make(marked)))
                self._taken_bytes += marked.record.size_bytes
            is_full = len(taken.rows) >= most or self._taken_bytes >= TAKEN_BYTES_MAX
            if is_full or self._is_over():
                taken.covered = min(marked.last_offset + 1, taken.covered)
                break
        if self._cut is not None:
            taken.covered = min(self._cut, taken.covered)
        return taken

    def _aborted(self, piece: Piece) -> list[Range]:
        """Return the offsets of aborted records, which a read_committed scan hides."""
        return [Range(*offsets) for offsets in piece.aborted()] if self._reader.committed else []

    def _is_over(self) -> bool:
        """Whether a limit was reached. The limits are checked only from time to time."""
        now = time.monotonic()
        if now < self._next_look and self._records % CHECKED_EVERY:
            return False
        self._next_look = now + CHECKED_SECONDS
        return self._exceeded() is not None

    def _looked_at(self, piece: Piece, begin: int, end: int) -> Iterator[MarkedRecord]:
        """Yield records. If a limit is reached before a batch, stop and set `_cut` to the start of the batch.

        Batches that yield nothing are work, too. The first batch of a scan is always opened, so that a scan
        that is continued again and again comes to its end.
        """
        self._cut = None
        for header, records in self._reader.batches(piece, begin, end):
            if self._is_begun and self._exceeded() is not None:
                self._cut = max(begin, header.base_offset)
                return
            self._is_begun = True
            for marked in records:
                self._records += 1
                yield marked
            self._records += self._reader.skipped_records
            self._reader.skipped_records = 0

    # ---- newest first

    def _backward(self) -> dict[int, _Taken[T]]:
        windows = {
            number: Range(max(each.begin, each.end - self._windows[number]), each.end)
            for number, each in self.left.items()
            if each.size
        }
        if self._is_least:  # As a last resort, only the last offset of one partition.
            number, window = next(iter(windows.items()))
            windows = {number: Range(window.end - 1, window.end)}
        found: dict[int, deque[tuple[int, int, T]]] = {
            number: deque(maxlen=self._rows_max) for number in windows
        }
        aborted: dict[int, list[Range]] = {number: [] for number in windows}
        dropped: set[int] = set()
        sizes = dict.fromkeys(windows, 0)
        positions = {number: each.begin for number, each in windows.items()}
        while positions and self._exceeded() is None:
            before = dict(positions)
            for piece in self._ask(positions):
                number, window = piece.partition, windows[piece.partition]
                sizes[number] += len(piece.data)
                aborted[number] += self._aborted(piece)
                if not self._take_last(piece, window, found[number], dropped):
                    break  # A limit was reached; this window is incomplete.
                positions[number] = piece.next_offset
                if piece.next_offset >= window.end:
                    del positions[number]
                elif sizes[number] > WINDOW_BYTES_MAX and window.size > 1:
                    fitting = WINDOW_BYTES_MAX // 2 * (piece.next_offset - window.begin) // sizes[number]
                    self._windows[number] = max(1, min(fitting, window.size // 2))
                    window.begin = window.end - self._windows[number]
                    positions[number], sizes[number] = window.begin, 0
                    found[number].clear()
                    aborted[number].clear()
                    dropped.discard(number)
            if positions == before and self._exceeded() is None:
                self._stop.wait(0.05)
            if self._is_least:
                break
        for number in positions:
            del windows[number]  # Incomplete: it will be read again.
        self._resize(windows, sizes)
        return {
            number: _Taken(
                list(reversed(found[number])),
                found[number][0][1] if number in dropped else window.begin,
                aborted[number],
            )
            for number, window in windows.items()
        }

    def _take_last(
        self, piece: Piece, window: Range, found: deque[tuple[int, int, T]], dropped: set[int]
    ) -> bool:
        for marked in self._looked_at(piece, window.begin, window.end):
            if marked.is_unreadable:
                # The rest of its batch is unreadable, too: the next window ends before the batch.
                window.begin = min(window.begin, marked.offset)
            if self._wanted.matches(marked):
                if len(found) == found.maxlen:
                    dropped.add(piece.partition)
                found.append((marked.record.timestamp, marked.offset, self._make(marked)))
            if self._is_over():
                return False
        return self._cut is None

    def _resize(self, windows: Iterable[int], sizes: Mapping[int, int]) -> None:
        for number in windows:
            if sizes[number] < WINDOW_BYTES_MAX // 8:
                self._windows[number] = min(WINDOW_MAX, self._windows[number] * 4)
            elif sizes[number] > WINDOW_BYTES_MAX // 2:
                self._windows[number] = max(1, self._windows[number] // 4)
