"""Whatever members of a share group do: no record is held by two, none is lost, none comes back once settled.

The model knows for each offset who holds it until when, how often it was delivered, if it is settled, and in
which transaction it was acknowledged. A record whose transaction committed is never delivered again, and one
whose transaction aborted is.
"""

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.examples import examples
from support.models.share_rules import ACCEPT, GAP, KEY, LOCK_MS, REJECT, RELEASE, RENEW, ShareRules

from semel.core.shares.commands import Acknowledge, AcknowledgedRun, AcquireFrom
from semel.core.shares.partition import PENDING
from semel.core.types import ErrorCode, TransactionState

MEMBERS = ("a", "b", "c")
PRODUCERS = ("p", "q")
DELIVERY_LIMIT = 3
LOCKS_MAX = 12


@dataclass
class Seen:
    """What the model knows of a record."""

    deliveries: int = 0
    written: int = 0
    holder: str | None = None
    deadline: int = 0
    is_settled: bool = False
    is_gone: bool = False
    pending: tuple[str, bool] | None = None
    """The producer in whose transaction it was acknowledged, and whether it was accepted."""
    is_flushed: bool = True
    """Whether the acknowledgement in a transaction survives a loss of power."""


class SharesMachine(RuleBasedStateMachine):
    rules: ShareRules  # type: ignore[assignment]  # Hypothesis keeps its own there, which it has read by then

    @initialize()
    def begin(self) -> None:
        self.rules = ShareRules(locks_max=LOCKS_MAX, delivery_limit=DELIVERY_LIMIT)
        self.rules.begin()
        for name in PRODUCERS:
            self.rules.init(name)
        self.flushes = self.rules.flushes
        self.records: list[Seen] = []
        self.late: AcquireFrom | None = None
        self.gone_below = 0

    # What happens.

    @rule(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=3))
    def append(self, sizes: list[int]) -> None:
        self.rules.append(*sizes)
        self.records += [Seen() for _ in range(sum(sizes))]

    @rule(member=st.sampled_from(MEMBERS), count=st.integers(1, 8), is_strict=st.booleans())
    def acquire(self, member: str, count: int, is_strict: bool) -> None:
        read = self.rules.read()
        if read is not None:
            self.take(member, read, count, is_strict)

    @rule()
    def read_for_later(self) -> None:
        """Between the read and the decision of a broker anything may happen."""
        self.late = self.rules.read()

    @precondition(lambda self: self.late is not None)
    @rule(member=st.sampled_from(MEMBERS), count=st.integers(1, 8), is_strict=st.booleans())
    def acquire_late(self, member: str, count: int, is_strict: bool) -> None:
        assert self.late is not None
        self.take(member, self.late, count, is_strict)

    def take(self, member: str, read: AcquireFrom, count: int, is_strict: bool) -> None:
        self.pass_time(0)
        runs = self.rules.take(member, read, count, is_strict=is_strict)
        taken = 0
        for run in runs:
            for offset in range(run.first, run.last + 1):
                seen = self.records[offset]
                assert seen.holder is None, "two members hold the same record"
                assert not seen.is_settled, "a settled record was delivered again"
                assert offset >= self.gone_below, "a deleted record was delivered"
                seen.deliveries += 1
                assert run.deliveries == seen.deliveries
                seen.holder, seen.deadline = member, self.rules.now + LOCK_MS
                taken += 1
        if is_strict:
            assert taken <= count
        unsettled = [at for at, each in enumerate(self.records) if not each.is_settled]
        delivered = [at for at, each in enumerate(self.records) if each.holder is not None]
        if delivered and unsettled:
            assert max(delivered) - max(min(unsettled), self.gone_below) < LOCKS_MAX

    @rule(
        member=st.sampled_from(MEMBERS),
        first=st.integers(0, 40),
        types=st.lists(
            st.sampled_from([ACCEPT, ACCEPT, RELEASE, REJECT, GAP, RENEW]), min_size=1, max_size=6
        ),
    )
    def acknowledge(self, member: str, first: int, types: list[int]) -> None:
        last = first + len(types) - 1
        if last >= len(self.records):
            return
        self.pass_time(0)
        run = AcknowledgedRun(first, last, tuple(types))
        start = max(self.rules.share.start_offset, self.gone_below)
        offsets = [each for each in range(first, last + 1) if each >= start]
        may = all(self.records[each].holder == member for each in offsets)
        answer = self.rules.run(Acknowledge(KEY, member, (run,), self.rules.limits))
        assert (answer is ErrorCode.NONE) == may
        for offset in offsets if may else ():
            seen = self.records[offset]
            kind = types[offset - first] if len(types) > 1 else types[0]
            if kind == RENEW:
                seen.deadline = self.rules.now + LOCK_MS
            elif kind == RELEASE:
                self.let_go(seen)
            else:
                seen.holder, seen.is_settled = None, True

    @rule(
        member=st.sampled_from(MEMBERS),
        producer=st.sampled_from(PRODUCERS),
        first=st.integers(0, 40),
        types=st.lists(st.sampled_from([ACCEPT, ACCEPT, REJECT, GAP]), min_size=1, max_size=6),
        of_own=st.sampled_from([True, True, True, False]),
    )
    def acknowledge_in_transaction(
        self, member: str, producer: str, first: int, types: list[int], of_own: bool
    ) -> None:
        self.pass_time(0)
        held = [at for at, seen in enumerate(self.records) if seen.holder == member]
        if of_own and held:
            first = held[first % len(held)]
            types = [kind for at, kind in enumerate(types) if {*range(first, first + at + 1)} <= {*held}]
        last = first + len(types) - 1
        if last >= len(self.records):
            return
        start = max(self.rules.share.start_offset, self.gone_below)
        kinds = {first + at: kind == ACCEPT for at, kind in enumerate(types)}
        may = first >= start and all(
            self.records[at].holder == member or self.records[at].pending == (producer, is_accepted)
            for at, is_accepted in kinds.items()
        )
        answer = self.rules.in_transaction(member, first, last, *types, name=producer)
        assert answer is (ErrorCode.NONE if may else ErrorCode.INVALID_RECORD_STATE)
        for offset, is_accepted in kinds.items() if may else ():
            seen = self.records[offset]
            if seen.pending is None:
                seen.holder, seen.pending, seen.is_flushed = None, (producer, is_accepted), False

    @rule(producer=st.sampled_from(PRODUCERS), commit=st.booleans())
    def end_transaction(self, producer: str, commit: bool) -> None:
        self.pass_time(0)
        is_open = self.rules.transaction(producer).state is TransactionState.ONGOING
        answer = self.rules.end(producer, commit=commit)
        assert (answer is ErrorCode.NONE) == (is_open or not commit)
        if answer is ErrorCode.NONE:
            self.end_pending(producer, is_commit=commit)

    @rule(producer=st.sampled_from(PRODUCERS))
    def init(self, producer: str) -> None:
        """A new producer takes the id, and aborts what is open."""
        self.pass_time(0)
        self.rules.init(producer)
        self.end_pending(producer, is_commit=False)

    def end_pending(self, producer: str, *, is_commit: bool) -> None:
        self.flush()
        for seen in self.records:
            if seen.pending is None or seen.pending[0] != producer:
                continue
            seen.pending = None
            if is_commit:
                seen.is_settled = True
            else:
                self.let_go(seen)

    @rule()
    def lose_power(self) -> None:
        """What was not flushed is lost, and every open transaction is aborted."""
        self.pass_time(0)
        self.rules.lose_power()
        for seen in self.records:
            if seen.holder is not None or not seen.is_flushed:
                seen.holder, seen.pending, seen.is_flushed = None, None, True
                seen.deliveries = seen.written
        for name in PRODUCERS:
            assert self.rules.transaction(name).state is not TransactionState.ONGOING
            self.end_pending(name, is_commit=False)
            self.rules.init(name)

    def flush(self) -> None:
        self.flushes = self.rules.flushes
        for seen in self.records:
            seen.is_flushed = True

    @rule(member=st.sampled_from(MEMBERS))
    def end_session(self, member: str) -> None:
        self.pass_time(0)
        self.rules.release(member)
        for seen in self.records:
            if seen.holder == member:
                self.let_go(seen)

    @rule(passed_ms=st.sampled_from([1, LOCK_MS // 2, LOCK_MS]), ticks=st.booleans())
    def time_passes(self, passed_ms: int, ticks: bool) -> None:
        self.rules.now += passed_ms
        if ticks:
            self.pass_time(0)

    def pass_time(self, passed_ms: int) -> None:
        self.rules.tick(passed_ms)
        if self.rules.flushes != self.flushes:
            self.flush()
        for seen in self.records:
            if seen.holder is not None and seen.deadline <= self.rules.now:
                self.let_go(seen)

    @rule(count=st.integers(1, 5))
    def delete(self, count: int) -> None:
        self.pass_time(0)
        self.gone_below = min(self.gone_below + count, len(self.records))
        self.rules.delete_below(self.gone_below)
        for seen in self.records[: self.gone_below]:
            seen.holder, seen.is_settled, seen.is_gone, seen.pending = None, True, True, None
        self.rules.look()

    @rule()
    def crash(self) -> None:
        self.pass_time(0)
        self.rules.restart()
        for seen in self.records:
            if seen.holder is not None:
                seen.holder, seen.deliveries = None, seen.written

    def let_go(self, seen: Seen) -> None:
        seen.holder = None
        seen.written = seen.deliveries
        seen.is_settled = seen.is_settled or seen.deliveries >= DELIVERY_LIMIT

    # What holds.

    @invariant()
    def what_is_written_agrees(self) -> None:
        if not hasattr(self, "records"):
            return
        share = self.rules.share
        expected = share.start_offset
        for run in share.runs:
            assert run.first == expected, "runs follow one another"
            expected = run.last + 1
            for offset in range(max(run.first, self.gone_below), run.last + 1):
                seen = self.records[offset]
                is_over = seen.holder is not None and seen.deadline <= self.rules.now
                assert (run.state is PENDING) == (seen.pending is not None)
                assert run.is_settled == seen.is_settled or is_over
        assert not share.runs or not share.runs[0].is_settled
        for seen in self.records[: max(share.start_offset, self.gone_below)]:
            assert seen.is_settled, "a record was lost"

    def teardown(self) -> None:
        """Nothing is lost: in the end everything can be settled."""
        if not hasattr(self, "records"):
            return
        self.pass_time(LOCK_MS)
        for name in PRODUCERS:
            self.rules.init(name)
            self.end_pending(name, is_commit=False)
        while runs := self.rules.acquire("z"):
            for run in runs:
                assert self.rules.acknowledge("z", run.first, run.last, ACCEPT) is ErrorCode.NONE
                for seen in self.records[run.first : run.last + 1]:
                    assert not seen.is_settled
                    seen.is_settled = True
        assert all(seen.is_settled for seen in self.records)
        assert self.rules.share.start_offset == len(self.records)
        assert self.rules.share.runs == ()


TestShares = SharesMachine.TestCase
TestShares.settings = examples(60, stateful_step_count=40)
