"""Chunk files: what a disk can do to them."""

import errno
import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from semel.store.contract import BatchLocation, StoreBroken, StoreFull
from semel.store.embedded import local_chunks
from semel.store.embedded.chunk_header import HEADER_BYTES
from semel.store.embedded.files import OpenFiles
from semel.store.embedded.local_chunks import LocalChunks

MEGABYTE = 1024 * 1024


def _open(directory: Path, **options: Any) -> LocalChunks:
    return LocalChunks(directory / "chunks", options.pop("chunk_bytes_max", MEGABYTE), 0, **options)


async def test_one_flush_per_append_and_one_of_the_directory_per_chunk(
    tmp_path: Path, failing_files: Any
) -> None:
    chunks = _open(tmp_path, files=failing_files)
    failing_files.calls.clear()
    await chunks.append([b"a", b"b"])
    # The header, once for the chunk; then the batches, and the header that says how far they are flushed.
    begun = ["create", "flush_directory", "allocate", "write", "flush"]
    assert failing_files.calls == [*begun, "write", "write", "flush"]
    failing_files.calls.clear()
    await chunks.append([b"c"])
    assert failing_files.calls == ["write", "write", "flush"]
    await chunks.close()


async def test_files_are_named_by_number(tmp_path: Path) -> None:
    chunks = _open(tmp_path)
    await chunks.append([b"a"])
    assert [path.name for path in (tmp_path / "chunks").iterdir()] == ["0000000000000001.chunk"]
    await chunks.close()


