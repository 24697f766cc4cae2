"""How long records have been waiting to be read: the timestamps at the positions of a group.

Only the header of one batch per partition is looked at; nothing is decompressed.
"""

from collections.abc import Mapping

from semel.client import Client, FetchLimits, Isolation, Partition
from semel.client.fetching import fetch_batches
from semel.wire.batch import iter_batches

#: Partitions that are looked at for one page, and the bytes that are fetched for each and for all.
PARTITIONS_MAX = 100
PARTITION_BYTES = 16 << 10
RESPONSE_BYTES = 2 << 20


def first_timestamps(client: Client, positions: Mapping[Partition, int]) -> dict[Partition, int]:
    """Return the time of the batch at each position, in ms; partitions without an answer are left out."""
    wanted = dict(list(positions.items())[:PARTITIONS_MAX])
    if not wanted:
        return {}
    limits = FetchLimits(
        max_wait_ms=0, min_bytes=0, max_bytes=RESPONSE_BYTES, partition_max_bytes=PARTITION_BYTES
    )
    found: dict[Partition, int] = {}
    for key, data in fetch_batches(client, wanted, Isolation.READ_UNCOMMITTED, limits):
        if data.error_code or not data.records:
            continue
        for _, header in iter_batches(data.records):
            if header.last_offset >= wanted[key] and not header.is_control:
                # The first timestamp is of the records only if neither broker nor compaction replaced it.
                is_first = not header.is_log_append_time and header.delete_horizon is None
                found[key] = max(0, header.base_timestamp if is_first else header.max_timestamp)
                break
    return found
