"""Early commits: what a kill keeps, what the end of the operating system ends, and what waits for a flush."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import apsw
import pytest
from support.stored import SETTINGS, append, assert_dense, bytes_of, log_of, opened

from semel.core.facts import ProducerIdAllocated, TransactionChanged
from semel.core.types import Cluster, ClusterKey, PartitionKey, Transaction, TransactionKey
from semel.store import early_journal, embedded
from semel.store.early_journal import EarlyJournal
from semel.store.embedded import open_store
from semel.store.files import Files
from semel.store.interface import Place, StoreBroken, StoreFull


async def _early(store: Any, scribe: Any, key: PartitionKey, count: int = 1) -> int:
    """Append batches whose bytes say their offset, early."""
    facts, data = [], []
    for _ in range(count):
        each = bytes_of(scribe.partitions[key].high_watermark)
        facts.append(scribe.append(key, size=len(each))[0])
        data.append(each)
    return int(await store.commit(facts, data, is_early=True))


async def _one_topic(store: Any, scribe: Any) -> PartitionKey:
    created = scribe.created()
    await store.commit([created], [])
    return PartitionKey(created.topic.topic_id, 0)


def _killed(directory: Path) -> Path:
    """What a kill at this moment leaves."""
    copy = directory.parent / f"killed-{os.urandom(4).hex()}"
    shutil.copytree(directory, copy)
    return copy


def _boot(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operating system starts anew."""
    name = os.urandom(8).hex()
    monkeypatch.setattr(embedded, "_boot_id", lambda: name)


# -- together ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "disk"])
async def test_the_next_ordinary_commit_writes_everything(tmp_path: Path, scribe: Any, kind: str) -> None:
    async with opened(tmp_path / "data" if kind == "disk" else None) as store:
        key = await _one_topic(store, scribe)
        number = await append(store, scribe, key)
        assert (store.has_early, store.early_bytes) == (False, 0)
        assert await _early(store, scribe, key, 3) == number + 1
        assert await _early(store, scribe, key) == number + 1
        assert store.has_early
        assert store.early_bytes >= sum(batch.place.length for batch in scribe.batches[key][1:])
        # The ledger does not know of it, so nobody can be given it.
        assert len(await log_of(store, key)) == 1
        assert await append(store, scribe, key) == number + 1
        assert (store.has_early, store.early_bytes) == (False, 0)
        log = await log_of(store, key)
        assert_dense(log)
        assert len(log) == 6
        assert await store.ledger.load([key]) == [scribe.partitions[key]]


@pytest.mark.parametrize("kind", ["memory", "disk"])
async def test_a_commit_of_nothing_is_a_flush(tmp_path: Path, scribe: Any, kind: str) -> None:
    async with opened(tmp_path / "data" if kind == "disk" else None) as store:
        key = await _one_topic(store, scribe)
        await _early(store, scribe, key, 2)
        await store.commit([], [])
        assert not store.has_early
        assert len(await log_of(store, key)) == 2


async def test_early_work_is_flushed_once_and_by_the_ordinary_commit(
    tmp_path: Path, scribe: Any, failing_files: Any
) -> None:
    async with opened(tmp_path / "data", files=failing_files) as store:
        key = await _one_topic(store, scribe)
        await append(store, scribe, key)
        failing_files.calls.clear()
        for _ in range(5):
            await _early(store, scribe, key)
        # A chunk and a frame each time.
        assert failing_files.calls == ["write"] * 10
        failing_files.calls.clear()
        # It has no bytes of its own, and flushes those that wait.
        await store.commit([ProducerIdAllocated(1)], [])
        assert failing_files.calls == ["flush"]
        failing_files.calls.clear()
        await store.commit([ProducerIdAllocated(2)], [])
        assert failing_files.calls == []


