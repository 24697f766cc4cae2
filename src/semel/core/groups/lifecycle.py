"""Describing and deleting groups, the periodic tick, and applying facts about groups.

What is overdue in a group is expired before a command on the group is decided. Housekeeping expires sessions
every ``GROUP_TICK_MS``. A command that comes in between must not find a member
whose session is over: an administrator may wait for the session timeout and then delete the group.
"""

from copy import copy
from typing import TYPE_CHECKING, Any

from semel.core.facts import GroupDeleted, GroupGathered, Put, SessionChanged
from semel.core.groups.classic_members import pass_time
from semel.core.groups.classic_rebalance import ClassicTurn, as_classic
from semel.core.groups.commands import DeleteGroup, DescribeGroup, GroupTick
from semel.core.groups.consumer import ConsumerTurn
from semel.core.groups.layered import K, Layered, V
from semel.core.groups.model import ConsumerGroup, Group
from semel.core.shares.group import ShareGroup, shares_of
from semel.core.types import Decide, Decision, ErrorCode, Fact, GroupKey, PendingKey

if TYPE_CHECKING:
    from semel.core.state import BrokerState

_TICK = GroupTick()


def expiring(decide: Decide) -> Decide:
    """Return a rule that expires what is overdue in the group of its command before it decides."""

    # Any: the rule takes a command of its own kind.
    def decide_after_expiry(state: "BrokerState", command: Any, now: int) -> Decision:
        session = state.sessions.get(command.group_id)
        if session is None or session.next_deadline_ms > now:
            return decide(state, command, now)
        expired = tick_one(state, command.group_id, _TICK, now)
        decision = decide(_after(state, command.group_id, expired.facts), command, now)
        return decision.but(
            facts=expired.facts + decision.facts,
            replies=expired.replies + decision.replies,
            # The removal of members is not part of a transaction, so it must be flushed.
            defers_sync=decision.defers_sync and not expired.facts,
        )

    return decide_after_expiry


def _after(state: "BrokerState", group_id: str, facts: tuple[Fact, ...]) -> "BrokerState":
    """Return the state after these facts about a group. Deciding changes nothing, so the rest is shared."""
    after: Any = copy(state)  # Any: its tables become layered ones
    groups, sessions = _shared(state.groups), _shared(state.sessions)
    for fact in facts:
        if type(fact) is Put and isinstance(fact.value, Group):
            groups = groups.with_entry(GroupKey(group_id), fact.value)
        elif isinstance(fact, GroupGathered):
            groups = groups.with_entry(GroupKey(group_id), fact.group)
        elif isinstance(fact, SessionChanged) and fact.session is not None:
            sessions = sessions.with_entry(group_id, fact.session)
        elif isinstance(fact, SessionChanged):
            sessions = sessions.without(group_id)
    after.groups, after.sessions = groups, sessions
    expired: BrokerState = after
    return expired


def _shared(table: dict[K, V]) -> Layered[K, V]:
    return Layered(table, {}, len(table))


def decide_describe(state: "BrokerState", command: DescribeGroup, now: int) -> Decision:
    """Return the group, or None."""
    return Decision(state.groups[GroupKey(command.group_id)])


def decide_delete(state: "BrokerState", command: DeleteGroup, now: int) -> Decision:
    """Delete a group that has no members, with all its offsets."""
    group = state.groups[GroupKey(command.group_id)]
    if group is None:
        return Decision(ErrorCode.GROUP_ID_NOT_FOUND)
    if group.members:
        return Decision(ErrorCode.NON_EMPTY_GROUP)
    shares = tuple(Put(key, None) for key in shares_of(group) if state.shares[key] is not None)
    return Decision(ErrorCode.NONE, (*shares, GroupDeleted(command.group_id)))


def decide_tick(state: "BrokerState", command: GroupTick, now: int) -> Decision:
    """Expire what is overdue in every group with a session, and start the sessions of the named groups."""
    due = [group_id for group_id, session in state.sessions.items() if session.next_deadline_ms <= now]
    due.extend(group_id for group_id in command.group_ids if group_id not in state.sessions)
    decisions = [tick_one(state, group_id, command, now) for group_id in due]
    return Decision(
        len(decisions),
        tuple(fact for decision in decisions for fact in decision.facts),
        replies=tuple(reply for decision in decisions for reply in decision.replies),
    )


def tick_one(state: "BrokerState", group_id: str, command: GroupTick, now: int) -> Decision:
    """Expire what is overdue in a group."""
    group = state.groups.get(GroupKey(group_id))
    session = state.sessions.get(group_id)
    if isinstance(group, ShareGroup):
        from semel.core.shares.members import ShareGroupTurn

        share = ShareGroupTurn(group, session, now, command.share_session_timeout_ms)
        share.pass_time()
        return share.decision(None)
    if isinstance(group, ConsumerGroup):
        consumer = ConsumerTurn(group, session, now, command.consumer_session_timeout_ms, state.migration)
        consumer.pass_time()
        return consumer.decision(None)
    classic = ClassicTurn(as_classic(group_id, group), session, now)
    pass_time(classic)
    return classic.decision(None)


def apply_gathered(state: "BrokerState", fact: GroupGathered) -> None:
    """Store the group."""
    state.groups[GroupKey(fact.group.group_id)] = fact.group


def apply_deleted(state: "BrokerState", fact: GroupDeleted) -> None:
    """Remove the group. Mark its offsets as absent: the ledger has them until this tick is committed."""
    state.groups[GroupKey(fact.group_id)] = None
    state.sessions.pop(fact.group_id, None)
    state.pending[PendingKey(fact.group_id)] = None
    for key in state.offsets:
        if key.group_id == fact.group_id:
            state.offsets[key] = None


def apply_session(state: "BrokerState", fact: SessionChanged) -> None:
    """Store the session, or remove it."""
    if fact.session is None:
        state.sessions.pop(fact.group_id, None)
    else:
        state.sessions[fact.group_id] = fact.session
