"""The rules of delivery (KIP-932): which member gets which record, for how long, and with what outcome.

A record is *available*, or *acquired* by one member until its lock ends, or settled: *acknowledged* if a
member accepted it, *archived* if it was rejected, was delivered too often, or does not exist. A lock ends
when the member acknowledges the record, when the member's share session ends, or when the lock times out.
Every delivery counts, however its lock ends. A record that was acknowledged inside a transaction is *pending*
until the transaction ends (``pending``).

Invariants:

- A lock covers records that are available in the durable part, or that come after it. Pending records have
  no lock.
- Runs and locks together cover every offset from the start to the last delivered one.
- A settled record never becomes available again, unless an administrator moves the start offset.

``ShareTurn`` holds a share-partition and its locks while a command is decided. It first catches up with the
clock and the log: it ends overdue locks and drops offsets below the log start.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from semel.core.facts import Put, ShareLocksChanged
from semel.core.shares import commands
from semel.core.shares.partition import (
    ACKNOWLEDGED,
    ARCHIVED,
    AVAILABLE,
    PENDING,
    UNSTARTED,
    Free,
    FreeRanges,
    Lock,
    Locks,
    PendingAcknowledgement,
    Run,
    SharePartition,
    covers,
    cut,
    free,
    put,
    settle,
    unlocked,
    within,
)
from semel.core.types import Decision, ErrorCode, Fact, Partition, ShareKey

if TYPE_CHECKING:
    from semel.core.state import BrokerState

_GONE = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class ShareTurn:
    """One share-partition while a command is decided. Replaces values and never changes them."""

    def __init__(
        self, key: ShareKey, share: SharePartition, log: Partition, locks: Locks | None, now: int
    ) -> None:
        self.key = key
        self._share_before = share
        self.share = share
        self.log = log
        self.now = now
        is_void = locks is None or locks.epoch != share.epoch
        self.locks: list[Lock] = [] if locks is None or is_void else list(locks.locks)
        self.delivery_limit = 1 if locks is None else locks.delivery_limit
        self._is_changed = is_void and locks is not None
        if share.start_offset != UNSTARTED:
            self._forget_deleted()
            self._end_overdue()

    @property
    def end_offset(self) -> int:
        """One past the last record that was delivered."""
        return max(self.share.end_offset, self.locks[-1].last + 1 if self.locks else 0)

    def _forget_deleted(self) -> None:
        start = self.log.log_start_offset
        if start <= self.share.start_offset:
            return
        start, runs = settle(cut(self.share.runs, start), start)
        self.share = self.share.but(start_offset=start, runs=runs)
        if self.locks and self.locks[0].first < start:
            self._set_locks(unlocked(self.locks, (Run(0, start - 1, ARCHIVED),)))

    def _end_overdue(self) -> None:
        overdue = [each for each in self.locks if each.deadline_ms <= self.now]
        if overdue:
            self.release(overdue)

    def _set_locks(self, locks: list[Lock]) -> None:
        self.locks = locks
        self._is_changed = True

    def acquire(self, locks: list[Lock]) -> None:
        """Lock records that are free."""
        if locks:
            self._set_locks(sorted([*self.locks, *locks], key=_first))

    def release(self, locks: Iterable[Lock]) -> None:
        """End locks. The records become available, or archived if they were delivered too often."""
        self.change([self.released(each) for each in locks])

    def released(self, lock: Lock) -> Run:
        """Return the new state of the records of a lock that ends."""
        state = AVAILABLE if lock.deliveries < self.delivery_limit else ARCHIVED
        return Run(lock.first, lock.last, state, lock.deliveries)

    def change(self, runs: list[Run]) -> None:
        """Give records new states, in the order of their offsets, and end their locks."""
        if runs:
            self.share = put(self.share, runs)
            self._set_locks(unlocked(self.locks, runs))
            self._settle()

    def suspended(self, lock: Lock, producer_id: int, *, is_accepted: bool) -> Run:
        """Return the records of a lock as pending until a producer's transaction ends."""
        is_last = lock.deliveries >= self.delivery_limit
        pending = PendingAcknowledgement(producer_id, is_accepted, is_last, lock.member_id)
        return Run(lock.first, lock.last, PENDING, lock.deliveries, pending)

    def renew(self, locks: list[Lock], deadline_ms: int) -> None:
        """Extend locks, or parts of them."""
        if locks:
            renewed = [each.but(deadline_ms=deadline_ms) for each in locks]
            self._set_locks(sorted([*unlocked(self.locks, locks), *renewed], key=_first))

    def _settle(self) -> None:
        start, runs = settle(self.share.runs, self.share.start_offset)
        self.share = self.share.but(start_offset=start, runs=runs)

    def facts(self) -> tuple[Fact, ...]:
        """Return what changed."""
        facts: list[Fact] = []
        if self.share != self._share_before:
            facts.append(Put(self.key, self.share))
        if self._is_changed:
            locks = Locks.of(self.share.epoch, self.delivery_limit, self.locks)
            facts.append(ShareLocksChanged(self.key, locks))
        return tuple(facts)


