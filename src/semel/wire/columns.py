"""Converts record batches to columns and back, for callers that handle millions of records.

    reader = ColumnReader(keys=True, values=True)
    for at, header in iter_batches(data):
        reader.add(data, at, header)
    columns = reader.take()

`records` makes an object of every record; this module makes none. It has two equivalent implementations: the
compiled `_columns.pyx`, if there was a C compiler when the package was built, else `_columns_py`, which
`SEMEL_PURE=1` in the environment selects too. `IS_COMPILED` says which one is in use.

As everywhere in this layer, damaged input is a `ProtocolError` and nothing else, and memory is proportional
to the input, or to the limit if the input is compressed.
"""

from collections.abc import Iterable

from semel.wire import varint
from semel.wire.batch import HEADER_BYTES, MAGIC, TRANSACTIONAL, BatchHeader, has_valid_crc, seal
from semel.wire.column_buffers import Binary, Columns, Numbers, Packed
from semel.wire.compression import Codec, compress, decompress
from semel.wire.errors import ProtocolError
from semel.wire.records import DECOMPRESSED_LIMIT_BYTES
from semel.wire.schema import Buffer

try:
    from semel.wire import _columns as half
except ImportError:
    from semel.wire import _columns_py as half  # type: ignore[no-redef]

__all__ = [
    "IS_COMPILED",
    "Binary",
    "ColumnReader",
    "Columns",
    "Numbers",
    "Packed",
    "Packer",
    "choose",
    "pack_headers",
    "seal_packed",
]

IS_COMPILED = half.__name__ == "semel.wire._columns"
Packer, choose = half.Packer, half.choose

_MAX_INT64 = (1 << 63) - 1


class ColumnReader:
    """Collects the records of batches as columns, until they are taken."""

    def __init__(
        self,
        *,
        keys: bool = True,
        values: bool = True,
        headers: bool = False,
        limit_bytes: int = DECOMPRESSED_LIMIT_BYTES,
    ) -> None:
        self._reader = half.Reader(keys, values, headers)
        self._limit_bytes = limit_bytes

    @property
    def rows(self) -> int:
        """The number of records that are not taken yet."""
        return self._reader.rows

    @property
    def size_bytes(self) -> int:
        """The number of bytes of keys and values that are not taken yet."""
        return self._reader.size_bytes

    def add(self, data: Buffer, at: int, header: BatchHeader, start: int = 0, stop: int = _MAX_INT64) -> None:
        """Add the records of the batch at `at` with offsets from `start` up to, but not including, `stop`.

        ProtocolError if the batch is damaged, even in a record outside the range; then no record is added.
        """
        if header.magic != MAGIC:
            raise ProtocolError(f"record format version {header.magic} is not supported, only {MAGIC}")
        if not HEADER_BYTES <= header.length <= len(data) - at:
            raise ProtocolError(f"a batch of {header.length} bytes where {len(data) - at} are left")
        if not has_valid_crc(data, at, header):
            raise ProtocolError("the checksum of a batch is wrong")
        if header.last_offset > _MAX_INT64:
            raise ProtocolError("the offsets of a batch are out of range")
        payload: Buffer = memoryview(data)[at + HEADER_BYTES : at + header.length]
        if header.codec is not Codec.NONE:
            payload = decompress(header.codec, payload, self._limit_bytes)
        self._reader.add(payload, header, start, stop)

    def take(self) -> Columns:
        """Return the collected records, and empty the reader."""
        return self._reader.take()


def pack_headers(headers: Iterable[tuple[str, bytes | None]]) -> bytes:
    """Encode the headers of one record: their count, then keys and values."""
    parts: list[bytes] = []
    count = 0
    for name, content in headers:
        encoded = name.encode()
        parts += varint.encode(len(encoded)), encoded
        parts += (varint.encode(-1),) if content is None else (varint.encode(len(content)), content)
        count += 1
    return varint.encode(count) + b"".join(parts)


def seal_packed(
    packed: Packed,
    *,
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> bytes:
    """Build the batch of these records. ValueError if a value is out of range."""
    header = BatchHeader(
        base_offset=0,
        length=0,
        leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=int(codec) | (TRANSACTIONAL if transactional else 0),
        last_offset_delta=packed.record_count - 1,
        base_timestamp=packed.base_timestamp,
        max_timestamp=packed.max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=packed.record_count,
    )
    return seal(header, compress(codec, packed.payload) if codec else packed.payload)
