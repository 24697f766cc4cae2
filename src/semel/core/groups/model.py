"""The durable part of classic groups and of consumer (KIP-848) groups.

It holds everything that members rely on after the broker was killed: members, generation or epochs,
assignments, leader, protocol. Volatile state (deadlines, parked requests) is in ``session``. Values are
immutable: a change makes a new one, and mappings are never modified.

An *assignment* of a consumer group is a set of (topic id, partition), so that reconciling is set algebra.

The rules are in ``classic_*`` and ``consumer``.

Groups are stored as JSON, so that the ledger can be inspected with plain SQL. Bytes inside (metadata,
assignments, topic ids) are Base64. Unknown keys are ignored and missing ones take their default, so that an
older or newer broker can read the group.
"""

import base64
import json
from collections.abc import Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import asdict

from semel.core.data import Data
from semel.core.shares.group import SHARE, ShareGroup, unpack_share_group
from semel.core.types import GroupKey


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)


Json: TypeAlias = dict[str, Any]
"""An object of JSON. Any: its values are of any type."""


def _dump(value: Json) -> bytes:
    # In C, with bytes as Base64: a group of ten thousand members is packed whenever it changes.
    return msgspec.json.encode(value)


def pack_classic(group: "ClassicGroup") -> bytes:
    """Serialise a classic group."""
    fields = asdict(group)
    fields["state"] = group.state.value
    fields["members"] = [asdict(member) for member in group.members.values()]
    return _dump(fields)


def unpack_classic(data: bytes) -> "ClassicGroup":
    """Deserialise a classic group."""
    from semel.core.groups.model import ClassicGroup, ClassicMember, ClassicState

    fields = known(json.loads(data), ClassicGroup.__struct_fields__)
    fields["state"] = ClassicState(fields["state"])
    members: dict[str, ClassicMember] = {}
    for each in fields["members"]:
        each = known(each, ClassicMember.__struct_fields__)
        each["protocols"] = _unpack_protocols(each["protocols"])
        each["assignment"] = _bytes(each["assignment"])
        members[each["member_id"]] = ClassicMember(**each)
    fields["members"] = members
    return ClassicGroup(**fields)


def _unpack_protocols(protocols: list[tuple[str, str]]) -> tuple[tuple[str, bytes], ...]:
    return tuple((name, _bytes(metadata)) for name, metadata in protocols)


def pack_consumer(group: "ConsumerGroup") -> bytes:
    """Serialise a consumer group."""
    fields = asdict(group)
    fields["members"] = [_pack_consumer_member(member) for member in group.members.values()]
    fields["target"] = {member_id: pack_assignment(target) for member_id, target in group.target.items()}
    fields["topics"] = pack_topics(group.topics)
    fields["regex_matches"] = {regex: list(names) for regex, names in group.regex_matches.items()}
    return _dump(fields)


def _pack_consumer_member(member: "ConsumerMember") -> Json:
    fields = asdict(member)
    fields["topic_names"] = list(member.topic_names)
    fields["state"] = member.state.value
    fields["assigned"] = pack_assignment(member.assigned)
    fields["revoking"] = pack_assignment(member.revoking)
    fields["since"] = {str(epoch): pack_assignment(owned) for epoch, owned in member.since.items()}
    if member.classic is None:
        del fields["classic"]
    return fields


def unpack_consumer(data: bytes) -> "ConsumerGroup":
    """Deserialise a consumer group."""
    from semel.core.groups.model import ClassicPart, ConsumerGroup, ConsumerMember, MemberState, TopicShape

    fields = known(json.loads(data), ConsumerGroup.__struct_fields__)
    members: dict[str, ConsumerMember] = {}
    for each in fields["members"]:
        each = known(each, ConsumerMember.__struct_fields__)
        each["topic_names"] = tuple(each["topic_names"])
        each["state"] = MemberState(each["state"])
        each["assigned"] = unpack_assignment(each["assigned"])
        each["revoking"] = unpack_assignment(each["revoking"])
        each["since"] = {
            int(epoch): unpack_assignment(owned) for epoch, owned in each.get("since", {}).items()
        }
        if "classic" in each:
            timeout_ms, protocols = each["classic"]
            each["classic"] = ClassicPart(timeout_ms, _unpack_protocols(protocols))
        members[each["member_id"]] = ConsumerMember(**each)
    fields["members"] = members
    fields["target"] = {name: unpack_assignment(target) for name, target in fields["target"].items()}
    fields["topics"] = {
        name: TopicShape(_bytes(topic_id), partitions)
        for name, (topic_id, partitions) in fields["topics"].items()
    }
    fields["regex_matches"] = {regex: tuple(names) for regex, names in fields["regex_matches"].items()}
    return ConsumerGroup(**fields)


