"""Describing and deleting groups, the periodic tick, and applying facts about groups."""

from typing import TYPE_CHECKING

from semel.core.facts import GroupDeleted, GroupGathered, Put, SessionChanged
from semel.core.groups.classic_members import pass_time
from semel.core.groups.classic_rebalance import ClassicTurn, as_classic
from semel.core.groups.commands import DeleteGroup, DescribeGroup, GroupTick
from semel.core.groups.consumer_turn import ConsumerTurn
from semel.core.groups.model import ConsumerGroup
from semel.core.shares.group import ShareGroup, shares_of
from semel.core.types import Decision, ErrorCode, GroupKey, PendingKey

if TYPE_CHECKING:
    from semel.core.state import BrokerState


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
