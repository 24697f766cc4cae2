"""Committed offsets: what a group may commit, fetch and delete, and when they are forgotten.

How it works. A commit is checked against the group: from a member of the current generation (or member
epoch), or from nobody in particular while the group is empty, which is how administrators and consumers
without a group protocol commit. Each partition is an entity of its own, so a commit writes one fact per
partition.

A group that has offsets exists: the first commit to an unknown group makes an empty classic one. While
nobody is a member, ``idle_since_ms`` is kept fresh by commits, so that a group in use is not forgotten
between the moment when housekeeping looked and the moment when its command is decided.

``check_commit`` also holds for commits inside a transaction (``is_transactional``), which are checked less.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from semel.core.facts import GroupChanged, GroupDeleted, OffsetCommitted, OffsetDeleted
from semel.core.groups.classic_rebalance import ClassicTurn, check_member
from semel.core.groups.commands import ExpireOffsets
from semel.core.groups.model import CONSUMER_PROTOCOL, ClassicGroup, ClassicState, ConsumerGroup, Group
from semel.core.groups.subscriptions import subscribed_topics
from semel.core.types import (
    Apply,
    CommittedOffset,
    Decide,
    Decision,
    ErrorCode,
    Fact,
    GroupKey,
    Key,
    OffsetKey,
)

if TYPE_CHECKING:
    from semel.core.state import BrokerState

IDLE_REFRESH_MS: Final = 10_000
"""How stale ``idle_since_ms`` may get: well below the shortest retention, without a write per commit."""


class Committer(NamedTuple):
    """Who commits or fetches, as far as the request says."""

    generation: int = -1
    """Or the member epoch."""
    member_id: str = ""
    instance_id: str | None = None


class CommitOffsets(NamedTuple):
    """Move a group's positions. The answer is one ErrorCode per offset, in the same order."""

    group_id: str
    committer: Committer
    offsets: tuple[tuple[OffsetKey, CommittedOffset], ...]
    """Only partitions that exist; the time of the commit is filled in here."""
    metadata_chars_max: int = 4_096
    knows_consumer_groups: bool = True
    """Whether the client can be a KIP-848 member and knows their errors (OffsetCommit from version 9)."""

    def keys(self) -> Iterable[Key]:
        """The group. What was committed before does not matter."""
        return (GroupKey(self.group_id),)


class FetchOffsets(NamedTuple):
    """Read a group's positions. The answer is ``Fetched``; without ``offsets`` only the asker is checked."""

    group_id: str
    member_id: str | None = None
    member_epoch: int = -1
    offsets: tuple[OffsetKey, ...] = ()

    def keys(self) -> Iterable[Key]:
        """The group and the offsets."""
        return (GroupKey(self.group_id), *self.offsets)


class Fetched(NamedTuple):
    """The answer to ``FetchOffsets``: None where nothing is committed."""

    error: ErrorCode
    offsets: tuple[CommittedOffset | None, ...] = ()


class DeleteOffsets(NamedTuple):
    """Forget positions. The answer is ``OffsetsDeleted``."""

    group_id: str
    offsets: tuple[OffsetKey, ...]

    def keys(self) -> Iterable[Key]:
        """The group and the offsets."""
        return (GroupKey(self.group_id), *self.offsets)


class OffsetsDeleted(NamedTuple):
    """The answer to ``DeleteOffsets``: one error for all, or one for each."""

    error: ErrorCode
    partitions: tuple[ErrorCode, ...] = ()


