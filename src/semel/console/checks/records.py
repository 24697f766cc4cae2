"""Reads a whole topic as a client does, and verifies the checksum of every batch."""

import threading
import time
from collections.abc import Generator
from typing import Any

from semel.client import EARLIEST, LATEST, Client, ErrorCode, FetchLimits, Isolation
from semel.client.fetching import fetch_batches
from semel.client.offsets import list_offsets
from semel.wire.batch import has_valid_crc, iter_batches

LIMITS = FetchLimits(max_wait_ms=200, min_bytes=1, max_bytes=8 << 20, partition_max_bytes=1 << 20)
PARTITIONS_AT_ONCE = 16
FINDINGS_MAX = 100


class _Counts:
    """What was read so far."""

    def __init__(self) -> None:
        self.batches = self.bytes = self.damaged = 0


def check_records(
    client: Client, stop: threading.Event, topic: str, bytes_max: int, seconds_max: float
) -> Generator[tuple[str, dict[str, Any]], None, None]:
    """Read from the start of each partition to its present end. Bounded in bytes and time."""
    keys = [(topic, each.partition) for each in client.topic(topic, anew=True).partitions]
    first = {key: at.offset for key, at in list_offsets(client, dict.fromkeys(keys, EARLIEST)).items()}
    ends = {key: at.offset for key, at in list_offsets(client, dict.fromkeys(keys, LATEST)).items()}
    total = sum(ends[key] - first[key] for key in keys)
    at = dict(first)
    counts = _Counts()
    deadline = time.monotonic() + seconds_max
    while not stop.is_set():
        left = [key for key in keys if at[key] < ends[key]][:PARTITIONS_AT_ONCE]
        done = sum(min(at[key], ends[key]) - first[key] for key in keys)
        yield "progress", {"done": done, "total": total, "at": f"{counts.bytes:,} bytes"}
        if not left:
            break
        if counts.bytes > bytes_max or time.monotonic() > deadline:
            text = f"Stopped after {counts.bytes:,} bytes; {counts.damaged} damaged batches so far."
            yield "result", {"good": not counts.damaged, "text": text, "done": done, "total": total}
            return
        for finding in _read(client, {key: at[key] for key in left}, at, counts):
            if counts.damaged <= FINDINGS_MAX:
                yield "finding", {"text": finding}
    text = f"{counts.batches:,} batches with {counts.bytes:,} bytes; {counts.damaged} are damaged."
    yield "result", {"good": not counts.damaged, "text": text, "done": total, "total": total}


def _read(
    client: Client, positions: dict[tuple[str, int], int], at: dict[tuple[str, int], int], counts: _Counts
) -> list[str]:
    findings = []
    for key, data in fetch_batches(client, positions, Isolation.READ_UNCOMMITTED, LIMITS):
        where = f"{key[0]}/{key[1]}"
        if data.error_code:
            counts.damaged += 1
            name = ErrorCode(data.error_code).name if data.error_code in list(ErrorCode) else data.error_code
            findings.append(f"{where} cannot be read from offset {at[key]}: {name}.")
            at[key] += 1
            continue
        records = data.records or b""
        for begin, header in iter_batches(records):
            counts.batches += 1
            if not has_valid_crc(records, begin, header):
                counts.damaged += 1
                findings.append(f"{where} is damaged from {header.base_offset} to {header.last_offset}.")
            at[key] = max(at[key], header.last_offset + 1)
        counts.bytes += len(records)
    return findings
