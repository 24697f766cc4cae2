"""ListOffsets below the wire: which offset belongs to a time."""

import asyncio

import pytest
from support.stores.slow import TOPIC_ID, ZERO, Reading

from semel.broker.reads.offset_search import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
)
from semel.broker.reads.reads import Isolation
from semel.core.types import ErrorCode, PartitionKey
from semel.wire.records import Codec, Record, encode_batch

COMMITTED = Isolation.READ_COMMITTED
NONE = ErrorCode.NONE
NOTHING = (NONE, -1, -1)


async def test_ends_of_the_log() -> None:
    reading = Reading()
    for _ in range(3):
        reading.append()
    reading.delete_below(1)
    find = reading.reads.list_offsets
    assert await find(ZERO, LATEST) == (NONE, -1, 3)
    assert await find(ZERO, EARLIEST) == (NONE, -1, 1)
    assert await find(ZERO, EARLIEST_LOCAL) == (NONE, -1, 1)
    assert await find(ZERO, LATEST_TIERED) == NOTHING
    assert await find(ZERO, EARLIEST_PENDING_UPLOAD) == NOTHING
    unknown = PartitionKey(TOPIC_ID, 9)
    assert await find(unknown, LATEST) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)


@pytest.mark.parametrize("codec", list(Codec))
async def test_the_first_record_at_or_after_a_time(codec: Codec) -> None:
    reading = Reading()
    reading.append(timestamps=[100, 300, 200], codec=codec)
    reading.append(timestamps=[250, 400], codec=codec)
    find = reading.reads.list_offsets
    assert await find(ZERO, 0) == (NONE, 100, 0)
    assert await find(ZERO, 100) == (NONE, 100, 0)
    assert await find(ZERO, 101) == (NONE, 300, 1)
    assert await find(ZERO, 301) == (NONE, 400, 4)
    assert await find(ZERO, 401) == NOTHING
    assert await find(ZERO, MAX_TIMESTAMP) == (NONE, 400, 4)


async def test_an_empty_log_has_no_time() -> None:
    reading = Reading()
    for timestamp in (0, MAX_TIMESTAMP):
        assert await reading.reads.list_offsets(ZERO, timestamp) == NOTHING


async def test_behaviours_9_and_10_an_open_transaction_bounds_read_committed() -> None:
    reading = Reading()
    reading.append(timestamps=[100])
    reading.append(timestamps=[200], opens_transaction=True)
    reading.append(timestamps=[150])
    find = reading.reads.list_offsets
    assert await find(ZERO, LATEST, COMMITTED) == (NONE, -1, 1)
    assert await find(ZERO, LATEST) == (NONE, -1, 3)
    assert await find(ZERO, 100, COMMITTED) == (NONE, 100, 0)
    for timestamp in (101, MAX_TIMESTAMP):
        assert await find(ZERO, timestamp, COMMITTED) == NOTHING
        assert await find(ZERO, timestamp) == (NONE, 200, 1)
    reading.end_transactions()
    assert await find(ZERO, 101, COMMITTED) == (NONE, 200, 1)


async def test_records_below_the_log_start_are_no_hit() -> None:
    reading = Reading()
    reading.append(timestamps=[100, 200, 300])
    reading.delete_below(1)
    assert await reading.reads.list_offsets(ZERO, 0) == (NONE, 200, 1)


async def test_the_largest_time_that_is_left_when_the_peak_is_deleted() -> None:
    reading = Reading()
    for timestamp in (10**15, 5, 7_000, 30, 7_000, 0):
        reading.append(timestamps=[timestamp])
    reading.delete_below(1)
    assert await reading.reads.list_offsets(ZERO, MAX_TIMESTAMP) == (NONE, 7_000, 2)
    assert reading.shelf.calls["first_batch_since"] < 60
    reading.delete_below(6)
    assert await reading.reads.list_offsets(ZERO, MAX_TIMESTAMP) == NOTHING


async def test_a_batch_that_lies_or_is_damaged_is_answered_by_its_start() -> None:
    records = [Record(0, timestamp, None, b"") for timestamp in (100, 200)]
    honest = encode_batch(records, codec=Codec.GZIP)
    damaged = bytearray(honest)
    damaged[-5] ^= 0xFF
    liar = bytearray(honest)
    liar[35:43] = (900).to_bytes(8, "big")
    for bad, timestamp in ((damaged, 200), (liar, 900)):
        reading = Reading()
        reading.append(timestamps=[1])
        reading.append(batch=bytes(bad))
        assert await reading.reads.list_offsets(ZERO, 150) == (NONE, timestamp, 1)


async def test_a_batch_that_is_given_back_meanwhile_is_looked_for_again() -> None:
    reading = Reading()
    reading.append(timestamps=[100])
    reading.append(timestamps=[200])
    reading.shelf.hold("first_batch_since")
    find = asyncio.create_task(reading.reads.list_offsets(ZERO, 0))
    await reading.shelf.reached["first_batch_since"].wait()
    reading.shelf.hold("read")
    reading.shelf.let("first_batch_since")
    await reading.shelf.reached["read"].wait()
    reading.delete_below(1)
    reading.shelf.let("read")
    assert await find == (NONE, 200, 1)
    reading.shelf.gone.add(reading.shelf.rows[ZERO][0].location)
    assert (await reading.reads.list_offsets(ZERO, 0)).error is ErrorCode.KAFKA_STORAGE_ERROR
