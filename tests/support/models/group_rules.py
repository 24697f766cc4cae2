"""Helpers for tests of groups: a state that decides and applies, a clock, and the answers to tickets."""

import struct
from collections.abc import Iterable
from typing import Any

from semel.core.facts import DURABLE, GroupDeleted, Put
from semel.core.groups.commands import (
    ConsumerAnswer,
    ConsumerHeartbeat,
    GroupTick,
    Heartbeat,
    Joined,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    Left,
    ReadSubscriptions,
    Synced,
    SyncGroup,
    TopicsNeeded,
)
from semel.core.groups.migration import Migration
from semel.core.groups.model import ClassicGroup, ConsumerGroup, Group, TopicShape, unpack_group
from semel.core.names import NamePattern
from semel.core.state import BrokerState
from semel.core.types import PARKED, Command, Decision, ErrorCode, GroupKey
from semel.wire.consumer_protocol import encode_assignment

SESSION_MS = 10_000
REBALANCE_MS = 60_000
GROUP = "g"


def subscription(*topics: str, owned: dict[str, list[int]] | None = None) -> bytes:
    """Build a ConsumerProtocolSubscription of version 1; without ``owned``, only the beginning of it."""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    data = struct.pack(">hi", 1, len(topics)) + names
    if owned is not None:
        # An assignment of version 0 has the same format between its version and its user data.
        data += struct.pack(">i", -1) + encode_assignment(owned)[2:-4]
    return data