def _first(lock: Lock) -> int:
    return lock.first


def turn_of(state: "BrokerState", key: ShareKey, now: int) -> ShareTurn | None:
    """Return the share-partition for a decision; None if it does not exist."""
    share, log = state.shares[key], state.partitions[key.partition]
    if share is None or log is None:
        return None
    return ShareTurn(key, share, log, state.share_locks.get(key), now)


def decide_start(state: "BrokerState", command: commands.StartShare, now: int) -> Decision:
    """Set the start offset, if there is none."""
    share, log = state.shares[command.key], state.partitions[command.key.partition]
    if share is None or log is None:
        return Decision(_GONE)
    if share.start_offset != UNSTARTED:
        return Decision(ErrorCode.NONE)
    offset = max(command.offset, log.log_start_offset)
    return Decision(ErrorCode.NONE, (Put(command.key, share.but(start_offset=offset)),))


def decide_look(state: "BrokerState", command: commands.FindAcquirable, now: int) -> Decision:
    """Find the first available record."""
    turn = turn_of(state, command.key, now)
    if turn is None:
        return Decision(commands.Acquirable(_GONE))
    start = turn.share.start_offset
    if start == UNSTARTED:
        return Decision(commands.Acquirable(ErrorCode.NONE, is_started=False))
    end = turn.end_offset
    available = free(turn.share, turn.locks, start, end - 1)
    offset: int | None = None
    if available:
        offset = available[0].first
    elif end - start < command.limits.locks_max:
        offset = end
    return Decision(commands.Acquirable(ErrorCode.NONE, offset=offset), turn.facts())


def decide_acquire(state: "BrokerState", command: commands.Acquire, now: int) -> Decision:
    """Lock records for a member, partition by partition, until it has as many as it requested."""
    left = command.records_max
    answers: list[commands.Acquired] = []
    facts: list[Fact] = []
    for read in command.reads:
        turn = turn_of(state, read.key, now)
        if turn is None or turn.share.start_offset == UNSTARTED:
            answers.append(commands.Acquired(_GONE))
            continue
        runs = _acquire(turn, command, read, left) if left > 0 else []
        left -= sum(each.last + 1 - each.first for each in runs)
        answers.append(commands.Acquired(ErrorCode.NONE, tuple(runs)))
        facts += turn.facts()
    return Decision(tuple(answers), tuple(facts))


def _acquire(
    turn: ShareTurn, command: commands.Acquire, read: commands.AcquireFrom, records_max: int
) -> list[commands.AcquiredRun]:
    limits = command.limits
    turn.delivery_limit = limits.delivery_limit
    start = turn.share.start_offset
    bound = max(start + limits.locks_max, turn.end_offset)
    deadline_ms = turn.now + limits.lock_ms
    # Compaction may have removed more offsets than may be in flight.
    reach = max(bound, read.batches[-1].first) if read.batches else bound
    available = FreeRanges(free(turn.share, turn.locks, max(read.offset, start), reach - 1))
    acquired: list[commands.AcquiredRun] = []
    locks: list[Lock] = []
    archived: list[Run] = []
    count = 0
    expected = read.offset
    for batch in read.batches:
        first, last = max(batch.first, read.offset, start), min(batch.last, bound - 1)
        if count >= records_max:
            break
        if expected < batch.first and expected <= bound:
            # Compaction has removed these records.
            archived += _archived(available.within(max(expected, start), batch.first - 1))
        if batch.first >= bound:
            break
        expected = batch.last + 1
        if first > last:
            continue
        if batch.first in read.aborted:
            archived += _archived(available.within(first, last))
            continue
        for each in available.within(first, last):
            end = min(each.last, each.first + records_max - count - 1) if command.is_strict else each.last
            if end < each.first:
                break
            locks.append(Lock(each.first, end, command.member_id, each.deliveries + 1, deadline_ms))
            _add(acquired, commands.AcquiredRun(each.first, end, each.deliveries + 1), command.batch_size)
            count += end + 1 - each.first
    turn.acquire(locks)
    turn.change(archived)
    return acquired


