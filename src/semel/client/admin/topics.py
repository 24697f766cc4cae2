"""Administration of topics: list, create, change and delete them; delete records.

`create` and `delete` take several topics, and the broker handles each independently, as in Kafka. The first
refusal is raised as a `KafkaError` that names its topic; the other topics are changed nevertheless.

DescribeLogDirs tells the sizes of partitions and the free space of brokers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from semel.client import errors
from semel.client.consume.offsets import Isolation, OffsetAt, Partition, list_offsets
from semel.client.net.cluster import Client, TopicInfo, ask_leaders
from semel.client.net.retry import Attempts
from semel.wire import messages as wire
from semel.wire.errors import ErrorCode
from semel.wire.schema import Request


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
        wire.DescribableLogDirTopic(
            topic=name, partitions=[partition.partition for partition in client.topic(name).partitions]
        )
        for name in topics
    ]
    found: dict[Partition, int] = {}
    if not wanted:
        return found
    for response in _ask(client, wire.DescribeLogDirsRequest(topics=wanted)).values():
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
        for node_id, response in _ask(client, wire.DescribeLogDirsRequest(topics=[])).items()
        for directory in response.results
    ]


def _ask(client: Client, request: wire.DescribeLogDirsRequest) -> dict[int, wire.DescribeLogDirsResponse]:
    """Ask all brokers. Those that cannot be reached are missing."""
    answers: dict[int, wire.DescribeLogDirsResponse] = {}
    for node in client.describe(topics=()).nodes:
        try:
            response: wire.DescribeLogDirsResponse = client.send(request, node=node.node_id)
        except (errors.BrokerUnreachable, errors.ConnectionLost, errors.RequestTimedOut):
            continue
        errors.check(response.error_code, f"broker {node.node_id} does not describe its directories")
        answers[node.node_id] = response
    return answers


DEFAULT = -1  # let the broker choose


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. The broker chooses the number of partitions and replicas unless given."""

    name: str
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A topic that was created; -1 where an old broker does not report a number."""

    name: str
    topic_id: bytes
    partitions: int
    replication_factor: int


class TopicAdmin:
    """Topics of a cluster. Reached as `Admin(client).topics`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def all(self) -> list[TopicInfo]:
        """List all topics, ordered by name."""
        return sorted(self._client.describe().topics, key=lambda topic: topic.name)

    def describe(self, name: str) -> TopicInfo:
        """Return a topic, bypassing the cache. KafkaError if it does not exist."""
        return self._client.topic(name, anew=True)

    def create(self, *topics: NewTopic | str, validate_only: bool = False) -> list[CreatedTopic]:
        """Create topics, or only check whether they could be created."""
        wanted = [NewTopic(topic) if isinstance(topic, str) else topic for topic in topics]
        request = wire.CreateTopicsRequest(
            topics=[_creatable(topic) for topic in wanted],
            timeout_ms=int(self._client.timeout_s * 1000),
            validate_only=validate_only,
        )
        response: wire.CreateTopicsResponse = _to_controller(
            self._client, request, lambda answer: [topic.error_code for topic in answer.topics]
        )
        for topic in response.topics:
            errors.check(topic.error_code, f"topic {topic.name!r} was not created", topic.error_message)
            self._client.forget_topic(topic.name)
        return [
            CreatedTopic(topic.name, bytes(topic.topic_id), topic.num_partitions, topic.replication_factor)
            for topic in response.topics
        ]

    def delete(self, *names: str) -> None:
        """Delete topics with all their records."""
        request = wire.DeleteTopicsRequest(
            topic_names=list(names),
            topics=[wire.DeleteTopicState(name=name) for name in names],
            timeout_ms=int(self._client.timeout_s * 1000),
        )
        response: wire.DeleteTopicsResponse = _to_controller(
            self._client, request, lambda answer: [topic.error_code for topic in answer.responses]
        )
        for name in names:
            self._client.forget_topic(name)
        for topic in response.responses:
            errors.check(topic.error_code, f"topic {topic.name!r} was not deleted", topic.error_message)

    def add_partitions(self, name: str, total: int) -> None:
        """Increase a topic to `total` partitions. Keys may move to another partition."""
        request = wire.CreatePartitionsRequest(
            topics=[wire.CreatePartitionsTopic(name=name, count=total, assignments=None)],
            timeout_ms=int(self._client.timeout_s * 1000),
        )
        response: wire.CreatePartitionsResponse = _to_controller(
            self._client, request, lambda answer: [topic.error_code for topic in answer.results]
        )
        self._client.forget_topic(name)
        for topic in response.results:
            what = f"the partitions of topic {topic.name!r} were not changed"
            errors.check(topic.error_code, what, topic.error_message)

    def offsets(
        self,
        wanted: Mapping[Partition, int],
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> dict[Partition, OffsetAt]:
        """Return the offsets of partitions at a time, or at `EARLIEST`, `LATEST`, `MAX_TIMESTAMP`."""
        return list_offsets(self._client, wanted, isolation=isolation)

    def partitions(self, names: Iterable[str]) -> list[Partition]:
        """Return every partition of these topics."""
        return [(name, partition.partition) for name in names for partition in self.describe(name).partitions]

    def delete_records(self, before: Mapping[Partition, int]) -> dict[Partition, int]:
        """Delete the records before these offsets (-1: all); return the new log start offsets."""
        # Deleting twice does no harm: what is below the log start stays deleted.
        return ask_leaders(self._client, before, self._delete_at)

    def _delete_at(self, node: int, before: Mapping[Partition, int]) -> Iterator[tuple[Partition, int]]:
        topics: dict[str, wire.DeleteRecordsTopic] = {}
        for (name, partition), offset in before.items():
            topic = topics.setdefault(name, wire.DeleteRecordsTopic(name=name))
            topic.partitions.append(wire.DeleteRecordsPartition(partition_index=partition, offset=offset))
        request = wire.DeleteRecordsRequest(
            topics=list(topics.values()), timeout_ms=int(self._client.timeout_s * 1000)
        )
        response: wire.DeleteRecordsResponse = self._client.send(request, node=node)
        for answer in response.topics:
            for result in answer.partitions:
                where = f"{answer.name}/{result.partition_index}"
                errors.check(result.error_code, f"the records of {where} were not deleted")
                yield (answer.name, result.partition_index), result.low_watermark


def _creatable(topic: NewTopic) -> wire.CreatableTopic:
    return wire.CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=[wire.CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
    )


def _to_controller(client: Client, request: Request, codes: Callable[[Any], Iterable[int]]) -> Any:
    """Send to the controller, and retry if it has moved. On most clusters any broker serves as controller."""
    attempts = Attempts(client.timeout_s)
    while True:
        cluster = client.describe(topics=())
        is_known = any(node.node_id == cluster.controller for node in cluster.nodes)
        try:
            response = client.send(request, node=cluster.controller if is_known else None)
        except errors.BrokerUnreachable as error:
            attempts.failed(error)  # The request was not sent, so a retry is safe.
            continue
        if ErrorCode.NOT_CONTROLLER not in codes(response):
            return response
        attempts.failed(errors.KafkaError(ErrorCode.NOT_CONTROLLER, "The controller moved; try again."))
