"""ConsumerTurn: a consumer group and its session while one command is decided.

It replaces values and never changes them, so the state it read is unaffected; ``decision`` derives the facts
by comparison. If the last member of the consumer protocol leaves in this turn and only members of the classic
protocol remain, ``decision`` makes the group a classic one (``migration``).
"""

from collections.abc import Collection

from semel.core.facts import Put, SessionChanged
from semel.core.groups.classic_rebalance import ClassicTurn
from semel.core.groups.layered import drop, put
from semel.core.groups.migration import NO_MIGRATION, Migration, to_classic
from semel.core.groups.model import NOTHING, ConsumerGroup, ConsumerMember, Group
from semel.core.groups.session import Session, begin
from semel.core.types import Answer, Decision, Fact, Ticket


class ConsumerTurn:
    """One command on a consumer group while it is decided."""

    def __init__(
        self,
        group: ConsumerGroup,
        session: Session | None,
        now: int,
        session_timeout_ms: int,
        migration: Migration = NO_MIGRATION,
    ) -> None:
        self._group_before: Group = group
        self._session_before = session
        self.group = group
        self.session = begin(group, now, session_timeout_ms) if session is None else session
        self.now = now
        self.migration = migration
        self.replies: list[tuple[Ticket, Answer]] = []
        self._has_lost_members = False

    def convert_from(self, group: Group, session: Session | None) -> None:
        """Set the state before this turn: a group of another protocol that was converted, and its session."""
        self._group_before, self._session_before = group, session

    def decision(self, answer: object) -> Decision:
        """Return the decision."""
        if self.must_become_classic:
            classic = self.become_classic()
            classic.rebalance()
            return classic.decision(answer)
        return Decision(answer, self.facts(), replies=tuple(self.replies))

    def facts(self) -> tuple[Fact, ...]:
        """Return what changed."""
        facts: list[Fact] = []
        if self.group is not self._group_before and self.group != self._group_before:
            facts.append(Put.of(self.group))
        if self.session.is_idle:
            if self._session_before is not None:
                facts.append(SessionChanged(self.group.group_id, None))
        elif self.session is not self._session_before:
            facts.append(SessionChanged(self.group.group_id, self.session))
        return tuple(facts)

    # Members.

    def put_member(self, before: ConsumerMember | None, member: ConsumerMember) -> None:
        """Add a member, or replace the one with the same id."""
        if before is not None and before.classic is None and member.classic is not None:
            # It uses the classic protocol from now on.
            self._has_lost_members = True
        if member != before:
            self.session = self.session.counting(before, member)
            self.group = self.group.but(members=put(self.group.members, member.member_id, member))

    def replace_static(self, older: ConsumerMember, member_id: str) -> ConsumerMember:
        """Give the place and partitions of a static member to its new id."""
        group = self.group
        member = older.but(member_id=member_id)
        target = dict(drop(group.target, (older.member_id,)))
        if older.member_id in group.target:
            target[member_id] = group.target[older.member_id]
        members = put(drop(group.members, (older.member_id,)), member_id, member)
        self.group = group.but(members=members, target=target)
        self.session = self.session.without((older.member_id,)).counting(older, member)
        self._has_lost_members = True
        return member

    def remove_members(self, member_ids: Collection[str]) -> None:
        """Remove members. Their partitions become free, and the next heartbeat sees a new epoch."""
        group = self.group
        members = drop(group.members, member_ids)
        self.group = group.but(
            epoch=group.epoch + 1,
            members=members,
            target=drop(group.target, member_ids),
            topics=group.topics if members else NOTHING,
            regex_matches=group.regex_matches if members else NOTHING,
            idle_since_ms=group.idle_since_ms if members else self.now,
        )
        session = self.session.without(member_ids).but(subscribed=None)
        for member_id in member_ids:
            session = session.counting(group.members.get(member_id), None)
        self.session = session
        self._has_lost_members = True

    def pass_time(self) -> None:
        """Remove members whose session expired, or that did not take their next step in time."""
        session = self.session
        # Member ids may be promised to clients that join with the classic protocol.
        overdue = [each for each, deadline in session.promised.items() if deadline <= self.now]
        if overdue:
            self.session = session.without(overdue)
        lost = {each for each, deadline in session.deadlines.items() if deadline <= self.now}
        lost.update(each for each, deadline in session.rebalance_deadlines.items() if deadline <= self.now)
        if lost:
            self.remove_members(lost)
        self.session = self.session.settled()

    # Deadlines.

    def heard(self, member_id: str, session_timeout_ms: int) -> None:
        """Extend the session of a member."""
        self.session = self.session.heard(member_id, self.now + session_timeout_ms)

    def note_connection(self, member_id: str, connection_id: int) -> bool:
        """Record the connection of a heartbeat. Returns whether it differs from that of the previous one."""
        if self.session.connections.get(member_id) == connection_id:
            return False
        connections = put(self.session.connections, member_id, connection_id)
        self.session = self.session.but(connections=connections)
        return True

    def start_rebalance_deadline(self, member: ConsumerMember) -> None:
        """Give a member its rebalance timeout for its next step."""
        deadline_ms = self.now + member.rebalance_timeout_ms
        self.session = self.session.but(
            rebalance_deadlines=put(self.session.rebalance_deadlines, member.member_id, deadline_ms),
            next_deadline_ms=min(self.session.next_deadline_ms, deadline_ms),
        )

    def clear_rebalance_deadline(self, member_id: str) -> None:
        """Clear the rebalance deadline of a member, which took its step."""
        deadlines = drop(self.session.rebalance_deadlines, (member_id,))
        if deadlines is not self.session.rebalance_deadlines:
            self.session = self.session.but(rebalance_deadlines=deadlines)

    # The way to the classic protocol.

    @property
    def must_become_classic(self) -> bool:
        """Whether only members of the classic protocol remain, and the policy allows a downgrade."""
        members = self.group.members
        return (
            self._has_lost_members
            and self.migration.may_downgrade(len(members))
            and all(member.classic is not None for member in members.values())
        )

    def become_classic(self) -> ClassicTurn:
        """Make the group a classic one. The caller starts its rebalance."""
        classic = ClassicTurn(to_classic(self.group), None, self.now)
        classic.convert_from(self._group_before, self._session_before)
        classic.replies.extend(self.replies)
        return classic