async def test_a_chunk_that_is_sealed_between_is_flushed_and_is_no_orphan(
    tmp_path: Path, scribe: Any, failing_files: Any
) -> None:
    async with opened(tmp_path / "data", files=failing_files) as store:
        key = await _one_topic(store, scribe)
        await append(store, scribe, key)
        failing_files.calls.clear()
        while failing_files.calls.count("create") < 2:
            await _early(store, scribe, key, 20)
            assert await store.sweep_orphans() == []
        # The one that is full was flushed before the next was begun, and nothing was flushed besides.
        flushes = [call for call in failing_files.calls if call in ("flush", "create")]
        assert flushes == ["flush", "create"] * 2
        killed = _killed(tmp_path / "data")
        assert len(await log_of(store, key)) == 1
    for directory in (tmp_path / "data", killed):
        async with opened(directory) as store:
            log = await log_of(store, key)
            assert_dense(log)
            assert len(log) == scribe.partitions[key].high_watermark
            assert len({batch.place.chunk_id for batch, _ in log}) == 3


async def test_too_much_early_work_becomes_ordinary(
    tmp_path: Path, scribe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_journal, "BYTES_MAX", 2_000)
    async with opened(tmp_path / "data") as store:
        key = await _one_topic(store, scribe)
        sizes = set()
        for _ in range(100):
            await _early(store, scribe, key)
            sizes.add((tmp_path / "data" / "early.journal").stat().st_size)
            if not store.has_early:
                assert len(await log_of(store, key)) == scribe.partitions[key].high_watermark
        assert max(sizes) <= 2_000
        assert not store.has_early or len(await log_of(store, key)) > 50
        await _early(store, scribe, key, 100)
        assert not store.has_early
        assert_dense(await log_of(store, key))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
async def test_a_journal_that_cannot_be_written_makes_commits_ordinary(
    tmp_path: Path, scribe: Any, failing_files: Any, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path / "data", files=failing_files) as store:
        key = await _one_topic(store, scribe)
        await _early(store, scribe, key)
        write = Files.write

        def refuse(descriptor: int, buffers: Any, position: int) -> int:
            if Path(f"/proc/self/fd/{descriptor}").readlink().name == "early.journal":
                raise OSError(code, os.strerror(code))
            return write(failing_files, descriptor, buffers, position)

        monkeypatch.setattr(failing_files, "write", refuse)
        await _early(store, scribe, key)
        assert not store.has_early
        assert len(await log_of(store, key)) == 2


async def test_a_short_write_of_a_frame_goes_on(tmp_path: Path, scribe: Any, failing_files: Any) -> None:
    async with opened(tmp_path / "data", files=failing_files) as store:
        key = await _one_topic(store, scribe)
        await append(store, scribe, key)
        failing_files.short_write_bytes = 11
        await _early(store, scribe, key, 3)
        failing_files.short_write_bytes = None
        killed = _killed(tmp_path / "data")
    async with opened(killed) as store:
        assert len(await log_of(store, key)) == 4


# -- a kill -----------------------------------------------------------------------------------------------


async def test_a_kill_at_any_step_keeps_what_was_acknowledged(
    tmp_path: Path, scribe: Any, failing_files: Any
) -> None:
    """The crash table of an early commit and of the ordinary one that follows."""
    copies: list[tuple[str, Path]] = []
    data = tmp_path / "data"
    async with opened(data, files=failing_files) as store:
        key = await _one_topic(store, scribe)
        await append(store, scribe, key)
        await _early(store, scribe, key)
        failing_files.after = lambda call: copies.append((call, _killed(data)))
        await _early(store, scribe, key, 2)
        copies.append(("early", _killed(data)))
        await append(store, scribe, key)
        failing_files.after = lambda call: None
        copies.append(("ordinary", _killed(data)))
    copies.append(("close", data))
    # The first writes are a chunk's and a frame's, the third is the ordinary commit's.
    steps = ["write", "write", "early", "write", "flush", "ordinary", "close"]
    assert [step for step, _ in copies] == steps
    for (step, directory), count in zip(copies, [2, 4, 4, 4, 4, 5, 5], strict=True):
        async with opened(directory) as store:
            assert store.term == 1
            assert not store.has_early
            log = await log_of(store, key)
            assert_dense(log)
            assert len(log) == count, step
            # And everything goes on.
            assert await store.commit([], []) > 0


