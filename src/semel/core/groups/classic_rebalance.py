"""The rebalance of a classic group: the steps that all classic commands share.

A rebalance has two phases. *Joining*: every member sends JoinGroup and waits. When all have, or when the
rebalance timeout has passed, the next generation starts, a protocol is chosen by vote, and all are answered.
*Syncing*: the leader computes assignments and sends them with SyncGroup; the others wait for them. The first
rebalance of an empty group waits for more members to join (the initial delay).

``ClassicTurn`` holds the group and the session while one command is decided. It replaces values and never
changes them, so the state it read is unaffected; ``decision`` derives the facts by comparison.

A member always has a deadline, or a parked join, or a parked sync (newcomers with a parked join have a
deadline too). So every member is eventually heard from, answered, or removed.

Next: ``classic_members`` uses these steps.
"""

from collections import Counter
from collections.abc import Collection, Mapping

from semel.core.facts import GroupGathered, Put, SessionChanged
from semel.core.groups import model
from semel.core.groups.commands import Joined, JoinedMember, LeavingMember, Synced
from semel.core.groups.layered import drop, put
from semel.core.groups.session import NEVER, NEW_MEMBER_TIMEOUT_MS, GroupSession, begin
from semel.core.shares.group import ShareGroup
from semel.core.types import PARKED, Answer, Decision, ErrorCode, Fact, Ticket


def as_classic(group_id: str, group: model.Group | None) -> model.ClassicGroup:
    """Return the group as a classic one: itself, a new one, or an empty consumer group converted.

    Generations continue from the epoch, so that a number which a client has seen is never reused.
    """
    if group is None:
        return model.ClassicGroup(group_id)
    if isinstance(group, model.ConsumerGroup | ShareGroup):
        return model.ClassicGroup(group_id, generation=group.epoch, idle_since_ms=group.idle_since_ms)
    return group


