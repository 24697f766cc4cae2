"""How facts change a partition and its producer states. No rules: each fact carries the new value."""

from typing import TYPE_CHECKING, Any

from semel.core.facts import (
    BatchAppended,
    BatchesReplaced,
    BatchStaged,
    LogStartAdvanced,
    ProducerAdvanced,
    ProducerExpired,
    ProducerIdAllocated,
    StagedCommitted,
    StagedDropped,
)
from semel.core.types import Apply, Cluster, ClusterKey, OpenTransaction, Partition

if TYPE_CHECKING:
    from semel.core.state import BrokerState


def _batch_appended(state: "BrokerState", fact: BatchAppended) -> None:
    partition = state.partitions[fact.partition]
    assert partition is not None
    assert fact.base_offset == partition.high_watermark
    opened = partition.open_transactions
    aborted = partition.last_aborted_offset
    if fact.opens_transaction:
        opened = (*opened, OpenTransaction(fact.base_offset, fact.producer_id))
    elif fact.closes is not None:
        # Most often it is the only one.
        if len(opened) == 1:
            opened = ()
        else:
            opened = tuple(each for each in opened if each.producer_id != fact.producer_id)
        aborted = aborted if fact.closes.is_commit else fact.base_offset
    state.partitions[fact.partition] = Partition(
        partition.log_start_offset,
        fact.last_offset + 1,
        fact.peak_timestamp,
        partition.size_bytes + fact.size_bytes,
        opened,
        aborted,
        partition.cleaned_offset,
        partition.compactions,
    )


def _batch_staged(state: "BrokerState", fact: BatchStaged) -> None:
    """The partition is unchanged: staged batches are part of the producer's state."""


def _staged_committed(state: "BrokerState", fact: StagedCommitted) -> None:
    partition = state.partitions[fact.partition]
    assert partition is not None
    assert fact.base_offset == partition.high_watermark
    state.partitions[fact.partition] = partition.but(
        high_watermark=fact.last_offset + 1,
        peak_timestamp=fact.peak_timestamp,
        size_bytes=partition.size_bytes + fact.size_bytes,
    )


def _staged_dropped(state: "BrokerState", fact: StagedDropped) -> None:
    """The partition is unchanged."""


def _log_start_advanced(state: "BrokerState", fact: LogStartAdvanced) -> None:
    partition = state.partitions[fact.partition]
    assert partition is not None
    state.partitions[fact.partition] = partition.but(
        log_start_offset=fact.log_start_offset, size_bytes=fact.size_bytes
    )


def _batches_replaced(state: "BrokerState", fact: BatchesReplaced) -> None:
    partition = state.partitions[fact.partition]
    assert partition is not None
    state.partitions[fact.partition] = partition.but(
        size_bytes=fact.size_bytes, cleaned_offset=fact.cleaned_offset, compactions=fact.compactions
    )


def _producer_advanced(state: "BrokerState", fact: ProducerAdvanced) -> None:
    state.producers[fact.key] = fact.state


def _producer_expired(state: "BrokerState", fact: ProducerExpired) -> None:
    state.producers[fact.key] = None


def _producer_id_allocated(state: "BrokerState", fact: ProducerIdAllocated) -> None:
    cluster = state.cluster[ClusterKey()] or Cluster()
    state.cluster[ClusterKey()] = cluster.but(next_producer_id=fact.producer_id + 1)


APPLY: dict[type[Any], Apply] = {
    BatchAppended: _batch_appended,
    LogStartAdvanced: _log_start_advanced,
    BatchesReplaced: _batches_replaced,
    BatchStaged: _batch_staged,
    StagedCommitted: _staged_committed,
    StagedDropped: _staged_dropped,
    ProducerAdvanced: _producer_advanced,
    ProducerExpired: _producer_expired,
    ProducerIdAllocated: _producer_id_allocated,
}
