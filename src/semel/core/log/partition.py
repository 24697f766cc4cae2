"""The log of a partition: append batches, advance the log start, and remember producers.

``Append`` is checked in Kafka's order. A duplicate gets its original answer before anything else is checked;
then come the epoch, the sequence, and whether the batch fits the open transaction. An accepted batch gets the
next offset, which is the high watermark: with a single ledger, no replication happens between writing and
reading.

A transactional batch is first checked against its transaction: whether its producer may write, and whether
the partition is part of it or joins with this batch (``transactions.joining``). In a partition with journal
visibility the batch is staged and gets its offset when the transaction commits.

The bytes of a batch are never decoded here. They travel beside the facts, and the base offset is stamped into
them when they are read.

``high_watermark`` only grows, even when everything below it is deleted.

One producer on one partition: epoch, sequence, the last five batches.

These are the rules of idempotence. A producer numbers its records per partition; the partition remembers the
last five batches of the producer's current epoch. A client may have five requests in flight, so the retry of
any of them must be recognised and answered with its original offset.

- A batch that was sent before is a *duplicate*: nothing is appended, the answer is the original one.
- A batch with an older epoch is *fenced*.
- A batch with a newer epoch must start at sequence 0 and replaces the older epoch.
- Otherwise the first sequence must follow the last one. Sequences wrap from 2**31 - 1 to 0.
- An unknown producer may start at any sequence, because its state may have expired (Kafka does the same and
  never sends UNKNOWN_PRODUCER_ID).

This module knows no offsets of other producers, no transactions of other partitions, and no clock.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from semel.core.data import Data
from semel.core.facts import (
    BatchAppended,
    BatchesReplaced,
    BatchStaged,
    LogStartAdvanced,
    ProducerIdAllocated,
    Put,
    StagedCommitted,
    StagedDropped,
)
from semel.core.log import compaction
from semel.core.transactions.joining import join_by_writing
from semel.core.types import (
    Apply,
    Buffer,
    Cluster,
    ClusterKey,
    Command,
    Decide,
    Decision,
    ErrorCode,
    Fact,
    Key,
    OpenTransaction,
    Partition,
    PartitionKey,
    ProducerKey,
    ProducerState,
    SentBatch,
    Staged,
    TransactionKey,
)
from semel.wire.batch import ProducerIdAndEpoch
from semel.wire.records import BatchHeader

if TYPE_CHECKING:
    from semel.core.state import BrokerState

REMEMBERED_BATCHES: Final = 5
SEQUENCES: Final = 2**31
BLANK: Final = ProducerState()


def is_next(producer: ProducerState, header: BatchHeader) -> bool:
    """Whether the batch is the next one of the epoch. Nearly all are, and need no further check."""
    batches = producer.batches
    return (
        bool(batches)
        and producer.epoch == header.producer_epoch
        and (batches[-1].last_sequence + 1) % SEQUENCES == header.base_sequence
    )


def find_duplicate(producer: ProducerState, header: BatchHeader) -> SentBatch | None:
    """Return the remembered batch that this one duplicates, if any."""
    if producer.epoch != header.producer_epoch or not producer.batches:
        return None
    last_sequence = header.last_sequence
    delta = header.last_offset_delta
    for batch in producer.batches:
        # Equal last sequences and equal counts mean equal first sequences, also across the wrap.
        if batch.last_sequence == last_sequence and batch.offset_delta == delta:
            return batch
    return None


def is_of_open_transaction(producer: ProducerState, header: BatchHeader) -> bool:
    """Whether a remembered batch was sent in the transaction that is open now."""
    if producer.staged is not None:
        recent = producer.batches[-producer.staged.batches :]
    elif producer.transaction_first_offset >= 0:
        first = producer.transaction_first_offset
        recent = tuple(batch for batch in producer.batches if batch.last_offset >= first)
    else:
        return False
    return find_duplicate(producer.but(batches=recent), header) is not None


def check_sequence(producer: ProducerState, header: BatchHeader, *, must_start_at_zero: bool) -> ErrorCode:
    """Check the sequence of a batch; the first rule that matches decides.

    ``must_start_at_zero`` is the stricter rule of transaction version 2 (KIP-890): the first batch of a
    transaction on a partition has sequence 0, so an unknown producer may not start at any other.
    """
    sequence = header.base_sequence
    if must_start_at_zero and not producer.batches and sequence != 0:
        return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    if header.producer_epoch != producer.epoch:
        starts_anew = sequence == 0 or producer.epoch == -1
        return ErrorCode.NONE if starts_anew else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    # No batches: a marker raised the epoch, and nothing has been written in it since.
    expected = (producer.batches[-1].last_sequence + 1) % SEQUENCES if producer.batches else 0
    return ErrorCode.NONE if sequence == expected else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def advance(
    producer: ProducerState,
    header: BatchHeader,
    base_offset: int,
    arrived: int,
    *,
    transaction_first_offset: int,
    staged: Staged | None = None,
) -> ProducerState:
    """Return the state after the batch was appended, or staged (then ``base_offset`` is -1)."""
    sent = SentBatch(
        header.last_sequence,
        base_offset + header.last_offset_delta if base_offset >= 0 else -1,
        header.last_offset_delta,
        header.max_timestamp,
    )
    kept = producer.batches[1 - REMEMBERED_BATCHES :] if producer.epoch == header.producer_epoch else ()
    return ProducerState(
        header.producer_epoch,
        (*kept, sent),
        header.max_timestamp,
        arrived,
        producer.coordinator_epoch,
        transaction_first_offset,
        staged,
    )


class TransactionContext(Data):
    """The transaction that a batch claims to belong to, and how its partition joins."""

    transactional_id: str
    version: int
    """1: the partition must have been added before. 2: writing adds it (KIP-890)."""
    must_be_added: bool = True
    """Version 1: refuse a partition that was not added (``transaction.partition.verification.enable``)."""
    block_max_ms: int = -1
    """The topic's ``semel.transaction.block.max.ms``: how long a transaction that touches it may be open."""
    also: tuple[PartitionKey, ...] = ()
    """Version 2: other partitions of the same request, which join together with this one."""