def check_commit(
    group: Group | None, committer: Committer, *, is_transactional: bool, knows_consumer_groups: bool
) -> ErrorCode:
    """Whether this committer may move the group's positions."""
    is_nobody = committer.generation < 0 and not committer.member_id and committer.instance_id is None
    if group is None:
        if committer.generation < 0:
            return ErrorCode.NONE
        return ErrorCode.GROUP_ID_NOT_FOUND if knows_consumer_groups else ErrorCode.ILLEGAL_GENERATION
    if committer.generation < 0 and not group.members:
        return ErrorCode.NONE
    if is_nobody:
        return ErrorCode.NONE if is_transactional else ErrorCode.UNKNOWN_MEMBER_ID
    if isinstance(group, ConsumerGroup):
        return _check_consumer(group, committer, is_transactional, knows_consumer_groups)
    error = check_member(group, committer.member_id, committer.instance_id)
    if error is not ErrorCode.NONE:
        return error
    if committer.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if group.state is ClassicState.COMPLETING and not is_transactional:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _check_consumer(
    group: ConsumerGroup, committer: Committer, is_transactional: bool, knows_consumer_groups: bool
) -> ErrorCode:
    member = group.members.get(committer.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if not is_transactional and not knows_consumer_groups:
        return ErrorCode.UNSUPPORTED_VERSION
    if committer.generation != member.epoch:
        return ErrorCode.STALE_MEMBER_EPOCH if knows_consumer_groups else ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.NONE


def _commit(state: "BrokerState", command: CommitOffsets, now: int) -> Decision:
    group = state.groups[GroupKey(command.group_id)]
    error = check_commit(
        group,
        command.committer,
        is_transactional=False,
        knows_consumer_groups=command.knows_consumer_groups,
    )
    if not command.group_id:
        error = ErrorCode.INVALID_GROUP_ID
    if error is not ErrorCode.NONE:
        return Decision((error,) * len(command.offsets))
    errors: list[ErrorCode] = []
    facts: list[Fact] = []
    for key, value in command.offsets:
        if len(value.metadata) > command.metadata_chars_max:
            errors.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
            continue
        errors.append(ErrorCode.NONE)
        facts.append(OffsetCommitted(key, value._replace(committed_ms=now)))
    if facts:
        facts.extend(_keep_group(state, group, command, now))
    return Decision(tuple(errors), tuple(facts))


def _keep_group(
    state: "BrokerState", group: Group | None, command: CommitOffsets, now: int
) -> tuple[Fact, ...]:
    """What a commit means for the group: it exists, is in use, and a classic member that commits lives."""
    if group is None:
        return (GroupChanged(ClassicGroup(command.group_id, idle_since_ms=now)),)
    if not group.members:
        if now - group.idle_since_ms < IDLE_REFRESH_MS:
            return ()
        return (GroupChanged(group._replace(idle_since_ms=now)),)
    if isinstance(group, ConsumerGroup):
        return ()
    turn = ClassicTurn(group, state.sessions.get(command.group_id), now)
    turn.heard(command.committer.member_id)
    return turn.decision(None).facts


def _fetch(state: "BrokerState", command: FetchOffsets, now: int) -> Decision:
    group = state.groups[GroupKey(command.group_id)]
    if isinstance(group, ConsumerGroup) and (command.member_id or command.member_epoch >= 0):
        member = group.members.get(command.member_id or "")
        if member is None:
            return Decision(Fetched(ErrorCode.UNKNOWN_MEMBER_ID))
        if member.epoch != command.member_epoch:
            return Decision(Fetched(ErrorCode.STALE_MEMBER_EPOCH))
    return Decision(Fetched(ErrorCode.NONE, tuple(state.offsets[key] for key in command.offsets)))


def _delete(state: "BrokerState", command: DeleteOffsets, now: int) -> Decision:
    if not command.group_id:
        return Decision(OffsetsDeleted(ErrorCode.INVALID_GROUP_ID))
    group = state.groups[GroupKey(command.group_id)]
    if group is None:
        return Decision(OffsetsDeleted(ErrorCode.GROUP_ID_NOT_FOUND))
    if group.members and group.protocol_type != CONSUMER_PROTOCOL:
        # Only of consumers is it known which topics they use.
        return Decision(OffsetsDeleted(ErrorCode.NON_EMPTY_GROUP))
    subscribed = subscribed_topics(group)
    errors: list[ErrorCode] = []
    facts: list[Fact] = []
    for key in command.offsets:
        if subscribed is None or key.topic in subscribed:
            errors.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
            continue
        errors.append(ErrorCode.NONE)
        if state.offsets[key] is not None:
            facts.append(OffsetDeleted(key))
    return Decision(OffsetsDeleted(ErrorCode.NONE, tuple(errors)), tuple(facts))


def _expire(state: "BrokerState", command: ExpireOffsets, now: int) -> Decision:
    """The answer is how many offsets were forgotten."""
    group = state.groups[GroupKey(command.group_id)]
    if group is not None and group.members:
        return Decision(0)
    # A group that once had members is idle since the last one left. One that never had is as old as its
    # offsets.
    had_members = isinstance(group, ConsumerGroup) or (group is not None and group.generation > 0)
    if group is not None and had_members and group.idle_since_ms > command.before_ms:
        return Decision(0)
    known = [(key, state.offsets[key]) for key in command.offsets]
    expired = [key for key, value in known if value is not None and value.committed_ms <= command.before_ms]
    all_gone = len(expired) == sum(value is not None for _, value in known)
    is_idle = group is not None and group.idle_since_ms <= command.before_ms
    has_promises = command.group_id in state.sessions
    if command.forget_group and all_gone and is_idle and not has_promises:
        return Decision(len(expired), (GroupDeleted(command.group_id),))
    return Decision(len(expired), tuple(OffsetDeleted(key) for key in expired))


def _committed(state: "BrokerState", fact: OffsetCommitted) -> None:
    state.offsets[fact.key] = fact.value


def _deleted(state: "BrokerState", fact: OffsetDeleted) -> None:
    state.offsets[fact.key] = None


DECIDE: dict[type, Decide] = {
    CommitOffsets: _commit,
    FetchOffsets: _fetch,
    DeleteOffsets: _delete,
    ExpireOffsets: _expire,
}
APPLY: dict[type, Apply] = {OffsetCommitted: _committed, OffsetDeleted: _deleted}
