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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

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
class ScanRange:
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
    aborted: list[ScanRange] = field(default_factory=list)


class Budget:
    """What a scan may cost, and what it has cost so far."""

    def __init__(self, limits: ScanLimits, reader: Reader, stop: Stop) -> None:
        self.limits = limits
        self.records = self.matched = 0
        self.fetched_once = self.opened_once = False
        """Whether a fetch was made, and a batch opened. Each is allowed once, however late it is: a scan that
        is continued again and again must make progress."""
        self.is_last_resort = False
        """Whether only the number of matches counts, because nothing was scanned within the other limits."""
        self._reader = reader
        self._stop = stop
        self._began = time.monotonic()
        self._next_check = self._began + CHECKED_SECONDS

    @property
    def seconds(self) -> float:
        """How long the scan has taken."""
        return time.monotonic() - self._began

    def exceeded(self) -> Reason | None:
        """Return why the scan must stop, if it must."""
        limits = self.limits
        if self._stop.is_set():
            return Reason.STOPPED
        if self.matched >= limits.matches:
            return Reason.MATCHES
        if self.is_last_resort:
            return None
        if self.records >= limits.records:
            return Reason.RECORDS
        if self._reader.read_bytes >= limits.read_bytes:
            return Reason.BYTES
        return Reason.TIME if self.fetched_once and self.seconds >= limits.seconds else None

    def is_over(self) -> bool:
        """Whether a limit was reached. The limits are checked only from time to time."""
        now = time.monotonic()
        if now < self._next_check and self.records % CHECKED_EVERY:
            return False
        self._next_check = now + CHECKED_SECONDS
        return self.exceeded() is not None