class Append(Command["Appended"]):
    """Append one batch. Its header has been checked; its bytes are ``records``."""

    partition: PartitionKey
    header: BatchHeader
    records: Buffer
    log_append_time: int = -1
    """The broker's timestamp on topics with log append time, else -1."""
    transaction_context: TransactionContext | None = None
    """Set only for a transactional batch."""
    is_journal: bool = False
    """Whether the topic has journal visibility: a transaction's batches are staged until it commits."""

    def keys(self) -> Iterable[Key]:
        """The partition, the producer on it, and the transaction."""
        partition = self.partition
        producer_id = self.header.producer_id
        if producer_id < 0:
            return (partition,)
        producer = ProducerKey(partition.topic_id, partition.index, producer_id)
        if self.transaction_context is None:
            return (partition, producer)
        return (partition, producer, TransactionKey(self.transaction_context.transactional_id))


class Appended(Data):
    """The answer to ``Append``."""

    error: ErrorCode
    base_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1


class DeleteRecords(Command["RecordsDeleted"]):
    """Delete everything below an offset; -1 is the high watermark.

    ``size_below`` is the number of bytes between ``log_start_seen`` and the offset, as read from the ledger.
    If the log start has moved since, or batches were replaced, the answer is KAFKA_STORAGE_ERROR: the caller
    must read it again.
    """

    partition: PartitionKey
    offset: int
    log_start_seen: int = -1
    size_below: int = 0
    compactions_seen: int = 0

    def keys(self) -> Iterable[Key]:
        """The partition."""
        return (self.partition,)


class RecordsDeleted(Data):
    """The answer to ``DeleteRecords``."""

    error: ErrorCode
    low_watermark: int = -1


class AllocateProducerId(Command[int]):
    """Allocate a producer id that was never used. The answer is the id."""

    def keys(self) -> Iterable[Key]:
        """The counter."""
        return (ClusterKey(),)


