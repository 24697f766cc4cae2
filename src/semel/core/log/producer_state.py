"""One producer on one partition: epoch, sequence, the last five batches.

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

from typing import Final

from semel.core.types import ErrorCode, ProducerState, SentBatch, Staged
from semel.wire.records import BatchHeader

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
