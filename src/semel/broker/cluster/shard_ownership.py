"""Ownership in a cluster: the newest view of its brokers and shards, and which shards this broker serves.

A broker serves a shard from the moment it has adopted it until it gives it away, and only while its lease
runs. The broker counts its lease on its own clock from the moment it sent the renewal. Other brokers count it
from the moment they saw the renewal, so the lease is over here before it is over for them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from semel.broker.ownership import Endpoint, Leader, Node
from semel.core.entities import SHARDS, name_shard, owner_of, partition_shard, shard_of
from semel.core.types import Key, PartitionKey
from semel.store.cluster.contract import ClusterView, Peer, Shard, lease_clock

NOBODY: Final = -1
LISTED_SECONDS: Final = 10.0
"""How long clients see a broker that has gone. In Kafka they see it until the broker's session times out.

A broker that restarts is back within this time. Since 2.11, librdkafka drops a broker that is not listed, and
its ``send_offsets_to_transaction`` may never return if that was the group's coordinator (its issue 5511).
"""


class ShardOwnership:
    """Implements ``Ownership``. Kept up to date by ``ClusterMember``."""

    def __init__(self, node_id: int, clock: Callable[[], float] = lease_clock) -> None:
        self.node_id = node_id
        self.changes = 0
        self.changed: Callable[[], None] = lambda: None
        """Called after every change."""
        self.clock = clock
        self._until = 0.0
        self._adopted: frozenset[int] = frozenset()
        self._shards: Sequence[Shard] = [Shard(None, 0)] * SHARDS
        self._peers: dict[int, Peer] = {}
        self._nodes: dict[int, Node] = {}
        self._gone: dict[int, tuple[Node, float]] = {}
        """Brokers that are no longer live, with the time since when."""

    # -- changes ------------------------------------------------------------------------------------------

    def update(self, view: ClusterView) -> None:
        """Apply a new view of the cluster. Called with each renewal of the lease."""
        since = self.clock() - LISTED_SECONDS
        if past := [each for each, (_, at) in self._gone.items() if at < since]:
            for each in past:
                del self._gone[each]
            self._change()
        peers = {peer.broker_id: peer for peer in view.peers}
        if peers == self._peers and view.shards == self._shards:
            return
        self._peers, self._shards = peers, view.shards
        before, now = self._nodes, self.clock()
        self._nodes = {
            peer.broker_id: Node(
                peer.broker_id,
                {name: Endpoint(*address) for name, address in peer.endpoints.items()},
                peer.rack,
            )
            for peer in view.peers
            if peer.is_live and peer.endpoints
        }
        gone = {each: (node, now) for each, node in before.items()} | self._gone
        self._gone = {each: pair for each, pair in gone.items() if each not in self._nodes}
        self._change()

    def _change(self) -> None:
        self.changes += 1
        self.changed()

    def serve_until(self, moment: float) -> None:
        """Serve until this moment of ``clock``, because the lease was renewed."""
        self._until = moment

    def adopt(self, shards: Collection[int]) -> None:
        """Begin to serve these shards."""
        self._adopted = self._adopted | frozenset(shards)
        self._change()

    def release(self, shards: Collection[int]) -> None:
        """Stop serving these shards."""
        self._adopted = self._adopted - frozenset(shards)
        self._change()

    def moved(self, owners: Mapping[int, int]) -> None:
        """Record new owners of shards, so that clients are sent there at once, before the next view."""
        self._shards = [
            Shard(owners[number], shard.epoch + 1) if number in owners else shard
            for number, shard in enumerate(self._shards)
        ]
        self._change()

    # -- for the broker -----------------------------------------------------------------------------------

    def is_serving(self) -> bool:
        """Whether the lease runs."""
        return self.clock() < self._until

    def lease_seconds(self) -> float:
        """How long the lease runs; 0 if it is over."""
        return max(0.0, self._until - self.clock())

    def shards(self) -> frozenset[int]:
        """The shards that this broker serves."""
        return self._adopted

    def given(self) -> frozenset[int]:
        """The shards that the ledger has given to this broker."""
        return frozenset(number for number, shard in enumerate(self._shards) if shard.owner == self.node_id)

    def unowned(self) -> dict[int, int]:
        """The shards that have no owner, with their epochs."""
        return {number: shard.epoch for number, shard in enumerate(self._shards) if shard.owner is None}

    def epochs(self, shards: Collection[int]) -> dict[int, int]:
        """How often the owner of each of these shards has changed."""
        return {number: self._shards[number].epoch for number in shards}

    def owner(self, shard: int) -> int | None:
        """The id of the owner of a shard."""
        return self._shards[shard].owner

    def peer(self, broker_id: int) -> Peer | None:
        """A broker, dead or alive, as the ledger knows it."""
        return self._peers.get(broker_id)

    def others(self) -> list[Peer]:
        """The other brokers that have joined and not left."""
        return [peer for peer in self._peers.values() if peer.broker_id != self.node_id and peer.endpoints]

    def best_owners(self, shards: Collection[int], *, without: int | None = None) -> dict[int, int]:
        """The live broker that should own each shard; shards are left out if there is none."""
        candidates = [
            peer.broker_id
            for peer in self._peers.values()
            if peer.is_live and peer.endpoints and not peer.is_leaving and peer.broker_id != without
        ]
        best = {shard: owner_of(shard, candidates) for shard in shards}
        return {shard: owner for shard, owner in best.items() if owner is not None}

    # -- for handlers -------------------------------------------------------------------------------------

    def nodes(self) -> Sequence[Node]:
        """The live brokers, ordered by id."""
        return [self._nodes[each] for each in sorted(self._nodes)]

    def listed(self) -> Sequence[Node]:
        """The live brokers, and those that left a short time ago."""
        gone = {each: node for each, (node, _) in self._gone.items()}
        return [node for _, node in sorted((gone | self._nodes).items())]

    def node(self, node_id: int) -> Node | None:
        """The live broker with this id."""
        return self._nodes.get(node_id)

    def controller_id(self) -> int:
        """The owner of the first shard, so that all brokers name the same one."""
        owner = self._shards[0].owner
        return owner if owner in self._nodes else self.node_id

    def leader(self, partition: PartitionKey) -> Leader:
        """The owner of a partition."""
        owner, epoch = self._shards[partition_shard(partition.topic_id, partition.index)]
        return Leader(owner if owner in self._nodes else NOBODY, epoch)

    def leads(self, partition: PartitionKey) -> bool:
        """Whether this broker leads the partition and may serve reads of it now."""
        return partition_shard(partition.topic_id, partition.index) in self._adopted and self.is_serving()

    def coordinator(self, name: str) -> int:
        """The id of the owner of a group or transactional id."""
        owner = self._shards[name_shard(name)].owner
        return owner if owner in self._nodes else NOBODY

    def coordinates(self, name: str) -> bool:
        """Whether this broker owns a group or transactional id now."""
        return name_shard(name) in self._adopted and self.is_serving()

    def owns(self, key: Key) -> bool:
        """Whether only this broker keeps the entity in memory."""
        return shard_of(key) in self._adopted

    def is_janitor(self) -> bool:
        """Whether this broker owns the first shard."""
        return 0 in self._adopted
