"""The columnar codec in pure Python: for machines without a compiler, and a reference for `_columns.pyx`.

`_columns.pyx` has the same names with the same behaviour, and the tests run on both.
"""

import struct
from collections.abc import Sequence

from semel.wire import varint
from semel.wire.batch import BatchHeader
from semel.wire.column_buffers import Binary, ColumnHeaders, Columns, Numbers, Packed
from semel.wire.errors import ProtocolError
from semel.wire.partitioner import partition_for
from semel.wire.payload import Record, walk
from semel.wire.schema import Buffer

SMALLEST_RECORD_BYTES = 7
COLUMN_BYTES_MAX = (1 << 31) - 1

_OUTSIDE = "a row lies outside of the data of its column"
_FEW_ROWS = "a column has fewer rows than were announced"
_FEW_BITS = "a column has fewer bits of validity than rows"


class Reader:
    """Collects the records of successive batches as columns, until they are taken."""

    def __init__(self, keys: bool, values: bool, headers: bool) -> None:
        self._has_keys, self._has_values, self._has_headers = keys, values, headers
        self._clear()

    def _clear(self) -> None:
        self.rows = 0
        self._records: list[Record] = []
        self._types: list[int] = []
        self._key_bytes = self._value_bytes = 0

    @property
    def size_bytes(self) -> int:
        """The number of bytes of keys and values that are not taken yet."""
        return self._key_bytes + self._value_bytes

    def add(self, payload: Buffer, header: BatchHeader, start: int, stop: int) -> None:
        """Add the records of a batch with offsets from `start` up to, but not including, `stop`.

        The payload is already decompressed. ProtocolError if it is damaged; then no record is added.
        """
        if not 0 <= header.record_count <= len(payload) // SMALLEST_RECORD_BYTES:
            raise ProtocolError("a batch ends inside a record")
        data = bytes(payload)
        for is_there, held in ((self._has_keys, self._key_bytes), (self._has_values, self._value_bytes)):
            if is_there and held + len(data) > COLUMN_BYTES_MAX:
                raise OverflowError("a column has at most 2 GiB; take what is there first")
        found = [record for record in walk(data, header) if start <= record.offset < stop]
        self._records += found
        self._types += [int(header.is_log_append_time)] * len(found)
        self.rows += len(found)
        if self._has_keys:
            self._key_bytes += sum(len(record.key or b"") for record in found)
        if self._has_values:
            self._value_bytes += sum(len(record.value or b"") for record in found)

    def take(self) -> Columns:
        """Return the collected records, and empty the reader."""
        records = self._records
        headers: ColumnHeaders | None = None
        if self._has_headers:
            headers = [[(each.key, each.value) for each in record.headers] or None for record in records]
        taken = Columns(
            len(records),
            struct.pack(f"={len(records)}q", *(record.offset for record in records)),
            struct.pack(f"={len(records)}q", *(record.timestamp for record in records)),
            struct.pack(f"={len(records)}i", *self._types),
            _binary([record.key for record in records]) if self._has_keys else None,
            _binary([record.value for record in records]) if self._has_values else None,
            headers,
        )
        self._clear()
        return taken