@pytest.mark.parametrize("call", ["write", "flush"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
async def test_a_failed_write_breaks_the_store_for_good(
    tmp_path: Path, failing_files: Any, call: str, code: int
) -> None:
    chunks = _open(tmp_path, files=failing_files)
    (before,) = await chunks.append([b"before"])
    failing_files.failures[call] = code
    with pytest.raises(StoreBroken):
        await chunks.append([b"lost?"])
    failing_files.failures.clear()
    for again in (chunks.append([b"more"]), chunks.read([before]), chunks.list_chunks(), chunks.delete(1)):
        with pytest.raises(StoreBroken):
            await again
    await chunks.close()

    # The next process reads what was written before and begins a chunk of its own.
    chunks = _open(tmp_path)
    assert await chunks.read([before]) == [b"before"]
    (after,) = await chunks.append([b"after"])
    assert after.chunk_id > before.chunk_id
    await chunks.close()


@pytest.mark.parametrize("call", ["create", "allocate"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
async def test_no_room_is_not_a_failure(tmp_path: Path, failing_files: Any, call: str, code: int) -> None:
    chunks = _open(tmp_path, files=failing_files)
    failing_files.failures[call] = code
    for _ in range(2):
        with pytest.raises(StoreFull):
            await chunks.append([b"refused"])
    assert "write" not in failing_files.calls
    failing_files.failures.clear()
    (location,) = await chunks.append([b"there is room again"])
    assert await chunks.read([location]) == [b"there is room again"]
    await chunks.close()


async def test_no_room_for_the_next_step_leaves_what_was_written(tmp_path: Path, failing_files: Any) -> None:
    chunks = _open(tmp_path, files=failing_files, chunk_bytes_max=64 * MEGABYTE)
    old = await chunks.append([os.urandom(1_000)])
    failing_files.failures["allocate"] = errno.ENOSPC
    with pytest.raises(StoreFull):
        await chunks.append([bytes(local_chunks.ROOM_BYTES)])
    small = await chunks.append([b"the room that was given before is still there"])
    assert small[0].position == old[0].position + 1_000
    await chunks.close()


async def test_other_errors_while_making_room_break_the_store(tmp_path: Path, failing_files: Any) -> None:
    chunks = _open(tmp_path, files=failing_files)
    failing_files.failures["allocate"] = errno.EIO
    with pytest.raises(StoreBroken):
        await chunks.append([b"x"])
    await chunks.close()


async def test_the_reserve_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing_files: Any
) -> None:
    free = 10 * MEGABYTE
    monkeypatch.setattr(failing_files, "free_bytes", lambda path: free)
    chunks = LocalChunks(tmp_path / "chunks", MEGABYTE, 8 * MEGABYTE, files=failing_files)
    (location,) = await chunks.append([b"fits"])
    free = 8 * MEGABYTE
    with pytest.raises(StoreFull, match="8388608 bytes"):
        await chunks.append([bytes(MEGABYTE)])
    # Reads go on, and so do writes into room that was taken before.
    assert await chunks.read([location]) == [b"fits"]
    await chunks.append([b"small"])
    free = 20 * MEGABYTE
    (after,) = await chunks.append([bytes(MEGABYTE)])
    assert after.chunk_id == location.chunk_id + 1
    await chunks.close()


async def test_what_was_reserved_is_written_later_in_any_order_also_when_the_chunk_is_sealed(
    tmp_path: Path,
) -> None:
    chunks = _open(tmp_path, chunk_bytes_max=10_000)
    written: list[tuple[BatchLocation, bytes]] = []
    for size in (4_000, 5_000, 6_000, 100):
        batches = [os.urandom(size // 2), os.urandom(size // 2)]
        if not chunks.has_room(size):
            chunks.make_room_now(size)
        written += zip(chunks.reserve([len(batch) for batch in batches]), batches, strict=True)
    assert [location.chunk_id for location, _ in written] == [1, 1, 1, 1, 2, 2, 2, 2]
    assert (chunks.writing_id, chunks.reserve([])) == (2, [])
    random.Random(5).shuffle(written)
    for location, batch in written:
        chunks.write_now([location], [batch])
    chunks.flush_now()
    locations = [location for location, _ in written]
    assert await chunks.read(locations) == [batch for _, batch in written]
    # A chunk that was deleted needs no flush.
    chunks.write_now(locations[:1], [written[0][1]])
    await chunks.delete(locations[0].chunk_id)
    chunks.flush_now()
    assert [chunks.has_chunk(chunk_id) for chunk_id in (1, 2)].count(True) == 1
    await chunks.close()


async def test_no_chunk_is_called_sealed_while_it_is_begun(tmp_path: Path, failing_files: Any) -> None:
    """Otherwise a sweep of orphans at that moment would take it away."""
    seen: list[int] = []
    chunks = _open(tmp_path, files=failing_files, chunk_bytes_max=100)
    failing_files.after = lambda call: seen.append(chunks.writing_id)
    for number in range(1, 4):
        seen.clear()
        (location,) = await chunks.append([bytes(80)])
        assert location.chunk_id == number
        assert set(seen[-5:]) == {number}
    await chunks.close()


async def test_room_that_was_made_is_there(tmp_path: Path, failing_files: Any) -> None:
    chunks = _open(tmp_path, files=failing_files, chunk_bytes_max=4 * MEGABYTE)
    assert not chunks.has_room(1)
    chunks.make_room_now(3 * MEGABYTE)
    assert chunks.has_room(3 * MEGABYTE)
    failing_files.failures = {"allocate": errno.ENOSPC, "create": errno.ENOSPC}
    await chunks.append([bytes(3 * MEGABYTE)])
    assert not chunks.has_room(3 * MEGABYTE)
    with pytest.raises(StoreFull):
        chunks.make_room_now(3 * MEGABYTE)
    await chunks.close()


async def test_short_writes_are_continued(tmp_path: Path, failing_files: Any) -> None:
    chunks = _open(tmp_path, files=failing_files)
    failing_files.short_write_bytes = 700
    batches = [os.urandom(500) for _ in range(9)]
    locations = await chunks.append(batches)
    assert failing_files.calls.count("write") == 2 + 7
    failing_files.short_write_bytes = None
    locations += await chunks.append([b"next"])
    assert await chunks.read(locations) == [*batches, b"next"]
    await chunks.close()


async def test_a_disk_that_takes_no_bytes_breaks_the_store(tmp_path: Path, failing_files: Any) -> None:
    chunks = _open(tmp_path, files=failing_files)
    failing_files.short_write_bytes = 0
    with pytest.raises(StoreBroken, match="no bytes"):
        await chunks.append([b"x"])
    await chunks.close()


async def test_released_space_goes_back_to_the_disk(tmp_path: Path) -> None:
    chunks = _open(tmp_path, chunk_bytes_max=8 * MEGABYTE)
    locations = await chunks.append([os.urandom(MEGABYTE // 4) for _ in range(16)])
    await chunks.append([bytes(5 * MEGABYTE)])
    before = dict(await chunks.list_chunks())[1]
    # Every place by itself has odd edges; together they are one range.
    await chunks.release(locations[4:12])
    after = dict(await chunks.list_chunks())[1]
    if after == before:
        pytest.skip("this file system does not punch holes")
    assert before - after >= 2 * MEGABYTE - 2 * 4096
    await chunks.close()


async def test_room_that_was_not_used_goes_back_when_a_chunk_is_sealed(tmp_path: Path) -> None:
    chunks = _open(tmp_path, chunk_bytes_max=8 * MEGABYTE)
    await chunks.append([b"small"])
    size = dict(await chunks.list_chunks())[1]
    await chunks.close()
    chunks = _open(tmp_path)
    assert dict(await chunks.list_chunks())[1] <= max(size // 100, 4096)
    assert await chunks.read([BatchLocation(1, HEADER_BYTES, 5)]) == [b"small"]
    await chunks.close()


async def test_a_disk_error_while_reading_is_not_a_missing_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = _open(tmp_path)
    (location,) = await chunks.append([b"x"])

    def fail(*args: Any) -> int:
        raise OSError(errno.EIO, "a broken sector")

    with monkeypatch.context() as patched:
        patched.setattr(os, "preadv", fail)
        with pytest.raises(OSError, match="broken sector"):
            await chunks.read([location])
    assert await chunks.read([location]) == [b"x"]
    await chunks.close()


async def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = _open(tmp_path)
    batches = [os.urandom(size) for size in (10, 1, 300, 7)]
    locations = await chunks.append(batches)
    preadv = os.preadv

    def little(descriptor: int, buffers: Any, position: int, flags: int = 0) -> int:
        return preadv(descriptor, [memoryview(buffers[0])[:3]], position)

    monkeypatch.setattr(os, "preadv", little)
    assert await chunks.read(locations) == batches
    await chunks.close()


async def test_what_was_just_written_is_read_without_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not hasattr(os, "RWF_NOWAIT"):
        pytest.skip("this system cannot say whether bytes are in memory")
    chunks = _open(tmp_path)
    (location,) = await chunks.append([b"hot"])
    chunks.read_now([location])
    if not chunks._reading.read_cached([location], [bytearray(3)]):
        pytest.skip("this file system cannot say whether bytes are in memory")
    monkeypatch.setattr(chunks._reading, "read", None)
    assert await chunks.read([location]) == [b"hot"]
    await chunks.close()


async def test_close_leaves_no_thread_and_no_open_file(tmp_path: Path, open_files: Any) -> None:
    before = set(threading.enumerate())
    chunks = _open(tmp_path)
    locations = await chunks.append([b"x"])
    await chunks.read(locations)
    await chunks.close()
    assert set(threading.enumerate()) <= before
    assert not [name for name in open_files() if str(tmp_path) in name]


def test_open_files_are_bounded_and_not_closed_under_a_reader(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(5)]
    for path in paths:
        path.write_bytes(path.name.encode())
    files = OpenFiles(files_max=2)
    held = files.take(paths[0])
    assert held is not None
    for path in paths[1:]:
        file = files.take(path)
        assert file is not None
        files.give_back(file)
    # Pushed out by others, and forgotten, and still readable until it is given back.
    files.forget(paths[0])
    assert os.pread(held.descriptor, 1, 0) == b"0"
    assert files.take(paths[0], if_open=True) is None
    files.give_back(held)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pread(held.descriptor, 1, 0)
    files.close()


async def test_the_room_that_a_crash_leaves_is_given_back(tmp_path: Path) -> None:
    """A process that is killed leaves its room behind the last byte it wrote."""
    killed = _open(tmp_path)
    (location,) = await killed.append([b"x" * 5_000])
    path = next((tmp_path / "chunks").iterdir())
    before = path.stat().st_blocks * 512
    reopened = _open(tmp_path)
    after = path.stat().st_blocks * 512
    if after == before:
        pytest.skip("this file system does not punch holes")
    # Memory is written in larger pieces than blocks.
    assert after <= 65_536 < before
    assert await reopened.read([location]) == [b"x" * 5_000]
    await reopened.close()
    await killed.close()