class ExpireProducer(Command[bool]):
    """Forget a producer last seen at or before ``unseen_since_ms``, unless it has an open transaction."""

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
    if command.transaction_context is not None:
        return _append_in_transaction(state, partition, command, now)
    header = command.header
    arrived = state.time_of_day(now)
    if header.producer_id < 0:
        return _appended(key, partition, command, arrived, (), opens_transaction=False)
    producer_key = ProducerKey(key.topic_id, key.index, header.producer_id)
    producer = state.producers[producer_key] or BLANK
    known = _recognise(producer, partition, header, must_start_at_zero=False)
    if known is None and producer.has_open_transaction:
        known = Appended(ErrorCode.INVALID_TXN_STATE, log_start_offset=partition.log_start_offset)
    if known is not None:
        return Decision(known)
    advanced = advance(
        producer, _stamped(command), partition.high_watermark, arrived, transaction_first_offset=-1
    )
    return _appended(
        key, partition, command, arrived, (Put(producer_key, advanced),), opens_transaction=False
    )


def _recognise(
    producer: ProducerState, partition: Partition, header: BatchHeader, *, must_start_at_zero: bool
) -> Appended | None:
    """Return the answer to a duplicate or out-of-order batch, or None if the batch may be appended."""
    if is_next(producer, header):
        return None
    duplicate = find_duplicate(producer, header)
    if duplicate is not None:
        # A staged batch has no offset yet.
        first = duplicate.last_offset - duplicate.offset_delta if duplicate.last_offset >= 0 else -1
        return Appended(ErrorCode.NONE, first, duplicate.timestamp, partition.log_start_offset)
    error = ErrorCode.INVALID_PRODUCER_EPOCH
    if header.producer_epoch >= producer.epoch:
        error = check_sequence(producer, header, must_start_at_zero=must_start_at_zero)
    if error is ErrorCode.NONE:
        return None
    return Appended(error, log_start_offset=partition.log_start_offset)


