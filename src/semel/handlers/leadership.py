"""Answers clients about ownership: the leader of a partition, the coordinator of a group or transactional id.

The store makes records durable, so a partition has one replica, its leader. A broker that does not lead a
partition answers NOT_LEADER_OR_FOLLOWER and names the leader if the response has a field for it (KIP-951).

Metadata returns the leader epoch of a partition, which grows with every new leader. Batches are always
stamped with epoch 0: no leader ever truncates a log, so a later epoch only extends it.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from semel.broker.broker import Broker
from semel.broker.ownership import Endpoint, Node
from semel.core.types import ErrorCode, PartitionKey
from semel.handlers.context import RequestContext
from semel.wire.messages.produce import LeaderIdAndEpoch, NodeEndpoint

NO_EPOCH: Final = -1
NO_LEADER: Final = -1

MOVED: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
"""The errors with which a response also names the current leader."""


def leadership_error(broker: Broker, key: PartitionKey, epoch: int = NO_EPOCH) -> ErrorCode:
    """The error of a request with this leader epoch; NONE if this broker may serve the partition."""
    ownership = broker.ownership
    if epoch != NO_EPOCH:
        current = ownership.leader(key).epoch
        if epoch != current:
            is_newer = epoch > current
            return ErrorCode.UNKNOWN_LEADER_EPOCH if is_newer else ErrorCode.FENCED_LEADER_EPOCH
    return ErrorCode.NONE if ownership.leads(key) else ErrorCode.NOT_LEADER_OR_FOLLOWER


def coordination_error(broker: Broker, name: str) -> ErrorCode:
    """The error of a request for a group or transactional id; NONE if this broker coordinates it."""
    return ErrorCode.NONE if broker.ownership.coordinates(name) else ErrorCode.NOT_COORDINATOR


def refused_by_store(broker: Broker, name: str) -> ErrorCode:
    """The error of a request that the store refused. Clients retry it, perhaps at another coordinator."""
    return coordination_error(broker, name) or ErrorCode.COORDINATOR_NOT_AVAILABLE


def reachable(nodes: Sequence[Node], context: RequestContext) -> list[tuple[Node, Endpoint]]:
    """The brokers that have the listener of the client, with their addresses there."""
    found = []
    for node in nodes:
        endpoint = node.endpoint(context.listener)
        if endpoint is not None:
            found.append((node, endpoint))
    return found


def controller(broker: Broker, context: RequestContext) -> int:
    """The controller, or this broker if the client cannot reach it: any broker can act as controller."""
    node = broker.ownership.node(broker.ownership.controller_id())
    return broker.node_id if node is None or node.endpoint(context.listener) is None else node.node_id


class ShownLeader(NamedTuple):
    """The leadership of a partition in metadata."""

    error: ErrorCode
    leader_id: int
    epoch: int
    replicas: list[int]
    """The leader; else the last leader, or any broker, because tools expect a partition to have a replica."""
    offline: list[int]


class ShownLeaders:
    """Describes leaders to the clients of one listener."""

    def __init__(self, broker: Broker, context: RequestContext, *, knows_listeners: bool = True) -> None:
        self._ownership = broker.ownership
        nodes = self._ownership.nodes()
        self._live = {node.node_id for node in nodes}
        self._any = nodes[0].node_id if nodes else broker.node_id
        self._replicas = {node.node_id: [node.node_id] for node, _ in reachable(nodes, context)}
        self._without_listener = (
            ErrorCode.LISTENER_NOT_FOUND if knows_listeners else ErrorCode.LEADER_NOT_AVAILABLE
        )

    def of(self, key: PartitionKey) -> ShownLeader:
        """The leadership of a partition."""
        node_id, epoch = self._ownership.leader(key)
        replicas = self._replicas.get(node_id)
        if replicas is not None:
            return ShownLeader(ErrorCode.NONE, node_id, epoch, replicas, [])
        if node_id in self._live:
            return ShownLeader(self._without_listener, NO_LEADER, epoch, [node_id], [])
        last = self._any if node_id == NO_LEADER else node_id
        offline = [] if last in self._live else [last]
        return ShownLeader(ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER, epoch, [last], offline)


class LeaderHints:
    """The current leaders that a response names, so that clients need not ask for metadata (KIP-951)."""

    def __init__(self, broker: Broker, context: RequestContext) -> None:
        self._broker = broker
        self._listener = context.listener
        self._nodes: dict[int, NodeEndpoint] = {}

    def of(self, key: PartitionKey) -> LeaderIdAndEpoch:
        """The leader of a partition, if clients can reach it."""
        leader = self._broker.ownership.leader(key)
        node = None if leader.node_id == NO_LEADER else self._broker.ownership.node(leader.node_id)
        endpoint = None if node is None else node.endpoint(self._listener)
        if node is None or endpoint is None:
            return LeaderIdAndEpoch()
        self._nodes[node.node_id] = NodeEndpoint(
            node_id=node.node_id, host=endpoint.host, port=endpoint.port, rack=node.rack
        )
        return LeaderIdAndEpoch(leader_id=leader.node_id, leader_epoch=leader.epoch)

    @property
    def endpoints(self) -> list[NodeEndpoint]:
        """The addresses of all leaders that were named."""
        return list(self._nodes.values())


def owned(broker: Broker, names: Iterable[str]) -> list[str]:
    """The groups or transactional ids in ``names`` that this broker coordinates."""
    return [name for name in names if broker.ownership.coordinates(name)]