class GroupRules:
    """Decides and applies like the commit loop. Checks invariants of every decision."""

    def __init__(self, migration: Migration = Migration()) -> None:  # noqa: B008
        self.migration = migration
        self.state = BrokerState(migration=migration)
        self.now = 1_000_000
        self.tickets = 0
        self.waiting: set[int] = set()
        self.answers: dict[int, Any] = {}
        self.writes = 0
        """The number of durable facts so far."""
        self.ledger: dict[str, Group] = {}
        """The groups as they were last written."""
        self.topics: dict[str, TopicShape] = {}

    # The commit loop.

    def run(self, command: Command[Any]) -> Any:
        for key in self.state.missing(command.keys()):
            self.state.put(key, None)
        before = self._snapshot()
        decision = self.state.decide(command, self.now)
        assert self._snapshot() == before, "decide changed the state"
        self._apply(command, decision)
        return decision.answer

    def _snapshot(self) -> str:
        return repr((self.state.groups, self.state.sessions, self.state.offsets))

    def _apply(self, command: Command[Any], decision: Decision) -> None:
        for fact in decision.facts:
            self.state.apply(fact)
            self.writes += type(fact) in DURABLE
            if isinstance(fact, Put) and isinstance(fact.value, Group):
                assert unpack_group(fact.value.kind, fact.value.pack()) == fact.value
                self.ledger[fact.value.group_id] = fact.value
            elif isinstance(fact, GroupDeleted):
                self.ledger.pop(fact.group_id, None)
        if decision.answer is PARKED:
            self.waiting.add(command.ticket)  # type: ignore[attr-defined]
        for ticket, answer in decision.replies:
            self.waiting.remove(ticket)
            self.answers[ticket] = answer

    def restart(self) -> None:
        """Kill the broker: groups in the ledger are loaded again, sessions and waits are lost."""
        self.state = BrokerState(migration=self.migration)
        for group_id, group in self.ledger.items():
            self.state.put(GroupKey(group_id), unpack_group(group.kind, group.pack()))
        self.waiting.clear()

    def tick(self, passed_ms: int = 0) -> None:
        self.now += passed_ms
        self.run(GroupTick())

    def group(self, group_id: str = GROUP) -> Group:
        found = self.state.groups[GroupKey(group_id)]
        assert found is not None
        return found

    @property
    def classic(self) -> ClassicGroup:
        group = self.group()
        assert isinstance(group, ClassicGroup)
        return group

    @property
    def consumer(self) -> ConsumerGroup:
        group = self.group()
        assert isinstance(group, ConsumerGroup)
        return group

    # The classic protocol.

    def join(self, member_id: str = "", *, new: str = "", **fields: Any) -> Any:
        """Return the answer, or the ticket if the command is parked."""
        self.tickets += 1
        defaults: dict[str, Any] = {
            "group_id": GROUP,
            "member_id": member_id,
            "instance_id": None,
            "protocol_type": "consumer",
            "protocols": (("range", subscription("t")),),
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "client_id": "client",
            "client_host": "/host",
            "ticket": self.tickets,
            "new_member_id": new or f"new-{self.tickets}",
            "initial_delay_ms": 0,
        }
        command = JoinGroup(**{**defaults, **fields})
        answer = self.run(command)
        if isinstance(answer, TopicsNeeded):
            command = command.but(topics={name: self.topics.get(name) for name in answer.names})
            answer = self.run(command)
        return command.ticket if answer is PARKED else answer

    def sync(
        self, member_id: str, generation: int, assignments: dict[str, bytes] | None = None, **fields: Any
    ) -> Any:
        """Return the answer, or the ticket if the command is parked."""
        self.tickets += 1
        defaults: dict[str, Any] = {
            "group_id": GROUP,
            "generation": generation,
            "member_id": member_id,
            "instance_id": None,
            "protocol_type": None,
            "protocol_name": None,
            "assignments": assignments or {},
            "ticket": self.tickets,
        }
        command = SyncGroup(**{**defaults, **fields})
        answer = self.run(command)
        return command.ticket if answer is PARKED else answer

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None = None) -> ErrorCode:
        answer = self.run(Heartbeat(GROUP, generation, member_id, instance_id))
        assert isinstance(answer, ErrorCode)
        return answer

    def leave(self, *members: str | LeavingMember) -> Left:
        leaving = tuple(LeavingMember(each) if isinstance(each, str) else each for each in members)
        answer = self.run(LeaveGroup(GROUP, leaving))
        assert isinstance(answer, Left)
        return answer

    def joined(self, ticket: int) -> Joined:
        answer = self.answers[ticket]
        assert isinstance(answer, Joined)
        return answer

    def synced(self, ticket: int) -> Synced:
        answer = self.answers[ticket]
        assert isinstance(answer, Synced)
        return answer

    def enter(self, name: str) -> Any:
        """Join as KIP-394 requires: get a member id, join with it; return the second answer or ticket."""
        promised = self.join(new=name)
        assert promised.error is ErrorCode.MEMBER_ID_REQUIRED
        return self.join(promised.member_id)

    def stable(self, *names: str, assigned: dict[str, list[int]] | None = None) -> int:
        """Form a stable group of these members, led by the first; return its generation.

        ``assigned`` gives each member's partitions of the topic "t".
        """
        self.enter(names[0])
        for name in names[1:]:
            self.enter(name)
        if names[1:]:
            self.join(names[0])
        generation = self.classic.generation
        for name in names[1:]:
            self.sync(name, generation)
        given = {name: name.encode() for name in names}
        if assigned is not None:
            given = {name: encode_assignment({"t": assigned[name]}) for name in names}
        self.sync(names[0], generation, given)
        assert self.classic.state_name == "Stable"
        return generation

    # The consumer protocol.

    def make_topic(self, name: str, partitions: int) -> bytes:
        topic_id = name.encode().ljust(16, b".")
        self.topics[name] = TopicShape(topic_id, partitions)
        return topic_id

    def beat(self, member_id: str, epoch: int, **fields: Any) -> ConsumerAnswer:
        """Send a heartbeat, with topics looked up as the handler does."""
        wanted = self.run(ReadSubscriptions(GROUP))
        regexes = set(wanted.regexes)
        if fields.get("topic_regex"):
            regexes.add(fields["topic_regex"])
        matches = {regex: self._matching(regex) for regex in regexes}
        names: set[str] = set(wanted.topic_names).union(fields.get("topic_names") or (), *matches.values())
        command = ConsumerHeartbeat(
            GROUP,
            member_id,
            epoch,
            topics={name: self.topics.get(name) for name in names},
            regex_matches=matches,
            session_timeout_ms=SESSION_MS,
            **fields,
        )
        answer = self.run(command)
        assert isinstance(answer, ConsumerAnswer)
        return answer

    def consumer_join(self, member_id: str, *topics: str, **fields: Any) -> ConsumerAnswer:
        defaults: dict[str, Any] = {
            "rebalance_timeout_ms": REBALANCE_MS,
            "topic_names": topics or ("t",),
            "owned": frozenset(),
        }
        return self.beat(member_id, 0, **{**defaults, **fields})

    def _matching(self, regex: str) -> tuple[str, ...]:
        pattern = NamePattern(regex)
        return tuple(sorted(name for name in self.topics if pattern.matches(name)))


def indexes(owned: Iterable[tuple[bytes, int]] | None) -> list[int]:
    """The partition numbers of an assignment."""
    assert owned is not None
    return sorted(partition for _, partition in owned)
