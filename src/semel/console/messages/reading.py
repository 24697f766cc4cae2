"""Reads ranges of a topic as marked records, one fetch at a time.

`Reader.fetch` returns pieces: the batches of a partition as they were sent, each with its `Mark`. The records
of a piece are decoded when they are iterated over, one batch in memory at a time. A batch that cannot be
opened becomes one record that says why, so a damaged or hostile batch hides no other batch.

A batch is opened with bounded memory, whatever is in it. `wire.payload.walk` decodes all headers of a record,
and a record of 32 MiB can hold ten million, which is gigabytes of Python objects. This module decodes the
first few and skips the rest, because a record starts with its length. Like `walk`, it refuses damaged records
with `ProtocolError`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from semel.client import (
    EARLIEST,
    LATEST,
    Admin,
    Client,
    ClientError,
    ErrorCode,
    FetchLimits,
    Header,
    Isolation,
    KafkaError,
)
from semel.client.consume.fetch import begin_fetch, shown
from semel.client.errors import check
from semel.console.messages.limits import BATCH_BYTES_MAX, HEADERS_READ_MAX
from semel.console.messages.marks import Mark, Outcomes
from semel.wire import varint
from semel.wire.batch import HEADER_BYTES, BatchHeader, has_valid_crc, iter_batches
from semel.wire.compression import decompress
from semel.wire.errors import ProtocolError
from semel.wire.messages import PartitionData
from semel.wire.records import read_marker
from semel.wire.schema import Buffer


class OpenRecord(NamedTuple):
    """One record of a batch, with the first of its headers and the number of all."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    header_count: int
    size_bytes: int


def open_batch(data: Buffer, at: int, header: BatchHeader, headers_max: int = HEADERS_READ_MAX) -> "Opened":
    """Check and decompress the batch at `at`. ProtocolError if it is damaged or too large."""
    if header.record_count < 0:
        raise ProtocolError(f"a batch of {header.record_count} records")
    if not has_valid_crc(data, at, header):
        raise ProtocolError("the checksum of a batch is wrong")
    packed = memoryview(data)[at + HEADER_BYTES : at + header.length]
    return Opened(header, decompress(header.codec, packed, BATCH_BYTES_MAX), headers_max)


class Opened:
    """A decompressed batch; iterate over its records."""

    def __init__(self, header: BatchHeader, data: bytes, headers_max: int = HEADERS_READ_MAX) -> None:
        self._header = header
        self._data = data
        self._headers_max = headers_max

    @property
    def data(self) -> bytes:
        """The decompressed records, as they are on the wire."""
        return self._data

    def __iter__(self) -> Iterator[OpenRecord]:
        at, header = 0, self._header
        appended = header.max_timestamp if header.is_log_append_time else None
        previous = -1
        try:
            for _ in range(header.record_count):
                record, delta, at = self._read(at)
                if not previous < delta <= header.last_offset_delta:
                    raise ProtocolError("the offsets in a batch do not ascend within its range")
                previous = delta
                yield record if appended is None else record._replace(timestamp=appended)
        except IndexError:
            raise ProtocolError("a batch ends inside a record") from None
        if at != len(self._data):
            raise ProtocolError("a batch holds more than the records that it counts")

    def _read(self, at: int) -> tuple[OpenRecord, int, int]:
        """Read one record. This is the inner loop of a search, so one-byte varints are decoded inline."""
        data, read = self._data, varint.read
        begin = at
        length, at = (data[at] >> 1, at + 1) if data[at] < 0x80 and not data[at] & 1 else read(data, at)
        end = at + length
        if length < 0 or end > len(data):
            raise ProtocolError("a record is not as long as it says")
        at += 1  # the attributes, none of which is defined
        time_delta, at = (data[at] >> 1, at + 1) if data[at] < 0x80 and not data[at] & 1 else read(data, at)
        offset_delta, at = (data[at] >> 1, at + 1) if data[at] < 0x80 and not data[at] & 1 else read(data, at)
        key, at = _field(data, at, end)
        value, at = _field(data, at, end)
        headers: tuple[Header, ...] = ()
        count = 0
        if at < end and not data[at]:
            at += 1
        else:
            headers, count, at = self._read_headers(at, end)
        if count <= self._headers_max and at != end:
            raise ProtocolError("a record is not as long as it says")
        timestamp = self._header.base_timestamp + time_delta
        offset = self._header.base_offset + offset_delta
        fields = (offset, timestamp, key, value, headers, count, end - begin)
        return tuple.__new__(OpenRecord, fields), offset_delta, end

    def _read_headers(self, at: int, end: int) -> tuple[tuple[Header, ...], int, int]:
        data = self._data
        count, at = varint.read(data, at)
        if not 0 <= count * _HEADER_BYTES_MIN <= end - at:
            raise ProtocolError(f"a record with {count} headers where {end - at} bytes are left")
        headers = []
        for _ in range(min(count, self._headers_max)):
            name, at = _field(data, at, end)
            if name is None:
                raise ProtocolError("a header without a key")
            content, at = _field(data, at, end)
            headers.append(Header(name.decode(errors="replace"), content))
        return tuple(headers), count, at


