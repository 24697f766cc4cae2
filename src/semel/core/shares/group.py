"""The durable part of a share group (KIP-932): its members, and the share-partitions that exist.

Several members may be assigned the same partition, so no partition has to be revoked before another member
gets it: a member adopts its part of the target assignment with its next heartbeat.

The group records the topics for which it has share-partitions. Share-partitions are added and removed in the
same commit as the group's record of them.
"""

import json
from base64 import b64decode
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import asdict

from semel.core.data import Data
from semel.core.types import GroupKey, ShareKey

if TYPE_CHECKING:
    from semel.core.groups.model import Assignment, TopicShape

SHARE: Final = "share"
SIMPLE: Final = "simple"
"""The only assignor."""
NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})  # Any: it is empty


class ShareMember(Data):
    """A member of a share group."""

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: tuple[str, ...] = ()
    epoch: int = 0
    previous_epoch: int = 0
    assigned: "Assignment" = frozenset()

    @property
    def metadata_bytes(self) -> int:
        """The size of the member's metadata."""
        return sum(map(len, self.topic_names))


class ShareGroup(Data):
    """A group whose members share the records of partitions."""

    group_id: str
    epoch: int = 0
    target_epoch: int = 0
    """The group epoch for which ``target`` was computed."""
    members: Mapping[str, ShareMember] = NOTHING
    target: "Mapping[str, Assignment]" = NOTHING
    topics: "Mapping[str, TopicShape]" = NOTHING
    """Every subscribed topic that exists, as it was when the target was computed."""
    shared: "Mapping[str, TopicShape]" = NOTHING
    """The topics that have share-partitions of this group, and their number."""
    idle_since_ms: int = 0

    @property
    def key(self) -> GroupKey:
        """The group's key."""
        return GroupKey(self.group_id)

    @property
    def kind(self) -> str:
        """The group's protocol."""
        return SHARE

    @property
    def protocol_type(self) -> str:
        """The protocol type as tools show it."""
        return SHARE

    @property
    def state_name(self) -> str:
        """The state as Kafka's tools show it."""
        return "Stable" if self.members else "Empty"

    def pack(self) -> bytes:
        """Serialise the group for ``unpack_share_group``."""
        from semel.core.groups.model import pack_assignment, pack_topics

        fields = asdict(self)
        fields["members"] = [
            {
                **asdict(each),
                "topic_names": list(each.topic_names),
                "assigned": pack_assignment(each.assigned),
            }
            for each in self.members.values()
        ]
        fields["target"] = {name: pack_assignment(target) for name, target in self.target.items()}
        fields["topics"] = pack_topics(self.topics)
        fields["shared"] = pack_topics(self.shared)
        return msgspec.json.encode(fields)


def shares_of(group: object) -> list[ShareKey]:
    """Return the share-partitions of a group; empty for a group of another kind."""
    if not isinstance(group, ShareGroup):
        return []
    return [
        ShareKey(shape.topic_id, index, group.group_id)
        for shape in group.shared.values()
        for index in range(shape.partitions)
    ]


def unpack_share_group(data: bytes) -> ShareGroup:
    """Deserialise a share group. Unknown fields are ignored, missing ones take their default."""
    from semel.core.groups.model import TopicShape, known, unpack_assignment

    def topics(packed: dict[str, list[Any]]) -> dict[str, TopicShape]:
        return {name: TopicShape(b64decode(topic_id), count) for name, (topic_id, count) in packed.items()}

    fields = known(json.loads(data), ShareGroup.__struct_fields__)
    members: dict[str, ShareMember] = {}
    for each in fields["members"]:
        each = known(each, ShareMember.__struct_fields__)
        each["topic_names"] = tuple(each["topic_names"])
        each["assigned"] = unpack_assignment(each["assigned"])
        members[each["member_id"]] = ShareMember(**each)
    fields["members"] = members
    fields["target"] = {name: unpack_assignment(target) for name, target in fields["target"].items()}
    fields["topics"] = topics(fields["topics"])
    fields["shared"] = topics(fields["shared"])
    return ShareGroup(**fields)
