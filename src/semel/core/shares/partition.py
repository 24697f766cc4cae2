"""A share-partition: what a share group has done with the records of one partition (KIP-932).

The durable part, ``SharePartition``, has a start offset and *runs* of offsets in the same state. Everything
below the start is settled. The runs follow one another without a gap. According to the durable part, nothing
after the last run was ever delivered.

The volatile part, ``Locks``, says which member has acquired which of the available records, and until when.
It is not written: the locks of a member end with its connection, and a crash of the broker ends all
connections. So acquiring costs no flush, and acquired records are available again after a crash.

An acknowledgement inside a transaction is written, and makes its records *pending*: they are neither locked
nor available until the transaction ends (ADR 0048).

The functions here change runs and locks at given offsets. ``semel.core.shares.delivery`` decides which.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import islice
from typing import Final, TypeAlias

from semel.core.data import Data

UNSTARTED: Final = -1
"""The start offset of a share-partition from which no member has fetched."""
NEVER: Final = 2**63 - 1


class RecordState(IntEnum):
    """The state of a record, with Kafka's numbers. A record that is acquired is AVAILABLE and locked."""

    AVAILABLE = 0
    ACKNOWLEDGED = 2
    ARCHIVED = 4
    PENDING = 16
    """Semel's own: acknowledged in a transaction that is open."""


AVAILABLE: Final = RecordState.AVAILABLE
ACKNOWLEDGED: Final = RecordState.ACKNOWLEDGED
ARCHIVED: Final = RecordState.ARCHIVED
PENDING: Final = RecordState.PENDING


class PendingAcknowledgement(Data):
    """The next state of pending records: how a commit and an abort of their transaction change them."""

    producer_id: int
    is_accepted: bool
    """If true, a commit makes the records acknowledged; if false, archived."""
    is_last: bool
    """If true, an abort makes the records archived, because they were delivered too often; if false,
    available."""
    member_id: str
    """The member that acknowledged the records. Only it may repeat that."""


class Run(Data):
    """Offsets in the same state, which were delivered equally often."""

    first: int
    last: int
    state: RecordState
    deliveries: int = 0
    """Without the current delivery of a locked record, which is not written. 0 if the run is settled."""
    pending: PendingAcknowledgement | None = None

    @property
    def is_settled(self) -> bool:
        """Whether the records are never delivered again."""
        return self.state is ACKNOWLEDGED or self.state is ARCHIVED


class SharePartition(Data):
    """The durable part of a share-partition."""

    start_offset: int = UNSTARTED
    epoch: int = 0
    """Locks of another epoch are void. The first epoch is the time of creation, so that it differs from that
    of a deleted share-partition; the epoch is bumped when an administrator moves the start offset."""
    runs: tuple[Run, ...] = ()

    @property
    def end_offset(self) -> int:
        """One past the last run."""
        return self.runs[-1].last + 1 if self.runs else self.start_offset

    @property
    def settled(self) -> int:
        """How many records after the start offset are settled."""
        return sum(each.last + 1 - each.first for each in self.runs if each.is_settled)


class Lock(Data):
    """Records that a member has acquired."""

    first: int
    last: int
    member_id: str
    deliveries: int
    """Including this one."""
    deadline_ms: int


Offsets: TypeAlias = Run | Lock
"""A range of offsets."""


class Locks(Data):
    """All acquired records of a share-partition, in the order of their offsets."""

    epoch: int
    """The epoch of the share-partition. Locks of another epoch are void."""
    delivery_limit: int
    """How often a record is delivered at most, as of the last acquisition."""
    locks: tuple[Lock, ...]
    next_deadline_ms: int = NEVER

    @classmethod
    def of(cls, epoch: int, delivery_limit: int, locks: Sequence[Lock]) -> "Locks | None":
        """Return these locks; None if there are none."""
        if not locks:
            return None
        return cls(epoch, delivery_limit, tuple(locks), min(each.deadline_ms for each in locks))


def settle(runs: Sequence[Run], start_offset: int) -> tuple[int, tuple[Run, ...]]:
    """Return the new start offset and the runs after it: settled runs at the start are dropped."""
    first = next((at for at, each in enumerate(runs) if not each.is_settled), len(runs))
    return runs[first - 1].last + 1 if first else start_offset, tuple(runs[first:])


def cut(runs: Iterable[Run], below: int) -> list[Run]:
    """Return the parts of runs at and after an offset."""
    return [each if each.first >= below else each.but(first=below) for each in runs if each.last >= below]


