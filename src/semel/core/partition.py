"""One log: appending batches, moving its start, and the producers it remembers.

How it works. ``Append`` is decided in Kafka's order: a duplicate is answered again before anything else is
checked, then the epoch, then the sequence, then whether a batch fits the transaction that is open. What
passes gets the next offset, which is the high watermark: on one ledger there is no replication between
being written and being readable.

The bytes of a batch are never opened. They travel beside the facts, and the base offset is stamped into
them when they are read.

Where records end is never taken back: ``high_watermark`` only grows, also when everything below it is
deleted.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from semel.core.facts import (
    BatchAppended,
    LogStartAdvanced,
    ProducerAdvanced,
    ProducerExpired,
    ProducerIdAllocated,
)
from semel.core.producer_state import BLANK, advance, check_sequence, find_duplicate, is_next
from semel.core.types import (
    Apply,
    Buffer,
    Cluster,
    ClusterKey,
    Decide,
    Decision,
    ErrorCode,
    Key,
    OpenTransaction,
    Partition,
    PartitionKey,
    ProducerKey,
    ProducerState,
)
from semel.wire.records import BatchHeader

if TYPE_CHECKING:
    from semel.core.state import BrokerState


class Append(NamedTuple):
    """Append one batch, whose header was checked and whose bytes are ``records``."""

    partition: PartitionKey
    header: BatchHeader
    records: Buffer
    log_append_time: int = -1
    """The broker's stamp on topics that want it, else -1."""
    transaction_version: int = 0
    """1 or 2 for a transactional batch: which of the two generations of rules holds."""

    def keys(self) -> Iterable[Key]:
        """The partition, and its memory of the producer."""
        partition = self.partition
        producer_id = self.header.producer_id
        if producer_id < 0:
            return (partition,)
        return (partition, ProducerKey(partition.topic_id, partition.index, producer_id))


class Appended(NamedTuple):
    """The answer to ``Append``."""

    error: ErrorCode
    base_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1


class DeleteRecords(NamedTuple):
    """Delete everything below an offset; -1 is the high watermark.

    ``size_below`` is how many bytes lie between ``log_start_seen`` and the offset. The asker has it from the
    ledger; if the log start moved since, the answer is KAFKA_STORAGE_ERROR, which means: look again.
    """

    partition: PartitionKey
    offset: int
    log_start_seen: int = -1
    size_below: int = 0

    def keys(self) -> Iterable[Key]:
        """The partition."""
        return (self.partition,)


class RecordsDeleted(NamedTuple):
    """The answer to ``DeleteRecords``."""

    error: ErrorCode
    low_watermark: int = -1


class AllocateProducerId(NamedTuple):
    """Give away a producer id that nobody had before. The answer is the id."""

    def keys(self) -> Iterable[Key]:
        """The counter."""
        return (ClusterKey(),)


class ExpireProducer(NamedTuple):
    """Forget a producer that was not heard of since a moment, unless it has a transaction open."""

    key: ProducerKey
    unseen_since_ms: int

    def keys(self) -> Iterable[Key]:
        """The producer."""
        return (self.key,)