async def test_what_a_kill_left_is_flushed_before_the_ledger_points_at_it(
    tmp_path: Path, scribe: Any, failing_files: Any
) -> None:
    async with opened(tmp_path / "data") as store:
        key = await _one_topic(store, scribe)
        await _early(store, scribe, key, 2)
        killed = _killed(tmp_path / "data")
    failing_files.failures["flush"] = errno.EIO
    with pytest.raises(StoreBroken):
        await open_store(_killed(killed), SETTINGS, files=failing_files)
    failing_files.failures.clear()
    failing_files.calls.clear()
    async with opened(killed, files=failing_files) as store:
        assert failing_files.calls.count("flush") == 1
        assert len(await log_of(store, key)) == 2


async def test_a_second_kill_finds_nothing_to_do_twice(tmp_path: Path, scribe: Any) -> None:
    async with opened(tmp_path / "data") as store:
        key = await _one_topic(store, scribe)
        await _early(store, scribe, key, 2)
        directory = _killed(tmp_path / "data")
    for _ in range(3):
        async with opened(directory) as store:
            assert len(await log_of(store, key)) == 2
            directory = _killed(directory)


async def test_frames_of_a_longer_row_are_history(tmp_path: Path, scribe: Any) -> None:
    """Frames are all of one size here, so that an old one begins right behind a new one."""
    async with opened(tmp_path / "data") as store:
        await store.commit([ProducerIdAllocated(100)], [])
        for number in range(101, 110):
            await store.commit([ProducerIdAllocated(number)], [], is_early=True)
        await store.commit([], [])
        for number in (120, 121):
            await store.commit([ProducerIdAllocated(number)], [], is_early=True)
        killed = _killed(tmp_path / "data")
    async with opened(killed) as store:
        assert await store.ledger.load([ClusterKey()]) == [Cluster(122)]


@pytest.mark.parametrize("cut", [1, 5, 40, 60])
async def test_a_torn_frame_ends_the_row(tmp_path: Path, cut: int) -> None:
    async with opened(tmp_path / "data") as store:
        for number in range(3):
            await store.commit([ProducerIdAllocated(number)], [], is_early=True)
        torn, broken = _killed(tmp_path / "data"), _killed(tmp_path / "data")
    data = (torn / "early.journal").read_bytes()
    (torn / "early.journal").write_bytes(data[:-cut])
    changed = bytearray(data)
    changed[-cut] ^= 0x10
    (broken / "early.journal").write_bytes(changed)
    for directory in (torn, broken):
        async with opened(directory) as store:
            assert await store.ledger.load([ClusterKey()]) == [Cluster(2)]
            assert store.term == 1