def _field(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    length = data[at]
    if length < 0x80 and not length & 1:
        length >>= 1
        at += 1
    else:
        length, at = varint.read(data, at)
        if length == -1:
            return None, at
    if not 0 <= length <= end - at:
        raise ProtocolError("a field that is longer than its record")
    return data[at : at + length], at + length


class MarkedRecord(NamedTuple):
    """A record, where it is, and the state of its transaction."""

    topic: str
    partition: int
    record: OpenRecord
    mark: Mark
    producer_id: int
    producer_epoch: int
    codec: str
    #: Says why the batch could not be opened, or which marker it is.
    note: str = ""
    is_unreadable: bool = False
    batch_end: int = -1

    @property
    def last_offset(self) -> int:
        """The offset of the record, or of the last record of a batch that cannot be opened."""
        return self.batch_end if self.is_unreadable else self.record.offset

    @property
    def offset(self) -> int:
        """The offset of the record, or of the first record of a batch that cannot be opened."""
        return self.record.offset


@dataclass(frozen=True, slots=True)
class Bounds:
    """Log start offset, last stable offset and high watermark of a partition."""

    start: int
    stable: int
    end: int


@dataclass(slots=True)
class Piece:
    """What one fetch returned of one partition: whole batches in order, and where to continue."""

    partition: int
    begin: int
    next_offset: int
    high_watermark: int
    last_stable_offset: int
    data: Buffer = b""
    batches: list[tuple[int, BatchHeader, Mark]] = field(default_factory=list)

    def aborted(self) -> Iterator[tuple[int, int]]:
        """Yield the offsets of each aborted batch: the first, and the one after the last."""
        for _, header, mark in self.batches:
            if mark is Mark.ABORTED:
                yield header.base_offset, header.last_offset + 1


def bounds_of(client: Client, topic: str, partitions: list[int]) -> dict[int, Bounds]:
    """List the bounds of these partitions."""
    topics = Admin(client).topics
    keys = [(topic, number) for number in partitions]
    starts = topics.offsets(dict.fromkeys(keys, EARLIEST))
    stable = topics.offsets(dict.fromkeys(keys, LATEST), Isolation.READ_COMMITTED)
    ends = topics.offsets(dict.fromkeys(keys, LATEST))
    return {key[1]: Bounds(starts[key].offset, stable[key].offset, ends[key].offset) for key in keys}


class Reader:
    """Fetches pieces of one topic, of committed records only or of all."""

    def __init__(
        self,
        client: Client,
        topic: str,
        bounds: Mapping[int, Bounds],
        *,
        committed: bool,
        control: bool = False,
        headers_max: int = HEADERS_READ_MAX,
        may_match: Callable[[bytes], bool] | None = None,
    ) -> None:
        """`may_match` gets the decompressed bytes of a batch; if it returns false, the batch is skipped."""
        self.topic = topic
        self.committed = committed
        self._client = client
        self._control = control
        self._headers_max = headers_max
        self._may_match = may_match
        self.skipped_records = 0
        self._stable = {number: each.stable for number, each in bounds.items()}
        self._outcomes = Outcomes(client, topic)
        self.read_bytes = 0

    def fetch(
        self, positions: Mapping[int, int], limits: FetchLimits, *, look_ahead: bool = True
    ) -> list[Piece]:
        """Fetch once at these offsets. Partitions that cannot be read now are missing; fetch them again."""
        decided = {
            (self.topic, number): at
            for number, at in positions.items()
            if self.committed or at < self._stable[number]
        }
        others = {
            (self.topic, number): at
            for number, at in positions.items()
            if (self.topic, number) not in decided
        }
        if decided and others:
            limits = replace(limits, max_wait_ms=min(limits.max_wait_ms, 100))  # Neither waits for the other.
        under_way = [
            (wanted, isolation, begin_fetch(self._client, wanted, isolation, limits))
            for wanted, isolation in (
                (decided, Isolation.READ_COMMITTED),
                (others, Isolation.READ_UNCOMMITTED),
            )
            if wanted
        ]
        pieces = []
        for wanted, isolation, pending in under_way:
            for key, data in pending.wait():
                try:
                    piece = self._take(key[1], wanted[key], data, isolation, look_ahead)
                except ProtocolError as error:
                    where = f"{self.topic}/{key[1]} at offset {wanted[key]}"
                    raise ClientError(f"{where} holds what this client cannot read: {error}.") from None
                if piece is None:
                    continue
                self._stable[key[1]] = max(self._stable[key[1]], piece.last_stable_offset)
                self.read_bytes += len(piece.data)
                pieces.append(piece)
        return pieces

    def _take(
        self, number: int, at: int, data: PartitionData, isolation: Isolation, look_ahead: bool
    ) -> Piece | None:
        """Return the piece of a partition; None if its leader has moved, or cannot answer now."""
        piece = Piece(number, at, at, data.high_watermark, data.last_stable_offset)
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and data.log_start_offset > at:
            piece.next_offset = data.log_start_offset  # Retention has deleted the records.
            return piece
        if data.error_code:
            code = KafkaError(data.error_code)
            if code.retriable:
                self._client.forget_topic(self.topic)
                return None
            check(data.error_code, f"{self.topic}/{number} cannot be read at offset {at}")
        piece.data = data.records or b""
        if isolation is Isolation.READ_COMMITTED:
            for position, header, is_shown in shown(piece.data, data.aborted_transactions, isolation):
                piece.batches.append((position, header, _below_stable(header, is_shown)))
        else:
            self._decide(piece, look_ahead)
        piece.next_offset = max([at, *(header.last_offset + 1 for _, header, _ in piece.batches)])
        return piece

    def _decide(self, piece: Piece, look_ahead: bool) -> None:
        found = list(iter_batches(piece.data))
        data_batches = [header for _, header in found if not header.is_control]
        end = max([piece.begin, *(header.last_offset + 1 for _, header in found)])
        self._outcomes.learn(piece.partition, piece.data, piece.begin, end)
        if look_ahead:
            self._outcomes.resolve(piece.partition, data_batches, piece.high_watermark)
        for at, header in found:
            mark = Mark.CONTROL if header.is_control else self._outcomes.mark(piece.partition, header)
            # A tail is at the end of the log: a transaction without a marker is open.
            if mark is Mark.UNDECIDED and not look_ahead:
                mark = Mark.OPEN
            piece.batches.append((at, header, mark))

    def records(self, piece: Piece, begin: int, end: int) -> Iterator[MarkedRecord]:
        """Decode the records of a piece within these offsets, except those that this reader does not show."""
        for _, records in self.batches(piece, begin, end):
            yield from records

    def batches(
        self, piece: Piece, begin: int, end: int
    ) -> Iterator[tuple[BatchHeader, Iterator[MarkedRecord]]]:
        """Do the same by batches. A batch is opened when its records are iterated over."""
        for at, header, mark in piece.batches:
            if header.last_offset < begin or header.base_offset >= end:
                continue
            if (mark is Mark.CONTROL and not self._control) or (mark is Mark.ABORTED and self.committed):
                continue
            yield header, self._open(piece, at, header, mark, begin, end)

    def _open(
        self, piece: Piece, at: int, header: BatchHeader, mark: Mark, begin: int, end: int
    ) -> Iterator[MarkedRecord]:
        rest = (mark, header.producer_id, header.producer_epoch)
        codec, reached = "?", begin
        try:
            codec = header.codec.name.lower()
            opened = open_batch(piece.data, at, header, self._headers_max)
            self.read_bytes += max(0, len(opened.data) - header.length)
            if self._may_match is not None and not self._may_match(opened.data):
                self.skipped_records += min(header.record_count, end - begin)
                return
            note = _marker_note(piece.data, at) if mark is Mark.CONTROL else ""
            for record in opened:
                if begin <= record.offset < end:
                    reached = record.offset + 1
                    yield MarkedRecord(self.topic, piece.partition, record, *rest, codec, note)
        except ProtocolError as error:
            first = header.base_offset if reached == begin else min(reached, header.last_offset)
            why = f"the records {first} to {header.last_offset} cannot be opened: {error}"
            record = OpenRecord(first, header.max_timestamp, None, None, (), 0, header.length)
            made = MarkedRecord(self.topic, piece.partition, record, *rest, codec, why)
            yield made._replace(is_unreadable=True, batch_end=header.last_offset)


def _below_stable(header: BatchHeader, is_shown: bool) -> Mark:
    if header.is_control:
        return Mark.CONTROL
    if not is_shown:
        return Mark.ABORTED
    return Mark.COMMITTED if header.is_transactional else Mark.PLAIN


def _marker_note(data: Buffer, at: int) -> str:
    marker = read_marker(data, at)
    if marker is None:
        return "control record"
    return f"{'commit' if marker.commit else 'abort'} marker, coordinator epoch {marker.coordinator_epoch}"


_HEADER_BYTES_MIN: Final = 2  # an empty name and an empty value
