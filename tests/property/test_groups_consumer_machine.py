"""Whatever members of a consumer group do: a partition has one owner at a time, and all find one."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.examples import examples
from support.models.group_rules import GROUP, REBALANCE_MS, SESSION_MS, GroupRules

from semel.core.groups.commands import ConsumerAnswer, GroupTick
from semel.core.groups.model import Assignment, ConsumerGroup
from semel.core.types import ErrorCode, GroupKey

NAMES = ["a", "b", "c"]


@dataclass
class Client:
    """A client as KIP-848 wants it: owns what it was told, gives up first, starts again when fenced."""

    name: str
    instance: str | None = None
    epoch: int = 0
    owned: Assignment = frozenset()
    told: Assignment = frozenset()
    """What it should own; it gives the difference up in its own time."""
    has_lost_an_answer: bool = False
    fields: dict[str, Any] = field(default_factory=dict)

    def take(self, answer: ConsumerAnswer) -> None:
        self.has_lost_an_answer = False
        self.epoch = answer.epoch
        if answer.assignment is not None:
            self.told = answer.assignment
        if self.owned <= self.told:
            self.owned = self.told

    def give_up(self) -> None:
        self.owned &= self.told

    def drop(self) -> None:
        self.epoch = 0
        self.owned = self.told = frozenset()
        self.has_lost_an_answer = False


class ConsumerMachine(RuleBasedStateMachine):
    rules: GroupRules  # type: ignore[assignment]  # Hypothesis keeps its own there, which it has read by then

    @initialize(partitions=st.integers(1, 6), assignor=st.sampled_from([None, "range", "uniform"]))
    def begin(self, partitions: int, assignor: str | None) -> None:
        self.rules = GroupRules()
        self.rules.make_topic("t", partitions)
        self.assignor = assignor
        self.clients: dict[str, Client] = {}
        self.epoch = 0

    def beat(self, client: Client, *, is_full: bool = False, is_lost: bool = False) -> None:
        fields: dict[str, Any] = {"instance_id": client.instance, "owned": client.owned}
        if client.epoch == 0 or is_full or client.has_lost_an_answer:
            fields |= {"rebalance_timeout_ms": REBALANCE_MS, "assignor": self.assignor, **client.fields}
        answer = self.rules.beat(client.name, client.epoch, **fields)
        if is_lost:
            client.has_lost_an_answer = True
        elif answer.error is ErrorCode.NONE:
            client.take(answer)
        else:
            assert answer.error in (
                ErrorCode.FENCED_MEMBER_EPOCH,
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.UNRELEASED_INSTANCE_ID,
                ErrorCode.GROUP_ID_NOT_FOUND,
            )
            client.drop()

    @rule(
        name=st.sampled_from(NAMES),
        is_static=st.booleans(),
        is_lost=st.booleans(),
        is_again=st.integers(0, 5),
        topics=st.sampled_from([("t",), ("t",), ("t",), ("t", "u"), ()]),
        regex=st.sampled_from([None, None, None, "[tu]"]),
    )
    def join(
        self,
        name: str,
        is_static: bool,
        is_lost: bool,
        is_again: int,
        topics: tuple[str, ...],
        regex: str | None,
    ) -> None:
        client = self.clients.get(name)
        if client is None:
            client = self.clients[name] = Client(name, f"i-{name}" if is_static else None)
        elif client.epoch and is_again:
            return
        client.drop()
        client.fields = {"topic_names": topics, "topic_regex": regex or ""}
        self.beat(client, is_lost=is_lost)

    @rule(name=st.sampled_from(NAMES), gives_up=st.booleans(), is_lost=st.booleans(), is_full=st.booleans())
    def heartbeat(self, name: str, gives_up: bool, is_lost: bool, is_full: bool) -> None:
        client = self.clients.get(name)
        if client is None:
            return
        if gives_up:
            client.give_up()
        self.beat(client, is_full=is_full, is_lost=is_lost)

    @rule(flags=st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=3, max_size=3))
    def everyone_beats(self, flags: list[tuple[bool, int]]) -> None:
        for client, (gives_up, luck) in zip(list(self.clients.values()), flags, strict=False):
            if gives_up:
                client.give_up()
            self.beat(client, is_lost=luck == 0)
            self.a_partition_has_one_owner()

    @rule(name=st.sampled_from(NAMES))
    def leave(self, name: str) -> None:
        client = self.clients.pop(name, None)
        if client is not None:
            self.rules.beat(client.name, -1, instance_id=client.instance)

    @rule(name=st.sampled_from(NAMES))
    def leave_for_a_moment(self, name: str) -> None:
        client = self.clients.get(name)
        if client is not None and client.instance is not None:
            client.drop()
            self.rules.beat(client.name, -2, instance_id=client.instance)

    @rule(partitions=st.integers(0, 6), topic=st.sampled_from("tu"))
    def change_topic(self, partitions: int, topic: str) -> None:
        if partitions == 0:
            self.rules.topics.pop(topic, None)
        else:
            self.rules.make_topic(topic, partitions)

    @rule(passed=st.sampled_from([1, 1, 1_000, SESSION_MS // 2, SESSION_MS, REBALANCE_MS]))
    def pass_time(self, passed: int) -> None:
        self.rules.tick(passed)
        members = self.group.members if self.group else {}
        for client in self.clients.values():
            # A client whose session is over gives up by itself: it knows the time, too.
            if client.name not in members:
                client.drop()

    @rule()
    def restart(self) -> None:
        self.rules.restart()
        self.rules.run(GroupTick((GROUP,), SESSION_MS))

    @precondition(lambda self: self.clients)
    @rule()
    def settle(self) -> None:
        """When all do as they are told, the group gets stable and every partition has an owner."""
        self.rules.now += 3_000
        for _ in range(12):
            for client in self.clients.values():
                client.give_up()
                self.beat(client, is_full=True)
        group = self.group
        assert group is not None
        away = [member for member in group.members.values() if member.epoch == -2]
        strangers = set(group.members) - set(self.clients)
        if away or strangers:
            return
        if all(client.epoch for client in self.clients.values()):
            assert group.state_name == "Stable"
            owned = frozenset().union(*(client.owned for client in self.clients.values()))
            wanted = frozenset().union(*(group.subscription(member) for member in group.members.values()))
            assert owned == {
                (shape.topic_id, index)
                for name, shape in self.rules.topics.items()
                if name in wanted
                for index in range(shape.partitions)
            }

    @property
    def group(self) -> ConsumerGroup | None:
        found = self.rules.state.groups.get(GroupKey(GROUP))
        assert found is None or isinstance(found, ConsumerGroup)
        return found

    @invariant()
    def a_partition_has_one_owner(self) -> None:
        owned = [each for client in self.clients.values() for each in client.owned]
        assert len(owned) == len(set(owned))
        if self.group:
            members = self.group.members.values()
            held = [each for member in members for each in member.assigned | member.revoking]
            assert len(held) == len(set(held))

    @invariant()
    def epochs_only_rise(self) -> None:
        group = self.group
        if group is None:
            return
        assert group.epoch >= self.epoch
        self.epoch = group.epoch
        assert group.target_epoch <= group.epoch
        for member in group.members.values():
            assert member.epoch <= group.target_epoch
            assert set(group.target) == set(group.members)

    @invariant()
    def nobody_is_forgotten(self) -> None:
        session = self.rules.state.sessions.get(GROUP)
        members = set(self.group.members) if self.group else set()
        assert set(session.deadlines if session else ()) == members
        if session:
            assert set(session.rebalance_deadlines) <= members
            assert session.next_deadline_ms <= session.but(next_deadline_ms=-1).settled().next_deadline_ms

    def teardown(self) -> None:
        if hasattr(self, "clients"):
            self.rules.tick(SESSION_MS)
            assert self.rules.state.sessions == {}
            assert not (self.group and self.group.members)


ConsumerMachine.TestCase.settings = examples(40, stateful_step_count=40)
TestConsumerMachine = ConsumerMachine.TestCase
