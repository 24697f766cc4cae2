"""Committed offsets: committing, fetching, deleting and expiring them.

A commit is checked against the group. Each partition is an entity of its own, so a commit
writes one fact per partition.

A group that has offsets exists: the first commit to an unknown group creates an empty classic one. While the
group has no members, commits keep ``idle_since_ms`` fresh, so that a group in use does not expire between the
scan by housekeeping and the decision on its command.

The topics that the members of a group subscribe to.

The broker knows the subscriptions of consumer groups and share groups. In a classic group only the members
know them. Members with the protocol type "consumer" send them in their protocol metadata
(``semel.wire.consumer_protocol``).

**Who may commit.** A commit must come from a member of the current generation (or member epoch), or carry no
member while the group is empty, which is how administrators and consumers without a group protocol commit.
Commits inside a transaction (``is_transactional``) need not name a member.

In a consumer group, a member may also commit with an older epoch if it has owned the partition since that
epoch (KIP-1251). Rebalances that the member has not heard of bump its epoch, but no other member has owned
the partition in the meantime.
"""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final

from semel.core import types
from semel.core.data import Data
from semel.core.facts import GroupDeleted, Put
from semel.core.groups import model
from semel.core.groups.classic_rebalance import ClassicTurn, check_member
from semel.core.groups.commands import ExpireOffsets
from semel.core.groups.lifecycle import expiring
from semel.core.names import is_usable
from semel.core.shares.group import ShareGroup
from semel.wire.consumer_protocol import decode_subscription
from semel.wire.errors import ErrorCode, ProtocolError

if TYPE_CHECKING:
    from semel.core.state import BrokerState


class Committer(Data):
    """The sender of a commit or fetch, as far as the request identifies it."""

    generation: int = -1
    """The generation, or the member epoch of a consumer group."""
    member_id: str = ""
    instance_id: str | None = None