def put(share: SharePartition, changes: Iterable[Run]) -> SharePartition:
    """Return the share-partition with changed runs, which are in offset order and may lie after its last run.

    One pass over the old and the new runs: a member may settle ten thousand records at once.
    """
    runs = list(share.runs)
    changed: list[Run] = []
    at, end = 0, share.end_offset
    for fresh in changes:
        while at < len(runs) and runs[at].last < fresh.first:
            changed.append(runs[at])
            at += 1
        if at < len(runs) and runs[at].first < fresh.first:
            changed.append(runs[at].but(last=fresh.first - 1))
        if fresh.first > end:
            # Another member has locked these offsets. A delivery is not written while its lock lasts.
            changed.append(Run(end, fresh.first - 1, AVAILABLE, 0))
        changed.append(fresh.but(deliveries=0) if fresh.is_settled else fresh)
        end = max(end, fresh.last + 1)
        while at < len(runs) and runs[at].last <= fresh.last:
            at += 1
        if at < len(runs) and runs[at].first <= fresh.last:
            runs[at] = runs[at].but(first=fresh.last + 1)
    return share.but(runs=_joined([*changed, *runs[at:]]))


def _joined(runs: Iterable[Run]) -> tuple[Run, ...]:
    joined: list[Run] = []
    for each in runs:
        if joined and joined[-1].but(first=each.first, last=each.last) == each:
            joined[-1] = joined[-1].but(last=each.last)
        else:
            joined.append(each)
    return tuple(joined)


def covers(ranges: Iterable[tuple[int, int]], first: int, last: int) -> bool:
    """Whether these ranges of offsets, which do not overlap, make up exactly the offsets first to last."""
    expected = first
    for begin, end in sorted(ranges):
        if begin != expected:
            return False
        expected = end + 1
    return expected == last + 1


def end_pending(share: SharePartition, producer_id: int, *, is_commit: bool) -> SharePartition:
    """Return the share-partition after the end of a producer's transaction: itself if nothing was pending."""
    if not any(each.pending is not None and each.pending.producer_id == producer_id for each in share.runs):
        return share
    ended = _joined(_ended(each, producer_id, is_commit=is_commit) for each in share.runs)
    start, runs = settle(ended, share.start_offset)
    return share.but(start_offset=start, runs=runs)


def _ended(run: Run, producer_id: int, *, is_commit: bool) -> Run:
    pending = run.pending
    if pending is None or pending.producer_id != producer_id:
        return run
    if is_commit:
        return Run(run.first, run.last, ACKNOWLEDGED if pending.is_accepted else ARCHIVED)
    if pending.is_last:
        return Run(run.first, run.last, ARCHIVED)
    return Run(run.first, run.last, AVAILABLE, run.deliveries)


class Free(Data):
    """Offsets that can be acquired, and how often they were delivered."""

    first: int
    last: int
    deliveries: int


def free(share: SharePartition, locks: Iterable[Lock], first: int, last: int) -> list[Free]:
    """Return the offsets of a range that are available and not locked."""
    wanted = [
        Free(max(each.first, first), min(each.last, last), each.deliveries)
        for each in share.runs
        if each.state is AVAILABLE and each.last >= first and each.first <= last
    ]
    if last >= share.end_offset:
        wanted.append(Free(max(first, share.end_offset), last, 0))
    held = [each for each in locks if each.last >= first and each.first <= last]
    found: list[Free] = []
    at = 0
    for each in wanted:
        begin = each.first
        while at < len(held) and held[at].last < begin:
            at += 1
        nth = at
        while nth < len(held) and held[nth].first <= each.last:
            if held[nth].first > begin:
                found.append(each.but(first=begin, last=held[nth].first - 1))
            begin = held[nth].last + 1
            nth += 1
        if begin <= each.last:
            found.append(each.but(first=begin))
    return found


class FreeRanges:
    """Free offsets, queried range by range in ascending order."""

    def __init__(self, free_: list[Free]) -> None:
        self._free = free_
        self._at = 0

    def within(self, first: int, last: int) -> list[Free]:
        """Return the free parts of a range, which must not begin before the last queried one."""
        while self._at < len(self._free) and self._free[self._at].last < first:
            self._at += 1
        found: list[Free] = []
        for each in islice(self._free, self._at, None):
            if each.first > last:
                break
            found.append(each.but(first=max(each.first, first), last=min(each.last, last)))
        return found


def unlocked(locks: Sequence[Lock], ranges: Iterable[Offsets]) -> list[Lock]:
    """Return the locks without the offsets of these ranges, which are in ascending order."""
    left: list[Lock] = []
    rest = list(locks)
    at = 0
    for each in ranges:
        while at < len(rest) and rest[at].last < each.first:
            left.append(rest[at])
            at += 1
        while at < len(rest) and rest[at].first <= each.last:
            lock = rest[at]
            if lock.first < each.first:
                left.append(lock.but(last=each.first - 1))
            if lock.last > each.last:
                rest[at] = lock.but(first=each.last + 1)
                break
            at += 1
    return [*left, *rest[at:]]


def within(locks: Sequence[Lock], first: int, last: int) -> list[Lock]:
    """Return the parts of the locks that lie in a range."""
    found: list[Lock] = []
    at = bisect_left(locks, first, key=_last)
    while at < len(locks) and locks[at].first <= last:
        each = locks[at]
        found.append(each.but(first=max(each.first, first), last=min(each.last, last)))
        at += 1
    return found


def _last(lock: Lock) -> int:
    return lock.last