def _append_in_transaction(state: "BrokerState", partition: Partition, command: Append, now: int) -> Decision:
    key, header, transaction_context = command.partition, command.header, command.transaction_context
    assert transaction_context is not None
    transaction = state.transactions[TransactionKey(transaction_context.transactional_id)]
    error, joined = join_by_writing(
        state,
        transaction,
        ProducerIdAndEpoch(header.producer_id, header.producer_epoch),
        now,
        must_be_in=transaction_context.version == 1 and transaction_context.must_be_added,
        partition=key,
        also=transaction_context.also,
        version=transaction_context.version,
        block_max_ms=transaction_context.block_max_ms,
    )
    if error is not ErrorCode.NONE:
        return Decision(Appended(error))
    assert joined is not None
    producer_key = ProducerKey(key.topic_id, key.index, header.producer_id)
    producer = state.producers[producer_key] or BLANK
    must_start_at_zero = transaction_context.version >= 2 and not producer.has_open_transaction
    known = _recognise(producer, partition, header, must_start_at_zero=must_start_at_zero)
    if known is not None:
        if known.error is ErrorCode.NONE and not is_of_open_transaction(producer, header):
            # A duplicate of a batch of an earlier transaction, perhaps an aborted one: not part of this one.
            return Decision(Appended(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
        return Decision(known)
    also: tuple[Fact, ...] = () if joined is transaction else (Put.of(joined),)
    defers_sync = not joined.is_two_phase
    arrived = state.time_of_day(now)
    if command.is_journal:
        return _staged(
            key, partition, command, producer_key, producer, also, arrived, defers_sync=defers_sync
        )
    opens = producer.transaction_first_offset < 0
    first_offset = partition.high_watermark if opens else producer.transaction_first_offset
    advanced = advance(
        producer, _stamped(command), partition.high_watermark, arrived, transaction_first_offset=first_offset
    )
    facts = (Put(producer_key, advanced), *also)
    return _appended(
        key, partition, command, arrived, facts, opens_transaction=opens, defers_sync=defers_sync
    )


def _staged(
    key: PartitionKey,
    partition: Partition,
    command: Append,
    producer_key: ProducerKey,
    producer: ProducerState,
    also: tuple[Fact, ...],
    arrived: int,
    *,
    defers_sync: bool,
) -> Decision:
    header = command.header
    latest = _latest(command, arrived)
    offsets = header.last_offset_delta + 1
    before = producer.staged or Staged()
    staged = Staged(
        before.batches + 1,
        before.offsets + offsets,
        before.size_bytes + header.length,
        max(before.max_timestamp, latest),
    )
    advanced = advance(producer, _stamped(command), -1, arrived, transaction_first_offset=-1, staged=staged)
    facts = (
        BatchStaged(key, header.producer_id, offsets, latest, header.length),
        Put(producer_key, advanced),
        *also,
    )
    answer = Appended(ErrorCode.NONE, -1, command.log_append_time, partition.log_start_offset)
    return Decision(answer, facts, (command.records,), (), defers_sync)


def _stamped(command: Append) -> BatchHeader:
    """Return the header to remember: a duplicate must get the timestamp of the first answer."""
    if command.log_append_time < 0:
        return command.header
    return command.header._replace(max_timestamp=command.log_append_time)


def _latest(command: Append, arrived: int) -> int:
    """Return the largest timestamp of the batch.

    Records without a timestamp are dated by their arrival; otherwise retention would delete them at once.
    """
    latest = command.header.max_timestamp if command.log_append_time < 0 else command.log_append_time
    return latest if latest >= 0 else arrived


def _appended(
    key: PartitionKey,
    partition: Partition,
    command: Append,
    arrived: int,
    also: tuple[Fact, ...],
    *,
    opens_transaction: bool,
    defers_sync: bool = False,
) -> Decision:
    header = command.header
    base = partition.high_watermark
    last = base + header.last_offset_delta
    latest = _latest(command, arrived)
    peak = partition.peak_timestamp
    if latest > peak:
        peak = latest
    opened = partition.open_transactions
    if opens_transaction:
        opened = (*opened, OpenTransaction(base, header.producer_id))
    fact = BatchAppended(
        key,
        base,
        last,
        latest,
        peak,
        header.length,
        header.producer_id,
        command.transaction_context is not None,
        opens_transaction,
    )
    after = Partition(
        partition.log_start_offset,
        last + 1,
        peak,
        partition.size_bytes + header.length,
        opened,
        partition.last_aborted_offset,
        partition.cleaned_offset,
        partition.compactions,
    )
    answer = Appended(ErrorCode.NONE, base, command.log_append_time, partition.log_start_offset)
    facts = (fact, Put(key, after), *also)
    return Decision(answer, facts, (command.records,), (), defers_sync)


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
    elif (command.log_start_seen, command.compactions_seen) != (
        partition.log_start_offset,
        partition.compactions,
    ):
        return Decision(RecordsDeleted(ErrorCode.KAFKA_STORAGE_ERROR))
    else:
        remaining = partition.size_bytes - command.size_below
    facts = (
        LogStartAdvanced(command.partition, offset),
        Put(command.partition, partition.but(log_start_offset=offset, size_bytes=remaining)),
    )
    return Decision(RecordsDeleted(ErrorCode.NONE, offset), facts)


def _allocate_producer_id(state: "BrokerState", command: AllocateProducerId, now: int) -> Decision:
    cluster = state.cluster[ClusterKey()] or Cluster()
    return Decision(cluster.next_producer_id, (ProducerIdAllocated(cluster.next_producer_id),))


def _expire_producer(state: "BrokerState", command: ExpireProducer, now: int) -> Decision:
    producer = state.producers[command.key]
    if producer is None or producer.has_open_transaction or producer.seen_ms > command.unseen_since_ms:
        return Decision(False)
    return Decision(True, (Put(command.key, None),))


def _producer_id_allocated(state: "BrokerState", fact: ProducerIdAllocated) -> None:
    cluster = state.cluster[ClusterKey()] or Cluster()
    state.cluster[ClusterKey()] = cluster.but(next_producer_id=fact.producer_id + 1)


APPLY: dict[type, Apply | None] = {
    BatchAppended: None,
    LogStartAdvanced: None,
    BatchesReplaced: None,
    BatchStaged: None,
    StagedCommitted: None,
    StagedDropped: None,
    ProducerIdAllocated: _producer_id_allocated,
}
"""None: the fact is about batches and changes no entity. If the partition changes, a ``Put`` follows."""


DECIDE: dict[type, Decide] = {
    Append: _append,
    DeleteRecords: _delete_records,
    AllocateProducerId: _allocate_producer_id,
    ExpireProducer: _expire_producer,
    **compaction.DECIDE,
}
