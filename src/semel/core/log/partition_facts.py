"""Apply facts to partitions and producers. There are no rules: a fact carries the new value of its entity."""

from typing import TYPE_CHECKING, Any

from semel.core.facts import (
    BatchAppended,
    BatchesReplaced,
    BatchStaged,
    LogStartAdvanced,
    PartitionChanged,
    ProducerAdvanced,
    ProducerExpired,
    ProducerIdAllocated,
    StagedCommitted,
    StagedDropped,
)
from semel.core.types import Apply, Cluster, ClusterKey

if TYPE_CHECKING:
    from semel.core.state import BrokerState


def _partition_changed(state: "BrokerState", fact: PartitionChanged) -> None:
    state.partitions[fact.key] = fact.partition


def _producer_advanced(state: "BrokerState", fact: ProducerAdvanced) -> None:
    state.producers[fact.key] = fact.state


def _producer_expired(state: "BrokerState", fact: ProducerExpired) -> None:
    state.producers[fact.key] = None


def _producer_id_allocated(state: "BrokerState", fact: ProducerIdAllocated) -> None:
    cluster = state.cluster[ClusterKey()] or Cluster()
    state.cluster[ClusterKey()] = cluster.but(next_producer_id=fact.producer_id + 1)


APPLY: dict[type[Any], Apply | None] = {
    PartitionChanged: _partition_changed,
    BatchAppended: None,
    LogStartAdvanced: None,
    BatchesReplaced: None,
    BatchStaged: None,
    StagedCommitted: None,
    StagedDropped: None,
    ProducerAdvanced: _producer_advanced,
    ProducerExpired: _producer_expired,
    ProducerIdAllocated: _producer_id_allocated,
}
"""None: the fact is about batches and changes no entity. If the partition changes, ``PartitionChanged``
follows."""
