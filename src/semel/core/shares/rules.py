"""Share groups (KIP-932): members share the records of partitions. The interface for the rest of the core.

``members`` and ``assignor`` are membership, which belongs to the coordinator of the group. ``delivery`` has
the rules of share-partitions, which belong to the leaders of their partitions; ``pending`` has those of
acknowledgements inside transactions, and ``offsets`` moves share-partitions. The data is in
``semel.core.shares.group`` and ``semel.core.shares.partition``.

Housekeeping submits ``ShareTick()`` every ``SHARE_TICK_MS``.
"""

from semel.core.facts import ShareLocksChanged
from semel.core.groups.lifecycle import expiring
from semel.core.shares import commands, delivery, members, offsets, pending
from semel.core.types import Apply, Decide

DECIDE: dict[type, Decide] = {
    members.ShareHeartbeat: expiring(members.decide_heartbeat),
    commands.StartShare: delivery.decide_start,
    commands.FindAcquirable: delivery.decide_look,
    commands.Acquire: delivery.decide_acquire,
    commands.Acknowledge: delivery.decide_acknowledge,
    commands.AcknowledgeInTransaction: pending.decide_in_transaction,
    commands.ReleaseMember: delivery.decide_release,
    commands.ShareTick: delivery.decide_tick,
    commands.ReadShares: delivery.decide_read,
    offsets.AlterShareOffsets: expiring(offsets.decide_alter),
    offsets.DeleteShareOffsets: expiring(offsets.decide_delete),
}

APPLY: dict[type, Apply] = {ShareLocksChanged: delivery.apply_locks}
