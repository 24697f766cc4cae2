"""The topics that the members of a group subscribe to.

The broker knows this of consumer groups. In a classic group only the members know. Those with the protocol
type "consumer" state it in their protocol metadata, in Kafka's ConsumerProtocolSubscription format: a version
(int16), then an array of topic names. The rest is not needed here.
"""

import struct

from semel.core.groups.model import CONSUMER_PROTOCOL, ClassicGroup, Group
from semel.core.share_group import ShareGroup


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
    names: list[str] = []
    try:
        _, count = struct.unpack_from(">hi", metadata)
        position = 6
        for _ in range(count):
            (length,) = struct.unpack_from(">h", metadata, position)
            position += 2
            if length < 0 or position + length > len(metadata):
                return None
            names.append(metadata[position : position + length].decode())
            position += length
    except (struct.error, UnicodeDecodeError):
        # Clients may put anything into this field.
        return None
    return names
