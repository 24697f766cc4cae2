"""Values as rows, and rows as values: what the ledger packs into columns, in both directions.

Numbers inside blobs are big-endian and have fixed widths, so that a blob's length says how many there are.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

from semel.core.types import CommittedOffset, OpenTransaction, Partition, ProducerState, SentBatch, Topic
from semel.store.interface import Place, StoredBatch

_SENT: Final = struct.Struct(">iqiq")
_OPEN: Final = struct.Struct(">qq")
# One format for each number of batches that may be remembered: packing is on the path of every append.
_SENT_MANY: Final = tuple(struct.Struct(">" + "iqiq" * count) for count in range(6))


def pack_sent_batches(batches: tuple[SentBatch, ...]) -> bytes:
    """What a partition remembers of a producer's last batches."""
    return _SENT_MANY[len(batches)].pack(*[number for batch in batches for number in batch])


def unpack_sent_batches(blob: bytes) -> tuple[SentBatch, ...]:
    """The batches in the blob."""
    return tuple(map(SentBatch._make, _SENT.iter_unpack(blob)))


def pack_open_transactions(transactions: tuple[OpenTransaction, ...]) -> bytes:
    """The open transactions of a partition; empty for almost all."""
    return b"".join(_OPEN.pack(*transaction) for transaction in transactions)


def unpack_open_transactions(blob: bytes) -> tuple[OpenTransaction, ...]:
    """The transactions in the blob."""
    return tuple(map(OpenTransaction._make, _OPEN.iter_unpack(blob)))


def pack_configs(configs: Mapping[str, str]) -> str:
    """A topic's configs as JSON, so that plain SQL can look into them."""
    return json.dumps(dict(configs), separators=(",", ":"))


def topic_of(row: Sequence[Any]) -> Topic:
    """A row of topics."""
    name, topic_id, partitions, configs = row
    return Topic(name, topic_id, partitions, json.loads(configs))


def partition_of(row: Sequence[Any]) -> Partition:
    """A row of partitions, from log_start_offset on."""
    log_start_offset, high_watermark, peak_timestamp, size_bytes, transactions = row
    return Partition(
        log_start_offset, high_watermark, peak_timestamp, size_bytes, unpack_open_transactions(transactions)
    )


def producer_of(row: Sequence[Any]) -> ProducerState:
    """A row of producers, from epoch on."""
    epoch, batches, last_timestamp, seen_ms, coordinator_epoch, transaction_first_offset = row
    return ProducerState(
        epoch,
        unpack_sent_batches(batches),
        last_timestamp,
        seen_ms,
        coordinator_epoch,
        transaction_first_offset,
    )


def offset_of(row: Sequence[Any]) -> CommittedOffset:
    """A row of offsets, from committed_offset on."""
    return CommittedOffset._make(row)


def batch_of(row: Sequence[Any]) -> StoredBatch:
    """A row of batches: offsets, timestamp, place."""
    base_offset, last_offset, max_timestamp, chunk_id, position, length = row
    return StoredBatch(base_offset, last_offset, max_timestamp, Place(chunk_id, position, length))
