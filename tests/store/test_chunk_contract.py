"""The contract of a chunk store. Runs on every entry of ``CHUNK_STORES`` in ``conftest``.

What is here holds for every chunk store: in memory, in a directory, in an object store. What only one of them
does (files, faults of a disk) is in a test file of its own. The ``durable`` fixtures leave out those that are
gone with the process.
"""

import asyncio
import os
from typing import Any

import pytest

from semel.store.contract import BatchLocation, StoreFull

CHUNK_BYTES_MAX = 64 * 1024


async def test_what_is_appended_can_be_read(chunk_stores: Any) -> None:
    chunks = await chunk_stores.open()
    batches = [os.urandom(10), os.urandom(5_000), os.urandom(1)]
    locations = await chunks.append(batches)
    assert [location.length for location in locations] == [10, 5_000, 1]
    assert await chunks.read(locations) == batches
    await chunks.close()


async def test_appending_nothing_is_nothing(chunk_stores: Any) -> None:
    chunks = await chunk_stores.open()
    assert await chunks.append([]) == []
    assert await chunks.read([]) == []
    await chunks.close()


async def test_any_buffer_is_taken_and_may_be_changed_afterwards(chunk_stores: Any) -> None:
    chunks = await chunk_stores.open()
    frame = bytearray(b"0123456789")
    locations = await chunks.append([memoryview(frame)[2:5], frame, b"bytes"])
    frame[:] = b"__________"
    assert await chunks.read(locations) == [b"234", b"0123456789", b"bytes"]
    await chunks.close()


async def test_a_reader_may_write_into_what_it_read(chunk_stores: Any) -> None:
    chunks = await chunk_stores.open()
    locations = await chunks.append([b"aaaa", b"bbbb"])
    first, second = await chunks.read(locations)
    first[0:2] = b"zz"
    assert second == b"bbbb"
    assert await chunks.read(locations) == [b"aaaa", b"bbbb"]
    await chunks.close()


async def test_places_follow_one_another_and_never_overlap(chunk_stores: Any) -> None:
    chunks = await chunk_stores.open()
    locations: list[BatchLocation] = []
    for number in range(50):
        locations += await chunks.append([bytes([number]) * (number + 1)] * 3)
    taken: dict[int, int] = {}
    for location in locations:
        assert location.position >= taken.get(location.chunk_id, 0)
        taken[location.chunk_id] = location.position + location.length
    await chunks.close()


async def test_places_can_be_read_in_any_order_and_more_than_once(chunk_stores: Any) -> None:
    chunks = await chunk_stores.open()
    batches = [os.urandom(100 + number) for number in range(20)]
    locations = await chunks.append(batches)
    order = [7, 3, 4, 5, 5, 19, 0]
    assert await chunks.read([locations[index] for index in order]) == [batches[index] for index in order]
    await chunks.close()


async def test_a_read_may_span_places_or_take_part_of_one(chunk_stores: Any) -> None:
    chunks = await chunk_stores.open()
    locations = await chunks.append([b"aaaa", b"bbbb", b"cccc"])
    chunk_id, position, _ = locations[0]
    wanted = [
        BatchLocation(chunk_id, position, 12),
        BatchLocation(chunk_id, position + 2, 4),
        BatchLocation(chunk_id, position + 5, 2),
    ]
    assert await chunks.read(wanted) == [b"aaaabbbbcccc", b"aabb", b"bb"]
    await chunks.close()


async def test_places_are_read_together(chunk_stores: Any) -> None:
    chunks = await chunk_stores.open()
    locations = await chunks.append([b"one", b"two", b"three"])
    (last,) = await chunks.append([b"x" * CHUNK_BYTES_MAX])
    found = await chunks.read_together([locations[2], locations[0], last, locations[1]])
    assert found == b"threeone" + b"x" * CHUNK_BYTES_MAX + b"two"
    found[0] = 0
    assert await chunks.read([locations[2]]) == [b"three"]
    assert await chunks.read_together([]) == b""
    with pytest.raises(LookupError):
        await chunks.read_together([locations[0], BatchLocation(last.chunk_id + 1, 0, 1)])
    await chunks.close()


async def test_more_batches_than_one_system_call_takes(chunk_stores: Any) -> None:
    chunks = await chunk_stores.open()
    batches = [number.to_bytes(4, "big") for number in range(2_500)]
    locations = await chunks.append(batches)
    assert await chunks.read(locations) == batches
    await chunks.close()


async def test_large_reads(chunk_stores: Any) -> None:
    chunks = await chunk_stores.open()
    batches = [os.urandom(1_500_000)]
    locations = await chunks.append(batches)
    assert await chunks.read(locations) == batches
    await chunks.close()


