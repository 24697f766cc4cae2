"""Fetches what a consumer sees from an offset on, in either isolation level."""

from typing import Any, NamedTuple

from semel.client.consume.fetch import shown
from semel.client.consume.offsets import Isolation
from semel.wire.errors import ErrorCode
from semel.wire.messages import FetchPartition, FetchRequest, FetchTopic
from semel.wire.records import iter_records
from simulation.network import MOVED, Caller, leader


class Seen(NamedTuple):
    """One record, as a consumer receives it."""

    offset: int
    value: str


class Polled(NamedTuple):
    """The result of one fetch of one partition."""

    error: int
    records: list[Seen]
    next_offset: int
    high_watermark: int
    last_stable_offset: int


async def poll(
    caller: Caller,
    topic: str,
    partition: int,
    offset: int,
    isolation: Isolation,
    max_wait_ms: int = 0,
    max_bytes: int = 1 << 20,
) -> Polled:
    """Fetch once. Raises Unanswered or Refused."""
    request = FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=isolation.value,
        topics=[
            FetchTopic(
                topic=topic,
                partitions=[
                    FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
                ],
            )
        ],
    )
    to = leader(topic, partition)
    answer: Any = await caller.once(request, 11, to=to)
    (data,) = answer.responses[0].partitions
    if data.error_code in MOVED:
        caller.moved(to)
    if data.error_code != ErrorCode.NONE:
        return Polled(data.error_code, [], offset, data.high_watermark, data.last_stable_offset)
    found: list[Seen] = []
    next_offset = offset
    packed = data.records or b""
    for at, header, is_shown in shown(packed, data.aborted_transactions, isolation):
        if is_shown:
            for record in iter_records(packed, at):
                if record.offset >= offset:
                    found.append(Seen(record.offset, (record.value or b"").decode()))
        next_offset = max(next_offset, header.last_offset + 1)
    return Polled(ErrorCode.NONE, found, next_offset, data.high_watermark, data.last_stable_offset)