def _binary(values: Sequence[bytes | None]) -> Binary:
    offsets, end, nulls = [0], 0, 0
    validity = bytearray((len(values) + 7) // 8)
    for row, value in enumerate(values):
        if value is None:
            nulls += 1
        else:
            end += len(value)
            validity[row >> 3] |= 1 << (row & 7)
        offsets.append(end)
    data = b"".join(value for value in values if value is not None)
    packed = struct.pack(f"={len(offsets)}i", *offsets)
    return Binary(packed, data, bytes(validity) if nulls else None, 0, nulls)


def choose(rows: int, partitions: int, keys: Binary | None, given: Numbers | None, sticky: int) -> Buffer:
    """Return each row's partition, as int32: the given one, else the one of its key, else `sticky`."""
    if partitions < 1 or not 0 <= sticky < partitions:
        raise ValueError("a topic has at least one partition, and a partition is one of them")
    column = _given(keys, rows)
    numbers: Sequence[int | None] = [None] * rows if given is None else _numbers(given, rows)
    chosen = []
    for row, number in enumerate(numbers):
        partition = number
        if partition is None:
            partition = partition_for(column(row), partitions)
        elif not 0 <= partition < partitions:
            raise ValueError(f"there is no partition {partition}, only 0 to {partitions - 1}")
        chosen.append(sticky if partition is None else partition)
    return struct.pack(f"={rows}i", *chosen)


class _Column:
    """An input column of bytes; call it for the bytes of a row."""

    def __init__(self, column: Binary | None, rows: int) -> None:
        self._is_there = column is not None
        if column is None:
            return
        self._first, self._data = column.first, column.data
        self._offsets = _int32s(column.offsets)
        self._validity = column.validity
        if column.first < 0 or rows < 0 or len(self._offsets) < column.first + rows + 1:
            raise ValueError(_FEW_ROWS)
        if column.validity is not None and len(column.validity) < (column.first + rows + 7) >> 3:
            raise ValueError(_FEW_BITS)

    def __call__(self, row: int) -> bytes | None:
        if not self._is_there:
            return None
        at = self._first + row
        if self._validity is not None and not self._validity[at >> 3] >> (at & 7) & 1:
            return None
        begin, end = self._offsets[at], self._offsets[at + 1]
        if not 0 <= begin <= end <= len(self._data):
            raise ValueError(_OUTSIDE)
        return bytes(self._data[begin:end])


def _given(column: Binary | None, rows: int) -> _Column:
    return _Column(column, rows)


def _numbers(given: Numbers, rows: int) -> list[int | None]:
    data, validity = _int32s(given.data), given.validity
    if given.first < 0 or len(data) < given.first + rows:
        raise ValueError(_FEW_ROWS)
    if validity is not None and len(validity) < (given.first + rows + 7) >> 3:
        raise ValueError(_FEW_BITS)
    places = range(given.first, given.first + rows)
    return [data[at] if validity is None or validity[at >> 3] >> (at & 7) & 1 else None for at in places]


def _int32s(data: Buffer) -> memoryview:
    view = memoryview(data).cast("B")
    return view[: len(view) // 4 * 4].cast("i")


class _Lane:
    """The open batch of one partition."""

    def __init__(self) -> None:
        self.payload = bytearray()
        self.count = 0
        self.base_timestamp = self.max_timestamp = 0


class Packer:
    """Packs rows into batches, one open batch for each partition of a topic."""

    def __init__(self, partitions: int, batch_bytes: int) -> None:
        self._lanes = [_Lane() for _ in range(partitions)]
        self._batch_bytes = batch_bytes
        #: The partition whose batch has no room for the row at which `add` stopped.
        self.full: int | None = None

    @property
    def size_bytes(self) -> int:
        """The number of bytes of batches that are not taken yet."""
        return sum(len(lane.payload) for lane in self._lanes)

    def add(
        self,
        start: int,
        rows: int,
        partitions: Buffer,
        keys: Binary | None,
        values: Binary | None,
        headers: list[bytes | None] | None,
        timestamp: int,
    ) -> int:
        """Pack the rows from `start` up to `rows`; return the row that met a full batch, else `rows`.

        `headers` has the headers of each row in wire format. A record larger than `batch_bytes` gets a batch
        of its own.
        """
        key_of, value_of, chosen = _given(keys, rows), _given(values, rows), _int32s(partitions)
        if start < 0 or len(chosen) < rows or (headers is not None and len(headers) < rows):
            raise ValueError(_FEW_ROWS)
        self.full = None
        for row in range(start, rows):
            partition = chosen[row]
            if not 0 <= partition < len(self._lanes):
                raise ValueError(f"there is no partition {partition}")
            packed_headers = (headers[row] if headers is not None else None) or b"\x00"
            if not self._put(self._lanes[partition], key_of(row), value_of(row), packed_headers, timestamp):
                self.full = partition
                return row
        return rows

    def _put(
        self, lane: _Lane, key: bytes | None, value: bytes | None, headers: bytes, timestamp: int
    ) -> bool:
        if not lane.count:
            lane.base_timestamp = lane.max_timestamp = timestamp
        time_delta = timestamp - lane.base_timestamp
        if not -(1 << 63) <= time_delta < 1 << 63:
            raise ValueError("the timestamps of a batch are too far apart")
        body = b"".join(
            (
                b"\x00",
                varint.encode(time_delta),
                varint.encode(lane.count),
                varint.encode(-1 if key is None else len(key)),
                key or b"",
                varint.encode(-1 if value is None else len(value)),
                value or b"",
                headers,
            )
        )
        record = varint.encode(len(body)) + body
        if lane.count and len(lane.payload) + len(record) > self._batch_bytes:
            return False
        lane.payload += record
        lane.count += 1
        lane.max_timestamp = max(lane.max_timestamp, timestamp)
        return True

    def take(self, partition: int) -> Packed | None:
        """Return the open batch of a partition, full or not; None if it is empty."""
        if not 0 <= partition < len(self._lanes):
            raise ValueError(f"there is no partition {partition}")
        lane = self._lanes[partition]
        if not lane.count:
            return None
        self._lanes[partition] = _Lane()
        return Packed(lane.payload, lane.count, lane.base_timestamp, lane.max_timestamp)
