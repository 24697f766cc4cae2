"""The tail: the newest batches from memory, never a gap, never more than its bound."""

import random

from support.stores.slow import ONE, ZERO, Reading, offsets

from semel.broker.reads.tail import ENTRY_OVERHEAD_BYTES, Tail
from semel.core.facts import BatchAppended
from semel.core.types import ErrorCode
from semel.wire.records import Record, encode_batch, read_header


def fact(base: int, last: int, size: int, key=ZERO) -> BatchAppended:  # type: ignore[no-untyped-def]
    return BatchAppended(key, base, last, 0, 0, size, -1, False, False)


def batch(count: int = 1, value_bytes: int = 1) -> bytes:
    return encode_batch([Record(0, 0, None, bytes(value_bytes))] * count)


async def test_a_reader_at_the_end_asks_neither_ledger_nor_disk() -> None:
    reading = Reading()
    fetch = await reading.park()
    reading.append(timestamps=[1, 2])
    assert offsets(await fetch) == [0, 1]
    for offset in range(2, 50):
        reading.append()
        assert offsets(await reading.fetch(offset)) == [offset]
    assert offsets(await reading.fetch(40)) == list(range(40, 50))
    assert not reading.shelf.calls["find_batches"]
    assert not reading.shelf.calls["read"]


async def test_a_reader_that_catches_up_is_followed_from_then_on() -> None:
    reading = Reading()
    reading.append()
    assert offsets(await reading.fetch(0)) == [0]
    reading.append()
    assert offsets(await reading.fetch(1)) == [1]
    assert reading.shelf.calls["find_batches"] == 1
    assert offsets(await reading.fetch(0)) == [0, 1]
    assert reading.shelf.calls["find_batches"] == 2


async def test_a_partition_that_nobody_reads_costs_nothing() -> None:
    reading = Reading()
    reading.append()
    assert reading.published.tail.size_bytes == 0


async def test_what_is_deleted_is_not_served_from_memory() -> None:
    reading = Reading()
    await reading.fetch(0)
    reading.append()
    reading.append()
    reading.delete_below(1)
    assert (await reading.fetch(0)).error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert offsets(await reading.fetch(1)) == [1]
    del reading.shelf.partitions[ZERO]
    reading.published.forget([ZERO])
    assert (await reading.fetch(1)).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert reading.published.tail.size_bytes == 0


async def test_a_large_batch_is_not_kept_and_leaves_no_gap() -> None:
    reading = Reading()
    await reading.fetch(0)
    reading.append()
    reading.append(value=bytes(300_000))
    reading.append()
    assert offsets(await reading.fetch(0)) == [0, 1, 2]
    assert offsets(await reading.fetch(2)) == [2]
    assert reading.shelf.calls["find_batches"] == 1


def test_kept_batches_are_copies_and_stamped() -> None:
    tail = Tail()
    tail.follow(ZERO, 5)
    frame = bytearray(batch(3))
    tail.append(fact(5, 7, len(frame)), memoryview(frame))
    frame[:] = bytes(len(frame))
    found = tail.find(ZERO, 6, before=8, bytes_max=1_000, at_least_one=True)
    assert found is not None
    header = read_header(found.buffers[0])
    assert (header.base_offset, header.leader_epoch, header.last_offset) == (5, 0, 7)


def test_a_batch_that_does_not_follow_begins_anew() -> None:
    tail = Tail()
    tail.follow(ZERO, 0)
    tail.append(fact(0, 0, 69), batch())
    tail.append(fact(2, 2, 69), batch())
    assert tail.size_bytes == 0
    assert tail.find(ZERO, 0, before=3, bytes_max=1_000, at_least_one=True) is None
    tail.append(fact(3, 3, 69), batch())
    assert tail.find(ZERO, 3, before=4, bytes_max=1_000, at_least_one=True) is not None


def test_the_partition_that_was_followed_longest_ago_gives_way_first() -> None:
    one = len(batch()) + ENTRY_OVERHEAD_BYTES
    tail = Tail(bytes_max=3 * one)
    for key in (ZERO, ONE):
        tail.follow(key, 0)
        tail.append(fact(0, 0, 69, key), batch())
    tail.follow(ZERO, 1)
    for offset in (1, 2):
        tail.append(fact(offset, offset, 69), batch())
    assert tail.size_bytes == 3 * one
    assert tail.find(ONE, 0, before=1, bytes_max=1_000, at_least_one=True) is None
    assert tail.find(ZERO, 0, before=3, bytes_max=1_000, at_least_one=True) is not None
    tail.append(fact(3, 3, 69), batch())
    assert tail.find(ZERO, 0, before=4, bytes_max=1_000, at_least_one=True) is None
    found = tail.find(ZERO, 1, before=4, bytes_max=1_000, at_least_one=True)
    assert found is not None
    assert len(found.buffers) == 3


def test_any_order_of_appends_trims_and_finds_agrees_with_a_list() -> None:
    choose = random.Random(4)
    data = batch()
    for _ in range(20):
        bytes_max = choose.randrange(400, 60_000)
        tail = Tail(bytes_max=bytes_max)
        tail.follow(ZERO, 0)
        end = start = 0
        for _ in range(500):
            if choose.random() < 0.9:
                tail.follow(ZERO, end)
                tail.append(fact(end, end, len(data)), data)
                end += 1
            else:
                start = choose.randint(start, end)
                tail.trim(ZERO, start)
            assert tail.size_bytes <= bytes_max
            offset = choose.randint(start, end)
            found = tail.find(ZERO, offset, before=end, bytes_max=1 << 30, at_least_one=True)
            if found is not None:
                assert [read_header(each).base_offset for each in found.buffers] == list(range(offset, end))
                assert found.next_offset == end
        tail.forget(ZERO)
        assert tail.size_bytes == 0