async def test_rubbish_is_not_read(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as store:
        await store.commit([ProducerIdAllocated(1)], [], is_early=True)
        killed = _killed(tmp_path / "data")
    header = (killed / "early.journal").read_bytes()[:4]
    for rubbish in (b"", b"\0", header, header + b"\xff" * 100, header + bytes(100)):
        (killed / "early.journal").write_bytes(rubbish)
        async with opened(_killed(killed)) as store:
            assert await store.ledger.load([ClusterKey()]) == [Cluster(0)]
            assert store.term == 1


async def test_a_replay_for_which_there_is_no_room_is_tried_again(
    tmp_path: Path, scribe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path / "data") as store:
        key = await _one_topic(store, scribe)
        await _early(store, scribe, key, 3)
        killed = _killed(tmp_path / "data")
    commit = embedded.SqliteLedger.commit_now

    def refuse(*args: Any) -> int:
        raise StoreFull("no room")

    monkeypatch.setattr(embedded.SqliteLedger, "commit_now", refuse)
    for _ in range(2):
        with pytest.raises(StoreFull):
            await open_store(killed, SETTINGS)
    monkeypatch.setattr(embedded.SqliteLedger, "commit_now", commit)
    async with opened(killed) as store:
        assert len(await log_of(store, key)) == 3
        assert store.term == 1


# -- the end of a term ------------------------------------------------------------------------------------


async def test_another_boot_drops_early_work_and_begins_a_term(
    tmp_path: Path, scribe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _boot(monkeypatch)
    async with opened(tmp_path / "data") as store:
        key = await _one_topic(store, scribe)
        await append(store, scribe, key)
        await _early(store, scribe, key, 3)
        killed = _killed(tmp_path / "data")
    _boot(monkeypatch)
    async with opened(killed) as store:
        assert (store.term, store.stopped_cleanly) == (2, False)
        assert len(await log_of(store, key)) == 1
    # A clean stop had written it, so nothing was lost.
    async with opened(tmp_path / "data") as store:
        assert (store.term, store.stopped_cleanly) == (1, True)
        assert len(await log_of(store, key)) == 4


async def test_a_kill_right_after_a_term_began_brings_nothing_back(
    tmp_path: Path, scribe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal of the old term is still there, and some of its bytes may not be."""
    _boot(monkeypatch)
    async with opened(tmp_path / "data") as store:
        key = await _one_topic(store, scribe)
        await _early(store, scribe, key, 3)
        killed = _killed(tmp_path / "data")
    old = (killed / "early.journal").read_bytes()
    _boot(monkeypatch)
    async with opened(killed):
        again = _killed(killed)
    (again / "early.journal").write_bytes(old)
    async with opened(again) as store:
        assert store.term == 2
        assert await log_of(store, key) == []


async def test_a_journal_of_another_version_ends_the_term(tmp_path: Path, scribe: Any) -> None:
    async with opened(tmp_path / "data") as store:
        key = await _one_topic(store, scribe)
        await _early(store, scribe, key)
        killed = _killed(tmp_path / "data")
    data = bytearray((killed / "early.journal").read_bytes())
    data[0] ^= 1
    (killed / "early.journal").write_bytes(data)
    async with opened(killed) as store:
        assert store.term == 2
        assert await log_of(store, key) == []
    async with opened(_killed(killed)) as store:
        assert store.term == 2


@pytest.mark.parametrize("call", ["flush", "write"])
async def test_bytes_that_may_be_gone_end_the_term(
    tmp_path: Path, scribe: Any, failing_files: Any, call: str
) -> None:
    """After a flush that failed the operating system may have forgotten what it was given."""
    store = await open_store(tmp_path / "data", SETTINGS, files=failing_files)
    key = await _one_topic(store, scribe)
    await append(store, scribe, key)
    await _early(store, scribe, key)
    failing_files.failures[call] = errno.EIO
    with pytest.raises(StoreBroken):
        await append(store, scribe, key)
    await store.close()
    async with opened(tmp_path / "data") as store:
        assert store.term == 2
        assert len(await log_of(store, key)) == 1


async def test_a_ledger_that_fails_loses_nothing_that_was_acknowledged(
    tmp_path: Path, scribe: Any, failing_disk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_ledger = embedded.SqliteLedger.open
    with monkeypatch.context() as patch:
        patch.setattr(
            embedded.SqliteLedger,
            "open",
            lambda *args, **options: open_ledger(*args, **options, vfs=failing_disk.name),
        )
        store = await open_store(tmp_path / "data", SETTINGS)
    key = await _one_topic(store, scribe)
    await append(store, scribe, key)
    await _early(store, scribe, key, 2)
    failing_disk.failing["write"] = apsw.IOError
    with pytest.raises(StoreBroken):
        await append(store, scribe, key)
    await store.close()
    async with opened(tmp_path / "data") as store:
        assert store.term == 1
        log = await log_of(store, key)
        assert_dense(log)
        # The ordinary one has an unknown outcome.
        assert len(log) in (3, 4)


# -- a full disk ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "disk"])
async def test_after_a_full_ledger_early_work_waits_or_is_dropped(
    tmp_path: Path, scribe: Any, kind: str
) -> None:
    async with opened(tmp_path / "data" if kind == "disk" else None) as store:
        key = await _one_topic(store, scribe)
        transaction = Transaction("t", 1, 0, 1_000)
        await store.commit([TransactionChanged(transaction)], [])
        connection = store.ledger._writer.connection
        facts = [TransactionChanged(Transaction(f"{number}", 1, 0, 1)) for number in range(3_000)]
        for is_dropped in (False, True):
            await store.commit(
                [TransactionChanged(transaction._replace(epoch=5 + is_dropped))], [], is_early=True
            )
            connection.pragma("max_page_count", connection.pragma("page_count"))
            with pytest.raises(StoreFull):
                await store.commit(facts, [])
            connection.pragma("max_page_count", 2**30)
            assert store.has_early
            if is_dropped:
                await store.drop_early()
            assert store.has_early is not is_dropped
            await store.commit([], [])
            (found,) = await store.ledger.load([TransactionKey("t")])
            assert found.epoch == 5
        assert await log_of(store, key) == []


async def test_a_kill_between_dropping_and_fencing_ends_the_term(tmp_path: Path, scribe: Any) -> None:
    """Otherwise a producer could go on with a transaction of which a part is gone."""
    async with opened(tmp_path / "data") as store:
        key = await _one_topic(store, scribe)
        await _early(store, scribe, key)
        before = _killed(tmp_path / "data")
        await store.drop_early()
        between = _killed(tmp_path / "data")
        # Nothing is early until there is a journal again.
        await store.commit([ProducerIdAllocated(1)], [], is_early=True)
        assert not store.has_early
        fenced = _killed(tmp_path / "data")
        await store.commit([ProducerIdAllocated(2)], [], is_early=True)
        assert store.has_early
    for directory, term, batches in ((before, 1, 1), (between, 2, 0), (fenced, 1, 0)):
        async with opened(directory) as store:
            assert store.term == term
            assert len(await log_of(store, key)) == batches


async def test_a_stop_that_cannot_write_early_work_is_not_clean(
    tmp_path: Path, scribe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _boot(monkeypatch)
    store = await open_store(tmp_path / "data", SETTINGS)
    key = await _one_topic(store, scribe)
    await _early(store, scribe, key)
    with monkeypatch.context() as patch:

        def refuse(*args: Any) -> int:
            raise StoreFull("no room")

        patch.setattr(store.ledger, "commit_now", refuse)
        await store.close()
    killed = _killed(tmp_path / "data")
    async with opened(tmp_path / "data") as store:
        assert (store.term, store.stopped_cleanly) == (1, False)
        assert len(await log_of(store, key)) == 1
    _boot(monkeypatch)
    async with opened(killed) as store:
        assert store.term == 2
        assert await log_of(store, key) == []


# -- the journal alone ------------------------------------------------------------------------------------


def test_a_row_that_was_given_up_does_not_come_back_behind_a_new_one(tmp_path: Path) -> None:
    """Both rows are of one term and follow one commit; only the random number tells them apart."""
    journal = EarlyJournal(tmp_path / "early.journal", Files())
    journal.start(1)
    lengths = [journal.append(7, [ProducerIdAllocated(number)], [Place(1, 2, 3)]) for number in range(5)]
    journal.rewind()
    assert journal.append(7, [ProducerIdAllocated(9)], [Place(1, 2, 3)]) == lengths[0]
    journal.close()
    journal = EarlyJournal(tmp_path / "early.journal", Files())
    assert journal.is_intact()
    assert journal.read(1, 7) == ([ProducerIdAllocated(9)], [Place(1, 2, 3)])
    # What follows is a row without its beginning.
    data = (tmp_path / "early.journal").read_bytes()
    (tmp_path / "early.journal").write_bytes(data[lengths[0] :])
    assert journal.read(1, 7) == ([], [])
    (tmp_path / "early.journal").write_bytes(data)
    for term, commit_number in ((2, 7), (0, 7), (1, 6), (1, 8)):
        assert journal.read(term, commit_number) == ([], [])


def test_a_journal_without_a_file_takes_nothing(tmp_path: Path) -> None:
    journal = EarlyJournal(tmp_path / "early.journal", Files())
    assert not journal.is_intact()
    assert journal.read(1, 1) == ([], [])
    assert journal.append(1, [ProducerIdAllocated(1)], []) == 0
    journal.start(1)
    assert journal.is_intact()
    assert journal.append(1, [ProducerIdAllocated(1)], []) > 0
    journal.give_up()
    journal.give_up()
    assert not journal.is_intact()
    journal.close()
