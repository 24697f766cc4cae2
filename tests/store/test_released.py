"""What was released in parts is given back when the last byte of a block is."""

import os
import random
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from semel.store.embedded.local_chunks import LocalChunks, Released

BLOCK = 8
SIZE = 12 * BLOCK


def test_two_halves_of_a_block_are_a_block() -> None:
    released = Released()
    assert released.add(1, 0, 20, BLOCK) == (0, 16)
    assert released.add(1, 24, 40, BLOCK) == (24, 40)
    # The block at 16 was shared by what lies before and behind.
    assert released.add(1, 20, 24, BLOCK) == (16, 24)
    assert len(released) == 1


def test_a_chunk_that_is_gone_is_forgotten() -> None:
    released = Released()
    released.add(1, 0, 4, BLOCK)
    released.add(2, 0, 4, BLOCK)
    released.forget(1)
    released.forget(7)
    assert len(released) == 1
    first, last = released.add(1, 4, 8, BLOCK)
    assert first == last


def test_the_memory_is_bounded() -> None:
    released = Released(ranges_max=3)
    for chunk_id in range(1, 5):
        for start in (0, 10):
            released.add(chunk_id, start, start + 1, BLOCK)
            assert len(released) <= 3


@given(st.sets(st.integers(1, SIZE - 1)), st.randoms(use_true_random=False))
def test_all_and_only_whole_blocks_are_given_back(edges: set[int], chance: random.Random) -> None:
    """Batches tile a chunk and are released in any order, some never."""
    bounds = sorted({0, SIZE, *edges})
    batches = list(pairwise(bounds))
    chance.shuffle(batches)
    kept = batches[: len(batches) // 4]
    released = Released()
    free: set[int] = set()
    for start, end in batches[len(kept) :]:
        first, last = released.add(1, start, end, BLOCK)
        free.update(range(first, last))
    live = {at // BLOCK for start, end in kept for at in range(start, end)}
    assert free == {at for at in range(SIZE) if at // BLOCK not in live}


async def test_batches_smaller_than_a_block_are_given_back_one_by_one(tmp_path: Path) -> None:
    """As retention does it: a little in every round."""
    chunks = LocalChunks(tmp_path, 1 << 20, 0)
    locations = await chunks.append([os.urandom(1_000) for _ in range(500)])
    before = dict(await chunks.list_chunks())[1]
    for location in locations:
        await chunks.release([location])
    assert before - dict(await chunks.list_chunks())[1] >= 500_000 - 2 * 4096
    await chunks.close()


async def test_room_that_a_crash_left_is_given_back_at_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / f"{7:016d}.chunk"
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
        file.write(b"x" * 5_000)
        file.flush()
        os.fsync(file.fileno())
    chunks = LocalChunks(tmp_path, 1 << 20, 0)
    assert dict(await chunks.list_chunks())[7] <= 16_384
    assert path.read_bytes()[:5_001] == b"x" * 5_000 + b"\0"
    (location,) = await chunks.append([b"y"])
    assert location.chunk_id == 8
    await chunks.close()
