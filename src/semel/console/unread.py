"""Finds the timestamps of the first unread records of a group.

For most batches, the header suffices. A batch is opened, within bounds, only if its header does not determine
the timestamp of the record at the position.
"""

import time
from collections.abc import Mapping

from semel.client import Client, FetchLimits, Isolation, Partition, ProtocolError
from semel.client.consume.fetch import fetch_batches
from semel.wire.records import BatchHeader, iter_batches, iter_records
from semel.wire.schema import Buffer

#: Bounds for one page: partitions, bytes fetched for each partition, and bytes fetched for all.
PARTITIONS_MAX = 100
PARTITION_BYTES = 16 << 10
RESPONSE_BYTES = 2 << 20
#: The largest decompressed size of a batch, and how long batches are opened for one page.
UNPACKED_BYTES = 1 << 20
OPENING_SECONDS = 1.0


def first_timestamps(client: Client, positions: Mapping[Partition, int]) -> dict[Partition, int]:
    """Return the time of the first record at or after each position, in ms.

    Partitions without an answer are left out. If a batch cannot be opened within the bounds, the result is
    its maximum timestamp: the record is at least that old.
    """
    wanted = dict(list(positions.items())[:PARTITIONS_MAX])
    if not wanted:
        return {}
    limits = FetchLimits(
        max_wait_ms=0, min_bytes=0, max_bytes=RESPONSE_BYTES, partition_max_bytes=PARTITION_BYTES
    )
    found: dict[Partition, int] = {}
    answers = fetch_batches(client, wanted, Isolation.READ_UNCOMMITTED, limits)
    deadline = time.monotonic() + OPENING_SECONDS
    for key, data in answers:
        if data.error_code or not data.records:
            continue
        for at, header in iter_batches(data.records):
            if header.last_offset < wanted[key] or header.is_control:
                continue
            timestamp = _told(header, wanted[key])
            if timestamp is None:
                may_open = time.monotonic() < deadline
                timestamp = _read(data.records, at, header, wanted[key]) if may_open else header.max_timestamp
            if timestamp is not None:
                found[key] = max(0, timestamp)
                break
    return found


def _told(header: BatchHeader, position: int) -> int | None:
    """Return the timestamp of the first record at or after the position, if the header determines it."""
    if header.is_log_append_time:
        return header.max_timestamp
    # Compaction may have removed the first record, or replaced the base timestamp by the delete horizon.
    is_whole = header.record_count == header.last_offset_delta + 1 and header.delete_horizon is None
    return header.base_timestamp if is_whole and position <= header.base_offset else None


def _read(data: Buffer, at: int, header: BatchHeader, position: int) -> int | None:
    """Return that timestamp from the records; None if there is no such record."""
    try:
        records = iter_records(data, at, limit_bytes=UNPACKED_BYTES)
        return next((each.timestamp for each in records if each.offset >= position), None)
    except ProtocolError:  # It decompresses to more than the limit, or is damaged.
        return header.max_timestamp
