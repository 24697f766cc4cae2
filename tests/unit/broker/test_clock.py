"""The machine's clock is set, or the machine slept: stamps follow, timeouts do not."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.brokers.in_memory import make_topic
from support.brokers.offline import Producer, describe, fetch, make_topics
from support.clients.transactional import produce_request, produced, send
from support.clocks import TODAY_MS, TurnedClock

from semel.broker.broker import Broker
from semel.broker.clock import Clock
from semel.config import Settings
from semel.core.groups.offsets import CommitOffsets, Committer
from semel.core.types import CommittedOffset, ErrorCode, OffsetKey, TransactionState
from semel.wire.messages import ListOffsetsRequest
from semel.wire.messages.fetch import ListOffsetsPartition, ListOffsetsTopic
from semel.wire.records import Record, encode_batch, iter_batches

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
EITHER_WAY = pytest.mark.parametrize("step_ms", [2 * HOUR_MS, -2 * HOUR_MS], ids=["forward", "back"])


@asynccontextmanager
async def broker_by(
    clock: TurnedClock, directory: Path | None = None, **settings: Any
) -> AsyncIterator[Broker]:
    broker = await Broker.open(Settings(**settings), directory, clock)
    try:
        await make_topics(broker)
        yield broker
    finally:
        await broker.close()


async def put(broker: Broker, topic: str, timestamp: int) -> Any:
    data = encode_batch([Record(0, timestamp, b"k", b"v")])
    return (await produced(broker, produce_request({(topic, 0): data}, None), 9))[0]


@EITHER_WAY
def test_one_clock_follows_and_the_other_does_not(step_ms: int) -> None:
    clock = TurnedClock()
    assert (clock.now(), clock.time_of_day()) == (TODAY_MS, TODAY_MS)
    clock.is_set(step_ms)
    clock.passes(1_000)
    assert (clock.now(), clock.time_of_day()) == (TODAY_MS + 1_000, TODAY_MS + 1_000 + step_ms)


@EITHER_WAY
def test_a_clock_that_follows_another_says_how_wrong_the_system_clock_is(step_ms: int) -> None:
    clock = TurnedClock(TODAY_MS + step_ms)
    assert clock.seconds_ahead() == 0
    clock.follow(TODAY_MS, TODAY_MS)
    assert (clock.time_of_day(), clock.now()) == (TODAY_MS, TODAY_MS)
    clock.passes(1_000)
    assert clock.seconds_ahead() == pytest.approx(step_ms / 1000)
    clock.is_set(-step_ms)
    assert clock.seconds_ahead() == pytest.approx(0, abs=0.001)
    assert clock.time_of_day() == TODAY_MS + 1_000


@EITHER_WAY
def test_brokers_count_deadlines_alike_although_the_clock_they_follow_is_set(step_ms: int) -> None:
    first, later = TurnedClock(), TurnedClock()
    first.follow(TODAY_MS, TODAY_MS)
    assert first.is_following
    later.follow(TODAY_MS + step_ms, first.now())
    for clock in (first, later):
        clock.passes(1_000)
        clock.follow(TODAY_MS + step_ms + 1_000, 0)
    assert (first.now(), later.now()) == (TODAY_MS + 1_000,) * 2
    assert (first.time_of_day(), later.time_of_day()) == (TODAY_MS + step_ms + 1_000,) * 2


def test_a_later_life_goes_on_where_an_earlier_one_was() -> None:
    clock = TurnedClock()
    clock.not_before(TODAY_MS - 5_000)
    assert clock.now() == TODAY_MS
    clock.not_before(TODAY_MS + 5_000)
    assert (clock.now(), clock.time_of_day()) == (TODAY_MS + 5_000, TODAY_MS)


@EITHER_WAY
async def test_producers_whose_clocks_are_right_are_served(step_ms: int) -> None:
    """It took a restart: everything that a producer sent was INVALID_TIMESTAMP."""
    clock = TurnedClock()
    async with broker_by(clock) as broker:
        await make_topic(broker, "strict", message_timestamp_before_max_ms=str(HOUR_MS))
        clock.is_set(step_ms)
        right = TODAY_MS + step_ms
        assert (await put(broker, "strict", right)).error_code == ErrorCode.NONE
        assert (await put(broker, "strict", right + 2 * HOUR_MS)).error_code == ErrorCode.INVALID_TIMESTAMP
        assert (await put(broker, "strict", right - 2 * HOUR_MS)).error_code == ErrorCode.INVALID_TIMESTAMP


@EITHER_WAY
async def test_stamps_are_the_time_of_day(step_ms: int) -> None:
    clock = TurnedClock()
    async with broker_by(clock) as broker:
        await make_topic(broker, "stamped", message_timestamp_type="LogAppendTime")
        producer = await Producer(broker, "id").init()
        await producer.send()
        clock.is_set(step_ms)
        day = clock.time_of_day()
        assert (await put(broker, "stamped", 0)).log_append_time_ms == day
        assert await producer.end(is_commit=True) is ErrorCode.NONE
        fetched = b"".join((await fetch(broker)).buffers)
        (_, _), (_, marker) = iter_batches(fetched)
        assert (marker.is_control, marker.max_timestamp) == (True, day)
        key = OffsetKey("group", "stamped", 0)
        await broker.ask(CommitOffsets("group", Committer(), ((key, CommittedOffset(1)),)))
        ((_, committed),) = await broker.store.ledger.group_offsets("group")
        assert committed.committed_ms == day
        assert (await describe(broker, "id")).updated_ms == day  # type: ignore[union-attr]


@EITHER_WAY
async def test_a_transaction_times_out_by_the_time_that_passed(step_ms: int) -> None:
    clock = TurnedClock()
    async with broker_by(clock) as broker:
        producer = await Producer(broker, "id").init(60_000)
        await producer.send()
        clock.is_set(step_ms)
        clock.passes(59_000)
        await broker._housekeeping.abort_overdue()
        assert (await describe(broker, "id")).state is TransactionState.ONGOING  # type: ignore[union-attr]
        clock.passes(2_000)
        await broker._housekeeping.abort_overdue()
        assert (await describe(broker, "id")).state is TransactionState.COMPLETE_ABORT  # type: ignore[union-attr]


async def test_a_clock_that_was_set_back_before_a_restart_does_not_prolong_transactions(
    tmp_path: Path,
) -> None:
    unsynced = TurnedClock(TODAY_MS + 2 * HOUR_MS)
    async with broker_by(unsynced, tmp_path) as broker:
        producer = await Producer(broker, "id").init(60_000)
        await producer.send()
        assert await broker.flush()
    corrected = TurnedClock(TODAY_MS)
    async with broker_by(corrected, tmp_path) as broker:
        assert (await describe(broker, "id")).state is TransactionState.ONGOING  # type: ignore[union-attr]
        corrected.passes(61_000)
        await broker._housekeeping.abort_overdue()
        assert (await describe(broker, "id")).state is TransactionState.COMPLETE_ABORT  # type: ignore[union-attr]


async def test_retention_goes_by_the_time_of_day() -> None:
    clock = TurnedClock()
    async with broker_by(clock) as broker:
        topic = await make_topic(broker, "short", retention_ms=str(HOUR_MS))
        assert (await put(broker, "short", clock.time_of_day())).error_code == ErrorCode.NONE
        clock.is_set(-2 * HOUR_MS)
        await broker._housekeeping.retain()
        (key,) = broker.catalog.limits(topic).partitions
        assert (await broker.reads.partition(key)).log_start_offset == 0  # type: ignore[union-attr]
        clock.is_set(4 * HOUR_MS)
        await broker._housekeeping.retain()
        assert (await broker.reads.partition(key)).log_start_offset == 1  # type: ignore[union-attr]


async def test_a_machine_without_a_clock_battery_keeps_its_groups(tmp_path: Path) -> None:
    """It starts in 1970 and learns the date later. What was committed since is not half a century old."""
    clock = TurnedClock(0)
    async with broker_by(clock, tmp_path) as broker:
        clock.is_set(TODAY_MS)
        key = OffsetKey("group", "marked", 0)
        await broker.ask(CommitOffsets("group", Committer(), ((key, CommittedOffset(1)),)))
    async with broker_by(TurnedClock(TODAY_MS + DAY_MS), tmp_path) as broker:
        await broker._housekeeping.expire()
        assert len(await broker.store.ledger.group_offsets("group")) == 1


async def test_a_search_by_time_finds_records_after_the_clock_went_back() -> None:
    """Offsets are the order; times may repeat."""
    clock = TurnedClock()
    async with broker_by(clock) as broker:
        await make_topic(broker, "stamped", message_timestamp_type="LogAppendTime")
        stamps = []
        for step_ms in (0, 2 * HOUR_MS, -HOUR_MS, 0):
            clock.is_set(step_ms)
            clock.passes(1_000)
            stamps.append((await put(broker, "stamped", 0)).log_append_time_ms)
        assert stamps[1] > stamps[3] > stamps[2] > stamps[0]

        async def first_since(timestamp: int) -> int:
            asked = [ListOffsetsPartition(partition_index=0, timestamp=timestamp)]
            request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="stamped", partitions=asked)])
            return int((await send(broker, request, 7)).topics[0].partitions[0].offset)

        assert [await first_since(each) for each in stamps] == [0, 1, 1, 1]
        assert await first_since(max(stamps) + 1) == -1


def test_the_difference_of_the_clocks_does_not_vary_because_they_are_read_one_after_another() -> None:
    wall, steady = 1_700_000_000.0, 50.0
    readings = iter(range(10_000))
    # Each reading of a clock is a tenth of a millisecond later than the one before.
    clock = Clock(lambda: wall + next(readings) / 10_000, lambda: steady + next(readings) / 10_000)
    assert len({clock.ahead_ms() for _ in range(1_000)}) == 1
    before = clock.ahead_ms()
    wall += 3_600
    assert clock.ahead_ms() - before in range(3_599_998, 3_600_003)
