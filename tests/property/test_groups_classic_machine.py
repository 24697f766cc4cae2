"""Whatever members of a classic group do: nobody waits for ever, and generations only rise."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule
from support.examples import examples
from support.models.group_rules import GROUP, REBALANCE_MS, SESSION_MS, GroupRules, subscription

from semel.core.groups.commands import GroupTick, LeavingMember
from semel.core.groups.model import ClassicGroup, ClassicState
from semel.core.groups.session import NEVER, NEW_MEMBER_TIMEOUT_MS, GroupSession
from semel.core.types import ErrorCode, GroupKey

PROTOCOLS = [
    (("range", subscription("t")),),
    (("sticky", subscription("t")), ("range", subscription("t"))),
    (("range", subscription("t", "u")), ("sticky", b"")),
]


class ClassicMachine(RuleBasedStateMachine):
    rules: GroupRules  # type: ignore[assignment]  # Hypothesis keeps its own there, which it has read by then
    members: Bundle[str] = Bundle("members")

    @initialize(delay=st.sampled_from([0, 3_000]))
    def begin(self, delay: int) -> None:
        self.rules = GroupRules()
        self.delay = delay
        self.generation = 0
        self.state = ClassicState.EMPTY
        self.named = 0

    def _name(self) -> str:
        self.named += 1
        return f"m{self.named}"

    @rule(target=members)
    def ask_for_an_id(self) -> str:
        name = self._name()
        answer = self.rules.join(new=name)
        assert answer.error in (ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        return name

    @rule(target=members, instance=st.sampled_from([None, "A", "B"]), protocols=st.sampled_from(PROTOCOLS))
    def join_new(self, instance: str | None, protocols: Any) -> str:
        name = self._name()
        self.rules.join(
            new=name,
            instance_id=instance,
            protocols=protocols,
            requires_member_id=False,
            initial_delay_ms=self.delay,
        )
        return name

    @rule(
        member=members, protocols=st.sampled_from(PROTOCOLS), instance=st.sampled_from([None, None, "A", "B"])
    )
    def join(self, member: str, protocols: Any, instance: str | None) -> None:
        self.rules.join(member, protocols=protocols, instance_id=instance, initial_delay_ms=self.delay)

    @rule(member=members, back=st.integers(0, 1))
    def sync(self, member: str, back: int) -> None:
        group = self.group
        assignments = {name: name.encode() for name in group.members} if group else {}
        self.rules.sync(member, self.generation - back, assignments)

    @rule(member=members, back=st.integers(0, 1))
    def heartbeat(self, member: str, back: int) -> None:
        writes = self.rules.writes
        error = self.rules.heartbeat(member, self.generation - back)
        assert self.rules.writes == writes
        if error is ErrorCode.NONE:
            assert self.group is not None
            assert member in self.group.members
            assert not back

    @rule(member=consumes(members), instance=st.sampled_from([None, None, "A"]))
    def leave(self, member: str, instance: str | None) -> None:
        left = self.rules.leave(LeavingMember(member, instance))
        if left.members[0][1] is ErrorCode.NONE and self.group:
            assert member not in self.group.members

    @rule(instance=st.sampled_from(["A", "B"]))
    def remove_static(self, instance: str) -> None:
        self.rules.leave(LeavingMember("", instance))

    @rule(passed=st.sampled_from([1, 1_000, SESSION_MS - 1, SESSION_MS, REBALANCE_MS]))
    def pass_time(self, passed: int) -> None:
        self.rules.tick(passed)

    @rule(target=members)
    def restart(self) -> Any:
        self.rules.restart()
        self.rules.run(GroupTick((GROUP,)))
        return multiple()

    @property
    def group(self) -> ClassicGroup | None:
        found = self.rules.state.groups.get(GroupKey(GROUP))
        assert found is None or isinstance(found, ClassicGroup)
        return found

    @property
    def session(self) -> GroupSession:
        return self.rules.state.sessions.get(GROUP) or GroupSession()

    @invariant()
    def generations_only_rise(self) -> None:
        group = self.group
        if group is not None:
            assert group.generation >= self.generation
            if group.state is ClassicState.COMPLETING and self.state is not ClassicState.COMPLETING:
                assert group.generation > self.generation, "two generations with one number"
            self.generation, self.state = group.generation, group.state

    @invariant()
    def state_and_members_agree(self) -> None:
        group = self.group
        if group is None:
            return
        assert (group.state is ClassicState.EMPTY) == (not group.members)
        assert group.leader in group.members if group.members else group.leader is None
        if group.state in (ClassicState.STABLE, ClassicState.COMPLETING):
            assert all(
                any(name == group.protocol_name for name, _ in member.protocols)
                for member in group.members.values()
            )
        instances = [each.instance_id for each in group.members.values() if each.instance_id]
        assert len(instances) == len(set(instances))
        if group.state is not ClassicState.STABLE:
            return
        for member_id, member in group.members.items():
            assert member.assignment in (b"", member_id.encode()) or member.instance_id

    @invariant()
    def all_who_wait_are_known(self) -> None:
        session = self.session
        assert {*session.joins.values(), *session.syncs.values()} == self.rules.waiting
        group = self.group
        state = group.state if group else ClassicState.EMPTY
        assert not session.joins or state is ClassicState.PREPARING
        assert not session.syncs or state is ClassicState.COMPLETING

    @invariant()
    def nobody_is_forgotten(self) -> None:
        session = self.session
        members = self.group.members if self.group else {}
        watched = {*session.deadlines, *session.joins, *session.syncs}
        assert watched == set(members)
        assert not set(session.promised) & set(members)
        if session.joins:
            assert session.rebalance_deadline_ms != NEVER
        if session.syncs:
            assert session.sync_deadline_ms != NEVER
        assert session.next_deadline_ms <= session.but(next_deadline_ms=-1).settled().next_deadline_ms

    def teardown(self) -> None:
        if not hasattr(self, "named"):
            return
        # Everyone falls silent: all who wait are answered, the group empties and leaves memory.
        for _ in range(12):
            self.rules.tick(max(REBALANCE_MS, NEW_MEMBER_TIMEOUT_MS))
        assert self.rules.waiting == set()
        assert self.rules.state.sessions == {}
        assert self.group is None or self.group.state is ClassicState.EMPTY


ClassicMachine.TestCase.settings = examples(50, stateful_step_count=40)
TestClassicMachine = ClassicMachine.TestCase
