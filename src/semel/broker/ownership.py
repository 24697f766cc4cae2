"""Ownership: which broker leads a partition, and coordinates a group or a transactional id.

An embedded broker is alone and owns everything (``Alone``). In a cluster every entity belongs to a shard, and
every shard has one owner (``core.entities``); ``shard_ownership`` keeps that up to date.

Ownership is an optimisation: the owner keeps entities in memory and serves reads without asking the ledger. A
write by another broker is still correct, because the ledger compares versions.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from semel.core.types import Key, PartitionKey


class Endpoint(NamedTuple):
    """The address that clients of a listener get."""

    host: str
    port: int


class Node(NamedTuple):
    """A broker, for clients."""

    node_id: int
    endpoints: Mapping[str, Endpoint]
    rack: str | None = None

    def endpoint(self, listener: str) -> Endpoint | None:
        """The address for clients of a listener; None if the broker does not have that listener."""
        return self.endpoints.get(listener)


class Leader(NamedTuple):
    """The owner of a partition: its id, -1 if there is none now, and the leader epoch."""

    node_id: int
    epoch: int


class Ownership(Protocol):
    """What handlers ask about owners."""

    @property
    def changes(self) -> int:
        """Counts changes of nodes and owners, for caches."""

    def nodes(self) -> Sequence[Node]:
        """The live brokers, ordered by id."""

    def listed(self) -> Sequence[Node]:
        """The brokers that clients see in Metadata: the live ones, and those that left a short time ago."""

    def node(self, node_id: int) -> Node | None:
        """The live broker with this id."""

    def controller_id(self) -> int:
        """The broker that tools should send administrative requests to. Any broker accepts them."""

    def leader(self, partition: PartitionKey) -> Leader:
        """The owner of a partition."""

    def leads(self, partition: PartitionKey) -> bool:
        """Whether this broker leads the partition and may serve reads of it now."""

    def coordinator(self, name: str) -> int:
        """The id of the owner of a group or transactional id, -1 if there is none now."""

    def coordinates(self, name: str) -> bool:
        """Whether this broker owns a group or transactional id now."""

    def owns(self, key: Key) -> bool:
        """Whether only this broker keeps the entity in memory."""

    def shards(self) -> Collection[int] | None:
        """The shards that this broker owns; None for an embedded broker, which owns everything."""

    def is_janitor(self) -> bool:
        """Whether this broker does the housekeeping that one broker does for all."""


class Alone:
    """An embedded broker: it owns everything, at epoch 0, forever."""

    changes = 0

    def __init__(self, node_id: int, endpoints: Mapping[str, Endpoint]) -> None:
        self._node = Node(node_id, endpoints)
        self._leader = Leader(node_id, 0)

    def nodes(self) -> Sequence[Node]:
        """This broker."""
        return (self._node,)

    def listed(self) -> Sequence[Node]:
        """This broker."""
        return (self._node,)

    def node(self, node_id: int) -> Node | None:
        """This broker, if it has this id."""
        return self._node if node_id == self._node.node_id else None

    def controller_id(self) -> int:
        """This broker."""
        return self._node.node_id

    def leader(self, partition: PartitionKey) -> Leader:
        """This broker, at epoch 0."""
        return self._leader

    def leads(self, partition: PartitionKey) -> bool:
        """Always."""
        return True

    def coordinator(self, name: str) -> int:
        """This broker."""
        return self._node.node_id

    def coordinates(self, name: str) -> bool:
        """Always."""
        return True

    def owns(self, key: Key) -> bool:
        """Always."""
        return True

    def shards(self) -> Collection[int] | None:
        """None: this broker owns everything."""
        return None

    def is_janitor(self) -> bool:
        """Always."""
        return True
