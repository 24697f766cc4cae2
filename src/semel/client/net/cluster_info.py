"""A cluster as its brokers describe it to clients: brokers, topics, partitions."""

from dataclasses import dataclass

from semel.wire.messages import MetadataResponseTopic


@dataclass(frozen=True, slots=True)
class Node:
    """A broker and its address for clients."""

    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition: its leader and replicas."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic and its partitions, ordered by number."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: tuple[PartitionInfo, ...]


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The brokers of a cluster, and the requested topics."""

    cluster_id: str
    controller: int
    nodes: tuple[Node, ...]
    topics: tuple[TopicInfo, ...]


def topic_of(answer: MetadataResponseTopic) -> TopicInfo:
    """Convert a topic of a Metadata response."""
    partitions = sorted(answer.partitions, key=lambda each: each.partition_index)
    return TopicInfo(
        name=answer.name or "",
        topic_id=bytes(answer.topic_id),
        is_internal=answer.is_internal,
        partitions=tuple(
            PartitionInfo(
                each.partition_index,
                each.leader_id,
                each.leader_epoch,
                tuple(each.replica_nodes),
                tuple(each.isr_nodes),
            )
            for each in partitions
        ),
    )
