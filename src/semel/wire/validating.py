"""Validates a produced batch: its records must match its header.

A batch with damaged records would stop every reader at its offset, so it must not be appended. `validate`
decompresses a batch within a limit and walks over its records without copying a key or a value. As in
`columns` there are two equivalent implementations: the compiled `_checking.pyx`, and `_checking_py` if that
was not built or `SEMEL_PURE=1` is set.
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
    """Check the records of a batch whose header passed `check_produced`; return the largest timestamp.

    `InvalidRecords` if the batch decompresses to more than `limit_bytes` or not at all; if the number or the
    lengths of its records are wrong, or their offsets are not numbered from 0; if a timestamp other than -1,
    which means none, is not between `earliest` and `latest`; or if a required key is missing.
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
    """Return a copy of the batch with the max timestamp of `header`, and a new checksum."""
    return seal(header, memoryview(records)[HEADER_BYTES : header.length])
