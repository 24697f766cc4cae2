"""Expire what is overdue in a group before a command on the group is decided.

Housekeeping expires sessions every ``GROUP_TICK_MS``. A command that comes in between must not find a member
whose session is over: an administrator may wait for the session timeout and then delete the group.
"""

from copy import copy
from typing import TYPE_CHECKING, Any

from semel.core.facts import GroupGathered, Put, SessionChanged
from semel.core.groups.commands import GroupTick
from semel.core.groups.layered import K, Layered, V
from semel.core.groups.lifecycle import tick_one
from semel.core.groups.model import Group
from semel.core.types import Decide, Decision, Fact, GroupKey

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
