"""Offsets by name or by time: the question that consumers, tools and resets ask of partition leaders.

`EARLIEST`, `LATEST` and `MAX_TIMESTAMP` stand where a timestamp would, as they do in the protocol. An answer
of offset -1 means that there is no such record: no record that late, or none at all.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from semel.client.cluster import Client, by_node
from semel.client.errors import (
    ClientError,
    ErrorCode,
    KafkaError,
    UnsupportedRequest,
    check,
    is_retriable,
)
from semel.client.retry import Attempts
from semel.wire.messages import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

EARLIEST = -2
LATEST = -1
MAX_TIMESTAMP = -3

Partition: TypeAlias = tuple[str, int]


class Isolation(IntEnum):
    """What a reader may see: everything, or only what was committed."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1

    @classmethod
    def of(cls, name: "Isolation | str") -> "Isolation":
        """The isolation of this name, as it is written in the settings of Kafka's clients."""
        if isinstance(name, Isolation):
            return name
        try:
            return cls[name.upper()]
        except KeyError:
            raise ValueError(f"isolation is read_committed or read_uncommitted, not {name!r}") from None


class OffsetAt(NamedTuple):
    """The offset that was asked for, and the time of the record there where the broker says it."""

    offset: int
    timestamp: int


def list_offsets(
    client: Client,
    wanted: Mapping[Partition, int],
    *,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> dict[Partition, OffsetAt]:
    """The offset of each partition at a timestamp in milliseconds, or at `EARLIEST`, `LATEST`,
    `MAX_TIMESTAMP`.

    Partitions whose leader moved are asked for again while the client's patience lasts.
    """
    found: dict[Partition, OffsetAt] = {}
    for attempt in Attempts(client.patience_s, also=_leader_may_move):
        missing = {key: at for key, at in wanted.items() if key not in found}
        if not missing:
            return found
        try:
            for node, keys in by_node(client, missing).items():
                request = _request({key: missing[key] for key in keys}, isolation, client.timeout_s)
                _take(client.send(request, node=node), found)
        except (KafkaError, ClientError) as error:
            for topic, _ in missing:
                client.forget_topic(topic)
            attempt.failed(error)
    raise AssertionError("attempts end by an error")


def list_ends_together(client: Client, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """Where these partitions end, in one answer of one broker: where the log goes on, whatever is open.

    From a broker with the feature `semel.snapshot` it is the same commit for all of them.
    """
    wanted = dict.fromkeys(partitions, LATEST)
    for attempt in Attempts(client.patience_s, also=_leader_may_move):
        try:
            nodes = list(by_node(client, wanted))
            # An answer that is not whole is asked for again as a whole.
            found: dict[Partition, OffsetAt] = {}
            if len(nodes) == 1:
                request = _request(wanted, Isolation.READ_UNCOMMITTED, client.timeout_s)
                _take(client.send(request, node=nodes[0]), found)
        except (KafkaError, ClientError) as error:
            for topic, _ in wanted:
                client.forget_topic(topic)
            attempt.failed(error)
            continue
        if len(nodes) > 1:
            raise UnsupportedRequest(f"the partitions are led by {len(nodes)} brokers, which answer apart.")
        return {key: each.offset for key, each in found.items()}
    raise AssertionError("attempts end by an error")


def _leader_may_move(error: Exception) -> bool:
    if isinstance(error, KafkaError):
        return error.retriable and error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return is_retriable(error)


def _request(wanted: Mapping[Partition, int], isolation: Isolation, timeout_s: float) -> ListOffsetsRequest:
    topics: dict[str, ListOffsetsTopic] = {}
    for (name, partition), timestamp in wanted.items():
        topic = topics.setdefault(name, ListOffsetsTopic(name=name))
        topic.partitions.append(ListOffsetsPartition(partition_index=partition, timestamp=timestamp))
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=list(topics.values()),
        timeout_ms=int(timeout_s * 1000),
    )


def _take(response: ListOffsetsResponse, found: dict[Partition, OffsetAt]) -> None:
    for topic in response.topics:
        for each in topic.partitions:
            check(each.error_code, f"the offsets of {topic.name}/{each.partition_index} are not known")
            found[topic.name, each.partition_index] = OffsetAt(each.offset, each.timestamp)