def pack_topics(topics: "Mapping[str, TopicShape]") -> dict[str, list[Any]]:
    """Convert topics and their sizes to JSON."""
    return {name: [_text(shape.topic_id), shape.partitions] for name, shape in topics.items()}


def pack_assignment(assignment: "Assignment") -> dict[str, list[int]]:
    """Convert an assignment to JSON."""
    by_topic: dict[str, list[int]] = {}
    for topic_id, partition in sorted(assignment):
        by_topic.setdefault(_text(topic_id), []).append(partition)
    return by_topic


def unpack_assignment(by_topic: dict[str, list[int]]) -> "Assignment":
    """Convert an assignment from JSON."""
    return frozenset(
        (topic_id, partition)
        for topic_id, partitions in ((_bytes(text), partitions) for text, partitions in by_topic.items())
        for partition in partitions
    )


def known(fields: Json, names: Iterable[str]) -> Json:
    """Drop the fields that this version does not know."""
    return {name: fields[name] for name in names if name in fields}


NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})  # Any: it is empty

Owned: TypeAlias = tuple[bytes, int]
"""One partition of a topic, by the topic's id."""
Assignment: TypeAlias = frozenset[Owned]

NO_ASSIGNMENT: Final[Assignment] = frozenset()
CONSUMER_PROTOCOL: Final = "consumer"


class ClassicState(Enum):
    """The state of a classic group. There is no Dead state: a deleted group is absent.

    Empty -> PreparingRebalance (a member joins) -> CompletingRebalance (all joined) -> Stable (leader
    synced); from the last two back to PreparingRebalance (a member joins, leaves or times out), and from
    PreparingRebalance to Empty when no member is left.
    """

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class ClassicMember(Data):
    """A member of a classic group. ``protocols`` are in order of preference, each with its metadata."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    epoch: int = -1
    """After a downgrade from a consumer group: the member epoch, used until the next generation. Else -1."""

    @property
    def metadata_bytes(self) -> int:
        """The size of the member's metadata."""
        return sum(len(name) + len(metadata) for name, metadata in self.protocols)

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return the member's metadata for this protocol."""
        return next((metadata for name, metadata in self.protocols if name == protocol_name), b"")


class ClassicGroup(Data):
    """A group whose members compute assignments among themselves."""

    group_id: str
    state: ClassicState = ClassicState.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol_name: str | None = None
    leader: str | None = None
    members: Mapping[str, ClassicMember] = NOTHING
    """By member id, in the order in which they joined."""
    idle_since_ms: int = 0
    """When the group became empty, or last noted a commit while empty. Meaningless while it has members."""

    @property
    def key(self) -> GroupKey:
        """The group's key."""
        return GroupKey(self.group_id)

    @property
    def kind(self) -> str:
        """The group's protocol."""
        return "classic"

    @property
    def state_name(self) -> str:
        """The state as Kafka's tools show it."""
        return self.state.value

    def pack(self) -> bytes:
        """Serialise the group for ``unpack_group``."""
        return pack_classic(self)

    def generation_of(self, member_id: str) -> int:
        """Return the generation that a member has to present."""
        epoch = self.members[member_id].epoch
        return self.generation if epoch < 0 else epoch

    def static_member(self, instance_id: str | None) -> ClassicMember | None:
        """Return the member that owns this group.instance.id."""
        if instance_id is None:
            return None
        return next((each for each in self.members.values() if each.instance_id == instance_id), None)