class _Direction(Generic[T]):
    """One direction of a scan: takes matches from the ranges that are left, and moves these past them."""

    sign: ClassVar[int]
    """1 if timestamps ascend, -1 if they descend."""

    def __init__(
        self,
        reader: Reader,
        left: dict[int, ScanRange],
        wanted: Filter,
        make: Callable[[MarkedRecord], T],
        budget: Budget,
        stop: Stop,
    ) -> None:
        self._reader = reader
        self._left = left
        self._wanted = wanted
        self._make = make
        self._budget = budget
        self._stop = stop
        self._fetch = _SMALL if budget.limits.matches <= 100 else _LARGE
        self._stopped_at: int | None = None
        """The start of the batch before which a limit was reached."""

    def take(self) -> dict[int, _Taken[T]]:
        """Scan a part of every partition."""
        raise NotImplementedError

    def move(self, left: ScanRange, taken: _Taken[T], last: int | None) -> ScanRange:
        """Move a range past what was emitted: up to `last`, or all (None). Return what it passed."""
        raise NotImplementedError

    @property
    def _rows_max(self) -> int:
        matches, missing = self._budget.limits.matches, self._budget.limits.matches - self._budget.matched
        of_all = ROWS_PER_ROUND if matches <= ROWS_MAX else RECORDS_PER_ROUND
        return max(8, min(missing, of_all // max(1, len(self._left))))

    def _ask(self, positions: Mapping[int, int]) -> list[Piece]:
        self._budget.fetched_once = True
        return self._reader.fetch(positions, self._fetch)

    def _aborted(self, piece: Piece) -> list[ScanRange]:
        """Return the offsets of aborted records, which a read_committed scan hides."""
        return [ScanRange(*offsets) for offsets in piece.aborted()] if self._reader.committed else []

    def _opened(self, piece: Piece, begin: int, end: int) -> Iterator[MarkedRecord]:
        """Yield records. Stop before a batch if a limit is reached: batches without matches cost, too."""
        self._stopped_at = None
        budget, reader = self._budget, self._reader
        for header, records in reader.batches(piece, begin, end):
            if budget.opened_once and budget.exceeded() is not None:
                self._stopped_at = max(begin, header.base_offset)
                return
            budget.opened_once = True
            for marked in records:
                budget.records += 1
                yield marked
            budget.records += reader.skipped_records
            reader.skipped_records = 0


class _Forward(_Direction[T]):
    """Oldest first: a round is one fetch."""

    sign = 1

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._pieces: dict[int, Piece] = {}
        self._taken_bytes = 0

    def take(self) -> dict[int, _Taken[T]]:
        # Keep the pieces that the last round did not finish.
        self._pieces = {
            number: piece
            for number, piece in self._pieces.items()
            if self._left[number].size and piece.begin <= self._left[number].begin < piece.next_offset
        }
        positions = {
            number: left.begin
            for number, left in self._left.items()
            if left.size and number not in self._pieces
        }
        if positions:
            for piece in self._ask(positions):
                self._pieces[piece.partition] = piece
        taken: dict[int, _Taken[T]] = {}
        self._taken_bytes = 0
        for number, piece in self._pieces.items():
            if self._taken_bytes < TAKEN_BYTES_MAX:
                left = self._left[number]
                taken[number] = self._take_first(piece, left.begin, left.end)
        return taken

    def _take_first(self, piece: Piece, begin: int, end: int) -> _Taken[T]:
        taken: _Taken[T] = _Taken(covered=min(piece.next_offset, end), aborted=self._aborted(piece))
        most = self._rows_max
        for marked in self._opened(piece, begin, end):
            if self._wanted.matches(marked):
                taken.rows.append((marked.record.timestamp, marked.last_offset, self._make(marked)))
                self._taken_bytes += marked.record.size_bytes
            is_full = len(taken.rows) >= most or self._taken_bytes >= TAKEN_BYTES_MAX
            if is_full or self._budget.is_over():
                taken.covered = min(marked.last_offset + 1, taken.covered)
                break
        if self._stopped_at is not None:
            taken.covered = min(self._stopped_at, taken.covered)
        return taken

    def move(self, left: ScanRange, taken: _Taken[T], last: int | None) -> ScanRange:
        begin = left.begin
        left.begin = max(begin, taken.covered if last is None else last + 1)
        return ScanRange(begin, left.begin)


class _Backward(_Direction[T]):
    """Newest first: a round reads a window before the end of each partition."""

    sign = -1

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._windows = dict.fromkeys(self._left, WINDOW_FIRST)

    def take(self) -> dict[int, _Taken[T]]:
        windows = {
            number: ScanRange(max(left.begin, left.end - self._windows[number]), left.end)
            for number, left in self._left.items()
            if left.size
        }
        if self._budget.is_last_resort:  # Only the last offset of one partition.
            number, window = next(iter(windows.items()))
            windows = {number: ScanRange(window.end - 1, window.end)}
        found = {number: _Window[T](self._rows_max) for number in windows}
        positions = {number: window.begin for number, window in windows.items()}
        while positions and self._budget.exceeded() is None:
            before = dict(positions)
            for piece in self._ask(positions):
                number = piece.partition
                if not self._take_last(piece, windows[number], found[number]):
                    break  # A limit was reached; this window is incomplete.
                self._go_on(piece, windows[number], found[number], positions)
            if positions == before and self._budget.exceeded() is None:
                self._stop.wait(0.05)
            if self._budget.is_last_resort:
                break
        for number in positions:
            del windows[number]  # Incomplete: it will be read again.
        self._resize({number: found[number].size_bytes for number in windows})
        return {number: found[number].taken(window.begin) for number, window in windows.items()}

    def _take_last(self, piece: Piece, window: ScanRange, found: "_Window[T]") -> bool:
        """Take the matches of a piece. False if a limit was reached before its end."""
        found.size_bytes += len(piece.data)
        found.aborted += self._aborted(piece)
        for marked in self._opened(piece, window.begin, window.end):
            if marked.is_unreadable:
                # The rest of its batch is unreadable, too: the next window ends before the batch.
                window.begin = min(window.begin, marked.offset)
            if self._wanted.matches(marked):
                found.add((marked.record.timestamp, marked.offset, self._make(marked)))
            if self._budget.is_over():
                return False
        return self._stopped_at is None

    def _go_on(self, piece: Piece, window: ScanRange, found: "_Window[T]", positions: dict[int, int]) -> None:
        """Continue behind a piece, or begin again with a smaller window if this one holds too much."""
        number = piece.partition
        positions[number] = piece.next_offset
        if piece.next_offset >= window.end:
            del positions[number]
        elif found.size_bytes > WINDOW_BYTES_MAX and window.size > 1:
            fitting = WINDOW_BYTES_MAX // 2 * (piece.next_offset - window.begin) // found.size_bytes
            self._windows[number] = max(1, min(fitting, window.size // 2))
            window.begin = window.end - self._windows[number]
            positions[number] = window.begin
            found.clear()

    def move(self, left: ScanRange, taken: _Taken[T], last: int | None) -> ScanRange:
        end = left.end
        left.end = min(end, taken.covered if last is None else last)
        return ScanRange(left.end, end)

    def _resize(self, sizes: Mapping[int, int]) -> None:
        for number, size in sizes.items():
            if size < WINDOW_BYTES_MAX // 8:
                self._windows[number] = min(WINDOW_MAX, self._windows[number] * 4)
            elif size > WINDOW_BYTES_MAX // 2:
                self._windows[number] = max(1, self._windows[number] // 4)


class _Window(Generic[T]):
    """What was found in a window: its last matches."""

    def __init__(self, rows_max: int) -> None:
        self._rows: deque[tuple[int, int, T]] = deque(maxlen=rows_max)
        self._is_cut = False
        self.aborted: list[ScanRange] = []
        self.size_bytes = 0

    def add(self, row: tuple[int, int, T]) -> None:
        """Add a match; the first one goes if there are too many."""
        self._is_cut = self._is_cut or len(self._rows) == self._rows.maxlen
        self._rows.append(row)

    def clear(self) -> None:
        """Begin again."""
        self._rows.clear()
        self.aborted.clear()
        self._is_cut, self.size_bytes = False, 0

    def taken(self, begin: int) -> _Taken[T]:
        """Return the matches, newest first, and how far back they reach in a window that begins here."""
        return _Taken(list(reversed(self._rows)), self._rows[0][1] if self._is_cut else begin, self.aborted)


class Scan(Generic[T]):
    """One scan. Iterate over `rounds`; then `reason` says why it ended, and `left` where."""

    def __init__(
        self,
        reader: Reader,
        ranges: Mapping[int, ScanRange],
        wanted: Filter,
        make: Callable[[MarkedRecord], T],
        limits: ScanLimits,
        order: Order,
        stop: Stop,
    ) -> None:
        self.left = {number: ScanRange(whole.begin, whole.end) for number, whole in ranges.items()}
        self.reason = Reason.END
        self._reader = reader
        self._stop = stop
        self._budget = Budget(limits, reader, stop)
        direction = _Forward if order is Order.OLDEST else _Backward
        self._direction: _Direction[T] = direction(reader, self.left, wanted, make, self._budget, stop)
        self._total = sum(left.size for left in self.left.values())
        self._hidden = 0

    @property
    def progress(self) -> Progress:
        """How far the scan is now."""
        left = sum(left.size for left in self.left.values())
        return Progress(
            scanned=self._total - left,
            total=self._total,
            records=self._budget.records,
            matched=self._budget.matched,
            hidden=self._hidden,
            read_bytes=self._reader.read_bytes,
            seconds=self._budget.seconds,
        )

    def rounds(self) -> Iterator[list[T]]:
        """Scan, and yield the matches of every round, which may be none."""
        budget = self._budget
        while any(left.size for left in self.left.values()):
            if (reason := budget.exceeded()) is not None:
                if self._is_stuck(reason):
                    budget.is_last_resort = True
                    yield self._emit(self._direction.take())
                self.reason = reason
                return
            before = self.progress.scanned
            yield self._emit(self._direction.take())
            if self.progress.scanned == before and budget.exceeded() is None:
                self._stop.wait(0.1)  # Perhaps a partition has no leader, and the others are done.
        self.reason = Reason.END

    def _is_stuck(self, reason: Reason) -> bool:
        """Whether a limit was reached before any window was complete: continuing would never end."""
        by_cost = reason in (Reason.RECORDS, Reason.BYTES, Reason.TIME)
        is_backward = isinstance(self._direction, _Backward)
        return by_cost and is_backward and self._budget.opened_once and not self.progress.scanned

    def _emit(self, taken: Mapping[int, _Taken[T]]) -> list[T]:
        """Merge by time up to the limit, and move the ranges past what was emitted."""
        sign = self._direction.sign
        streams = [
            [(sign * timestamp, number, offset, row) for timestamp, offset, row in of_partition.rows]
            for number, of_partition in taken.items()
        ]
        rows: list[T] = []
        last: dict[int, int] = {}
        counts: dict[int, int] = dict.fromkeys(taken, 0)
        for _, number, offset, row in heapq.merge(*streams, key=lambda entry: entry[0]):
            if self._budget.matched >= self._budget.limits.matches:
                break
            self._budget.matched += 1
            rows.append(row)
            last[number] = offset
            counts[number] += 1
        for number, of_partition in taken.items():
            self._move(
                number, of_partition, last.get(number), is_whole=counts[number] == len(of_partition.rows)
            )
        return rows

    def _move(self, number: int, taken: _Taken[T], last: int | None, *, is_whole: bool) -> None:
        if not is_whole and last is None:
            return
        passed = self._direction.move(self.left[number], taken, None if is_whole else last)
        # Count only what was passed: what a limit has cut off is read again.
        self._hidden += sum(aborted.shared(passed.begin, passed.end) for aborted in taken.aborted)
