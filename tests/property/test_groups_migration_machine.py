"""Members of both protocols in one group: a partition has one owner at a time, and all find one.

Classic members are modelled after the Java client: eager ones give everything up before they join, and
cooperative ones give up what a new assignment takes from them and join again. The leader of a classic group
assigns.
"""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.examples import examples
from support.models.group_rules import GROUP, REBALANCE_MS, SESSION_MS, GroupRules, subscription

from semel.client.consume.membership import assign_range
from semel.core.groups.commands import ConsumerAnswer, GroupTick, Joined, LeavingMember, Synced
from semel.core.groups.model import Assignment, ClassicGroup, ConsumerGroup, Group
from semel.core.types import ErrorCode, GroupKey
from semel.wire.consumer_protocol import decode_assignment, decode_subscription, encode_assignment

NAMES = ["a", "b", "c"]
NOTHING: Assignment = frozenset()


@dataclass
class Client:
    """A process with one consumer, which speaks one of the protocols."""

    name: str
    rules: GroupRules
    instance: str | None
    is_classic: bool
    is_cooperative: bool = False
    starts: int = 0
    member_id: str = ""
    number: int = 0
    """Generation or epoch."""
    owned: Assignment = NOTHING
    told: Assignment = NOTHING
    ticket: int | None = None
    is_joined: bool = False
    is_synced: bool = False
    members: dict[str, dict[str, Any]] = field(default_factory=dict)
    """As leader: the others."""

    def start(self) -> None:
        self.starts += 1
        self.member_id = "" if self.is_classic else f"{self.name}-{self.starts}"
        self.drop()

    def drop(self) -> None:
        self.number = 0
        self.owned = self.told = NOTHING
        self.ticket = None
        self.is_joined = self.is_synced = False

    def step(self) -> None:
        """What the client does next."""
        if not self.is_classic:
            self._beat()
        elif self.ticket is not None:
            if self.ticket in self.rules.answers:
                self._take(self.rules.answers.pop(self.ticket))
            elif self.ticket not in self.rules.waiting:
                # The connection broke.
                self.ticket = None
                self.is_joined = False
        elif not self.is_joined:
            self._join()
        elif not self.is_synced:
            self._sync()
        else:
            self._heartbeat()

    # The consumer protocol.

    def _beat(self) -> None:
        self.owned &= self.told
        fields: dict[str, Any] = {"instance_id": self.instance, "owned": self.owned}
        fields |= {"rebalance_timeout_ms": REBALANCE_MS, "topic_names": ("t",)}
        answer = self.rules.beat(self.member_id, self.number, **fields)
        assert isinstance(answer, ConsumerAnswer)
        if answer.error is not ErrorCode.NONE:
            self.drop()
            return
        self.number = answer.epoch
        if answer.assignment is not None:
            self.told = answer.assignment
        if self.owned <= self.told:
            self.owned = self.told

    # The classic protocol.

    def _join(self) -> None:
        if not self.is_cooperative:
            self.owned = NOTHING
        partitions = sorted(partition for _, partition in self.owned)
        data = subscription("t", owned={"t": partitions} if partitions else {})
        answer = self.rules.join(
            self.member_id,
            new=f"{self.name}-{self.starts}-{self.rules.tickets}",
            instance_id=self.instance,
            protocols=(("cooperative-sticky" if self.is_cooperative else "range", data),),
        )
        self._take(answer)

    def _take(self, answer: Any) -> None:
        if isinstance(answer, int):
            self.ticket = answer
            return
        self.ticket = None
        if isinstance(answer, Synced):
            self._synced(answer)
            return
        assert isinstance(answer, Joined)
        if answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        elif answer.error is ErrorCode.NONE:
            self.member_id = answer.member_id
            self.number = answer.generation
            self.is_joined, self.is_synced = True, False
            self.members = {
                each.member_id: decode_subscription(each.metadata).owned for each in answer.members
            }
        elif answer.error is not ErrorCode.REBALANCE_IN_PROGRESS:
            self.drop()
            self.member_id = ""

    def _sync(self) -> None:
        assignments = self._assign() if self.members else {}
        self.members = {}
        self._take(self.rules.sync(self.member_id, self.number, assignments, instance_id=self.instance))

    def _assign(self) -> dict[str, bytes]:
        shape = self.rules.topics["t"]
        shares = assign_range({each: ["t"] for each in self.members}, {"t": shape.partitions})
        owner = {
            partition: member for member, owned in self.members.items() for partition in owned.get("t", [])
        }
        return {
            # A cooperative assignor gives nobody what another one has not given up.
            member: encode_assignment(
                {"t": [p for p in share.get("t", []) if owner.get(p, member) == member]}
            )
            for member, share in shares.items()
        }

    def _synced(self, answer: Synced) -> None:
        if answer.error is not ErrorCode.NONE:
            self._called_back(answer.error)
            return
        topic_id = self.rules.topics["t"].topic_id
        numbers = decode_assignment(answer.assignment).get("t", [])
        told = frozenset((topic_id, number) for number in numbers)
        gives_up = bool(self.owned - told)
        self.owned = told
        self.is_synced = True
        # A cooperative member joins again when it has given something up.
        self.is_joined = not gives_up

    def _heartbeat(self) -> None:
        error = self.rules.heartbeat(self.member_id, self.number, self.instance)
        if error is not ErrorCode.NONE:
            self._called_back(error)

    def _called_back(self, error: ErrorCode) -> None:
        self.is_joined = False
        if error is ErrorCode.REBALANCE_IN_PROGRESS:
            if not self.is_cooperative:
                self.owned = NOTHING
            return
        assert error in (
            ErrorCode.ILLEGAL_GENERATION,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.FENCED_INSTANCE_ID,
        )
        self.owned = NOTHING
        if error is not ErrorCode.ILLEGAL_GENERATION:
            self.member_id = ""

    def leave(self) -> None:
        if self.is_classic:
            if self.member_id and self.instance is None:
                self.rules.leave(LeavingMember(self.member_id))
        else:
            self.rules.beat(self.member_id, -1 if self.instance is None else -2, instance_id=self.instance)
        self.drop()


