"""The WAL: frames that are torn, stale, of another version, and the two files in turn."""

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from support.stores.embedded import (
    SETTINGS,
    Book,
    copy_killed,
    copy_killed_beside,
    make_small,
    opened,
    opened_with_book,
)

from semel.core.facts import ProducerIdAllocated
from semel.core.types import Cluster, ClusterKey, Fact
from semel.store.contract import BatchLocation, StoreBroken, StoreDamaged
from semel.store.embedded import files, wal, wal_reading
from semel.store.embedded import store as embedded
from semel.store.embedded.files import Files
from semel.store.embedded.wal import WriteAheadLog, paths_in
from semel.store.embedded.wal_reading import END_BYTES, Frame, Readout, read_wal
from semel.store.fact_codec import FORMAT, pack_facts
from semel.store.opening import open_store

STORE_ID = os.urandom(16)
PLACE = BatchLocation(1, 2, 3)


def _started(directory: Path, files: Files | None = None) -> WriteAheadLog:
    directory.mkdir(exist_ok=True)
    started = WriteAheadLog(directory, files or Files(), STORE_ID)
    started.start()
    return started


def _append(written: WriteAheadLog, number: int, batch: bytes = b"abc", flushed: int = 0) -> None:
    packed = pack_facts([ProducerIdAllocated(number)], [BatchLocation(1, 2, len(batch))])
    written.append(number, packed, [batch], has_batches=True, flushed=flushed)


def _read(directory: Path, after: int = 0, *, has_survived: bool = False) -> Readout:
    return read_wal(paths_in(directory), STORE_ID, after, has_survived=has_survived)


def _numbers(directory: Path, after: int = 0) -> list[int]:
    return [frame.number for frame in _read(directory, after).frames]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


# -- frames -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
def test_what_was_written_comes_back(tmp_path: Path) -> None:
    written = _started(tmp_path)
    facts: list[Fact] = [ProducerIdAllocated(5), ProducerIdAllocated(6)]
    written.append(7, pack_facts(facts, [PLACE, PLACE]), [b"abc", b"def"], has_batches=True, flushed=6)
    written.append(8, pack_facts(facts, [PLACE]), [], has_batches=False, flushed=7)
    written.note_flushed(8)
    written.append(9, pack_facts([], []), [], has_batches=True, flushed=8)
    written.close()
    written.close()
    for has_survived in (True, False):
        assert _read(tmp_path, 6, has_survived=has_survived) == Readout(
            [
                Frame(7, facts, [PLACE, PLACE], [b"abc", b"def"]),
                Frame(8, facts, [PLACE], None),
                Frame(9, [], [], []),
            ],
            flushed=8,
            last_seen=9,
            problems=[],
        )
    assert _numbers(tmp_path, 7) == [8, 9]
    assert _numbers(tmp_path, 9) == []


@pytest.mark.usefixtures("small")
def test_a_flipped_bit_anywhere_in_a_frame_is_found_if_nothing_may_be_missing(tmp_path: Path) -> None:
    """In the middle and in the last frame, whichever part it is. In the mark alone it does no harm."""
    written = _started(tmp_path)
    ends = [0]
    for number in range(1, 4):
        _append(written, number, flushed=number - 1)
        ends.append(written._writing.position)
    written.close()
    path = tmp_path / "wal-0"
    whole = path.read_bytes()
    for nth in (2, 3):
        for at in range(ends[nth - 1], ends[nth]):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
            readout = _read(tmp_path, has_survived=True)
            if at >= ends[nth] - END_BYTES:
                assert [frame.number for frame in readout.frames] == [1, 2, 3], at
                assert not readout.problems, at
            else:
                assert [frame.number for frame in readout.frames] == list(range(1, nth)), at
                assert readout.problems, at


