"""Check whether a client may commit offsets of a group.

A commit must come from a member of the current generation (or member epoch), or carry no member while the
group is empty, which is how administrators and consumers without a group protocol commit. Commits inside a
transaction (``is_transactional``) need not name a member.

In a consumer group, a member may also commit with an older epoch if it has owned the partition since that
epoch (KIP-1251). Rebalances that the member has not heard of bump its epoch, but no other member has owned
the partition in the meantime.
"""

from semel.core.data import Data
from semel.core.groups.classic_rebalance import check_member
from semel.core.groups.model import ClassicState, ConsumerGroup, ConsumerMember, Group
from semel.core.shares.group import ShareGroup
from semel.core.types import ErrorCode, OffsetKey


class Committer(Data):
    """The sender of a commit or fetch, as far as the request identifies it."""

    generation: int = -1
    """The generation, or the member epoch of a consumer group."""
    member_id: str = ""
    instance_id: str | None = None


def check_commit(
    group: Group | None, committer: Committer, *, is_transactional: bool, knows_consumer_groups: bool
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
    if isinstance(group, ConsumerGroup):
        return _check_consumer(group, committer, is_transactional, knows_consumer_groups)
    error = check_member(group, committer.member_id, committer.instance_id)
    if error is not ErrorCode.NONE:
        return error
    if committer.generation != group.generation_of(committer.member_id):
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
    if not is_transactional and not knows_consumer_groups and member.classic is None:
        return ErrorCode.UNSUPPORTED_VERSION
    if 0 <= committer.generation <= member.epoch:
        return ErrorCode.NONE
    return _wrong_epoch(member) if knows_consumer_groups else ErrorCode.ILLEGAL_GENERATION


def check_partition(group: Group | None, committer: Committer, key: OffsetKey) -> ErrorCode:
    """Check that a sender that passed ``check_commit`` may commit this partition."""
    if not isinstance(group, ConsumerGroup):
        return ErrorCode.NONE
    member = group.members.get(committer.member_id)
    if member is None or committer.generation == member.epoch:
        return ErrorCode.NONE
    shape = group.topics.get(key.topic)
    if shape is not None and member.owns_since((shape.topic_id, key.partition), committer.generation):
        return ErrorCode.NONE
    return _wrong_epoch(member)


def _wrong_epoch(member: ConsumerMember) -> ErrorCode:
    return ErrorCode.ILLEGAL_GENERATION if member.classic else ErrorCode.STALE_MEMBER_EPOCH
