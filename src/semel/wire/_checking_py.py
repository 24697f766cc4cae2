"""Checks the structure of the records of a batch, in pure Python: the twin of `_checking.pyx`.

It is stricter than the reader in `payload`, because readers of other clients are: lengths and offsets are
32-bit numbers in at most five bytes, and the offsets of a batch from a producer are 0, 1, 2 and so on.

Both implementations refuse the same batches, with the same code and the same indexes. If a length leads out
of its record, the messages may differ: this implementation detects it only at the end of the record.
"""

from typing import Final

from semel.wire import varint
from semel.wire.batch import BatchHeader
from semel.wire.errors import InvalidRecords, ProtocolError
from semel.wire.invalid_records import NAMED_MAX, damaged, refused
from semel.wire.schema import Buffer

_MIN_INT64: Final = -(1 << 63)
_MAX_INT64: Final = (1 << 63) - 1
_NO_TIMESTAMP: Final = -1
_INT32_BYTES_MAX: Final = 5
_ATTRIBUTES: Final = "attributes of a record that are not defined"
"""No attribute is defined. Some readers decode the byte as a varint, so a set high bit would mislead them."""
_FOLDED_NULL: Final = 1  # the length -1 of a null, in zigzag


def check(payload: Buffer, header: BatchHeader, earliest: int, latest: int, needs_keys: bool) -> int:
    """Check the decompressed records of a batch and return the largest timestamp.

    `InvalidRecords` names the first damaged record. If no record is damaged, it names up to `NAMED_MAX`
    records whose timestamp is not between `earliest` and `latest`, or that lack a required key.
    """
    data, at, largest = bytes(payload), 0, _MIN_INT64
    base = header.base_timestamp
    named: list[tuple[int, int | None]] = []
    count, has_bad_timestamp = 0, False
    for index in range(header.record_count):
        try:
            delta, key_length, at = _check_record(data, at, index)
        except IndexError:
            raise damaged(index, "a batch ends inside a record") from None
        except ProtocolError as error:
            raise damaged(index, str(error)) from None
        timestamp = base + delta
        if not _MIN_INT64 <= timestamp <= _MAX_INT64:
            raise damaged(index, "the timestamp of a record is out of range")
        if timestamp > largest:
            largest = timestamp
        is_keyless = needs_keys and key_length == _FOLDED_NULL
        if is_keyless or (timestamp != _NO_TIMESTAMP and not earliest <= timestamp <= latest):
            if count < NAMED_MAX:
                named.append((index, None if is_keyless else timestamp))
            count += 1
            has_bad_timestamp = has_bad_timestamp or not is_keyless
    if at != len(data):
        raise InvalidRecords("a batch holds more than the records that it counts")
    if named:
        raise refused(named, count, header.record_count, has_bad_timestamp, earliest, latest)
    return largest


def _check_record(data: bytes, at: int, index: int) -> tuple[int, int, int]:
    """Skip one record; return its timestamp delta, its key length and the position after it.

    Numbers of one byte, which most are, are read in place. A length past the end needs no check of its own:
    it moves `at` out of the data, or away from the declared end of the record.
    """
    length = data[at]
    at += 1
    if length > 0x7F:
        length, at = _wide(data, at, length)
    end = at + (length >> 1)
    if data[at] > 0x7F:
        raise ProtocolError(_ATTRIBUTES)
    delta = data[at + 1]
    at += 2
    if delta > 0x7F:
        delta, at = varint.decode_rest(data, at, delta)
    offset = data[at]
    at += 1
    if offset > 0x7F:
        offset, at = _wide(data, at, offset)
    key_length = data[at]
    at += 1
    if key_length > 0x7F:
        key_length, at = _wide(data, at, key_length)
    if key_length != _FOLDED_NULL:
        at = _behind(key_length, at)
    value_length = data[at]
    at += 1
    if value_length > 0x7F:
        value_length, at = _wide(data, at, value_length)
    if value_length != _FOLDED_NULL:
        at = _behind(value_length, at)
    at = at + 1 if not data[at] else _skip_headers(data, at)
    if length & 1 or at != end or end > len(data):
        raise ProtocolError("a record is not as long as it says")
    if offset != index << 1:
        raise ProtocolError("the offsets of a batch are not 0, 1, 2 and so on")
    return (delta >> 1) ^ -(delta & 1), key_length, at


def _wide(data: bytes, at: int, first: int) -> tuple[int, int]:
    """Read the rest of a 32-bit number; return it, zigzag-encoded, and the position after it."""
    folded, end = varint.decode_rest(data, at, first)
    if end - at >= _INT32_BYTES_MAX or folded >> 32:
        raise ProtocolError("a length or an offset does not fit 32 bits")
    return folded, end


def _behind(folded: int, at: int) -> int:
    if folded & 1:
        raise ProtocolError("a negative length")
    return at + (folded >> 1)


def _skip_headers(data: bytes, at: int) -> int:
    """Return the position after the headers of a record."""
    count, at = _number(data, at)
    if count & 1:
        raise ProtocolError("a negative count of headers")
    for _ in range(count >> 1):
        name_length, at = _number(data, at)
        at = _behind(name_length, at)
        value_length, at = _number(data, at)
        if value_length != _FOLDED_NULL:
            at = _behind(value_length, at)
    return at


def _number(data: bytes, at: int) -> tuple[int, int]:
    first = data[at]
    return _wide(data, at + 1, first) if first > 0x7F else (first, at + 1)