async def test_a_chunk_is_sealed_at_its_size(chunk_stores: Any) -> None:
    chunks = await chunk_stores.open()
    batch = os.urandom(CHUNK_BYTES_MAX // 2 - 100)
    locations = [(await chunks.append([batch]))[0] for _ in range(5)]
    counted: dict[int, int] = {}
    for location in locations:
        counted[location.chunk_id] = counted.get(location.chunk_id, 0) + location.length
    assert len(counted) == 3
    assert all(size <= CHUNK_BYTES_MAX for size in counted.values())
    assert [chunk_id for chunk_id, _ in await chunks.list_chunks()] == sorted(counted)
    assert await chunks.read(locations) == [batch] * 5
    await chunks.close()


async def test_one_append_lies_in_one_chunk_also_if_it_is_larger(chunk_stores: Any) -> None:
    chunks = await chunk_stores.open()
    await chunks.append([b"before"])
    batches = [os.urandom(CHUNK_BYTES_MAX // 2)] * 4
    locations = await chunks.append(batches)
    assert len({location.chunk_id for location in locations}) == 1
    (after,) = await chunks.append([b"after"])
    assert after.chunk_id > locations[0].chunk_id
    assert await chunks.read(locations) == batches
    await chunks.close()


async def test_what_is_not_there_is_a_lookup_error(chunk_stores: Any) -> None:
    chunks = await chunk_stores.open()
    (location,) = await chunks.append([b"here"])
    for missing in (BatchLocation(location.chunk_id + 7, 0, 4), BatchLocation(location.chunk_id, 2**40, 4)):
        with pytest.raises(LookupError):
            await chunks.read([location, missing])
    await chunks.close()


async def test_releasing_leaves_everything_else(chunk_stores: Any) -> None:
    chunks = await chunk_stores.open()
    batches = [os.urandom(10_000) for _ in range(6)]
    locations = await chunks.append(batches)
    before = dict(await chunks.list_chunks())
    await chunks.release([locations[1], locations[2], locations[4]])
    kept = [0, 3, 5]
    assert await chunks.read([locations[index] for index in kept]) == [batches[index] for index in kept]
    assert sum(dict(await chunks.list_chunks()).values()) <= sum(before.values())
    # A read that passes over what was released still gets what was not.
    (span,) = await chunks.read([BatchLocation(locations[0].chunk_id, locations[0].position, 60_000)])
    assert span[:10_000] == batches[0]
    assert span[30_000:40_000] == batches[3]
    await chunks.release([BatchLocation(99, 0, 10)])
    await chunks.close()


async def test_deleting_a_chunk(chunk_stores: Any) -> None:
    chunks = await chunk_stores.open()
    (location,) = await chunks.append([b"first"])
    await chunks.read([location])
    await chunks.delete(location.chunk_id)
    await chunks.delete(location.chunk_id)
    with pytest.raises(LookupError):
        await chunks.read([location])
    assert await chunks.list_chunks() == []
    (after,) = await chunks.append([b"second"])
    assert after.chunk_id != location.chunk_id
    assert await chunks.read([after]) == [b"second"]
    await chunks.close()


async def test_a_full_store_refuses_before_it_writes_and_goes_on_reading(chunk_stores: Any) -> None:
    chunks = await chunk_stores.open(full=True)
    for _ in range(2):
        with pytest.raises(StoreFull):
            await chunks.append([b"x" * 1_000])
    assert sum(size for _, size in await chunks.list_chunks()) == 0
    await chunks.close()


async def test_reading_while_appending(chunk_stores: Any) -> None:
    chunks = await chunk_stores.open()
    written: list[tuple[BatchLocation, bytes]] = []

    async def write() -> None:
        for _ in range(30):
            batches = [os.urandom(3_000) for _ in range(5)]
            written.extend(zip(await chunks.append(batches), batches, strict=True))

    async def read() -> None:
        for _ in range(30):
            seen = list(written)
            assert await chunks.read([location for location, _ in seen]) == [batch for _, batch in seen]

    await asyncio.gather(write(), read(), read())
    await chunks.close()


async def test_everything_is_there_after_a_restart_and_a_new_chunk_is_begun(
    durable_chunk_stores: Any,
) -> None:
    chunks = await durable_chunk_stores.open()
    old = await chunks.append([b"one", b"two"])
    await chunks.close()
    chunks = await durable_chunk_stores.open()
    assert await chunks.read(old) == [b"one", b"two"]
    new = await chunks.append([b"three"])
    assert new[0].chunk_id > old[0].chunk_id
    assert await chunks.read([*old, *new]) == [b"one", b"two", b"three"]
    await chunks.close()
