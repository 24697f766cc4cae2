"""Long polls: who is woken, by what, and what is left when they go."""

import asyncio

import pytest
from support.stores.slow import ONE, PLENTY, ZERO, Reading, offsets

from semel.broker.reads.reads import FetchRange, Isolation
from semel.core.types import ErrorCode

COMMITTED = Isolation.READ_COMMITTED


async def test_a_batch_wakes_a_fetch_at_the_end_of_the_log() -> None:
    reading = Reading()
    fetch = await reading.park()
    assert reading.metrics.parked_fetches == 1
    reading.append()
    assert offsets(await fetch) == [0]
    assert reading.metrics.parked_fetches == reading.reads.parked == 0


async def test_a_fetch_that_waits_is_not_woken_by_other_partitions() -> None:
    reading = Reading()
    fetch = await reading.park()
    reading.append(ONE)
    for _ in range(5):
        await asyncio.sleep(0)
    assert reading.reads.parked == 1
    reading.append(ZERO)
    assert offsets(await fetch) == [0]


async def test_all_who_wait_for_a_partition_are_woken() -> None:
    reading = Reading()
    fetches = [await reading.park() for _ in range(3)]
    reading.append()
    assert [offsets(await fetch) for fetch in fetches] == [[0], [0], [0]]


async def test_a_fetch_is_woken_once_there_is_enough_and_not_before() -> None:
    reading = Reading()
    size = reading.append()
    fetch = await reading.park(min_bytes=4 * size)
    looked = reading.shelf.calls["find_batches"]
    reading.append()
    reading.append()
    for _ in range(5):
        await asyncio.sleep(0)
    assert reading.reads.parked == 1
    assert reading.shelf.calls["find_batches"] == looked
    assert reading.shelf.calls["read"] == 0, "a fetch that waits holds no bytes"
    reading.append()
    assert offsets(await fetch) == [0, 1, 2, 3]


async def test_bytes_of_several_partitions_add_up() -> None:
    reading = Reading()
    size = reading.append()
    ranges = [FetchRange(key, 0, PLENTY) for key in (ZERO, ONE)]
    fetch = asyncio.create_task(reading.reads.fetch(ranges, 2 * size, PLENTY, 60_000))
    await reading.until_parked()
    reading.append(ONE)
    assert [offsets(result) for result in await fetch] == [[0], [0]]


async def test_what_is_published_during_the_look_is_not_missed() -> None:
    reading = Reading()
    reading.shelf.hold("load")
    fetch = asyncio.create_task(reading.fetch(0, min_bytes=1, max_wait_ms=60_000))
    await reading.shelf.reached["load"].wait()
    reading.append()
    reading.shelf.let("load")
    assert offsets(await fetch) == [0]


async def test_what_is_published_while_the_ledger_is_asked_counts() -> None:
    reading = Reading()
    size = reading.append()
    reading.shelf.hold("find_batches")
    fetch = asyncio.create_task(reading.fetch(0, min_bytes=2 * size, max_wait_ms=60_000))
    await reading.shelf.reached["find_batches"].wait()
    reading.append()
    reading.shelf.let("find_batches")
    assert offsets(await fetch) == [0, 1]


async def test_behaviour_12_the_end_of_a_transaction_wakes_read_committed() -> None:
    reading = Reading()
    reading.append(opens_transaction=True)
    fetch = await reading.park(isolation=COMMITTED)
    reading.append()
    for _ in range(5):
        await asyncio.sleep(0)
    assert reading.reads.parked == 1, "bytes behind an open transaction do not count"
    reading.end_transactions()
    result = await fetch
    assert offsets(result) == [0, 1]
    assert result.aborted == ()


async def test_a_deleted_topic_wakes_with_an_error() -> None:
    reading = Reading()
    fetch = await reading.park()
    del reading.shelf.partitions[ZERO]
    reading.published.forget([ZERO])
    assert (await fetch).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_log_start_that_moves_past_the_offset_wakes_with_an_error() -> None:
    reading = Reading()
    reading.append()
    reading.append()
    fetch = await reading.park(0, min_bytes=PLENTY)
    reading.delete_below(1)
    assert (await fetch).error is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_an_error_in_one_partition_is_told_at_once() -> None:
    reading = Reading()
    ranges = [FetchRange(ZERO, 0, PLENTY), FetchRange(ONE, 5, PLENTY)]
    results = await reading.reads.fetch(ranges, 1, PLENTY, 60_000)
    assert [result.error for result in results] == [ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE]


async def test_a_partition_that_has_more_than_fits_is_told_at_once() -> None:
    reading = Reading()
    size = reading.append()
    reading.append()
    result = await reading.fetch(partition_max_bytes=size, min_bytes=PLENTY, max_wait_ms=60_000)
    assert offsets(result) == [0]


@pytest.mark.parametrize(("min_bytes", "max_wait_ms"), [(0, 60_000), (1, 0), (-1, 60_000), (1, -5)])
async def test_a_fetch_that_need_not_wait_does_not(min_bytes: int, max_wait_ms: int) -> None:
    assert offsets(await Reading().fetch(min_bytes=min_bytes, max_wait_ms=max_wait_ms)) == []


async def test_without_partitions_there_is_nothing_to_wait_for() -> None:
    assert await Reading().reads.fetch([], 1, PLENTY, 60_000) == []


async def test_when_the_time_is_over_what_there_is_is_given() -> None:
    reading = Reading()
    reading.append()
    result = await reading.fetch(0, min_bytes=PLENTY, max_wait_ms=1)
    assert offsets(result) == [0]
    result = await reading.fetch(1, min_bytes=1, max_wait_ms=1)
    assert (result.error, offsets(result)) == (ErrorCode.NONE, [])


async def test_a_client_that_leaves_leaves_nothing_behind() -> None:
    reading = Reading()
    fetch = await reading.park()
    fetch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetch
    assert reading.reads.parked == reading.metrics.parked_fetches == 0
    assert reading.published.waiting.partitions == 0
    reading.append()
