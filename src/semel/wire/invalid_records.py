"""Names the invalid records of a produced batch: the errors of both implementations of `validating`.

A *damaged* record makes the rest of its batch unreadable, so only that record is named. *Refused* records can
be read; as in Kafka, all of them are named (KIP-467), but here at most `NAMED_MAX`.
"""

from collections.abc import Sequence
from typing import Final

from semel.wire.errors import ErrorCode, InvalidRecords

NAMED_MAX: Final = 1_000
"""The most records of a batch that are named: a batch may have millions, and each gets a message."""


def damaged(index: int, message: str) -> InvalidRecords:
    """The error for a batch with a record that cannot be read."""
    return InvalidRecords(message, records=((index, message),))


def refused(
    named: Sequence[tuple[int, int | None]],
    count: int,
    total: int,
    has_bad_timestamp: bool,
    earliest: int,
    latest: int,
) -> InvalidRecords:
    """The error for a batch in which `count` of `total` records are refused.

    `named` has the index of each, and its timestamp, or None if it lacks a key. If one timestamp is bad, the
    batch gets the code INVALID_TIMESTAMP, as in Kafka.
    """
    records = tuple((index, _reason(timestamp, earliest, latest)) for index, timestamp in named)
    index, reason = records[0]
    message = f"{count} of {total} records cannot be appended. The first is record {index}: {reason}"
    code = ErrorCode.INVALID_TIMESTAMP if has_bad_timestamp else ErrorCode.INVALID_RECORD
    return InvalidRecords(message, code, records)


def _reason(timestamp: int | None, earliest: int, latest: int) -> str:
    if timestamp is None:
        return "a record without a key, which a compacted topic cannot take"
    if timestamp < earliest:
        return f"the timestamp {timestamp} is too old; the topic takes timestamps from {earliest} on"
    return f"the timestamp {timestamp} is too far in the future; the topic takes timestamps up to {latest}"
