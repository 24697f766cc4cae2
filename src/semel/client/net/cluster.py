"""`Client`: finds the brokers, leaders and coordinators of a cluster, and sends requests to them.

    with Client("127.0.0.1:9092") as client:
        response = client.send(DescribeClusterRequest())

It starts from the bootstrap addresses, learns the rest from Metadata, keeps one connection per broker, and
uses the highest version of each request that both sides support. Topics are cached for `METADATA_AGE_S`,
coordinators without a time limit. A caller discards an entry when a broker answers that it is not the leader
or not the coordinator.

Retries: a request that any broker can answer, and that was not sent (no connection), goes to the next broker
automatically. A request whose answer was lost is not sent again here, because only the caller knows whether
that is safe; callers use `retrying`. A `Client` belongs to one thread.

There are two limits, as in Kafka's clients. `timeout_s` limits one answer. `patience_s`, if set, limits a
whole operation with its retries: long enough to restart a broker. It only applies to a cluster that was
reached before. On first contact the address may be wrong, and that should be reported at once.

`to_leaders` and `to_all_brokers` send one request to several brokers.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias, TypeVar

from semel.client.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    ClientError,
    ErrorCode,
    KafkaError,
    ProtocolError,
    check,
    is_retriable,
)
from semel.client.net.connection import Connection, Pending
from semel.client.net.retry import Attempts, retrying
from semel.client.net.security import Security
from semel.wire import messages as wire
from semel.wire.addresses import Address, parse_addresses
from semel.wire.schema import Request

GROUP = 0
TRANSACTION = 1

#: How long to retry before an unknown topic is reported: a topic that was just created takes a moment to
#: appear.
UNKNOWN_TOPIC_WAIT_S = 2.0
METADATA_AGE_S = 300.0
TOPICS_KEPT_MAX = 10_000
COORDINATORS_KEPT_MAX = 10_000

_MOVED = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
_NOT_YET = _MOVED | {ErrorCode.CONCURRENT_TRANSACTIONS}


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


class Client:
    """A cluster, reached through its bootstrap servers. Close it, or use it in a `with`."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] = "127.0.0.1:9092",
        *,
        client_id: str = "semel",
        timeout_s: float = 30.0,
        patience_s: float | None = None,
        security: Security | None = None,
    ) -> None:
        """ValueError if an address, or a file of `security`, is invalid."""
        self.client_id = client_id
        self.timeout_s = timeout_s
        self._patience_s = patience_s
        self._has_connected = False
        self._security = security
        self._ssl_context = security.context() if security is not None else None
        self._bootstrap = parse_addresses(bootstrap_servers)
        self._nodes: dict[int, Node] = {}
        self._connections: dict[Address, Connection] = {}
        self._topics: dict[str, tuple[TopicInfo, float]] = {}
        self._coordinators: dict[tuple[int, str], int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. May be called again; the client can be used again afterwards."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # ---- patience

    @property
    def is_known(self) -> bool:
        """Whether a broker of the cluster was reached before, which proves the addresses right."""
        return self._has_connected

    @property
    def patience_s(self) -> float:
        """The time limit of an operation with its retries."""
        if self._patience_s is None or not self.is_known:
            return self.timeout_s
        return max(self._patience_s, self.timeout_s)

    @property
    def _away_s(self) -> float:
        """How long to wait for a broker when none can be reached; 0 on first contact."""
        return self.patience_s if self._patience_s is not None and self.is_known else 0.0

    def _note_connected(self) -> None:
        self._has_connected = True

    # ---- sending

    def send(
        self,
        request: Request,
        *,
        node: int | None = None,
        timeout_s: float | None = None,
        max_version: int | None = None,
    ) -> Any:
        """Send a request to the given broker, or to any, and return its response."""
        return self.post(request, node=node, max_version=max_version).wait(timeout_s)

    def ask(self, request: Request, *, node: int | None = None) -> Any:
        """Send an idempotent request, and retry it within `patience_s` while no broker can be reached."""
        return retrying(lambda: self.send(request, node=node), self._away_s)

    def post(self, request: Request, *, node: int | None = None, max_version: int | None = None) -> Pending:
        """Send a request now; get the answer with `wait`. Lets several brokers work in parallel."""
        connection = self.connection(node)
        return connection.post(request, connection.version_of(request.api_key, max_version))

    def connection(self, node: int | None = None) -> Connection:
        """Return the connection to a broker, or to any; connect if there is none.

        If no broker can be reached at all, the client waits for `patience_s`. It does not wait for a specific
        broker: another may have taken over, which the caller has to find out.
        """
        if node is not None:
            if node not in self._nodes:
                self.describe(topics=())
            if node not in self._nodes:
                raise BrokerUnreachable(f"broker {node} is not in the cluster.")
            found = self._nodes[node]
            return self._open((found.host, found.port))
        return retrying(self._open_any, self._away_s)

    def _open_any(self) -> Connection:
        known = list(self._connections)
        known += [
            address for node in self._nodes.values() if (address := (node.host, node.port)) not in known
        ]
        known += [address for address in self._bootstrap if address not in known]
        problems = []
        for address in known:
            try:
                return self._open(address)
            except AuthenticationFailed:
                raise
            except ClientError as error:
                problems.append(str(error).rstrip("."))
        message = f"{'; '.join(problems)}. Is a broker running there?"
        raise BrokerUnreachable(message, is_first_contact=not self.is_known)

    def serves(self, api_key: int, version: int = 0) -> bool:
        """Whether the cluster supports this version of an API, or a later one."""
        served = self.connection().versions.get(api_key)
        return served is not None and served.last >= version

    def feature(self, name: str) -> int:
        """Return the newest known level of a feature among the connected brokers; 0 if none reported it."""
        self.connection()
        known = [connection for connection in self._connections.values() if connection.features_epoch >= 0]
        newest = max(known, key=lambda connection: connection.features_epoch, default=None)
        return newest.features.get(name, 0) if newest is not None else 0

    def _open(self, address: Address) -> Connection:
        known = self._connections.get(address)
        if known is not None and known.is_open:
            return known
        made = Connection(
            *address,
            client_id=self.client_id,
            timeout_s=self.timeout_s,
            security=self._security,
            ssl_context=self._ssl_context,
        )
        self._connections[address] = made
        self._note_connected()
        return made

    # ---- metadata

    def describe(self, topics: Iterable[str] | None = None, *, create: bool = False) -> ClusterInfo:
        """Describe the brokers and these topics, or all topics if None. Unknown topics are left out.

        KafkaError if the client is not authorised to describe one of them.
        """
        response = self._metadata(topics, create)
        for answer in response.topics:
            if answer.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                check(answer.error_code, f"topic {answer.name!r}")
        found = [topic_of(answer) for answer in response.topics if not answer.error_code]
        for topic in found:
            self._keep(topic)
        return ClusterInfo(
            response.cluster_id or "", response.controller_id, tuple(self._nodes.values()), tuple(found)
        )

    def topic(self, name: str, *, create: bool = False, wait_s: float = 0.0, anew: bool = False) -> TopicInfo:
        """Return a topic, from the cache if possible. KafkaError if it still does not exist after `wait_s`.

        With `create`, the broker may auto-create the topic. `anew` bypasses the cache: the topic may have got
        more partitions, or may have been deleted and created again.
        """
        if anew:
            self.forget_topic(name)
        known = self._topics.get(name)
        if known is not None and time.monotonic() - known[1] < METADATA_AGE_S:
            return known[0]

        def look_up() -> TopicInfo:
            (answer,) = self._metadata([name], create).topics
            is_unknown = answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            check(answer.error_code, f"there is no topic {name!r}" if is_unknown else f"topic {name!r}")
            topic = topic_of(answer)
            self._keep(topic)
            return topic

        try:
            return retrying(look_up, wait_s, retriable=_is_retriable_answer)
        except ClientError as error:
            if known is None or not is_retriable(error):
                raise
            return known[0]  # It may be outdated, but no broker can be reached now.

    def leader(self, name: str, partition: int) -> int:
        """Return the leader of a partition. KafkaError if it has none."""
        topic = self.topic_with(name, partition)
        leader = next(info.leader for info in topic.partitions if info.partition == partition)
        if leader < 0:
            self.forget_topic(name)
            check(ErrorCode.LEADER_NOT_AVAILABLE, f"{name}/{partition} has no leader at the moment")
        return leader

    def topic_with(self, name: str, partition: int, *, create: bool = False) -> TopicInfo:
        """Return a topic that has this partition; query a broker if the cached one lacks it."""
        topic = self.topic(name, create=create, wait_s=UNKNOWN_TOPIC_WAIT_S)
        if not _has(topic, partition):
            topic = self.topic(name, create=create, wait_s=UNKNOWN_TOPIC_WAIT_S, anew=True)
        if not _has(topic, partition):
            message = f"topic {name!r} has no partition {partition}, only 0 to {len(topic.partitions) - 1}"
            check(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        return topic

    def forget_topic(self, name: str) -> None:
        """Drop a topic from the cache: its leader moved, or it was created again."""
        self._topics.pop(name, None)

    def topic_name(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with this id, from the cache or from the cluster."""
        for topic, _ in self._topics.values():
            if topic.topic_id == topic_id:
                return topic.name
        self.describe()
        return next((topic.name for topic, _ in self._topics.values() if topic.topic_id == topic_id), None)

    def _keep(self, topic: TopicInfo) -> None:
        if len(self._topics) >= TOPICS_KEPT_MAX and topic.name not in self._topics:
            self._topics.pop(next(iter(self._topics)))
        self._topics[topic.name] = (topic, time.monotonic())

    def _metadata(self, topics: Iterable[str] | None, create: bool) -> wire.MetadataResponse:
        wanted = None if topics is None else [wire.MetadataRequestTopic(name=name) for name in topics]
        request = wire.MetadataRequest(topics=wanted, allow_auto_topic_creation=create)
        within_s = max(min(self.timeout_s, 10.0), self._away_s)
        response: wire.MetadataResponse = retrying(lambda: self.send(request), within_s, retriable=_is_lost)
        nodes = [Node(broker.node_id, broker.host, broker.port) for broker in response.brokers]
        self._nodes = {node.node_id: node for node in nodes}
        return response

    # ---- coordinators

    def coordinator(self, key: str, kind: int = GROUP, timeout_s: float | None = None) -> int:
        """Return the coordinator of a group or a transactional id."""
        if (kind, key) in self._coordinators:
            return self._coordinators[kind, key]
        request = wire.FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key])

        def find() -> Node:
            response: wire.FindCoordinatorResponse = self.send(request)
            found = response.coordinators[0] if response.coordinators else response
            check(found.error_code, f"the coordinator of {key!r} was not found", found.error_message)
            return Node(found.node_id, found.host, found.port)

        node = retrying(find, self.patience_s if timeout_s is None else timeout_s)
        self._nodes[node.node_id] = node
        if len(self._coordinators) >= COORDINATORS_KEPT_MAX:
            self._coordinators.clear()
        self._coordinators[kind, key] = node.node_id
        return node.node_id

    def forget_coordinator(self, key: str, kind: int = GROUP) -> None:
        """Drop a coordinator from the cache."""
        self._coordinators.pop((kind, key), None)

    def ask_coordinator(
        self,
        key: str,
        request: Request,
        codes: Callable[[Any], Iterable[int]] = lambda response: [response.error_code],
        *,
        kind: int = GROUP,
        timeout_s: float | None = None,
        max_version: int | None = None,
        within_s: float | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> Any:
        """Send an idempotent request to the coordinator of a key; retry if the coordinator moves or loads.

        `timeout_s` limits one answer, `within_s` the whole operation. `codes` extracts the error codes from a
        response: those in `_NOT_YET` are retried, all others are left to the caller. `on_lost` is called when
        an answer was lost: the broker may have executed that request, whatever it answers to the retry.
        """
        attempts = Attempts(self.patience_s if within_s is None else within_s)
        while True:
            pending = None
            try:
                node = self.coordinator(key, kind, attempts.remaining_s)
                pending = self.post(request, node=node, max_version=max_version)
                response = pending.wait(timeout_s)
                not_yet = next((code for code in codes(response) if code in _NOT_YET), ErrorCode.NONE)
                check(not_yet, f"the coordinator of {key!r} does not answer for it")
                return response
            except (KafkaError, ClientError) as error:
                if on_lost is not None and pending is not None and isinstance(error, ClientError):
                    on_lost()
                if isinstance(error, ClientError) or error.code in _MOVED:
                    self.forget_coordinator(key, kind)
                attempts.failed(error)


def _has(topic: TopicInfo, partition: int) -> bool:
    return any(info.partition == partition for info in topic.partitions)


def _is_lost(error: Exception) -> bool:
    """Whether an answer was lost. If no broker can be reached, `connection` has already retried."""
    return isinstance(error, ClientError) and not isinstance(error, BrokerUnreachable | AuthenticationFailed)


def _is_retriable_answer(error: Exception) -> bool:
    return isinstance(error, KafkaError) and error.retriable


def topic_of(answer: wire.MetadataResponseTopic) -> TopicInfo:
    """Convert a topic of a Metadata response."""
    partitions = sorted(answer.partitions, key=lambda partition: partition.partition_index)
    return TopicInfo(
        name=answer.name or "",
        topic_id=bytes(answer.topic_id),
        is_internal=answer.is_internal,
        partitions=tuple(
            PartitionInfo(
                partition.partition_index,
                partition.leader_id,
                partition.leader_epoch,
                tuple(partition.replica_nodes),
                tuple(partition.isr_nodes),
            )
            for partition in partitions
        ),
    )


Key: TypeAlias = tuple[str, int]
"""A partition: the name of its topic, and its number."""

T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")


def by_node(client: Client, partitions: Iterable[Key]) -> dict[int, list[Key]]:
    """Group partitions by the broker that leads them."""
    grouped: dict[int, list[Key]] = {}
    for topic, partition in partitions:
        grouped.setdefault(client.leader(topic, partition), []).append((topic, partition))
    return grouped


def by_topic(partitions: Iterable[tuple[T, int]]) -> dict[T, list[int]]:
    """Group partitions by their topic, which is a name or an id."""
    grouped: dict[T, list[int]] = {}
    for topic, partition in partitions:
        grouped.setdefault(topic, []).append(partition)
    return grouped


def leader_may_move(error: Exception) -> bool:
    """Whether a retry may find the leader. False if the partition does not exist."""
    if isinstance(error, KafkaError):
        return error.retriable and error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return is_retriable(error)


def ask_leaders(
    client: Client,
    questions: Mapping[Key, Q],
    ask: Callable[[int, dict[Key, Q]], Iterable[tuple[Key, A]]],
) -> dict[Key, A]:
    """Ask the leader of each partition, and return the answers; retry within the client's `patience_s`.

    `ask` sends one broker the questions about partitions that it leads, and returns its answers up to the
    first error. Partitions without an answer are asked about again, perhaps at another leader.
    """
    answers: dict[Key, A] = {}

    def ask_for_missing() -> dict[Key, A]:
        missing = {key: question for key, question in questions.items() if key not in answers}
        for node, keys in by_node(client, missing).items():
            for key, answer in ask(node, {key: missing[key] for key in keys}):
                answers[key] = answer
        if omitted := questions.keys() - answers.keys():
            raise ProtocolError(f"the response has no answer for {omitted}")
        return answers

    def forget_leaders() -> None:
        for topic in {key[0] for key in questions if key not in answers}:
            client.forget_topic(topic)

    return retrying(ask_for_missing, client.patience_s, retriable=leader_may_move, on_failure=forget_leaders)


def ask_every_broker(client: Client, request: Request, what: str) -> list[Any]:
    """Return the responses of all brokers: each lists only the groups or transactions that it coordinates.

    `what` names the listed things in errors. If one broker fails, all are asked again, because others may
    have taken over what it coordinated.
    """

    def ask() -> list[Any]:
        responses = []
        for node in client.describe(topics=()).nodes:
            response = client.send(request, node=node.node_id)
            check(response.error_code, f"broker {node.node_id} does not list its {what}")
            responses.append(response)
        return responses

    return retrying(ask, client.patience_s)
