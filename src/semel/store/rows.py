"""Convert values to rows and back, including the columns that the ledger packs.

Numbers in blobs are big-endian with fixed widths, so the length of a blob tells how many there are.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import astuple

from semel.core.shares.partition import Run, SharePartition
from semel.core.types import (
    CommittedOffset,
    OffsetKey,
    OpenTransaction,
    Partition,
    PartitionKey,
    PendingOffset,
    ProducerState,
    SentBatch,
    ShareKey,
    Staged,
    Topic,
    Transaction,
    TransactionState,
)
from semel.store.contract import BatchLocation, StoredBatch

_SENT: Final = struct.Struct(">iqiq")
_OPEN: Final = struct.Struct(">qq")
_STAGED: Final = struct.Struct(">qqqq")
_STATES: Final = {state.label: state for state in TransactionState}
# One format per number of remembered batches: packing is on the path of every append.
_SENT_MANY: Final = tuple(struct.Struct(">" + "iqiq" * count) for count in range(6))


def pack_sent_batches(batches: tuple[SentBatch, ...]) -> bytes:
    """Pack the last batches that a partition remembers of a producer."""
    return _SENT_MANY[len(batches)].pack(*[number for batch in batches for number in astuple(batch)])


def unpack_sent_batches(blob: bytes) -> tuple[SentBatch, ...]:
    """Unpack the batches of a producer."""
    return tuple(SentBatch(*each) for each in _SENT.iter_unpack(blob))


def pack_open_transactions(transactions: tuple[OpenTransaction, ...]) -> bytes:
    """Pack the open transactions of a partition: almost always none."""
    return b"".join([_OPEN.pack(*astuple(each)) for each in transactions]) if transactions else b""


def unpack_open_transactions(blob: bytes) -> tuple[OpenTransaction, ...]:
    """Unpack open transactions."""
    return tuple(OpenTransaction(*each) for each in _OPEN.iter_unpack(blob))


def pack_staged(staged: Staged | None) -> bytes:
    """Pack what a producer's open transaction has staged; empty if nothing."""
    return b"" if staged is None else _STAGED.pack(*astuple(staged))


def unpack_staged(blob: bytes) -> Staged | None:
    """Unpack what a transaction has staged."""
    return Staged(*_STAGED.unpack(blob)) if blob else None


def pack_configs(configs: Mapping[str, str]) -> str:
    """Encode a topic's configs as JSON, so that plain SQL can query them."""
    return json.dumps(dict(configs), separators=(",", ":"))


def topic_of(row: Sequence[Any]) -> Topic:
    """Convert a row of topics."""
    name, topic_id, partitions, configs = row
    return Topic(name, topic_id, partitions, json.loads(configs))


def partition_of(row: Sequence[Any]) -> Partition:
    """Convert a row of partitions, from log_start_offset on."""
    log_start_offset, high_watermark, peak_timestamp, size_bytes, transactions, *rest = row
    return Partition(
        log_start_offset,
        high_watermark,
        peak_timestamp,
        size_bytes,
        unpack_open_transactions(transactions),
        *rest,
    )


def producer_of(row: Sequence[Any]) -> ProducerState:
    """Convert a row of producers, from epoch on."""
    epoch, batches, last_timestamp, seen_ms, coordinator_epoch, transaction_first_offset, staged = row
    return ProducerState(
        epoch,
        unpack_sent_batches(batches),
        last_timestamp,
        seen_ms,
        coordinator_epoch,
        transaction_first_offset,
        unpack_staged(staged),
    )


def offset_of(row: Sequence[Any]) -> CommittedOffset:
    """Convert a row of offsets, from committed_offset on."""
    return CommittedOffset(*row)


def pending_of(group_id: str, row: Sequence[Any]) -> PendingOffset:
    """Convert a row of pending_offsets, from producer_id on."""
    producer_id, topic, index, *value, is_superseded = row
    return PendingOffset(
        producer_id, OffsetKey(group_id, topic, index), CommittedOffset(*value), bool(is_superseded)
    )


def row_of_transaction(transaction: Transaction) -> tuple[Any, ...]:
    """Convert a transaction to a row of transactions."""
    fields = astuple(transaction)
    transactional_id, producer_id, epoch, timeout_ms, state, partitions, groups, *rest, shares = fields
    return (
        transactional_id,
        producer_id,
        epoch,
        timeout_ms,
        state.label,
        json.dumps([(key.topic_id.hex(), key.index) for key in partitions], separators=(",", ":")),
        json.dumps(groups, separators=(",", ":")),
        *rest,
        json.dumps([(key.topic_id.hex(), key.index, key.group_id) for key in shares], separators=(",", ":")),
    )


def transaction_of(row: Sequence[Any]) -> Transaction:
    """Convert a row of transactions."""
    transactional_id, producer_id, epoch, timeout_ms, state, partitions, groups, *rest = row
    *numbers, is_two_phase, prepared_epoch, shares = rest
    keys = tuple(PartitionKey(bytes.fromhex(topic_id), index) for topic_id, index in json.loads(partitions))
    values: tuple[Any, ...] = (transactional_id, producer_id, epoch, timeout_ms, _STATES[state], keys)
    values += (tuple(json.loads(groups)), *numbers, bool(is_two_phase), prepared_epoch)
    values += (tuple(ShareKey(bytes.fromhex(topic_id), *rest) for topic_id, *rest in json.loads(shares)),)
    return Transaction(*values)


def row_of_share(share: SharePartition) -> tuple[int, int, str]:
    """Convert a share-partition to a row of shares, from start_offset on."""
    return share.start_offset, share.epoch, msgspec.json.encode(share.runs).decode()


def share_of(row: Sequence[Any]) -> SharePartition:
    """Convert a row of shares, from start_offset on."""
    start_offset, epoch, runs = row
    return SharePartition(start_offset, epoch, msgspec.json.decode(runs, type=tuple[Run, ...]))


def batch_of(row: Sequence[Any]) -> StoredBatch:
    """Convert a row of batches: offsets, timestamp, location."""
    base_offset, last_offset, max_timestamp, chunk_id, position, length = row
    return StoredBatch(base_offset, last_offset, max_timestamp, BatchLocation(chunk_id, position, length))