def _archived(free_: list[Free]) -> list[Run]:
    return [Run(each.first, each.last, ARCHIVED) for each in free_]


def _add(acquired: list[commands.AcquiredRun], run: commands.AcquiredRun, batch_size: int) -> None:
    """Add a run, or extend the previous one while that is shorter than the batch size of the client."""
    if acquired:
        before = acquired[-1]
        if (
            before.last + 1 == run.first
            and before.deliveries == run.deliveries
            and before.last + 1 - before.first < batch_size
        ):
            acquired[-1] = before.but(last=run.last)
            return
    acquired.append(run)


def decide_acknowledge(state: "BrokerState", command: commands.Acknowledge, now: int) -> Decision:
    """Settle, release or renew what a member has acquired; all of it or nothing."""
    turn = turn_of(state, command.key, now)
    if turn is None or turn.share.start_offset == UNSTARTED:
        return Decision(_GONE)
    turn.delivery_limit = command.limits.delivery_limit
    start = turn.share.start_offset
    changes: list[Run] = []
    renewed: list[Lock] = []
    for first, last, kind in all_ranges(command.runs):
        # Records that were deleted from the log or settled in the meantime need no acknowledgement.
        first = max(first, start)
        if first <= last:
            held = within(turn.locks, first, last)
            is_mine = all(each.member_id == command.member_id for each in held)
            if not is_mine or not covers(((each.first, each.last) for each in held), first, last):
                return Decision(ErrorCode.INVALID_RECORD_STATE)
            if kind == commands.AcknowledgeType.RENEW:
                renewed += held
            elif kind == commands.AcknowledgeType.RELEASE:
                changes += map(turn.released, held)
            else:
                is_accepted = kind == commands.AcknowledgeType.ACCEPT
                changes.append(Run(first, last, ACKNOWLEDGED if is_accepted else ARCHIVED))
    turn.renew(renewed, now + command.limits.lock_ms)
    turn.change(changes)
    return Decision(ErrorCode.NONE, turn.facts())


def all_ranges(runs: Iterable[commands.AcknowledgedRun]) -> Iterator[tuple[int, int, int]]:
    """Return the offsets of runs as ranges of the same type, in their order and without an overlap."""
    after = -1
    for run in runs:
        for first, last, kind in _ranges(run):
            if max(first, after) <= last:
                yield max(first, after), last, kind
                after = last + 1


def _ranges(run: commands.AcknowledgedRun) -> list[tuple[int, int, int]]:
    """Return the offsets of a run as ranges of the same type."""
    if len(run.types) == 1:
        return [(run.first, run.last, run.types[0])]
    ranges: list[tuple[int, int, int]] = []
    for offset, kind in enumerate(run.types, run.first):
        if ranges and ranges[-1][2] == kind:
            ranges[-1] = (ranges[-1][0], offset, kind)
        else:
            ranges.append((offset, offset, kind))
    return ranges


def decide_release(state: "BrokerState", command: commands.ReleaseMember, now: int) -> Decision:
    """End all locks of a member."""
    turn = turn_of(state, command.key, now)
    if turn is None:
        return Decision(False)
    mine = [each for each in turn.locks if each.member_id == command.member_id]
    if mine:
        turn.release(mine)
    return Decision(bool(mine), turn.facts())


def decide_tick(state: "BrokerState", command: commands.ShareTick, now: int) -> Decision:
    """End the locks whose time is over."""
    due = [key for key, locks in state.share_locks.items() if locks.next_deadline_ms <= now]
    facts: list[Fact] = []
    for key in due:
        turn = turn_of(state, key, now)
        facts += (ShareLocksChanged(key, None),) if turn is None else turn.facts()
    return Decision(tuple(due), tuple(facts))


def decide_read(state: "BrokerState", command: commands.ReadShares, now: int) -> Decision:
    """Return start offsets, the number of settled records after them, and high watermarks."""
    return Decision(tuple(_read(state, key, now) for key in command.shares))


def _read(state: "BrokerState", key: ShareKey, now: int) -> commands.ReadShare | None:
    turn = turn_of(state, key, now)
    if turn is None:
        return None
    return commands.ReadShare(turn.share.start_offset, turn.share.settled, turn.log.high_watermark)


def apply_locks(state: "BrokerState", fact: ShareLocksChanged) -> None:
    """Store the locks, or remove them."""
    if fact.locks is None:
        state.share_locks.pop(fact.key, None)
    else:
        state.share_locks[fact.key] = fact.locks
