"""A group's committed offsets: read and write them, as a member or from outside; compute those of a reset.

Requests use names rather than topic ids (OffsetFetch and OffsetCommit up to version 9), so that one response
can cover any topic that the group ever read, even a deleted one.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from semel.client.consume.offsets import EARLIEST, LATEST, Partition, list_offsets
from semel.client.errors import ErrorCode, KafkaError, check
from semel.client.net.cluster import Client, by_topic
from semel.client.net.retry import retrying
from semel.wire import messages as wire

F = TypeVar("F", wire.OffsetFetchRequestTopic, wire.OffsetFetchRequestTopics)
T = TypeVar(
    "T", wire.OffsetCommitRequestTopic, wire.TxnOffsetCommitRequestTopic, wire.CommitTransactionsTopic
)

LAST_VERSION_WITH_NAMES = 9
NO_OFFSET = -1


class CommittedOffset(NamedTuple):
    """A committed offset of a group, and its metadata."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class CommitAs(NamedTuple):
    """The sender of a commit: a member of a group, or no member."""

    member_id: str = ""
    epoch: int = -1
    instance_id: str | None = None


NOBODY = CommitAs()


class GroupMetadata(NamedTuple):
    """A group and optionally one of its members; a transaction needs it to commit offsets."""

    group_id: str
    member: CommitAs = NOBODY


def fetch_offsets(
    client: Client,
    group_id: str,
    partitions: Iterable[Partition] | None = None,
    *,
    require_stable: bool = True,
    stable_within_s: float | None = None,
) -> dict[Partition, CommittedOffset]:
    """Return the committed offsets of these partitions, or of all. Partitions without one are left out.

    With `require_stable`, wait for open transactions that may change one of them, up to `stable_within_s` or
    else the client's timeout.
    """
    numbers = None if partitions is None else by_topic(partitions)
    request = wire.OffsetFetchRequest(
        group_id=group_id,
        topics=_topics(numbers, wire.OffsetFetchRequestTopic),
        groups=[
            wire.OffsetFetchRequestGroup(
                group_id=group_id, topics=_topics(numbers, wire.OffsetFetchRequestTopics)
            )
        ],
        require_stable=require_stable,
    )
    within_s = client.timeout_s if stable_within_s is None else stable_within_s

    def ask() -> dict[Partition, CommittedOffset]:
        response: wire.OffsetFetchResponse = client.ask_coordinator(
            group_id, request, _fetch_codes, max_version=LAST_VERSION_WITH_NAMES
        )
        return _fetched(response, group_id)

    return retrying(ask, within_s, retriable=is_unstable)


def _fetched(response: wire.OffsetFetchResponse, group_id: str) -> dict[Partition, CommittedOffset]:
    answer = response.groups[0] if response.groups else response
    check(answer.error_code, f"the offsets of group {group_id!r} could not be read")
    found: dict[Partition, CommittedOffset] = {}
    for answered in answer.topics:
        for partition in answered.partitions:
            where = f"{answered.name}/{partition.partition_index}"
            check(partition.error_code, f"the offset of group {group_id!r} on {where} could not be read")
            if partition.committed_offset != NO_OFFSET:
                committed = CommittedOffset(
                    partition.committed_offset, partition.metadata or "", partition.committed_leader_epoch
                )
                found[answered.name, partition.partition_index] = committed
    return found


def offset_topics(
    offsets: Mapping[Partition, int | CommittedOffset], topic_as: type[T], partition_as: type[Any]
) -> list[T]:
    """Convert offsets to the topics of a request, of class `topic_as` with partitions of `partition_as`."""
    topics: dict[str, T] = {}
    for (name, partition), value in offsets.items():
        committed = value if isinstance(value, CommittedOffset) else CommittedOffset(value)
        topic = topics.setdefault(name, topic_as(name=name))
        topic.partitions.append(
            partition_as(
                partition_index=partition,
                committed_offset=committed.offset,
                committed_leader_epoch=committed.leader_epoch,
                committed_metadata=committed.metadata,
            )
        )
    return list(topics.values())


def commit_offsets(
    client: Client,
    group_id: str,
    offsets: Mapping[Partition, int | CommittedOffset],
    member: CommitAs = NOBODY,
) -> None:
    """Commit offsets. Without a member (`NOBODY`), that works only while the group has no members."""
    if not offsets:
        return
    request = wire.OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=member.epoch,
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        topics=offset_topics(offsets, wire.OffsetCommitRequestTopic, wire.OffsetCommitRequestPartition),
    )
    response: wire.OffsetCommitResponse = client.ask_coordinator(
        group_id, request, _commit_codes, max_version=LAST_VERSION_WITH_NAMES
    )
    for answer in response.topics:
        for partition in answer.partitions:
            where = f"{answer.name}/{partition.partition_index}"
            check(partition.error_code, f"the offset of group {group_id!r} on {where} was not committed")


def reset_targets(
    client: Client,
    partitions: Iterable[Partition],
    before: Mapping[Partition, int],
    *,
    to_earliest: bool = False,
    to_offset: int | None = None,
    time_ms: int | None = None,
    shift_by: int | None = None,
) -> dict[Partition, int]:
    """Return the new offset of each partition, by the first option that is given; else the end of the log.

    Offsets outside the log are moved to its nearest end. `shift_by` is relative to `before`, or to the start
    of the log for a partition that is not in it.
    """
    partitions = list(partitions)
    first = {key: at.offset for key, at in list_offsets(client, dict.fromkeys(partitions, EARLIEST)).items()}
    last = {key: at.offset for key, at in list_offsets(client, dict.fromkeys(partitions, LATEST)).items()}
    if to_earliest:
        return first
    if to_offset is not None:
        wanted = dict.fromkeys(partitions, to_offset)
    elif time_ms is not None:
        found = list_offsets(client, dict.fromkeys(partitions, time_ms))
        # No record has a timestamp that late: go to the end of the log.
        wanted = {key: at.offset if at.offset >= 0 else last[key] for key, at in found.items()}
    elif shift_by is not None:
        wanted = {key: before.get(key, first[key]) + shift_by for key in partitions}
    else:
        return last
    return {key: min(max(offset, first[key]), last[key]) for key, offset in wanted.items()}


def is_unstable(error: Exception) -> bool:
    """Whether the error says that an open transaction may still change offsets of the group."""
    return isinstance(error, KafkaError) and error.code is ErrorCode.UNSTABLE_OFFSET_COMMIT


def _fetch_codes(response: wire.OffsetFetchResponse) -> list[int]:
    return [response.error_code, *(group.error_code for group in response.groups)]


def _commit_codes(response: wire.OffsetCommitResponse) -> list[int]:
    return [partition.error_code for topic in response.topics for partition in topic.partitions]


def _topics(numbers: Mapping[str, list[int]] | None, topic_as: type[F]) -> list[F] | None:
    if numbers is None:
        return None
    return [topic_as(name=name, partition_indexes=indexes) for name, indexes in numbers.items()]
