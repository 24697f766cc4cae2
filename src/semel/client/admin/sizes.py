"""Queries the sizes of partitions and the free space of brokers (DescribeLogDirs)."""

from collections.abc import Iterable
from dataclasses import dataclass

from semel.client.consume.offsets import Partition
from semel.client.errors import BrokerUnreachable, ConnectionLost, RequestTimedOut, check
from semel.client.net.cluster import Client
from semel.wire.messages import DescribeLogDirsRequest, DescribeLogDirsResponse
from semel.wire.messages.topics import DescribableLogDirTopic


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """A directory in which a broker keeps records; -1 for a number that it does not report."""

    node_id: int
    path: str
    total_bytes: int
    usable_bytes: int


def partition_sizes(client: Client, topics: Iterable[str]) -> dict[Partition, int]:
    """Return the bytes of each partition of these topics; with replicas, those of the largest.

    Partitions of brokers that cannot be reached are missing.
    """
    wanted = [
        DescribableLogDirTopic(
            topic=name, partitions=[partition.partition for partition in client.topic(name).partitions]
        )
        for name in topics
    ]
    found: dict[Partition, int] = {}
    if not wanted:
        return found
    for response in _ask(client, DescribeLogDirsRequest(topics=wanted)).values():
        for result in response.results:
            for topic in result.topics:
                for partition in topic.partitions:
                    key = (topic.name, partition.partition_index)
                    found[key] = max(found.get(key, 0), partition.partition_size)
    return found


def log_directories(client: Client) -> list[LogDirectory]:
    """Return the directories of all brokers that answer, without their partitions."""
    return [
        LogDirectory(node_id, directory.log_dir, directory.total_bytes, directory.usable_bytes)
        for node_id, response in _ask(client, DescribeLogDirsRequest(topics=[])).items()
        for directory in response.results
    ]


def _ask(client: Client, request: DescribeLogDirsRequest) -> dict[int, DescribeLogDirsResponse]:
    """Ask all brokers. Those that cannot be reached are missing."""
    answers: dict[int, DescribeLogDirsResponse] = {}
    for node in client.describe(topics=()).nodes:
        try:
            response: DescribeLogDirsResponse = client.send(request, node=node.node_id)
        except (BrokerUnreachable, ConnectionLost, RequestTimedOut):
            continue
        check(response.error_code, f"broker {node.node_id} does not describe its directories")
        answers[node.node_id] = response
    return answers
