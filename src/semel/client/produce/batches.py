"""Collects outgoing records per partition, builds batches, and keeps the outcome of each `send`.

    send() -> Outgoing.open -> Outgoing.full -> encoded head -> settled Deliveries

The argument of `send_packed` is a batch already; it has one `Delivery`.

The batches of a partition form a queue, and only its head is ever in flight, so they arrive in order: a
`Round` is the head of every queue, sent to all brokers in parallel. A batch gets its sequence numbers when it
first becomes the head, and is encoded once: every retry sends the same bytes, so that the broker recognises a
duplicate.
"""

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from semel.client.consume.offsets import Partition
from semel.client.net.connection import Pending
from semel.wire.batch import ProducerIdAndEpoch
from semel.wire.columns import Packed, seal_packed
from semel.wire.compression import Codec
from semel.wire.records import Header, Record, encode_batch

if TYPE_CHECKING:
    from semel.client.produce.producer import Producer

Headers: TypeAlias = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]

SEQUENCES = 1 << 31
RECORD_OVERHEAD_BYTES = 24  # approximate: lengths and deltas of a record
REQUEST_BYTES_MAX = 16 << 20


class Delivered(NamedTuple):
    """Where a record was written.

    The offset is -1 with acks=0, and for a record that gets its offset when its transaction commits (topics
    with `semel.visibility=journal`).
    """

    topic: str
    partition: int
    offset: int
    timestamp: int


class Delivery:
    """The outcome of one `send`, known once the broker has answered for the record's batch."""

    __slots__ = ("_error", "_outcome", "_producer", "partition", "timestamp", "topic")

    def __init__(self, producer: "Producer", topic: str, partition: int, timestamp: int) -> None:
        self.topic = topic
        self.partition = partition
        self.timestamp = timestamp
        self._producer = producer
        self._outcome: Delivered | None = None
        self._error: Exception | None = None

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._outcome is not None or self._error is not None

    @property
    def error(self) -> Exception | None:
        """Why the record was not delivered; None if it was, or if the outcome is unknown."""
        return self._error

    def result(self) -> Delivered:
        """Return where the record was written, sending waiting batches if needed; raise if it was refused."""
        if not self.done:
            self._producer._settle(self)
        if self._error is not None:
            raise self._error
        assert self._outcome is not None
        return self._outcome

    def _succeed(self, offset: int, timestamp: int) -> None:
        self._outcome = Delivered(self.topic, self.partition, offset, timestamp)

    def _fail(self, error: Exception) -> None:
        self._error = error


class Batch:
    """A batch of records and their deliveries."""

    __slots__ = (
        "data",
        "deadline",
        "deliveries",
        "error",
        "identity",
        "opened_at",
        "packed",
        "records",
        "size_bytes",
    )

    def __init__(self, packed: Packed | None = None) -> None:
        self.packed = packed
        self.records: list[Record] = []
        self.deliveries: list[Delivery] = []
        self.size_bytes = 0
        self.opened_at = time.monotonic()
        self.data: bytes | None = None
        self.identity = ProducerIdAndEpoch()
        self.deadline = 0.0
        self.error: Exception | None = None

    @property
    def record_count(self) -> int:
        """The number of records."""
        return len(self.records) if self.packed is None else self.packed.record_count

    def add(self, record: Record, delivery: Delivery, size_bytes: int) -> None:
        """Add a record."""
        self.records.append(record)
        self.deliveries.append(delivery)
        self.size_bytes += size_bytes

    def succeed(self, base_offset: int, append_time: int) -> None:
        """Settle the deliveries: the records start at this offset. A negative append time means none."""
        for at, delivery in enumerate(self.deliveries):
            timestamp = append_time if append_time >= 0 else delivery.timestamp
            delivery._succeed(base_offset + at if base_offset >= 0 else -1, timestamp)

    def fail(self, error: Exception) -> None:
        """Settle the deliveries: the records were refused."""
        for delivery in self.deliveries:
            delivery._fail(error)


