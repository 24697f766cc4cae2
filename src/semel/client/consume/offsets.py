"""Looks up offsets by timestamp with ListOffsets, for consumers, tools and resets.

`EARLIEST`, `LATEST` and `MAX_TIMESTAMP` are special timestamps, as in the protocol. Offset -1 in an answer
means that there is no such record: none at or after the timestamp, or none at all.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from semel.client.errors import UnsupportedRequest, check
from semel.client.net.cluster import Client, ask_leaders, by_node, leader_may_move
from semel.client.net.retry import retrying
from semel.wire.messages import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

EARLIEST = -2
LATEST = -1
MAX_TIMESTAMP = -3
END_TOGETHER = -1003
"""A timestamp of Semel: the high watermark of each partition after one commit, the same for all."""
TOGETHER_LEVEL = 3
"""The level of the feature `semel.snapshot` from which brokers support `END_TOGETHER`."""

Partition: TypeAlias = tuple[str, int]


class Isolation(IntEnum):
    """What a reader may see: everything, or only committed records."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1

    @classmethod
    def of(cls, name: "Isolation | str") -> "Isolation":
        """Return the isolation of this name, as in the settings of Kafka's clients."""
        if isinstance(name, Isolation):
            return name
        try:
            return cls[name.upper()]
        except KeyError:
            raise ValueError(f"isolation must be read_committed or read_uncommitted, not {name!r}") from None


class OffsetAt(NamedTuple):
    """An offset, and the timestamp of its record if the broker reports it."""

    offset: int
    timestamp: int


def list_offsets(
    client: Client,
    wanted: Mapping[Partition, int],
    *,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> dict[Partition, OffsetAt]:
    """Return the offset of each partition at a timestamp (ms), or at `EARLIEST`, `LATEST`, `MAX_TIMESTAMP`.

    Partitions whose leader moved are queried again within the client's `patience_s`.
    """

    def ask(node: int, timestamps: Mapping[Partition, int]) -> Iterator[tuple[Partition, OffsetAt]]:
        return _answers(client.send(_request(timestamps, isolation, client.timeout_s), node=node))

    return ask_leaders(client, wanted, ask)


def list_ends_together(client: Client, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """Return the high watermarks of these partitions, from one response of one broker.

    With the feature `semel.snapshot`, all are those after the same commit. From level 3 on, any broker of a
    cluster returns those of all partitions. Below, one broker must lead all of them, else UnsupportedRequest.
    """
    partitions = list(partitions)

    def ask() -> dict[Partition, int]:
        any_broker = client.feature("semel.snapshot") >= TOGETHER_LEVEL
        wanted = dict.fromkeys(partitions, END_TOGETHER if any_broker else LATEST)
        nodes: list[int | None] = [None] if any_broker else list(by_node(client, wanted))
        if len(nodes) > 1:
            raise UnsupportedRequest(
                f"the partitions are led by {len(nodes)} brokers, which have no common commit."
            )
        request = _request(wanted, Isolation.READ_UNCOMMITTED, client.timeout_s)
        responses = [client.send(request, node=node) for node in nodes]
        # An incomplete answer is discarded, and all partitions are queried again.
        return {key: at.offset for response in responses for key, at in _answers(response)}

    def forget_leaders() -> None:
        for topic, _ in partitions:
            client.forget_topic(topic)

    return retrying(ask, client.patience_s, retriable=leader_may_move, on_failure=forget_leaders)


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


def _answers(response: ListOffsetsResponse) -> Iterator[tuple[Partition, OffsetAt]]:
    for topic in response.topics:
        for partition in topic.partitions:
            number = partition.partition_index
            check(partition.error_code, f"the offsets of {topic.name}/{number} could not be read")
            yield (topic.name, number), OffsetAt(partition.offset, partition.timestamp)