def check_commit(
    group: model.Group | None, committer: Committer, *, is_transactional: bool, knows_consumer_groups: bool
) -> ErrorCode:
    """Check that this sender may commit offsets of the group; ``check_partition`` checks each partition."""
    is_nobody = committer.generation < 0 and not committer.member_id and committer.instance_id is None
    if group is None:
        if committer.generation < 0:
            return ErrorCode.NONE
        return ErrorCode.GROUP_ID_NOT_FOUND if knows_consumer_groups else ErrorCode.ILLEGAL_GENERATION
    if isinstance(group, ShareGroup):
        # A share group has share-partitions instead of committed offsets.
        return ErrorCode.GROUP_ID_NOT_FOUND
    if committer.generation < 0 and not group.members:
        return ErrorCode.NONE
    if is_nobody:
        return ErrorCode.NONE if is_transactional else ErrorCode.UNKNOWN_MEMBER_ID
    if isinstance(group, model.ConsumerGroup):
        return _check_consumer(group, committer, is_transactional, knows_consumer_groups)
    error = check_member(group, committer.member_id, committer.instance_id)
    if error is not ErrorCode.NONE:
        return error
    if committer.generation != group.generation_of(committer.member_id):
        return ErrorCode.ILLEGAL_GENERATION
    if group.state is model.ClassicState.COMPLETING and not is_transactional:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _check_consumer(
    group: model.ConsumerGroup, committer: Committer, is_transactional: bool, knows_consumer_groups: bool
) -> ErrorCode:
    member = group.members.get(committer.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if not is_transactional and not knows_consumer_groups and member.classic is None:
        return ErrorCode.UNSUPPORTED_VERSION
    if 0 <= committer.generation <= member.epoch:
        return ErrorCode.NONE
    return _wrong_epoch(member) if knows_consumer_groups else ErrorCode.ILLEGAL_GENERATION


def check_partition(group: model.Group | None, committer: Committer, key: types.OffsetKey) -> ErrorCode:
    """Check that a sender that passed ``check_commit`` may commit this partition."""
    if not isinstance(group, model.ConsumerGroup):
        return ErrorCode.NONE
    member = group.members.get(committer.member_id)
    if member is None or committer.generation == member.epoch:
        return ErrorCode.NONE
    shape = group.topics.get(key.topic)
    if shape is not None and member.owns_since((shape.topic_id, key.partition), committer.generation):
        return ErrorCode.NONE
    return _wrong_epoch(member)


def _wrong_epoch(member: model.ConsumerMember) -> ErrorCode:
    return ErrorCode.ILLEGAL_GENERATION if member.classic else ErrorCode.STALE_MEMBER_EPOCH


def subscribed_topics(group: model.Group) -> frozenset[str] | None:
    """Return every subscribed topic; None if unknown, which must be treated as "all topics"."""
    if not group.members:
        return frozenset()
    if isinstance(group, ShareGroup):
        return frozenset().union(*(member.topic_names for member in group.members.values()))
    if not isinstance(group, model.ClassicGroup):
        return frozenset().union(*(group.subscription(member) for member in group.members.values()))
    if group.protocol_type != model.CONSUMER_PROTOCOL:
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


IDLE_REFRESH_MS: Final = 10_000
"""How stale ``idle_since_ms`` may get: well below the shortest retention, without a write per commit."""


class CommitOffsets(types.Command[tuple[ErrorCode, ...]]):
    """Commit offsets of a group. The answer is one ErrorCode per offset, in the same order."""

    group_id: str
    committer: Committer
    offsets: tuple[tuple[types.OffsetKey, types.CommittedOffset], ...]
    """Only partitions that exist. The decision fills in the commit time."""
    metadata_chars_max: int = 4_096
    knows_consumer_groups: bool = True
    """Whether the client can be a KIP-848 member and knows their errors (OffsetCommit from version 9)."""
    is_transactional: bool = False
    """Part of a transaction, with fewer checks."""

    def keys(self) -> Iterable[types.Key]:
        """The group and its pending offsets. The offsets that are overwritten do not matter."""
        return (types.GroupKey(self.group_id), types.PendingKey(self.group_id))


class FetchOffsets(types.Command["Fetched"]):
    """Fetch offsets of a group. The answer is ``Fetched``; without ``offsets`` only the sender is checked."""

    group_id: str
    member_id: str | None = None
    member_epoch: int = -1
    offsets: tuple[types.OffsetKey, ...] = ()
    require_stable: bool = False
    """Whether to report the offsets that an open transaction may still change."""

    def keys(self) -> Iterable[types.Key]:
        """The group and the offsets."""
        return (types.GroupKey(self.group_id), types.PendingKey(self.group_id), *self.offsets)


class Fetched(Data):
    """The answer to ``FetchOffsets``; None where nothing is committed."""

    error: ErrorCode
    offsets: tuple[types.CommittedOffset | None, ...] = ()
    unstable: frozenset[types.OffsetKey] = frozenset()
    """The offsets that an open transaction may still change, if requested; not only the fetched ones."""


class DeleteOffsets(types.Command["OffsetsDeleted"]):
    """Delete committed offsets. The answer is ``OffsetsDeleted``."""

    group_id: str
    offsets: tuple[types.OffsetKey, ...]

    def keys(self) -> Iterable[types.Key]:
        """The group, the offsets and the pending offsets."""
        return (types.GroupKey(self.group_id), types.PendingKey(self.group_id), *self.offsets)


class OffsetsDeleted(Data):
    """The answer to ``DeleteOffsets``: one error for the group, or one per offset."""

    error: ErrorCode
    partitions: tuple[ErrorCode, ...] = ()


def _commit(state: "BrokerState", command: CommitOffsets, now: int) -> types.Decision:
    group = state.groups[types.GroupKey(command.group_id)]
    error = check_commit(
        group,
        command.committer,
        is_transactional=command.is_transactional,
        knows_consumer_groups=command.knows_consumer_groups,
    )
    if not is_usable(command.group_id):
        error = ErrorCode.INVALID_GROUP_ID
    if error is not ErrorCode.NONE:
        return types.Decision((error,) * len(command.offsets))
    errors: list[ErrorCode] = []
    facts: list[types.Fact] = []
    committed: set[types.OffsetKey] = set()
    for key, value in command.offsets:
        if len(value.metadata) > command.metadata_chars_max:
            errors.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
            continue
        errors.append(check_partition(group, command.committer, key))
        if errors[-1] is not ErrorCode.NONE:
            continue
        committed.add(key)
        facts.append(Put(key, value.but(committed_ms=state.time_of_day(now))))
    if facts:
        pending = state.pending[types.PendingKey(command.group_id)]
        if pending:
            facts.extend(_supersede(command.group_id, pending, committed))
        facts.extend(keep_group(state, group, command.group_id, command.committer.member_id, now))
    return types.Decision(tuple(errors), tuple(facts))


def _supersede(
    group_id: str, pending: tuple[types.PendingOffset, ...], committed: Collection[types.OffsetKey]
) -> tuple[types.Fact, ...]:
    """Mark the pending offsets of these partitions as superseded: the later commit wins."""
    if not any(each.key in committed for each in pending):
        return ()
    marked = (each.but(is_superseded=True) if each.key in committed else each for each in pending)
    return (Put(types.PendingKey(group_id), tuple(marked)),)


def keep_group(
    state: "BrokerState", group: model.Group | None, group_id: str, member_id: str, now: int
) -> tuple[types.Fact, ...]:
    """Return the effects of a commit on the group: it exists and is in use, and the member is alive."""
    if group is None:
        return (Put.of(model.ClassicGroup(group_id, idle_since_ms=now)),)
    if not group.members:
        if now - group.idle_since_ms < IDLE_REFRESH_MS:
            return ()
        return (Put.of(group.but(idle_since_ms=now)),)
    if isinstance(group, model.ConsumerGroup | ShareGroup) or not member_id:
        # In a transaction, a commit without a member is allowed even while the group has members.
        return ()
    turn = ClassicTurn(group, state.sessions.get(group_id), now)
    turn.heard(member_id)
    return turn.decision(None).facts


def _fetch(state: "BrokerState", command: FetchOffsets, now: int) -> types.Decision:
    group = state.groups[types.GroupKey(command.group_id)]
    if isinstance(group, model.ConsumerGroup) and (command.member_id or command.member_epoch >= 0):
        member = group.members.get(command.member_id or "")
        if member is None:
            return types.Decision(Fetched(ErrorCode.UNKNOWN_MEMBER_ID))
        if member.epoch != command.member_epoch:
            return types.Decision(Fetched(ErrorCode.STALE_MEMBER_EPOCH))
    pending = state.pending[types.PendingKey(command.group_id)] if command.require_stable else None
    unstable = frozenset(each.key for each in pending or ())
    values = tuple(state.offsets[key] for key in command.offsets)
    return types.Decision(Fetched(ErrorCode.NONE, values, unstable))


def _delete(state: "BrokerState", command: DeleteOffsets, now: int) -> types.Decision:
    if not command.group_id:
        return types.Decision(OffsetsDeleted(ErrorCode.INVALID_GROUP_ID))
    group = state.groups[types.GroupKey(command.group_id)]
    if group is None:
        return types.Decision(OffsetsDeleted(ErrorCode.GROUP_ID_NOT_FOUND))
    if group.members and group.protocol_type != model.CONSUMER_PROTOCOL:
        # The subscribed topics are known only for the protocol type "consumer".
        return types.Decision(OffsetsDeleted(ErrorCode.NON_EMPTY_GROUP))
    subscribed = subscribed_topics(group)
    errors: list[ErrorCode] = []
    facts: list[types.Fact] = []
    deleted: set[types.OffsetKey] = set()
    for key in command.offsets:
        if subscribed is None or key.topic in subscribed:
            errors.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
            continue
        errors.append(ErrorCode.NONE)
        deleted.add(key)
        if state.offsets[key] is not None:
            facts.append(Put(key, None))
    pending = state.pending[types.PendingKey(command.group_id)] or ()
    kept = tuple(each for each in pending if each.key not in deleted)
    if len(kept) < len(pending):
        facts.append(Put(types.PendingKey(command.group_id), kept or None))
    return types.Decision(OffsetsDeleted(ErrorCode.NONE, tuple(errors)), tuple(facts))


def _expire(state: "BrokerState", command: ExpireOffsets, now: int) -> types.Decision:
    """Expire offsets. The answer is the number of expired offsets."""
    group = state.groups[types.GroupKey(command.group_id)]
    if isinstance(group, ShareGroup) or (group is not None and group.members):
        # The offsets of a share group do not expire, as in Kafka.
        return types.Decision(0)
    # A group that had members has been idle since the last one left. For a group that never had any, only the
    # age of its offsets counts.
    idle_before_ms = command.before_ms - state.clock_lag_ms
    had_members = isinstance(group, model.ConsumerGroup) or (group is not None and group.generation > 0)
    if group is not None and had_members and group.idle_since_ms > idle_before_ms:
        return types.Decision(0)
    held = {each.key for each in state.pending[types.PendingKey(command.group_id)] or ()}
    known = [(key, state.offsets[key]) for key in command.offsets if key not in held]
    expired = [key for key, value in known if value is not None and value.committed_ms <= command.before_ms]
    all_gone = len(expired) == sum(value is not None for _, value in known)
    is_idle = group is not None and group.idle_since_ms <= idle_before_ms
    has_promises = bool(held) or command.group_id in state.sessions
    if command.forget_group and all_gone and is_idle and not has_promises:
        return types.Decision(len(expired), (GroupDeleted(command.group_id),))
    return types.Decision(len(expired), tuple(Put(key, None) for key in expired))


DECIDE: dict[type, types.Decide] = {
    CommitOffsets: expiring(_commit),
    FetchOffsets: expiring(_fetch),
    DeleteOffsets: expiring(_delete),
    ExpireOffsets: expiring(_expire),
}