@pytest.mark.usefixtures("small")
def test_a_torn_end_is_no_damage(tmp_path: Path) -> None:
    """A process that is killed leaves the beginning of a frame; the end of the power any part of it."""
    written = _started(tmp_path)
    ends = [0]
    for number in range(1, 4):
        _append(written, number, flushed=min(number - 1, 1))
        ends.append(written._writing.position)
    written.close()
    path = tmp_path / "wal-0"
    whole = path.read_bytes()
    for at in range(ends[2], ends[3] - END_BYTES):
        path.write_bytes(whole[:at].ljust(len(whole), b"\0"))
        readout = _read(tmp_path, has_survived=True)
        assert ([frame.number for frame in readout.frames], readout.problems) == ([1, 2], []), at
    # Commit 2 was never flushed, so the power may have taken it and left the one behind it; not so commit 1.
    for nth, problems in ((2, 0), (1, 1)):
        at = (ends[nth - 1] + ends[nth]) // 2
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        readout = _read(tmp_path)
        assert [frame.number for frame in readout.frames] == list(range(1, nth))
        assert len(readout.problems) == problems
        assert readout.last_seen == 3


@pytest.mark.usefixtures("small")
def test_rubbish_is_not_read(tmp_path: Path) -> None:
    assert _numbers(tmp_path) == []
    written = _started(tmp_path)
    _append(written, 1)
    written.close()
    header = (tmp_path / "wal-0").read_bytes()[:4]
    for rubbish in (b"", b"\0", bytes(100), header, header + b"\xff" * 100, header + bytes(100)):
        for number in range(2):
            (tmp_path / f"wal-{number}").write_bytes(rubbish)
        assert _numbers(tmp_path) == []


@pytest.mark.usefixtures("small")
def test_short_writes_of_a_frame_go_on_and_none_at_all_is_an_error(
    tmp_path: Path, failing_files: Any
) -> None:
    written = _started(tmp_path, failing_files)
    _append(written, 1)
    failing_files.short_write_bytes = 11
    _append(written, 2, os.urandom(100))
    failing_files.short_write_bytes = 0
    with pytest.raises(OSError, match="took no bytes"):
        _append(written, 3)
    written.close()
    assert _numbers(tmp_path) == [1, 2]


@pytest.mark.usefixtures("small")
def test_more_batches_than_one_call_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "IOV_MAX", 4)
    written = _started(tmp_path)
    batches = [os.urandom(5) for _ in range(20)]
    written.append(1, pack_facts([], [BatchLocation(1, 0, 5)] * 20), batches, has_batches=True)
    written.close()
    ((_, _, _, found),) = _read(tmp_path).frames
    assert found == batches


