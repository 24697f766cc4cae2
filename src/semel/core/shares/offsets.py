"""The offsets of share groups: an administrator moves them, or deletes those of a topic (KIP-932).

Both need a group without members. The share-partitions and the group may belong to different brokers; all of
them change in one commit.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from semel.core.data import Data
from semel.core.facts import Put
from semel.core.groups.model import TopicShape
from semel.core.names import is_usable
from semel.core.shares.group import ShareGroup
from semel.core.shares.partition import SharePartition
from semel.core.types import Command, Decision, ErrorCode, Fact, GroupKey, Key, ShareKey, TopicKey

if TYPE_CHECKING:
    from semel.core.state import BrokerState


class AlterShareOffsets(Command["ShareOffsetsAltered"]):
    """Move start offsets. The answer is ``ShareOffsetsAltered``."""

    group_id: str
    topics: Mapping[str, tuple[TopicShape, Mapping[int, int]]]
    """The topics as the caller looked them up, and the new offsets by partition."""

    def keys(self) -> Iterable[Key]:
        """The group, the topics, and their share-partitions."""
        return [
            GroupKey(self.group_id),
            *map(TopicKey, self.topics),
            *(key for shape, _ in self.topics.values() for key in _all(self.group_id, shape)),
        ]


class ShareOffsetsAltered(Data):
    """The answer to ``AlterShareOffsets`` and ``DeleteShareOffsets``: one error, or one for each topic."""

    error: ErrorCode
    topics: Mapping[str, ErrorCode] = {}


class DeleteShareOffsets(Command["ShareOffsetsAltered"]):
    """Delete a group's share-partitions of topics. The answer is ``ShareOffsetsAltered``."""

    group_id: str
    topics: tuple[str, ...]

    def keys(self) -> Iterable[Key]:
        """The group."""
        return (GroupKey(self.group_id),)

    def more_keys(self, state: "BrokerState") -> Iterable[Key]:
        """The share-partitions of the topics."""
        group = state.groups[GroupKey(self.group_id)]
        if not isinstance(group, ShareGroup):
            return ()
        shapes = [group.shared[name] for name in self.topics if name in group.shared]
        return [key for shape in shapes for key in _all(self.group_id, shape)]


def _all(group_id: str, shape: TopicShape) -> list[ShareKey]:
    return [ShareKey(shape.topic_id, index, group_id) for index in range(shape.partitions)]


def decide_alter(state: "BrokerState", command: AlterShareOffsets, now: int) -> Decision:
    """Set start offsets. Records from there on become available, and count as never delivered."""
    if not is_usable(command.group_id):
        return Decision(ShareOffsetsAltered(ErrorCode.INVALID_GROUP_ID))
    group = state.groups[GroupKey(command.group_id)]
    if group is None:
        group = ShareGroup(command.group_id, idle_since_ms=now)
    elif not isinstance(group, ShareGroup):
        return Decision(ShareOffsetsAltered(ErrorCode.GROUP_ID_NOT_FOUND))
    if group.members:
        return Decision(ShareOffsetsAltered(ErrorCode.NON_EMPTY_GROUP))
    shared = dict(group.shared)
    facts: list[Fact] = []
    errors: dict[str, ErrorCode] = {}
    for name, (shape, offsets) in command.topics.items():
        topic = state.topics[TopicKey(name)]
        if topic is None or topic.topic_id != shape.topic_id or topic.partitions < shape.partitions:
            errors[name] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            continue
        errors[name] = ErrorCode.NONE
        shared[name] = shape
        for key in _all(command.group_id, shape):
            before = state.shares[key]
            if key.index in offsets:
                epoch = now if before is None else before.epoch + 1
                facts.append(Put(key, SharePartition(offsets[key.index], epoch)))
            elif before is None:
                facts.append(Put(key, SharePartition(epoch=now)))
    if facts or shared != group.shared:
        facts.append(Put.of(group.but(epoch=group.epoch + 1, shared=shared)))
    return Decision(ShareOffsetsAltered(ErrorCode.NONE, errors), tuple(facts))


def decide_delete(state: "BrokerState", command: DeleteShareOffsets, now: int) -> Decision:
    """Delete the share-partitions of topics. If a member subscribes again, they are created anew."""
    group = state.groups[GroupKey(command.group_id)]
    if not isinstance(group, ShareGroup):
        return Decision(ShareOffsetsAltered(ErrorCode.GROUP_ID_NOT_FOUND))
    if group.members:
        return Decision(ShareOffsetsAltered(ErrorCode.NON_EMPTY_GROUP))
    shared = dict(group.shared)
    facts: list[Fact] = []
    errors: dict[str, ErrorCode] = {}
    for name in command.topics:
        shape = shared.pop(name, None)
        errors[name] = ErrorCode.NONE if shape else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if shape:
            keys = _all(command.group_id, shape)
            facts += [Put(key, None) for key in keys if state.shares[key] is not None]
    if shared != group.shared:
        facts.append(Put.of(group.but(shared=shared)))
    return Decision(ShareOffsetsAltered(ErrorCode.NONE, errors), tuple(facts))
