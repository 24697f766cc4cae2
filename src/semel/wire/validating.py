"""The validation of a batch from a producer: what is inside must be what its header says.

A batch that is damaged inside stops every reader at its place in the log, so it must not get there.
`validate` unpacks a batch within a limit and passes over its records without copying a key or a value. As in
`columns` there are two halves that do the same: `_checking.pyx` is compiled; `_checking_py` takes its place
where it was not built or `SEMEL_PURE=1` is set.
"""

from typing import Final

from semel.wire.batch import CODEC_MASK, HEADER_BYTES, BatchHeader, seal
from semel.wire.compression import unpack
from semel.wire.errors import InvalidRecords, ProtocolError
from semel.wire.schema import Buffer

try:
    from semel.wire import _checking as half
except ImportError:
    from semel.wire import _checking_py as half  # type: ignore[no-redef]

__all__ = ["IS_COMPILED", "MAX_TIMESTAMP", "MIN_TIMESTAMP", "validate", "with_max_timestamp"]

IS_COMPILED: Final = half.__name__ == "semel.wire._checking"

MIN_TIMESTAMP: Final = -(1 << 63)
MAX_TIMESTAMP: Final = (1 << 63) - 1


def validate(
    records: Buffer,
    header: BatchHeader,
    limit_bytes: int,
    earliest: int = MIN_TIMESTAMP,
    latest: int = MAX_TIMESTAMP,
    needs_keys: bool = False,
) -> int:
    """Check what is inside a batch whose header passed `check_produced`; return its largest timestamp.

    `InvalidRecords` if the batch does not unpack to at most `limit_bytes`; if its records are not as many and
    as long as they say, numbered from 0; or if a timestamp other than -1, which is none, is not between
    `earliest` and `latest`, or a key is missing where keys are needed.
    """
    packed = memoryview(records)[HEADER_BYTES : header.length]
    if not header.attributes & CODEC_MASK:
        return half.check(packed, header, earliest, latest, needs_keys)
    try:
        unpacked = unpack(header.codec, packed, limit_bytes, is_produced=True)
    except ProtocolError as error:
        raise InvalidRecords(f"the records cannot be unpacked: {error}") from None
    return half.check(unpacked, header, earliest, latest, needs_keys)


def with_max_timestamp(records: Buffer, header: BatchHeader) -> bytes:
    """Return a copy of the batch with the max timestamp of `header`, and its checksum."""
    return seal(header, memoryview(records)[HEADER_BYTES : header.length])