# -- two files --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
def test_what_lies_around_from_before_is_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames are all of one size, so that an old one begins right behind a new one."""
    monkeypatch.setattr(wal, "ZEROED_BYTES", 0)
    written = _started(tmp_path)
    for number in range(1, 6):
        _append(written, number)
    written.switch()
    for number in range(6, 9):
        _append(written, number)
    assert _numbers(tmp_path) == list(range(1, 9))
    written.switch()
    _append(written, 9, flushed=8)
    written.close()
    for after in (5, 6, 8):
        readout = _read(tmp_path, after, has_survived=True)
        assert [frame.number for frame in readout.frames] == list(range(after + 1, 10))
        assert not readout.problems
    # Who needs what was written over is told that it is gone.
    assert "lacks commit 1;" in _read(tmp_path, 0).problems[0]


@pytest.mark.usefixtures("small")
def test_the_other_file_is_used_when_what_is_in_it_is_not_needed(tmp_path: Path) -> None:
    written = _started(tmp_path)
    for number in range(1, 4):
        _append(written, number)
    assert written.may_switch(0)
    written.switch()
    _append(written, 4)
    assert [written.may_switch(number) for number in (2, 3, 4)] == [False, True, True]
    assert written.has_room(1_000)
    assert not written.has_room(wal.FILE_BYTES)
    written.close()


async def test_files_are_switched_under_load_and_never_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_small(monkeypatch)
    book, switches = Book(), 0
    switch = WriteAheadLog.switch

    def count(self: WriteAheadLog) -> None:
        nonlocal switches
        switches += 1
        switch(self)

    monkeypatch.setattr(WriteAheadLog, "switch", count)
    async with opened(tmp_path / "data") as store:
        await book.begin(store)
        for number in range(200):
            await book.commit(store, (100, 1_500)[number % 2], defers_sync=number % 3 == 0)
            if number % 50 == 25:
                copy = await copy_killed_beside(store, tmp_path / "data")
                async with opened(copy) as other:
                    assert await book.check(other) == number + 1
        assert switches > 20
        await store.commit([], [])
        assert await book.check(store) == 200
        sizes = {(tmp_path / "data" / f"wal-{number}").stat().st_size for number in range(2)}
        assert sizes == {wal.FILE_BYTES}


# -- versions ---------------------------------------------------------------------------------------------


async def test_a_wal_of_another_version_is_refused_unless_it_is_not_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_small(monkeypatch)
    threads = threading.active_count()
    async with opened(tmp_path / "data") as store:
        for number in range(100):
            await store.commit([ProducerIdAllocated(number)], [])
        killed = await copy_killed_beside(store, tmp_path / "data")
        await store.checkpoint()
        checkpointed = await copy_killed_beside(store, tmp_path / "data")
    with monkeypatch.context() as patch:
        patch.setattr(wal_reading, "FORMAT", FORMAT ^ 1)
        for _ in range(2):
            with pytest.raises(StoreBroken, match="another version"):
                await open_store(killed, SETTINGS)
        assert threading.active_count() == threads
        # After a clean stop, and when the ledger has it all, it is history; and stays so after a kill.
        for directory in (tmp_path / "data", checkpointed):
            copy = directory
            for _ in range(2):
                async with opened(copy) as store:
                    assert await store.ledger.load([ClusterKey()]) == [Cluster(100)]
                    copy = copy_killed(copy)
    # The version that wrote it takes it over.
    async with opened(killed) as store:
        assert await store.ledger.load([ClusterKey()]) == [Cluster(100)]
        assert not store.stopped_cleanly


async def test_a_wal_with_a_gap_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger was put back, or a file is missing: nobody can say what was in between."""
    make_small(monkeypatch)
    async with opened_with_book(tmp_path / "data") as (store, book):
        early = await copy_killed_beside(store, tmp_path / "data")
        while not any((tmp_path / "data" / "wal-1").read_bytes()):
            await book.commit(store, 1_500)
        await book.commit(store)
        killed = await copy_killed_beside(store, tmp_path / "data")
    for path in early.glob("ledger.db*"):
        shutil.copy(path, killed)
    (killed / "wal-0").unlink()
    with pytest.raises(StoreDamaged, match=r"wal-0 is missing.*WAL lacks commit"):
        await open_store(killed, SETTINGS)


async def test_a_commit_with_more_facts_than_a_frame_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_small(monkeypatch)
    async with opened_with_book(tmp_path / "data") as (store, book):
        await book.commit(store)
        await book.commit(store, defers_sync=True)
        many = [ProducerIdAllocated(number) for number in range(2_000)]
        assert len(pack_facts(many, [])) > embedded.FRAME_BYTES_MAX  # type: ignore[attr-defined]  # as make_small patched it
        number = await store.commit(many, [], defers_sync=True)
        assert not store.has_unsynced
        images = [await copy_killed_beside(store, tmp_path / "data")]
        assert await store.ledger.load([ClusterKey()]) == [Cluster(2_000)]
        await book.commit(store)
        assert await store.commit([], []) == number + 1
        images.append(await copy_killed_beside(store, tmp_path / "data"))
    for image, count in zip(images, (2, 3), strict=True):
        async with opened(image) as store:
            assert await book.check(store) == count
            assert await store.ledger.load([ClusterKey()]) == [Cluster(2_000)]
