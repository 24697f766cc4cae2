"""Blocks of objects in memory: few requests, bounded memory, the right bytes."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from semel.store.cluster.bytes import chunks
from semel.store.cluster.bytes.chunks import BlockCache, ObjectRange
from semel.store.cluster.bytes.objects import Objects
from semel.store.contract import BatchLocation

BLOCK = 1_000
SIZE = 20_500
MEBIBYTE = 1024 * 1024


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "BLOCK_BYTES", BLOCK)


class Recorder:
    """Objects that note which ranges they were asked for, and can be held."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.asked: list[BatchLocation] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def read(self, ranges: list[BatchLocation]) -> list[bytes]:
        self.asked += ranges
        await self.may_answer.wait()
        return await self._objects.read(ranges)


@pytest.fixture
def objects(tmp_path: Path) -> Iterator[Objects]:
    opened = Objects.open(tmp_path.as_uri())
    yield opened
    opened.close()


def cached(objects: Any, bytes_max: int = MEBIBYTE) -> tuple[BlockCache, Recorder]:
    recorder = Recorder(objects)
    return BlockCache(recorder, bytes_max), recorder  # type: ignore[arg-type]


async def test_neighbouring_blocks_are_one_request(objects: Objects) -> None:
    data = os.urandom(SIZE)
    await objects.put(1, [data])
    cache, recorder = cached(objects)
    wanted = [
        ObjectRange(1, 5_100, 300, SIZE),
        ObjectRange(1, 5_900, 1_200, SIZE),
        ObjectRange(1, 7_500, 10, SIZE),
    ]
    found = await cache.read([wanted[2], *wanted[:2]])
    assert found == [data[7_500:7_510], data[5_100:5_400], data[5_900:7_100]]
    assert recorder.asked == [BatchLocation(1, 5_000, 3_000)]
    # From memory by now.
    assert await cache.read([ObjectRange(1, 5_000, 3_000, SIZE)]) == [data[5_000:8_000]]
    assert recorder.asked == [BatchLocation(1, 5_000, 3_000)]
    await cache.close()


async def test_readers_of_the_same_block_share_a_request(objects: Objects) -> None:
    data = os.urandom(SIZE)
    await objects.put(1, [data])
    cache, recorder = cached(objects)
    recorder.may_answer.clear()
    readers = [asyncio.create_task(cache.read([ObjectRange(1, 9_000 + at, 5, SIZE)])) for at in range(5)]
    await asyncio.sleep(0)
    readers[0].cancel()
    recorder.may_answer.set()
    found = await asyncio.gather(*readers, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert found[1:] == [[data[9_000 + at : 9_005 + at]] for at in range(1, 5)]
    assert [each.position for each in recorder.asked].count(9_000) == 1
    await cache.close()


async def test_a_reader_in_order_is_awaited(objects: Objects) -> None:
    data = os.urandom(SIZE)
    await objects.put(1, [data])
    cache, recorder = cached(objects)
    for start in range(0, SIZE, 500):
        assert await cache.read([ObjectRange(1, start, min(500, SIZE - start), SIZE)]) == [
            data[start : start + 500]
        ]
        await cache.close()
    # Each block once, and several ahead of the reader.
    assert recorder.asked[:2] == [BatchLocation(1, 0, 1_000), BatchLocation(1, 1_000, 4_000)]
    assert sum(each.length for each in recorder.asked) == SIZE
    await cache.close()


async def test_a_reader_out_of_order_gets_what_it_asks_for(objects: Objects) -> None:
    await objects.put(1, [os.urandom(SIZE)])
    cache, recorder = cached(objects)
    for start in (15_000, 4_000, 11_000):
        await cache.read([ObjectRange(1, start, 10, SIZE)])
    assert [each.length for each in recorder.asked] == [1_000] * 3
    await cache.close()


async def test_memory_is_bounded(objects: Objects) -> None:
    data = os.urandom(SIZE)
    await objects.put(1, [data])
    cache, _ = cached(objects, bytes_max=5_000)
    assert await cache.read([ObjectRange(1, 0, SIZE, SIZE)]) == [data]
    assert cache.size_bytes <= 5_000
    cache.keep("other", bytes(4_900))
    assert cache.get("other") == bytes(4_900)
    assert cache.size_bytes <= 5_000
    cache.drop("other")
    cache.drop("other")
    assert cache.size_bytes <= 100
    assert await cache.read([ObjectRange(1, 0, SIZE, SIZE)]) == [data]
    await cache.close()


async def test_nothing_is_kept_without_memory(objects: Objects) -> None:
    data = os.urandom(SIZE)
    await objects.put(1, [data])
    cache, _ = cached(objects, bytes_max=0)
    assert await cache.read([ObjectRange(1, 300, 9_000, SIZE)]) == [data[300:9_300]]
    assert cache.size_bytes == 0
    await cache.close()


async def test_what_is_gone_is_a_lookup_error_for_all_who_wait(objects: Objects) -> None:
    cache, recorder = cached(objects)
    found = await asyncio.gather(
        *(cache.read([ObjectRange(7, 0, 10, SIZE)]) for _ in range(3)), return_exceptions=True
    )
    assert [type(each) for each in found] == [LookupError] * 3
    assert len(recorder.asked) == 1
    await objects.put(7, [bytes(SIZE)])
    assert await cache.read([ObjectRange(7, 0, 10, SIZE)]) == [bytes(10)]
    with pytest.raises(LookupError):
        await cache.read([ObjectRange(7, SIZE - 5, 10, SIZE)])
    await cache.close()


async def test_many_small_ranges_do_not_hold_as_many_blocks(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "BLOCKS_HELD_MAX", 3)
    data = os.urandom(SIZE)
    await objects.put(1, [data])
    cache, recorder = cached(objects, bytes_max=0)
    wanted = [ObjectRange(1, start, 10, SIZE) for start in range(0, SIZE - 10, 900)]
    assert await cache.read(wanted) == [data[each.position : each.position + 10] for each in wanted]
    assert max(each.length for each in recorder.asked) <= 3 * BLOCK
    await cache.close()


ranges = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, SIZE - 1), st.integers(1, SIZE)), min_size=1, max_size=10
)


@examples(100, few=25)
@given(st.lists(ranges, max_size=5), st.sampled_from([0, 2_000, 10_000, MEBIBYTE]))
def test_every_range_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, reads: list[Any], bytes_max: int
) -> None:
    async def check() -> None:
        objects = Objects.open(tmp_path_factory.mktemp("objects").as_uri())
        contents = {number: os.urandom(SIZE) for number in (1, 2, 3)}
        for number, data in contents.items():
            await objects.put(number, [data])
        cache = BlockCache(objects, bytes_max)
        for wanted in reads:
            places = [(number, start, min(length, SIZE - start)) for number, start, length in wanted]
            found = await cache.read([ObjectRange(*each, SIZE) for each in places])
            assert found == [contents[number][start : start + length] for number, start, length in places]
        await cache.close()
        objects.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "BLOCK_BYTES", BLOCK)
        asyncio.run(check())