class MemberState(Enum):
    """How far a consumer member is on its way to the target assignment (KIP-848)."""

    STABLE = "stable"
    """It owns everything it should own at its epoch."""
    UNREVOKED = "unrevoked"
    """It must revoke partitions and has not confirmed that."""
    UNRELEASED = "unreleased"
    """It waits for partitions that other members have not revoked."""


class ClassicPart(Data):
    """The classic part of a member that uses the classic protocol in a consumer group."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """In order of preference, each with its metadata; never empty."""

    @property
    def metadata_bytes(self) -> int:
        """The size of the metadata."""
        return sum(len(name) + len(metadata) for name, metadata in self.protocols)


class ConsumerMember(Data):
    """A member of a consumer group. It owns ``assigned`` and ``revoking``; no other member may own those."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = 300_000
    topic_names: tuple[str, ...] = ()
    topic_regex: str | None = None
    assignor: str | None = None
    epoch: int = 0
    """The member epoch; -2 while a static member is temporarily away."""
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Assignment = NO_ASSIGNMENT
    revoking: Assignment = NO_ASSIGNMENT
    since: Mapping[int, Assignment] = NOTHING
    """The partitions that it owns, by the member epoch in which it got them (KIP-1251)."""
    classic: ClassicPart | None = None
    """None if the member uses the consumer protocol."""

    @property
    def metadata_bytes(self) -> int:
        """The size of the member's metadata."""
        if self.classic is not None:
            return self.classic.metadata_bytes
        return sum(map(len, self.topic_names)) + len(self.topic_regex or "")

    def owns_since(self, owned: Owned, epoch: int) -> bool:
        """Whether the member has owned a partition from this member epoch until now."""
        if owned not in self.assigned and owned not in self.revoking:
            return False
        return any(owned in some for first, some in self.since.items() if first <= epoch)


class TopicShape(Data):
    """A topic as an assignor sees it."""

    topic_id: bytes
    partitions: int


class ConsumerGroup(Data):
    """A group whose assignments the broker computes (KIP-848)."""

    group_id: str
    epoch: int = 0
    target_epoch: int = 0
    """The group epoch for which ``target`` was computed; behind ``epoch`` until a heartbeat computes it."""
    assignor: str = ""
    members: Mapping[str, ConsumerMember] = NOTHING
    target: Mapping[str, Assignment] = NOTHING
    topics: Mapping[str, TopicShape] = NOTHING
    """Every subscribed topic that exists, as it was when it was last looked up."""
    regex_matches: Mapping[str, tuple[str, ...]] = NOTHING
    """The names that each subscribed regular expression matched when it was last looked up."""
    idle_since_ms: int = 0

    @property
    def key(self) -> GroupKey:
        """The group's key."""
        return GroupKey(self.group_id)

    @property
    def kind(self) -> str:
        """The group's protocol."""
        return "consumer"

    @property
    def protocol_type(self) -> str:
        """The protocol type as tools show it."""
        return CONSUMER_PROTOCOL

    @property
    def state_name(self) -> str:
        """The state as Kafka's tools show it."""
        if not self.members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        for member in self.members.values():
            if member.state is not MemberState.STABLE or member.epoch != self.target_epoch:
                return "Reconciling"
        return "Stable"

    def pack(self) -> bytes:
        """Serialise the group for ``unpack_group``."""
        return pack_consumer(self)

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        """Return the member that owns this group.instance.id."""
        if instance_id is None:
            return None
        return next((each for each in self.members.values() if each.instance_id == instance_id), None)

    def subscription(self, member: ConsumerMember) -> frozenset[str]:
        """Return every topic that a member subscribes to, by name or by regular expression."""
        return frozenset(member.topic_names).union(self.regex_matches.get(member.topic_regex or "", ()))


Group: TypeAlias = ClassicGroup | ConsumerGroup | ShareGroup


def unpack_group(kind: str, data: bytes) -> Group:
    """Deserialise a group."""
    if kind == SHARE:
        return unpack_share_group(data)
    return unpack_consumer(data) if kind == "consumer" else unpack_classic(data)