class ClassicTurn:
    """One command on a classic group while it is decided."""

    def __init__(self, group: model.ClassicGroup, session: GroupSession | None, now: int) -> None:
        self._group_before: model.Group = group
        self._session_before = session
        self.group = group
        self.session = begin(group, now, 0) if session is None else session
        self.now = now
        self.replies: list[tuple[Ticket, Answer]] = []
        self._has_replaced = False

    def convert_from(self, group: model.Group, session: GroupSession | None) -> None:
        """Set the state before this turn: a group of another protocol that was converted, and its session."""
        self._group_before, self._session_before = group, session

    def decision(self, answer: Answer, ticket: Ticket | None = None) -> Decision:
        """Return the decision. A request parked and answered in the same step is answered directly."""
        replies = tuple(self.replies)
        if answer is PARKED:
            for waiting, reply in replies:
                if waiting == ticket:
                    answer = reply
            replies = tuple(each for each in replies if each[0] != ticket)
        return Decision(answer, self._facts(), replies=replies)

    def _facts(self) -> tuple[Fact, ...]:
        facts: list[Fact] = []
        if self.group is not self._group_before and self.group != self._group_before:
            facts.append(GroupGathered(self.group) if self._is_gathering() else Put.of(self.group))
        group_id = self.group.group_id
        if self.session.is_idle:
            if self._session_before is not None:
                facts.append(SessionChanged(group_id, None))
        elif self.session is not self._session_before:
            facts.append(SessionChanged(group_id, self.session))
        return tuple(facts)

    def _is_gathering(self) -> bool:
        """Whether only members of an unannounced generation changed.

        The new id of a static member that rejoined is visible to other members, so it is written.
        """
        before = self._group_before
        if not isinstance(before, model.ClassicGroup) or self._has_replaced:
            return False
        return before.state is model.ClassicState.PREPARING is self.group.state

    # Members.

    def heard(self, member_id: str) -> None:
        """Extend the deadline of a member."""
        member = self.group.members[member_id]
        if member_id in self.session.deadlines:
            self.session = self.session.heard(member_id, self.now + member.session_timeout_ms)

    def put_member(self, member: model.ClassicMember) -> None:
        """Add a member, or replace the one with the same id."""
        group = self.group
        self.session = self.session.counting(group.members.get(member.member_id), member)
        self.group = group.but(
            members=put(group.members, member.member_id, member), leader=group.leader or member.member_id
        )

    def park_join(self, member_id: str, ticket: Ticket) -> None:
        """Park a member's JoinGroup until the next generation. It replaces an older one of the member."""
        session = self.session
        self._reply(session.joins.get(member_id), Joined(ErrorCode.REBALANCE_IN_PROGRESS, member_id))
        session = session.but(
            joins=put(session.joins, member_id, ticket), promised=drop(session.promised, (member_id,))
        )
        if member_id in session.newcomers:
            session = session.heard(member_id, self.now + NEW_MEMBER_TIMEOUT_MS)
        else:
            session = session.but(deadlines=drop(session.deadlines, (member_id,)))
        self.session = session

    def remove_members(self, member_ids: Collection[str]) -> None:
        """Remove members; their parked requests get UNKNOWN_MEMBER_ID, and they may join again."""
        session = self.session
        for member_id in member_ids:
            self._reply(session.joins.get(member_id), Joined(ErrorCode.UNKNOWN_MEMBER_ID, member_id))
            self._reply(session.syncs.get(member_id), Synced(ErrorCode.UNKNOWN_MEMBER_ID))
        session = session.without(member_ids)
        for member_id in member_ids:
            session = session.counting(self.group.members.get(member_id), None)
        self.session = session
        members = drop(self.group.members, member_ids)
        leader = self.group.leader
        if leader not in members:
            leader = next(iter(members), None)
        self.group = self.group.but(members=members, leader=leader)

    def replace_static(self, old_id: str, member: model.ClassicMember) -> None:
        """Replace a static member that rejoined under a new id; the old id is fenced (KIP-345)."""
        session = self.session
        self._reply(session.joins.get(old_id), Joined(ErrorCode.FENCED_INSTANCE_ID, old_id))
        self._reply(session.syncs.get(old_id), Synced(ErrorCode.FENCED_INSTANCE_ID))
        group = self.group
        self.session = session.without((old_id,)).counting(group.members[old_id], member)
        self._has_replaced = True
        members = {
            (member.member_id if each == old_id else each): (member if each == old_id else value)
            for each, value in group.members.items()
        }
        leader = member.member_id if group.leader == old_id else group.leader
        self.group = group.but(members=members, leader=leader)

    def _reply(self, ticket: Ticket | None, answer: Joined | Synced) -> None:
        if ticket is not None:
            self.replies.append((ticket, answer))

    # Phases.

    def rebalance(self, initial_delay_ms: int = 0) -> None:
        """Start a rebalance, or continue the current one."""
        if self.group.state is model.ClassicState.PREPARING:
            self.complete_if_all_joined()
            return
        is_initial = self.group.state is model.ClassicState.EMPTY
        if self.group.state is model.ClassicState.COMPLETING:
            self._call_back_syncs()
        self.group = self.group.but(state=model.ClassicState.PREPARING)
        self.session = self.session.but(sync_deadline_ms=NEVER, unsynced=model.NOTHING)
        if not is_initial:
            self._await_joins()
            self.complete_if_all_joined()
            return
        self.session = self.session.but(
            rebalance_deadline_ms=self.now + initial_delay_ms,
            initial_delay_ms=initial_delay_ms,
            initial_remaining_ms=max(rebalance_timeout_ms(self.group) - initial_delay_ms, 0),
            grew=False,
        ).settled()
        if initial_delay_ms <= 0:
            self.complete_join()

    def _await_joins(self) -> None:
        self.session = self.session.but(
            rebalance_deadline_ms=self.now + rebalance_timeout_ms(self.group), initial_remaining_ms=-1
        ).settled()

    def _call_back_syncs(self) -> None:
        """Drop all assignments and make all members rejoin: the leader's assignment is no longer accepted."""
        group = self.group
        members = {member_id: member.but(assignment=b"") for member_id, member in group.members.items()}
        self.group = group.but(members=members)
        deadlines = dict(self.session.deadlines)
        for member_id, ticket in self.session.syncs.items():
            self._reply(ticket, Synced(ErrorCode.REBALANCE_IN_PROGRESS))
            deadlines[member_id] = self.now + group.members[member_id].session_timeout_ms
        self.session = self.session.but(syncs={}, deadlines=deadlines)

    def complete_if_all_joined(self) -> None:
        """End the joining phase early, unless the initial delay is still running."""
        session = self.session
        if self.group.state is not model.ClassicState.PREPARING:
            return
        if not self.group.members:
            self.complete_join()
            return
        if session.initial_remaining_ms >= 0:
            return
        # A client with a promised member id is about to join. Completing without it would cause another
        # rebalance.
        if not session.promised and all(member_id in session.joins for member_id in self.group.members):
            self.complete_join()

    def end_initial_delay(self) -> None:
        """End the initial delay, or extend it within the rebalance timeout while members keep joining."""
        session = self.session
        if not session.grew or session.initial_remaining_ms <= 0:
            self.complete_join()
            return
        delay = min(session.initial_delay_ms, session.initial_remaining_ms)
        self.session = session.but(
            rebalance_deadline_ms=self.now + delay,
            initial_remaining_ms=max(session.initial_remaining_ms - session.initial_delay_ms, 0),
            grew=False,
        ).settled()

    def complete_join(self) -> None:
        """End the joining phase: start the next generation and answer all parked joins."""
        joins = self.session.joins
        away = [each for each in self.group.members.values() if each.member_id not in joins]
        self.remove_members([each.member_id for each in away if each.instance_id is None])
        if self.group.members and self.group.leader not in self.session.joins:
            joined = next((each for each in self.group.members if each in self.session.joins), None)
            if joined is None:
                # Only absent static members remain. They rejoin, or their sessions expire.
                self._await_joins()
                return
            self.group = self.group.but(leader=joined)
        self.session = self.session.but(rebalance_deadline_ms=NEVER, initial_remaining_ms=-1, grew=False)
        if self.group.members:
            self._begin_generation()
        else:
            self._become_empty()
        self.session = self.session.settled()

    def _become_empty(self) -> None:
        self.group = self.group.but(
            state=model.ClassicState.EMPTY,
            generation=self.group.generation + 1,
            protocol_name=None,
            leader=None,
            idle_since_ms=self.now,
        )

    def _begin_generation(self) -> None:
        group = self.group = self.group.but(
            state=model.ClassicState.COMPLETING,
            generation=self.group.generation + 1,
            protocol_name=select_protocol(self.group),
            members=_without_epochs(self.group.members),
        )
        session = self.session
        deadlines = dict(session.deadlines)
        for member_id, ticket in session.joins.items():
            self.replies.append((ticket, self.joined(member_id)))
            deadlines[member_id] = self.now + group.members[member_id].session_timeout_ms
        self.session = session.but(
            deadlines=deadlines,
            joins={},
            newcomers=model.NOTHING,
            unsynced=dict.fromkeys(group.members, True),
            sync_deadline_ms=self.now + rebalance_timeout_ms(group),
        )

    def joined(self, member_id: str) -> Joined:
        """Return the answer that describes the current generation to a member."""
        group = self.group
        members: tuple[JoinedMember, ...] = ()
        if member_id == group.leader:
            members = tuple(
                JoinedMember(each.member_id, each.instance_id, each.metadata(group.protocol_name))
                for each in group.members.values()
            )
        return Joined(
            ErrorCode.NONE,
            member_id,
            group.generation,
            group.protocol_type,
            group.protocol_name,
            group.leader or "",
            members=members,
        )