class MigrationMachine(RuleBasedStateMachine):
    rules: GroupRules  # type: ignore[assignment]  # Hypothesis keeps its own there, which it has read by then

    @initialize(partitions=st.integers(1, 6), is_cooperative=st.booleans())
    def begin(self, partitions: int, is_cooperative: bool) -> None:
        self.rules = GroupRules()
        self.rules.make_topic("t", partitions)
        self.is_cooperative = is_cooperative
        self.clients: dict[str, Client] = {}
        self.number = 0

    @rule(name=st.sampled_from(NAMES), is_static=st.booleans(), is_classic=st.booleans())
    def start(self, name: str, is_static: bool, is_classic: bool) -> None:
        if name not in self.clients:
            instance = f"i-{name}" if is_static else None
            client = Client(name, self.rules, instance, is_classic, self.is_cooperative)
            client.start()
            self.clients[name] = client
            client.step()

    @rule(name=st.sampled_from(NAMES), steps=st.integers(1, 4))
    def step(self, name: str, steps: int) -> None:
        for _ in range(steps):
            if name in self.clients:
                self.clients[name].step()

    @rule(rounds=st.integers(1, 4))
    def everyone_steps(self, rounds: int) -> None:
        for _ in range(rounds):
            for client in self.clients.values():
                client.step()
                self.a_partition_has_one_owner()

    @rule(name=st.sampled_from(NAMES), is_clean=st.booleans(), switches=st.booleans())
    def restart_client(self, name: str, is_clean: bool, switches: bool) -> None:
        """A rolling upgrade or downgrade: a process ends or is killed, and starts with another protocol."""
        client = self.clients.get(name)
        if client is None:
            return
        if is_clean:
            client.leave()
        client.is_classic ^= switches
        client.start()

    @rule(name=st.sampled_from(NAMES))
    def leave(self, name: str) -> None:
        client = self.clients.pop(name, None)
        if client is not None:
            client.leave()

    @rule(partitions=st.integers(1, 6))
    def grow_topic(self, partitions: int) -> None:
        if partitions > self.rules.topics["t"].partitions:
            self.rules.make_topic("t", partitions)

    @rule(passed=st.sampled_from([1, 1_000, SESSION_MS // 2, SESSION_MS, REBALANCE_MS]))
    def pass_time(self, passed: int) -> None:
        self.rules.tick(passed)
        members = self.group.members if self.group else {}
        for client in self.clients.values():
            # A client whose session is over gives up by itself: it knows the time, too.
            if client.member_id not in members:
                client.owned = client.told = NOTHING

    @rule()
    def crash(self) -> None:
        self.rules.restart()
        self.rules.run(GroupTick((GROUP,), SESSION_MS))

    @precondition(lambda self: self.clients)
    @rule()
    def settle(self) -> None:
        """When all go on for long enough, the group is stable and every partition has an owner."""
        for _ in range(60):
            self.rules.tick(400)
            for client in self.clients.values():
                client.step()
                self.a_partition_has_one_owner()
        group = self.group
        assert group is not None
        if set(group.members) != {client.member_id for client in self.clients.values()}:
            # A static member, or one that was killed: its session is not over.
            return
        assert isinstance(group, ClassicGroup) == all(each.is_classic for each in self.clients.values())
        assert group.state_name == "Stable"
        owned = [partition for client in self.clients.values() for _, partition in client.owned]
        if isinstance(group, ConsumerGroup):
            assert sorted(owned) == list(range(self.rules.topics["t"].partitions))
        else:
            # The leader of a classic group has to look at the topics by itself.
            assert len(owned) == len(set(owned))

    @property
    def group(self) -> Group | None:
        return self.rules.state.groups.get(GroupKey(GROUP))

    @invariant()
    def a_partition_has_one_owner(self) -> None:
        owned = [each for client in self.clients.values() for each in client.owned]
        assert len(owned) == len(set(owned))
        if isinstance(self.group, ConsumerGroup):
            members = self.group.members.values()
            held = [each for member in members for each in member.assigned | member.revoking]
            assert len(held) == len(set(held))
            for member in members:
                dated = [each for some in member.since.values() for each in some]
                assert len(dated) == len(set(dated))
                assert member.assigned | member.revoking <= set(dated)

    @invariant()
    def numbers_only_rise(self) -> None:
        group = self.group
        if isinstance(group, ClassicGroup | ConsumerGroup):
            number = group.generation if isinstance(group, ClassicGroup) else group.epoch
            assert number >= self.number
            self.number = number

    @invariant()
    def nobody_is_forgotten(self) -> None:
        session = self.rules.state.sessions.get(GROUP)
        if isinstance(self.group, ConsumerGroup):
            members = set(self.group.members)
            assert set(session.deadlines if session else ()) == members
            if session:
                assert set(session.rebalance_deadlines) <= members
                classic = [each.classic for each in self.group.members.values() if each.classic]
                names = [name for each in classic for name, _ in each.protocols]
                counted = {name: count for name, count in session.protocols.items() if count}
                assert counted == {name: names.count(name) for name in set(names)}
        if session:
            assert session.next_deadline_ms <= session.but(next_deadline_ms=-1).settled().next_deadline_ms

    def teardown(self) -> None:
        if hasattr(self, "clients"):
            for _ in range(3):
                self.rules.tick(REBALANCE_MS)
            assert self.rules.state.sessions == {}
            assert not (self.group and self.group.members)
            assert not self.rules.waiting


MigrationMachine.TestCase.settings = examples(60, few=30, stateful_step_count=40)
TestMigrationMachine = MigrationMachine.TestCase
