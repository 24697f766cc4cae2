"""Reads a whole topic as a client does, and verifies the checksum of every batch."""

import threading
import time
from collections.abc import Generator, Iterator
from itertools import islice
from typing import Any

from semel.client import (
    EARLIEST,
    LATEST,
    Client,
    ClientError,
    ErrorCode,
    FetchLimits,
    Isolation,
    KafkaError,
    Partition,
    ProtocolError,
)
from semel.client.consume.fetch import fetch_batches
from semel.client.consume.offsets import list_offsets
from semel.client.errors import check
from semel.client.net.fanout import leader_may_move
from semel.client.net.retry import Attempts
from semel.wire.batch import has_valid_crc, iter_batches
from semel.wire.schema import Buffer

LIMITS = FetchLimits(max_wait_ms=200, min_bytes=1, max_bytes=8 << 20, partition_max_bytes=1 << 20)
PARTITIONS_AT_ONCE = 16
FINDINGS_MAX = 100


class _Counts:
    """What was read so far."""

    def __init__(self) -> None:
        self.batches = self.bytes = self.damaged = 0
        self.skipped: dict[Partition, int] = {}
        """The offset after the last one that was skipped as damaged."""


def check_records(
    client: Client, stop: threading.Event, topic: str, bytes_max: int, seconds_max: float
) -> Generator[tuple[str, dict[str, Any]], None, None]:
    """Read each partition from its start to its end at the time of the call. Bounded in bytes and time.

    Damage is a wrong checksum, or bytes that are not a batch. Records that are deleted during the check are
    skipped. If a partition cannot be read for another reason, the check fails, after retries if they may
    help.
    """
    keys = [(topic, each.partition) for each in client.topic(topic, anew=True).partitions]
    first = {key: at.offset for key, at in list_offsets(client, dict.fromkeys(keys, EARLIEST)).items()}
    ends = {key: at.offset for key, at in list_offsets(client, dict.fromkeys(keys, LATEST)).items()}
    total = sum(ends[key] - first[key] for key in keys)
    at = dict(first)
    counts = _Counts()
    deadline = time.monotonic() + seconds_max
    attempts = Attempts(client.patience_s, retriable=leader_may_move)
    while not stop.is_set():
        left = {key: at[key] for key in keys if at[key] < ends[key]}
        done = sum(min(at[key], ends[key]) - first[key] for key in keys)
        yield "progress", {"done": done, "total": total, "at": f"{counts.bytes:,} bytes"}
        if not left:
            break
        if counts.bytes > bytes_max or time.monotonic() > deadline:
            text = f"Stopped after {counts.bytes:,} bytes; {counts.damaged} damaged batches so far."
            yield "result", {"good": not counts.damaged, "text": text, "done": done, "total": total}
            return
        positions = dict(islice(left.items(), PARTITIONS_AT_ONCE))
        problem: Exception | None = None
        try:
            for finding in _read(client, positions, at, counts):
                if counts.damaged <= FINDINGS_MAX:
                    yield "finding", {"text": finding}
        except (KafkaError, ClientError) as error:
            problem = error
        if any(at[key] > position for key, position in positions.items()):
            attempts = Attempts(client.patience_s, retriable=leader_may_move)
        if problem is not None:
            client.forget_topic(topic)
            attempts.failed(problem)
    text = f"{counts.batches:,} batches with {counts.bytes:,} bytes; {counts.damaged} are damaged."
    yield "result", {"good": not counts.damaged, "text": text, "done": total, "total": total}


def _read(
    client: Client, positions: dict[Partition, int], at: dict[Partition, int], counts: _Counts
) -> Iterator[str]:
    """Read a portion of each partition, advance its position in `at`, and yield the damage.

    If a partition cannot be read, raises the error: after reading the others if a retry may help, or at once.
    """
    problem: KafkaError | None = None
    for key, data in fetch_batches(client, positions, Isolation.READ_UNCOMMITTED, LIMITS):
        try:
            if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                at[key] = _start_after(client, key, at[key])
            elif data.error_code == ErrorCode.CORRUPT_MESSAGE:
                yield from _skip(key, "its checksum is wrong", at, counts)
            else:
                check(data.error_code, f"{_name(key)} cannot be read from offset {at[key]}")
                yield from _verify(key, data.records or b"", at, counts)
        except KafkaError as error:
            if not leader_may_move(error):
                raise
            problem = error
    if problem is not None:
        raise problem


def _verify(key: Partition, records: Buffer, at: dict[Partition, int], counts: _Counts) -> Iterator[str]:
    counts.bytes += len(records)
    try:
        for begin, header in iter_batches(records):
            counts.batches += 1
            if not has_valid_crc(records, begin, header):
                counts.damaged += 1
                yield f"{_name(key)} is damaged from {header.base_offset} to {header.last_offset}."
                at[key] += 1  # Advance even if the last offset in the header is wrong, too.
            at[key] = max(at[key], header.last_offset + 1)
    except ProtocolError as error:
        yield from _skip(key, str(error), at, counts)


def _skip(key: Partition, why: str, at: dict[Partition, int], counts: _Counts) -> Iterator[str]:
    """Skip one offset of a batch whose end is unknown. Consecutive skipped offsets are one finding."""
    if counts.skipped.get(key) != at[key]:
        counts.damaged += 1
        yield f"{_name(key)} is damaged from {at[key]}: {why}."
    at[key] += 1
    counts.skipped[key] = at[key]


def _start_after(client: Client, key: Partition, offset: int) -> int:
    """Return the log start offset of a partition whose first records were deleted during the check."""
    start = list_offsets(client, {key: EARLIEST})[key].offset
    if start <= offset:  # The log ends before the offset: it was truncated, or the topic was recreated.
        check(ErrorCode.OFFSET_OUT_OF_RANGE, f"{_name(key)} cannot be read from offset {offset}")
    return start


def _name(key: Partition) -> str:
    return f"{key[0]}/{key[1]}"
