"""Readers and transactions: the aborted list, what is staged, and what was answered before it was flushed."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from support.stores.slow import ONE, PLENTY, ZERO, Reading, offsets

from semel.broker.reads.offset_search import EARLIEST, LATEST, MAX_TIMESTAMP
from semel.broker.reads.reads import FetchRange, Isolation
from semel.core.facts import StagedCommitted
from semel.core.types import ErrorCode, Partition, PartitionKey

COMMITTED = Isolation.READ_COMMITTED
UNCOMMITTED = Isolation.READ_UNCOMMITTED


def two_aborted(*, followed: bool = False) -> Reading:
    """Offsets 0 to 6: of producer 1 at 0, of 2 at 1, plain at 2, the marker of 2, of 1, and two plain."""
    reading = Reading()
    if followed:
        reading.published.tail.follow(ZERO, 0)
    reading.append(opens_transaction=True)
    reading.append(opens_transaction=True)
    reading.append()
    reading.abort(2, 1)
    reading.abort(1, 0)
    reading.append()
    reading.append()
    return reading


@pytest.mark.parametrize("followed", [False, True])
async def test_the_aborted_list_is_complete_and_sorted(followed: bool) -> None:
    reading = two_aborted(followed=followed)
    result = await reading.fetch(0, isolation=COMMITTED)
    assert offsets(result) == list(range(7))
    assert result.aborted == [(1, 0), (2, 1)]
    assert (reading.shelf.calls["find_batches"] == 0) is followed


@pytest.mark.parametrize("followed", [False, True])
async def test_only_what_touches_the_records_is_told(followed: bool) -> None:
    reading = two_aborted(followed=followed)
    result = await reading.fetch(4, isolation=COMMITTED)
    assert result.aborted == [(1, 0)]
    size = len(b"".join((await reading.fetch(0)).buffers)) // 7
    result = await reading.fetch(0, isolation=COMMITTED, partition_max_bytes=size)
    assert offsets(result) == [0]
    assert result.aborted == [(1, 0)]


async def test_who_reads_behind_the_last_marker_does_not_ask() -> None:
    reading = two_aborted()
    result = await reading.fetch(5, isolation=COMMITTED)
    assert (offsets(result), result.aborted) == ([5, 6], ())
    assert reading.shelf.calls["aborted"] == 0


async def test_without_records_there_is_nothing_to_tell() -> None:
    reading = two_aborted()
    reading.append(opens_transaction=True)
    for offset in (7, 8):
        result = await reading.fetch(offset, isolation=COMMITTED)
        assert (offsets(result), result.aborted) == ([], ())
    assert reading.shelf.calls["aborted"] == 0


async def test_who_reads_everything_is_told_nothing() -> None:
    reading = two_aborted()
    assert (await reading.fetch(0, isolation=UNCOMMITTED)).aborted is None
    assert reading.shelf.calls["aborted"] == 0


async def test_a_fetch_that_waited_is_told_too() -> None:
    reading = Reading()
    reading.append(opens_transaction=True)
    fetch = await reading.park(isolation=COMMITTED)
    reading.abort(7, 0)
    result = await fetch
    assert offsets(result) == [0, 1]
    assert result.aborted == [(7, 0)]
    assert result.last_stable_offset == 2


async def test_the_next_open_transaction_does_not_hide_the_end_of_the_first() -> None:
    reading = Reading()
    reading.append(opens_transaction=True)
    reading.append(opens_transaction=True)
    fetch = await reading.park(isolation=COMMITTED)
    reading.abort(7, 1)
    for _ in range(5):
        await asyncio.sleep(0)
    assert reading.reads.parked == 1, "the last stable offset is where it was"
    reading.abort(7, 0)
    assert offsets(await fetch) == [0, 1, 2, 3]


@pytest.mark.parametrize("followed", [False, True])
async def test_a_list_that_was_swept_under_the_reader_is_not_trusted(followed: bool) -> None:
    reading = two_aborted(followed=followed)
    reading.shelf.hold("aborted")
    fetch = asyncio.create_task(reading.fetch(0, isolation=COMMITTED))
    await reading.shelf.reached["aborted"].wait()
    reading.delete_below(5)
    reading.shelf.let("aborted")
    assert (await fetch).error is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_topic_that_is_deleted_meanwhile_is_unknown() -> None:
    reading = two_aborted(followed=True)
    reading.shelf.hold("aborted")
    fetch = asyncio.create_task(reading.fetch(0, isolation=COMMITTED))
    await reading.shelf.reached["aborted"].wait()
    del reading.shelf.partitions[ZERO]
    reading.published.forget([ZERO])
    reading.shelf.let("aborted")
    assert (await fetch).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def commit_staged(reading: Reading, count: int) -> None:
    """Some batches get their offsets; their bytes are not in memory."""
    rows = [reading.commit()[0] for _ in range(count)]
    partition = reading.shelf.partitions[ZERO]
    peak = partition.peak_timestamp
    fact = StagedCommitted(ZERO, 7, rows[0].base_offset, rows[-1].last_offset, peak, peak)
    reading.published.publish({ZERO: partition}, [(fact, None)])


async def test_staged_records_are_read_from_disk_and_what_follows_from_memory() -> None:
    reading = Reading()
    reading.published.tail.follow(ZERO, 0)
    reading.append()
    commit_staged(reading, 2)
    reading.append()
    assert offsets(await reading.fetch(0)) == [0, 1, 2, 3]
    assert offsets(await reading.fetch(2)) == [2, 3]
    assert reading.shelf.calls["find_batches"] == 2
    assert offsets(await reading.fetch(3)) == [3]
    assert reading.shelf.calls["find_batches"] == 2


async def test_a_commit_of_staged_records_wakes_readers() -> None:
    reading = Reading()
    fetches = [await reading.park(isolation=isolation) for isolation in Isolation]
    commit_staged(reading, 2)
    for fetch in fetches:
        assert offsets(await fetch) == [0, 1]


class Unflushed:
    """Batches that are answered and not published, until somebody asks."""

    def __init__(self, reading: Reading, *, has_room: bool = True) -> None:
        self.reading = reading
        self.has_room = has_room
        self.kept: list[Any] = []
        self.partitions: set[PartitionKey] = set()
        self.flushes = 0
        self.at_flush: Callable[[], None] = lambda: None
        reading.watch(self.partitions, self.flush)

    def append(self, key: PartitionKey = ZERO) -> None:
        """The ledger of the shelf knows it at once; readers go by what is published."""
        published = self.reading.shelf.partitions[key]
        self.kept.append(self.reading.commit(key, opens_transaction=not published.open_transactions))
        self.partitions.add(key)

    async def flush(self) -> bool:
        self.flushes += 1
        await asyncio.sleep(0)
        if self.has_room:
            kept, self.kept = self.kept, []
            self.partitions.clear()
            self.reading.publish(*kept)
            self.at_flush()
        return self.has_room


async def seen() -> Reading:
    """A partition with one batch, of which readers know."""
    reading = Reading()
    reading.append()
    return reading


async def test_whoever_reads_everything_to_the_end_sees_what_was_answered() -> None:
    reading = await seen()
    unsynced = Unflushed(reading)
    unsynced.append()
    result = await reading.fetch(1, isolation=UNCOMMITTED)
    assert (offsets(result), result.high_watermark) == ([1], 2)
    assert unsynced.flushes == 1
    await reading.fetch(1, isolation=UNCOMMITTED)
    assert unsynced.flushes == 1


async def test_a_reader_that_has_enough_before_the_end_flushes_nothing() -> None:
    reading = await seen()
    size = reading.append()
    unsynced = Unflushed(reading)
    unsynced.append()
    result = await reading.fetch(0, isolation=UNCOMMITTED, partition_max_bytes=size)
    assert (offsets(result), unsynced.flushes) == ([0], 0)


async def test_readers_of_other_partitions_flush_nothing() -> None:
    reading = await seen()
    unsynced = Unflushed(reading)
    unsynced.append(ONE)
    assert offsets(await reading.fetch(0)) == [0]
    assert unsynced.flushes == 0


async def test_whoever_reads_committed_records_flushes_nothing() -> None:
    reading = await seen()
    unsynced = Unflushed(reading)
    unsynced.append()
    assert offsets(await reading.fetch(0, isolation=COMMITTED)) == [0]
    assert unsynced.flushes == 0


async def test_an_offset_that_a_producer_was_given_is_in_range() -> None:
    reading = await seen()
    unsynced = Unflushed(reading)
    unsynced.append()
    unsynced.append()
    result = await reading.fetch(2, isolation=COMMITTED)
    assert (result.error, offsets(result)) == (ErrorCode.NONE, [])
    assert unsynced.flushes == 1


async def test_what_is_answered_during_the_flush_is_not_waited_for() -> None:
    reading = await seen()
    unsynced = Unflushed(reading)
    unsynced.append()
    more = iter([unsynced.append])
    unsynced.at_flush = lambda: next(more, lambda: None)()
    size = reading.shelf.rows[ZERO][0].location.length
    ranges = [FetchRange(ZERO, 1, PLENTY, UNCOMMITTED)]
    (result,) = await reading.reads.fetch(ranges, 2 * size, PLENTY, 60_000)
    assert offsets(result) == [1, 2]
    assert unsynced.flushes == 2


async def test_a_reader_waits_when_there_is_no_room_to_flush() -> None:
    reading = await seen()
    unsynced = Unflushed(reading, has_room=False)
    unsynced.append()
    fetch = await reading.park(1, isolation=UNCOMMITTED)
    assert reading.published.is_awaited([ZERO])
    unsynced.has_room = True
    await unsynced.flush()
    assert offsets(await fetch) == [1]


async def test_only_readers_of_everything_keep_a_tick_from_being_early() -> None:
    reading = await seen()
    committed = await reading.park(1, isolation=COMMITTED)
    assert not reading.published.is_awaited([ZERO])
    everything = await reading.park(1, isolation=UNCOMMITTED)
    assert reading.published.is_awaited([ZERO])
    assert not reading.published.is_awaited([ONE])
    reading.append()
    await asyncio.gather(committed, everything)
    assert not reading.published.is_awaited([ZERO])


@pytest.mark.parametrize(
    ("timestamp", "isolation", "flushes"),
    [
        (LATEST, UNCOMMITTED, 1),
        (LATEST, COMMITTED, 0),
        (1_000, UNCOMMITTED, 1),
        (MAX_TIMESTAMP, UNCOMMITTED, 1),
        (EARLIEST, UNCOMMITTED, 0),
    ],
)
async def test_offsets_that_depend_on_the_end_are_looked_up_behind_a_flush(
    timestamp: int, isolation: Isolation, flushes: int
) -> None:
    reading = await seen()
    unsynced = Unflushed(reading)
    unsynced.append()
    listed = await reading.reads.list_offsets(ZERO, timestamp, isolation)
    assert listed.error is ErrorCode.NONE
    if timestamp == LATEST:
        assert listed.offset == (2 if isolation is UNCOMMITTED else 1)
    assert unsynced.flushes == flushes


async def test_the_newest_value_of_a_view_is_the_published_one() -> None:
    reading = await seen()
    unsynced = Unflushed(reading)
    unsynced.append()
    assert reading.reads.view(ZERO) == Partition(0, 1, 1_000, reading.shelf.rows[ZERO][0].location.length), (
        "nothing above the durable point"
    )