class Outgoing:
    """The queue of batches of one partition."""

    def __init__(self, partition: Partition, batch_bytes: int) -> None:
        self.partition = partition
        self._batch_bytes = batch_bytes
        self._queue: deque[Batch] = deque()
        self._open: Batch | None = None
        self._identity = ProducerIdAndEpoch()
        self._next_sequence = 0

    @property
    def oldest_at(self) -> float | None:
        """When the open batch was started; None if there is none."""
        return self._open.opened_at if self._open is not None else None

    @property
    def is_ready(self) -> bool:
        """Whether a batch is ready to be sent."""
        return bool(self._queue)

    def add(self, record: Record, delivery: Delivery, size_bytes: int) -> bool:
        """Add a record; return whether that filled a batch."""
        if self._open is not None and self._open.size_bytes + size_bytes > self._batch_bytes:
            self.close_open()
        if self._open is None:
            self._open = Batch()
        self._open.add(record, delivery, size_bytes)
        if self._open.size_bytes >= self._batch_bytes:
            self.close_open()
        return bool(self._queue)

    def add_packed(self, packed: Packed, delivery: Delivery) -> None:
        """Add a complete batch behind everything added before."""
        self.close_open()
        batch = Batch(packed)
        batch.deliveries.append(delivery)
        batch.size_bytes = len(packed.payload)
        self._queue.append(batch)

    def close_open(self) -> None:
        """Queue the open batch, if any, even if it is not full."""
        if self._open is not None:
            self._queue.append(self._open)
            self._open = None

    def head(
        self, identity: ProducerIdAndEpoch, *, codec: Codec, timeout_s: float, transactional: bool
    ) -> Batch:
        """Return the next batch to send, encoded. It keeps the epoch and sequence of its first encoding."""
        batch = self._queue[0]
        if batch.data is None:
            if identity != self._identity:
                self._identity, self._next_sequence = identity, 0
            has_sequence = identity.producer_id >= 0
            batch.identity = identity
            batch.deadline = time.monotonic() + timeout_s
            encode = (
                partial(encode_batch, batch.records)
                if batch.packed is None
                else partial(seal_packed, batch.packed)
            )
            batch.data = encode(
                codec=codec,
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                base_sequence=self._next_sequence if has_sequence else -1,
                transactional=transactional,
            )
            self._next_sequence = (self._next_sequence + batch.record_count) % SEQUENCES
        return batch

    def settle_head(self) -> None:
        """Remove the head, so that the next batch can be sent."""
        self._queue.popleft()

    def drop(self, error: Exception) -> int:
        """Drop all waiting batches; return their size in bytes."""
        self.close_open()
        dropped_bytes = 0
        while self._queue:
            batch = self._queue.popleft()
            batch.fail(error)
            dropped_bytes += batch.size_bytes
        return dropped_bytes


Heads: TypeAlias = Mapping[Partition, tuple[Outgoing, Batch]]


@dataclass(slots=True)
class Round:
    """The batches of a round, and their outstanding answers."""

    heads: Heads = field(default_factory=dict)
    posted: list[tuple[list[Partition], Pending | None]] = field(default_factory=list)
    is_sent: bool = True  # False if a broker could not be reached

    @property
    def size_bytes(self) -> int:
        """The size of its batches, as the producer counts buffered bytes."""
        return sum(batch.size_bytes for _, batch in self.heads.values())

    @property
    def is_answered(self) -> bool:
        """Whether no batch of it has to be sent again."""
        return not any(batch.error for _, batch in self.heads.values() if not batch.deliveries[0].done)


def portions(keys: Sequence[Partition], heads: Heads) -> list[list[Partition]]:
    """Group partitions so that the batches of a group fit into one request."""
    found: list[list[Partition]] = []
    size_bytes = REQUEST_BYTES_MAX
    for key in keys:
        length = len(heads[key][1].data or b"")
        if size_bytes + length > REQUEST_BYTES_MAX:
            found.append([])
            size_bytes = 0
        found[-1].append(key)
        size_bytes += length
    return found


def size_of(record: Record) -> int:
    """Estimate the size of a record before compression."""
    _, _, key, value, headers = record
    size = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    for name, content in headers:
        size += len(name) + len(content or b"") + 4
    return size


def record_of(timestamp: int, key: bytes | None, value: bytes | None, headers: Headers) -> Record:
    """Build a record from the arguments of `send`; a TypeError names an argument of the wrong type."""
    # Takes half the time of the named tuple's constructor.
    return tuple.__new__(
        Record, (0, timestamp, _checked("key", key), _checked("value", value), _as_pairs(headers))
    )


def _as_pairs(headers: Headers) -> tuple[Header, ...]:
    if headers == ():
        return ()
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return tuple(Header(str(name), _checked(f"header {name!r}", content)) for name, content in pairs)


def _checked(what: str, value: bytes | None) -> bytes | None:
    """Reject a wrong type now. When the batch is encoded, the faulty call can no longer be identified."""
    if value is None or isinstance(value, bytes):
        return value
    raise TypeError(f"the {what} of a record must be bytes or None, not {type(value).__name__}")
