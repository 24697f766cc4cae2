"""The topics that the members of a group subscribe to.

The broker knows the subscriptions of consumer groups and share groups. In a classic group only the members
know them. Members with the protocol type "consumer" send them in their protocol metadata
(``semel.wire.consumer_protocol``).
"""

from semel.core.groups.model import CONSUMER_PROTOCOL, ClassicGroup, Group
from semel.core.shares.group import ShareGroup
from semel.wire.consumer_protocol import decode_subscription
from semel.wire.errors import ProtocolError


def subscribed_topics(group: Group) -> frozenset[str] | None:
    """Return every subscribed topic; None if unknown, which must be treated as "all topics"."""
    if not group.members:
        return frozenset()
    if isinstance(group, ShareGroup):
        return frozenset().union(*(member.topic_names for member in group.members.values()))
    if not isinstance(group, ClassicGroup):
        return frozenset().union(*(group.subscription(member) for member in group.members.values()))
    if group.protocol_type != CONSUMER_PROTOCOL:
        return None
    topics: set[str] = set()
    for member in group.members.values():
        # Every protocol of a member carries the same subscription, so the first one will do.
        names = _topics_of(member.protocols[0][1]) if member.protocols else None
        if names is None:
            return None
        topics.update(names)
    return frozenset(topics)


def _topics_of(metadata: bytes) -> list[str] | None:
    try:
        return decode_subscription(metadata).topics
    except ProtocolError:
        # Clients may put anything into this field.
        return None
