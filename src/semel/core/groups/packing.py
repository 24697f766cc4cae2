"""Serialisation of groups as JSON, so that the ledger can be inspected with plain SQL.

Bytes inside (metadata, assignments, topic ids) are Base64. Unknown keys are ignored and missing ones take
their default, so that an older or newer broker can read the group.
"""

import base64
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec.structs import asdict

if TYPE_CHECKING:
    from semel.core.groups.model import Assignment, ClassicGroup, ConsumerGroup, ConsumerMember, TopicShape


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
