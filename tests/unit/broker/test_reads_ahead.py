"""Rows that are learned ahead: fewer questions to the ledger, and not one answer that is another."""

from support.stores.slow import ONE, ZERO, Reading, offsets

from semel.broker.reads.fetch_planner import PIECES, IndexReadAhead
from semel.broker.reads.reads import Isolation
from semel.core.types import ErrorCode
from semel.store.contract import BatchLocation, StoredBatch


def written(count: int) -> tuple[Reading, int]:
    """So many batches of one record, and the size of each."""
    reading = Reading()
    return reading, [reading.append() for _ in range(count)][-1]


async def read_on(reading: Reading, start: int, end: int, size: int) -> list[int]:
    """Everything between two offsets, two batches at a time, by a reader that goes on where it was."""
    found: list[int] = []
    while start < end:
        got = offsets(await reading.fetch(start, partition_max_bytes=2 * size))
        assert got, f"nothing at {start}"
        found += got
        start = got[-1] + 1
    return found


async def test_a_reader_of_a_long_way_asks_the_ledger_once_for_many_answers() -> None:
    reading, size = written(100)
    assert await read_on(reading, 0, 100, size) == list(range(100))
    assert reading.shelf.calls["find_batches"] <= 3 + 50 // (PIECES - 1)


async def test_who_reads_once_costs_the_ledger_no_more_than_it_gets() -> None:
    reading, size = written(20)
    for offset in (0, 11, 5):
        assert offsets(await reading.fetch(offset, partition_max_bytes=size)) == [offset]
    assert reading.shelf.calls["find_batches"] == 3
    assert reading.reads._planner._ahead.size == 0


async def test_rows_from_before_a_compaction_are_not_used() -> None:
    """Also while their bytes are there: nobody would tell of their aborted transactions any more."""
    reading, size = written(20)
    assert await read_on(reading, 0, 4, size) == [0, 1, 2, 3]
    assert reading.reads._planner._ahead.size > 0
    del reading.shelf.rows[ZERO][4:6]
    reading.shelf.partitions[ZERO] = reading.shelf.partitions[ZERO].but(cleaned_offset=20, compactions=1)
    reading.publish(keys=[ZERO])
    assert await read_on(reading, 4, 20, size) == list(range(6, 20))


async def test_bytes_that_are_gone_are_looked_for_in_the_ledger() -> None:
    """If a row that was kept is wrong, whatever the reason, the reader gets what the ledger says."""
    reading, size = written(20)
    assert await read_on(reading, 0, 4, size) == [0, 1, 2, 3]
    row = reading.shelf.rows[ZERO][4]
    reading.shelf.gone.add(row.location)
    copy = BatchLocation(1, len(reading.shelf.chunk), row.location.length)
    at = row.location.position
    reading.shelf.chunk += reading.shelf.chunk[at : at + row.location.length]
    reading.shelf.rows[ZERO][4] = row._replace(location=copy)
    assert await read_on(reading, 4, 20, size) == list(range(4, 20))


async def test_what_was_deleted_meanwhile_is_out_of_range_as_ever() -> None:
    reading, size = written(20)
    assert await read_on(reading, 0, 4, size) == [0, 1, 2, 3]
    reading.delete_below(7)
    assert (await reading.fetch(4, partition_max_bytes=2 * size)).error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert await read_on(reading, 7, 20, size) == list(range(7, 20))


async def test_a_reader_of_committed_records_sees_no_further_by_the_rows_of_another() -> None:
    reading = Reading()
    size = [reading.append() for _ in range(6)][-1]
    reading.append(opens_transaction=True)
    for _ in range(9):
        reading.append()
    assert await read_on(reading, 0, 4, size) == [0, 1, 2, 3]
    assert reading.reads._planner._ahead.size > 2
    committed = await reading.fetch(4, partition_max_bytes=9 * size, isolation=Isolation.READ_COMMITTED)
    assert offsets(committed) == [4, 5]


async def test_readers_that_are_as_far_do_not_take_rows_from_each_other() -> None:
    reading, size = written(40)
    for offset in range(0, 40, 2):
        for _ in range(3):
            assert offsets(await reading.fetch(offset, partition_max_bytes=2 * size)) == [offset, offset + 1]
    # Two of the three ask for themselves.
    assert reading.shelf.calls["find_batches"] <= 2 * 20 + 3 + 20 // (PIECES - 1)


def rows(first: int, count: int) -> list[StoredBatch]:
    return [StoredBatch(at, at, 0, BatchLocation(1, at, 10)) for at in range(first, first + count)]


def test_what_is_kept_is_bounded_and_the_oldest_gives_way() -> None:
    ahead = IndexReadAhead(readers_max=3, rows_max=10)
    for number in range(4):
        ahead.keep(ZERO, number, rows(number, 2), 0)
    assert ahead.take(ZERO, 0) is None
    assert ahead.size == 6
    ahead.keep(ONE, 0, rows(0, 9), 0)
    assert (ahead.size, ahead.take(ZERO, 2), ahead.take(ZERO, 3)) == (9, None, None)
    ahead.keep(ONE, 1, rows(1, 11), 0)
    assert (ahead.size, ahead.take(ONE, 1)) == (0, None)
    ahead.keep(ONE, 0, [], 7)
    kept = ahead.take(ONE, 0)
    assert kept is not None
    assert (kept.rows, kept.size_bytes, kept.compactions) == ([], 0, 7)
