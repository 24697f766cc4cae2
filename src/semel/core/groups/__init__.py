"""Consumer groups: classic groups and consumer (KIP-848) groups. The way in for the rest of the core."""

from semel.core.groups.model import ClassicGroup, ConsumerGroup, Group, unpack_group
from semel.core.groups.session import Session
from semel.core.types import Apply, Decide

DECIDE: dict[type, Decide] = {}
APPLY: dict[type, Apply] = {}

__all__ = ["APPLY", "DECIDE", "ClassicGroup", "ConsumerGroup", "Group", "Session", "unpack_group"]