def _append(state: "BrokerState", command: Append, now: int) -> Decision:
    key = command.partition
    partition = state.partitions[key]
    if partition is None:
        return Decision(Appended(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    header = command.header
    if header.producer_id < 0:
        return _appended(key, partition, command, now, (), opens_transaction=False)

    producer_key = ProducerKey(key.topic_id, key.index, header.producer_id)
    producer = state.producers[producer_key] or BLANK
    version = command.transaction_version
    if not is_next(producer, header):
        duplicate = find_duplicate(producer, header)
        if duplicate is not None:
            first = duplicate.last_offset - duplicate.offset_delta
            return Decision(Appended(ErrorCode.NONE, first, duplicate.timestamp, partition.log_start_offset))
        error = _check_producer(producer, header, version)
        if error:
            return Decision(Appended(error, log_start_offset=partition.log_start_offset))
    first_offset = producer.transaction_first_offset
    if first_offset >= 0 and version == 0:
        return Decision(Appended(ErrorCode.INVALID_TXN_STATE, log_start_offset=partition.log_start_offset))
    opens = version > 0 and first_offset < 0
    if opens:
        first_offset = partition.high_watermark
    if command.log_append_time >= 0:
        # A duplicate is answered with the time that the first answer had.
        header = header._replace(max_timestamp=command.log_append_time)
    advanced = advance(producer, header, partition.high_watermark, now, transaction_first_offset=first_offset)
    return _appended(
        key, partition, command, now, (ProducerAdvanced(producer_key, advanced),), opens_transaction=opens
    )


def _check_producer(producer: ProducerState, header: BatchHeader, transaction_version: int) -> ErrorCode:
    if header.producer_epoch < producer.epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return check_sequence(producer, header, must_start_at_zero=transaction_version >= 2)


def _appended(
    key: PartitionKey,
    partition: Partition,
    command: Append,
    now: int,
    also: tuple[ProducerAdvanced, ...],
    *,
    opens_transaction: bool,
) -> Decision:
    header = command.header
    base = partition.high_watermark
    latest = header.max_timestamp if command.log_append_time < 0 else command.log_append_time
    if latest < 0:
        # Records without a timestamp are as old as their arrival, or retention would take them at once.
        latest = now
    fact = BatchAppended(
        key,
        base,
        base + header.last_offset_delta,
        latest,
        max(partition.peak_timestamp, latest),
        header.length,
        header.producer_id,
        command.transaction_version > 0,
        opens_transaction,
    )
    answer = Appended(ErrorCode.NONE, base, command.log_append_time, partition.log_start_offset)
    return Decision(answer, (fact, *also), (command.records,))


def _delete_records(state: "BrokerState", command: DeleteRecords, now: int) -> Decision:
    partition = state.partitions[command.partition]
    if partition is None:
        return Decision(RecordsDeleted(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    offset = partition.high_watermark if command.offset == -1 else command.offset
    if not 0 <= offset <= partition.high_watermark:
        return Decision(RecordsDeleted(ErrorCode.OFFSET_OUT_OF_RANGE))
    if offset <= partition.log_start_offset:
        return Decision(RecordsDeleted(ErrorCode.NONE, partition.log_start_offset))
    if offset == partition.high_watermark:
        remaining = 0
    elif command.log_start_seen != partition.log_start_offset:
        return Decision(RecordsDeleted(ErrorCode.KAFKA_STORAGE_ERROR))
    else:
        remaining = partition.size_bytes - command.size_below
    return Decision(
        RecordsDeleted(ErrorCode.NONE, offset), (LogStartAdvanced(command.partition, offset, remaining),)
    )


def _allocate_producer_id(state: "BrokerState", command: AllocateProducerId, now: int) -> Decision:
    cluster = state.cluster[ClusterKey()] or Cluster()
    return Decision(cluster.next_producer_id, (ProducerIdAllocated(cluster.next_producer_id),))


def _expire_producer(state: "BrokerState", command: ExpireProducer, now: int) -> Decision:
    producer = state.producers[command.key]
    if (
        producer is None
        or producer.transaction_first_offset >= 0
        or producer.seen_ms > command.unseen_since_ms
    ):
        return Decision(False)
    return Decision(True, (ProducerExpired(command.key),))


def _batch_appended(state: "BrokerState", fact: BatchAppended) -> None:
    partition = state.partitions[fact.partition]
    assert partition is not None
    assert fact.base_offset == partition.high_watermark
    opened = partition.open_transactions
    if fact.opens_transaction:
        opened = (*opened, OpenTransaction(fact.base_offset, fact.producer_id))
    state.partitions[fact.partition] = Partition(
        partition.log_start_offset,
        fact.last_offset + 1,
        fact.peak_timestamp,
        partition.size_bytes + fact.size_bytes,
        opened,
    )


def _log_start_advanced(state: "BrokerState", fact: LogStartAdvanced) -> None:
    partition = state.partitions[fact.partition]
    assert partition is not None
    state.partitions[fact.partition] = partition._replace(
        log_start_offset=fact.log_start_offset, size_bytes=fact.size_bytes
    )


def _producer_advanced(state: "BrokerState", fact: ProducerAdvanced) -> None:
    state.producers[fact.key] = fact.state


def _producer_expired(state: "BrokerState", fact: ProducerExpired) -> None:
    state.producers[fact.key] = None


def _producer_id_allocated(state: "BrokerState", fact: ProducerIdAllocated) -> None:
    state.cluster[ClusterKey()] = Cluster(fact.producer_id + 1)


DECIDE: dict[type[Any], Decide] = {
    Append: _append,
    DeleteRecords: _delete_records,
    AllocateProducerId: _allocate_producer_id,
    ExpireProducer: _expire_producer,
}

APPLY: dict[type[Any], Apply] = {
    BatchAppended: _batch_appended,
    LogStartAdvanced: _log_start_advanced,
    ProducerAdvanced: _producer_advanced,
    ProducerExpired: _producer_expired,
    ProducerIdAllocated: _producer_id_allocated,
}
