"""One producer on one partition: epoch, sequence, the last five batches.

These are the rules of idempotence. A producer numbers its records per partition; the partition remembers
the last five batches of the producer's current epoch. Five, because a client may have five requests under
way, so the retry of any of them must be recognised and answered with the offset it got the first time.

- A batch that was sent before is a *duplicate*: nothing is appended, the answer is the original one.
- A batch with an older epoch is *fenced*.
- A batch with a newer epoch must start at sequence 0 and makes the older epoch history.
- Otherwise the first sequence must follow the last one. Sequences wrap from 2**31 - 1 to 0.
- A producer of which nothing is known may start anywhere: its state may have expired, and refusing it would
  turn our forgetting into its failure (Kafka does the same and never sends UNKNOWN_PRODUCER_ID).

Nothing here knows offsets of anyone else, transactions of other partitions, or the clock.
"""

from typing import Final

from semel.core.types import ErrorCode, ProducerState, SentBatch, Staged
from semel.wire.records import BatchHeader

REMEMBERED_BATCHES: Final = 5
SEQUENCES: Final = 2**31
BLANK: Final = ProducerState()


def is_next(producer: ProducerState, header: BatchHeader) -> bool:
    """Whether the batch is the very next of the epoch. Nearly all are, and need no further look."""
    batches = producer.batches
    return (
        bool(batches)
        and producer.epoch == header.producer_epoch
        and (batches[-1].last_sequence + 1) % SEQUENCES == header.base_sequence
    )


def find_duplicate(producer: ProducerState, header: BatchHeader) -> SentBatch | None:
    """The remembered batch that this one repeats, if it repeats one."""
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
    """Whether a batch that is remembered was sent in the transaction that is open now."""
    if producer.staged is not None:
        recent = producer.batches[-producer.staged.batches :]
    elif producer.transaction_first_offset >= 0:
        first = producer.transaction_first_offset
        recent = tuple(batch for batch in producer.batches if batch.last_offset >= first)
    else:
        return False
    return find_duplicate(producer.but(batches=recent), header) is not None


def check_sequence(producer: ProducerState, header: BatchHeader, *, must_start_at_zero: bool) -> ErrorCode:
    """Whether the batch may follow what is known; the first rule that fits decides.

    ``must_start_at_zero`` is the stricter rule for transactions of version 2 (KIP-890): their first batch
    on a partition has sequence 0, so a producer of which nothing is known may not start anywhere else.
    """
    sequence = header.base_sequence
    if must_start_at_zero and not producer.batches and sequence != 0:
        return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    if header.producer_epoch != producer.epoch:
        starts_anew = sequence == 0 or producer.epoch == -1
        return ErrorCode.NONE if starts_anew else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    # Without batches: a marker raised the epoch and nothing was written under it since.
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
    """What is remembered once the batch is appended, or staged: then its base offset is -1."""
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
