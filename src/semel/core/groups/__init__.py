"""Consumer groups: classic groups and consumer (KIP-848) groups. The interface for the rest of the core.

``model`` is the durable part of a group, ``session`` the volatile part, ``commands`` the requests.
``classic_members`` and ``classic_rebalance`` are the classic protocol; ``consumer``, ``targets`` and
``assignors`` are KIP-848; ``lifecycle`` describes, deletes and expires
groups.

A plain heartbeat writes nothing to the ledger: it is a ``SessionChanged`` and no ``Put``. Neither
does a join while a classic group prepares its next generation (``GroupGathered``); only the complete
generation is written.

``migration`` converts a group with its members from one protocol to the other. ``classic_in_consumer`` has
the rules for members of the classic protocol in a consumer group. ``lifecycle`` expires members before a
command is decided.

Housekeeping submits ``GroupTick()`` every ``GROUP_TICK_MS``, and once after startup ``GroupTick(group_ids)``
for the groups that have members in the ledger. It submits ``ExpireOffsets`` (decided in
``semel.core.groups.offsets``) for each group about as often as it expires producers.
"""

from semel.core.facts import GroupDeleted, GroupGathered, SessionChanged
from semel.core.groups import classic_members, commands, consumer, lifecycle
from semel.core.groups.commands import GROUP_TICK_MS, ExpireOffsets, GroupTick
from semel.core.groups.lifecycle import expiring
from semel.core.groups.migration import Migration
from semel.core.groups.model import ClassicGroup, ConsumerGroup, Group, unpack_group
from semel.core.groups.session import GroupSession
from semel.core.shares.group import ShareGroup
from semel.core.types import Apply, Decide

_RULES: dict[type, Decide] = {
    commands.JoinGroup: classic_members.decide_join,
    commands.SyncGroup: classic_members.decide_sync,
    commands.Heartbeat: classic_members.decide_heartbeat,
    commands.LeaveGroup: classic_members.decide_leave,
    commands.ConsumerHeartbeat: consumer.decide_consumer_heartbeat,
    commands.ReadSubscriptions: consumer.decide_read_subscriptions,
    commands.DescribeGroup: lifecycle.decide_describe,
    commands.DeleteGroup: lifecycle.decide_delete,
}
DECIDE: dict[type, Decide] = {
    **{command: expiring(rule) for command, rule in _RULES.items()},
    commands.GroupTick: lifecycle.decide_tick,
}

APPLY: dict[type, Apply] = {
    GroupGathered: lifecycle.apply_gathered,
    GroupDeleted: lifecycle.apply_deleted,
    SessionChanged: lifecycle.apply_session,
}

__all__ = [
    "APPLY",
    "DECIDE",
    "GROUP_TICK_MS",
    "ClassicGroup",
    "ConsumerGroup",
    "ExpireOffsets",
    "Group",
    "GroupSession",
    "GroupTick",
    "Migration",
    "ShareGroup",
    "unpack_group",
]