def _without_epochs(members: Mapping[str, model.ClassicMember]) -> Mapping[str, model.ClassicMember]:
    """Drop the member epochs: from the first generation after a migration, all members use the generation."""
    if all(member.epoch < 0 for member in members.values()):
        return members
    return {member_id: member.but(epoch=-1) for member_id, member in members.items()}


def rebalance_timeout_ms(group: model.ClassicGroup) -> int:
    """Return the maximum duration of a phase: the largest timeout that a member requested."""
    return max((member.rebalance_timeout_ms for member in group.members.values()), default=0)


def common_protocols(group: model.ClassicGroup) -> set[str]:
    """Return the protocols that every member supports."""
    known = [{name for name, _ in member.protocols} for member in group.members.values()]
    return set.intersection(*known) if known else set()


def select_protocol(group: model.ClassicGroup) -> str | None:
    """Return the protocol with most votes; each member votes for the first in its list that all support.

    Ties go to the preference of the first member, so that the choice is deterministic.
    """
    candidates = common_protocols(group)
    votes: Counter[str] = Counter()
    for member in group.members.values():
        votes.update([name for name, _ in member.protocols if name in candidates][:1])
    # On ties, most_common keeps the order of first votes.
    return votes.most_common(1)[0][0] if votes else None


def static_owners(group: model.ClassicGroup | model.ConsumerGroup) -> dict[str, str]:
    """Return the member ids of static members, by instance id."""
    return {
        each.instance_id: each.member_id for each in group.members.values() if each.instance_id is not None
    }


def leaving_id(
    group: model.ClassicGroup | model.ConsumerGroup, leaving: LeavingMember, owners: Mapping[str, str]
) -> str | ErrorCode:
    """Return the id of the member that leaves. A static member may be named by its instance id alone."""
    member_id = leaving.member_id
    if leaving.instance_id is not None:
        member_id = owners.get(leaving.instance_id, "")
        if member_id in group.members and leaving.member_id not in ("", member_id):
            return ErrorCode.FENCED_INSTANCE_ID
    return member_id if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID


def check_member(group: model.ClassicGroup, member_id: str, instance_id: str | None) -> ErrorCode:
    """Check that this is a member of the group, and the owner of its instance id."""
    member = group.members.get(member_id)
    if instance_id is not None and (member is None or member.instance_id != instance_id):
        owner = group.static_member(instance_id)
        return ErrorCode.UNKNOWN_MEMBER_ID if owner is None else ErrorCode.FENCED_INSTANCE_ID
    return ErrorCode.NONE if member is not None else ErrorCode.UNKNOWN_MEMBER_ID
