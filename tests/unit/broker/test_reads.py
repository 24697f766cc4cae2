"""Fetch: what may be read, how much of it, and nothing that was not published."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
from support.stores.slow import ONE, PLENTY, TOPIC_ID, ZERO, Reading, Shelf, offsets

from semel.broker.reads import batch_bytes
from semel.broker.reads.reads import LOOKS_MAX, FetchRange, FetchResult, Isolation
from semel.broker.slices import SLICE_ITEMS
from semel.core.types import ErrorCode, Partition, PartitionKey
from semel.store.contract import BatchLocation

COMMITTED = Isolation.READ_COMMITTED


async def test_batches_are_stamped_and_begin_with_the_one_that_holds_the_offset() -> None:
    reading = Reading()
    reading.append(timestamps=[1, 2, 3])
    reading.append(timestamps=[4, 5])
    assert offsets(await reading.fetch(0)) == [0, 1, 2, 3, 4]
    assert offsets(await reading.fetch(2)) == [0, 1, 2, 3, 4]
    assert offsets(await reading.fetch(3)) == [3, 4]
    result = await reading.fetch(5)
    assert result[:4] == (ErrorCode.NONE, 5, 5, 0)
    assert offsets(result) == []


async def test_batches_that_lie_near_each_other_are_read_at_once() -> None:
    reading = Reading()
    for pad in (0, 0, 10, 100_000, 0):
        reading.append(pad=pad)
        reading.append(ONE)
    (alone,) = await reading.reads.fetch([FetchRange(ZERO, 0, PLENTY)], 1, PLENTY, 0)
    assert offsets(alone) == [0, 1, 2, 3, 4]
    assert [location.length > 100_000 for location in reading.shelf.locations_read] == [False, False]
    both = await reading.reads.fetch([FetchRange(key, 0, PLENTY) for key in (ONE, ZERO, ZERO)], 1, PLENTY, 0)
    assert [offsets(result) for result in both] == [[0, 1, 2, 3, 4]] * 3
    assert len(reading.shelf.locations_read) == 2


async def test_gaps_that_are_read_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_bytes, "WASTE_BYTES_MAX", 1_000)
    reading = Reading()
    size = 0
    for _ in range(9):
        size = reading.append(pad=400)
    assert offsets(await reading.fetch()) == list(range(9))
    assert sum(location.length for location in reading.shelf.locations_read) <= 9 * size + 1_000
    assert len(reading.shelf.locations_read) == 7


async def test_a_disk_that_cannot_be_read_is_an_error_of_the_answer() -> None:
    reading = Reading()
    reading.append()
    reading.shelf.error = OSError("the disk is tired")
    assert (await reading.fetch()).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert (await reading.reads.list_offsets(ZERO, 0)).error is ErrorCode.KAFKA_STORAGE_ERROR


async def test_nothing_is_served_that_was_committed_and_not_published() -> None:
    reading = Reading()
    reading.append()
    unpublished = reading.commit()
    assert offsets(await reading.fetch(0)) == [0]
    assert (await reading.fetch(2)).error is ErrorCode.OFFSET_OUT_OF_RANGE
    reading.publish(unpublished)
    assert offsets(await reading.fetch(0)) == [0, 1]


async def test_unknown_partitions() -> None:
    reading = Reading()
    for key in (PartitionKey(TOPIC_ID, 9), PartitionKey(bytes(16), 0)):
        assert await reading.fetch(0, key) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1, -1, (), None)


async def test_offsets_out_of_range() -> None:
    reading = Reading()
    for _ in range(3):
        reading.append()
    reading.delete_below(1)
    assert (await reading.fetch(0)).error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert (await reading.fetch(1)).error is ErrorCode.NONE
    assert (await reading.fetch(3)).error is ErrorCode.NONE
    assert (await reading.fetch(4)).error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert (await reading.fetch(-1)).error is ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("followed", [False, True])
async def test_behaviours_1_2_and_11_read_committed_ends_at_the_last_stable_offset(followed: bool) -> None:
    reading = Reading()
    if followed:
        await reading.fetch(0)
    reading.append()
    reading.append(opens_transaction=True)
    reading.append()
    result = await reading.fetch(0, isolation=COMMITTED)
    assert offsets(result) == [0]
    assert result[:4] == (ErrorCode.NONE, 3, 1, 0)
    assert result.aborted == ()
    for offset in (1, 2, 3):
        result = await reading.fetch(offset, isolation=COMMITTED)
        assert (result.error, offsets(result)) == (ErrorCode.NONE, [])
    assert (await reading.fetch(4, isolation=COMMITTED)).error is ErrorCode.OFFSET_OUT_OF_RANGE
    result = await reading.fetch(0)
    assert offsets(result) == [0, 1, 2]
    assert result.aborted is None
    reading.end_transactions()
    assert offsets(await reading.fetch(1, isolation=COMMITTED)) == [1, 2]
    assert reading.shelf.calls["find_batches"] == (0 if followed else 3)


async def test_one_batch_at_least_however_large_but_only_of_the_first_partition_with_data() -> None:
    reading = Reading()
    size = reading.append(ONE, value=bytes(1_000))
    reading.append(ONE, value=bytes(1_000))
    two = PartitionKey(TOPIC_ID, 2)
    reading.shelf.partitions[two] = Partition()
    reading.append(two, value=bytes(1_000))
    for limits in ((10, PLENTY), (PLENTY, 10), (0, 0)):
        ranges = [FetchRange(key, 0, limits[0]) for key in (ZERO, ONE, two)]
        results = await reading.reads.fetch(ranges, 1, limits[1], 0)
        assert [sum(map(len, result.buffers)) for result in results] == [0, size, 0]


async def test_whole_batches_within_the_limits() -> None:
    reading = Reading()
    size = reading.append()
    for key in (ZERO, ZERO, ONE, ONE, ONE):
        reading.append(key)
    assert offsets(await reading.fetch(partition_max_bytes=2 * size + 1)) == [0, 1]
    results = await reading.reads.fetch([FetchRange(key, 0, 2 * size) for key in (ZERO, ONE)], 1, 3 * size, 0)
    assert [offsets(result) for result in results] == [[0, 1], [0]]


async def test_the_brokers_own_limit_holds_whatever_the_client_asks() -> None:
    reading = Reading(fetch_max_bytes=200)
    size = 0
    for _ in range(9):
        size = reading.append()
    assert len(offsets(await reading.fetch())) == 200 // size


@pytest.mark.parametrize("below", [2, 3])
async def test_a_log_start_that_is_committed_and_not_published_skips_nothing_in_silence(below: int) -> None:
    reading = Reading()
    for _ in range(3):
        reading.append()
    reading.delete_below(below, publish=False)
    assert (await reading.fetch(0, min_bytes=1, max_wait_ms=60_000)).error is ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("gone", ["zeroed", "missing"])
async def test_bytes_that_are_given_back_during_a_read_are_out_of_range(gone: str) -> None:
    reading = Reading()
    for _ in range(3):
        reading.append()
    reading.shelf.hold("read")
    if gone == "missing":
        reading.shelf.hold("find_batches")
    fetch = asyncio.create_task(reading.fetch(0))
    held = "find_batches" if gone == "missing" else "read"
    await reading.shelf.reached[held].wait()
    if gone == "missing":
        reading.shelf.gone.add(reading.shelf.rows[ZERO][0].location)
    reading.delete_below(2)
    for call in list(reading.shelf.held):
        reading.shelf.let(call)
    assert await fetch == (ErrorCode.OFFSET_OUT_OF_RANGE, -1, -1, -1, (), None)
    assert offsets(await reading.fetch(2)) == [2]


async def test_a_partition_that_is_deleted_during_a_read_is_unknown() -> None:
    reading = Reading()
    reading.append()
    reading.shelf.hold("read")
    fetch = asyncio.create_task(reading.fetch(0))
    await reading.shelf.reached["read"].wait()
    forget(reading)
    reading.shelf.let("read")
    assert (await fetch).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_rows_without_their_bytes_are_an_error_of_that_partition_alone() -> None:
    reading = Reading()
    reading.append()
    reading.append(ONE)
    reading.shelf.gone.add(reading.shelf.rows[ZERO][0].location)
    results = await reading.reads.fetch([FetchRange(key, 0, PLENTY) for key in (ZERO, ONE)], 1, PLENTY, 0)
    assert results[0].error is ErrorCode.KAFKA_STORAGE_ERROR
    assert offsets(results[1]) == [0]


def forget(reading: Reading) -> None:
    """Delete the partition."""
    del reading.shelf.partitions[ZERO]
    reading.published.forget([ZERO])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (Reading.compact, ErrorCode.NONE),
        (lambda reading: reading.delete_below(1), ErrorCode.OFFSET_OUT_OF_RANGE),
        (forget, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
async def test_bytes_that_are_released_during_any_read_are_no_damage(
    change: Callable[[Reading], None], error: ErrorCode
) -> None:
    """A fetch that misses bytes reads several times, and they may be released at each of them."""

    async def fetch(changed_at: int) -> tuple[int, FetchResult, int]:
        """The number of reads, the result and the number of damaged batches."""
        reading = Reading()
        reading.append()
        reading.append()
        reading.shelf.gone.add(reading.shelf.rows[ZERO][0].location)
        reads = 0

        async def read(locations: Sequence[BatchLocation]) -> list[bytearray]:
            nonlocal reads
            reads += 1
            if reads == changed_at:
                change(reading)
            return await Shelf.read(reading.shelf, locations)

        reading.shelf.read = read  # type: ignore[method-assign]
        result = await reading.fetch(0)
        return reads, result, reading.metrics.damaged_batches

    reads, result, damaged = await fetch(changed_at=0)
    assert (result.error, damaged) == (ErrorCode.KAFKA_STORAGE_ERROR, 1)
    assert reads > LOOKS_MAX
    for number in range(1, reads + 1):
        _, result, damaged = await fetch(changed_at=number)
        assert (result.error, offsets(result), damaged) == (error, [] if error else [0, 1], 0)


async def test_compaction_may_overtake_every_read_of_a_fetch() -> None:
    reading = Reading()
    reading.append()
    compactions = 10 * LOOKS_MAX

    async def read(locations: Sequence[BatchLocation]) -> list[bytearray]:
        found = await Shelf.read(reading.shelf, locations)
        if reading.shelf.partitions[ZERO].compactions < compactions:
            reading.compact()
        return found

    reading.shelf.read = read  # type: ignore[method-assign]
    assert offsets(await reading.fetch(0)) == [0]
    assert reading.shelf.partitions[ZERO].compactions == compactions


async def test_rows_that_are_not_there_are_an_error() -> None:
    reading = Reading()
    reading.append()
    reading.shelf.rows[ZERO].clear()
    assert (await reading.fetch(max_wait_ms=60_000, min_bytes=1)).error is ErrorCode.CORRUPT_MESSAGE


class TestView:
    async def test_what_is_published_wins_over_a_load_that_it_overtakes(self) -> None:
        reading = Reading()
        reading.shelf.hold("load")
        load = asyncio.create_task(reading.reads.partition(ZERO))
        await reading.shelf.reached["load"].wait()
        reading.append()
        reading.shelf.let("load")
        assert (await load) == reading.shelf.partitions[ZERO]
        assert reading.reads.view(ZERO) == reading.shelf.partitions[ZERO]

    async def test_a_deletion_wins_over_a_load_that_it_overtakes(self) -> None:
        reading = Reading()
        reading.shelf.hold("load")
        load = asyncio.create_task(reading.reads.partition(ZERO))
        await reading.shelf.reached["load"].wait()
        reading.published.forget([ZERO])
        reading.shelf.let("load")
        assert await load is None
        assert reading.reads.view(ZERO) is None

    async def test_it_is_bounded_and_what_it_forgot_is_loaded_again(self) -> None:
        reading = Reading(semel_entities_max=1)
        reading.append(ZERO)
        reading.append(ONE)
        assert reading.reads.view(ZERO) is None
        assert await reading.reads.partition(ZERO) == reading.shelf.partitions[ZERO]
        assert reading.reads.view(ONE) is None
        results = await reading.reads.fetch([FetchRange(key, 0, PLENTY) for key in (ZERO, ONE)], 1, PLENTY, 0)
        assert [offsets(result) for result in results] == [[0], [0]]

    async def test_a_fetch_of_more_partitions_than_are_remembered_still_waits(self) -> None:
        reading = Reading(semel_entities_max=1)
        ranges = [FetchRange(key, 0, PLENTY) for key in (ZERO, ONE)]
        fetch = asyncio.create_task(reading.reads.fetch(ranges, 1, PLENTY, 60_000))
        await reading.until_parked()
        reading.append(ZERO)
        assert [offsets(result) for result in await fetch] == [[0], []]


async def test_bytes_are_reserved_before_they_are_read() -> None:
    reading = Reading()
    reading.append(pad=1_000)
    may_read, asked = asyncio.Event(), []

    async def reserve(size: int) -> None:
        asked.append(size)
        await may_read.wait()

    ranges = [FetchRange(ZERO, 0, PLENTY)]
    fetch = asyncio.create_task(reading.reads.fetch(ranges, 1, PLENTY, 0, reserve))
    for _ in range(5):
        await asyncio.sleep(0)
    assert (len(asked), reading.shelf.locations_read) == (1, [])
    may_read.set()
    (result,) = await fetch
    assert asked == [sum(map(len, result.buffers))]
    assert await reading.reads.fetch([FetchRange(ZERO, 1, PLENTY)], 1, PLENTY, 0, reserve)
    assert len(asked) == 1, "nothing was found and nothing is reserved"


async def test_a_fetch_of_very_many_partitions_takes_turns_with_others() -> None:
    reading = Reading()
    reading.append()
    turns = 0
    fetch = asyncio.create_task(reading.reads.fetch([FetchRange(ZERO, 1, PLENTY)] * 5_000, 1, PLENTY, 0))
    while not fetch.done():
        turns += 1
        await asyncio.sleep(0)
    assert len(fetch.result()) == 5_000
    assert turns > 3 * (5_000 // SLICE_ITEMS - 1), "to plan, to read, and to follow"
