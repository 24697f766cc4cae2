"""Power loss at scale: a recorded store, the disk as a power cut could have left it, and the store again.

The check itself is in ``verification.power_loss``; here it runs on a few recordings, and is shown to find
what it is for.
"""

import itertools
import random
from pathlib import Path

import pytest
from support.stores.embedded import Book, opened

from semel.store import opening
from semel.store.contract import StoreBroken
from semel.store.embedded.store import EmbeddedStore
from simulation.mutants import applied
from verification.power_loss import SETTINGS, PowerLoss, one, open_recorded, run
from verification.recorded_disk import MODES, SECTOR, Event, Platter, Recorder, lay_out
from verification.store_mutants import MUTANTS, killed_by
from verification.turns import small_store


def test_no_power_cut_takes_what_was_answered() -> None:
    found = run(150)
    assert (found.problems, found.lost, found.torn) == ([], 0, 0)
    assert found.states == 150


def test_recovery_after_a_kill_tells_chunks_nothing_that_a_power_cut_takes_back() -> None:
    """A frame that survived the kill is not flushed; chunk headers named it before the ledger had it."""
    found = run(100, 100_000_000)
    assert (found.torn, found.lost, found.problems) == (0, 0, [])


def test_a_power_cut_while_the_ledger_is_created_leaves_a_new_store() -> None:
    """The database is half written beside a rollback journal, which looking at it does not roll back."""
    found = PowerLoss()
    one(100_000_002, found)
    assert (found.torn, found.lost, found.problems) == (0, 0, [])


def test_a_seed_is_the_same_every_time() -> None:
    """Otherwise one that fails could not be looked at."""
    mutant = MUTANTS[0]
    assert killed_by(mutant) == killed_by(mutant)


def test_what_a_defect_loses_is_told_with_its_seed() -> None:
    found = PowerLoss()
    with applied(MUTANTS[0]):
        one(5, found)
    assert found.lost
    assert found.problems[0].startswith("seed 5: ")


@pytest.mark.parametrize("is_trusted", [False, pytest.param(True, marks=pytest.mark.slow)])
async def test_the_power_goes_while_a_start_takes_over_what_a_failed_flush_forgot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_trusted: bool
) -> None:
    """The ledger's log says of a commit that it is checkpointed, and only the page cache has that log.

    A start moves the log into the database. If it trusts it, half of that move is a broken ledger.
    """
    if is_trusted:
        monkeypatch.setattr(opening, "write_log_again", lambda path, files: None)
    boots = itertools.count()
    with small_store(lambda: f"boot {next(boots)}", 1):
        book, platter = Book(), Platter()
        recorder = Recorder(tmp_path / "data")
        store = await open_recorded(recorder)
        await book.begin(store)
        for _ in range(8):
            await book.commit(store)
            await store.checkpoint()
        # All of the log is in the database, so the next commit begins it anew.
        store.ledger._writer.rest(quiet=True)
        await book.commit(store)
        await book.check(store)
        recorder.fails = lambda name: name.endswith("-wal")
        with pytest.raises(StoreBroken):
            await store.checkpoint()
        await _end(recorder, store)
        for event in recorder.events:
            platter.take(event)
        again = Recorder(tmp_path / "again")
        lay_out(platter.killed(), again.directory)
        await _end(again, await open_recorded(again))
        broken = 0
        for number, event in enumerate(again.events):
            platter.take(event)
            for mode in MODES:
                directory = tmp_path / f"{number} {mode}"
                lay_out(platter.lost(mode, random.Random(number)), directory)
                broken += not await _has(book, directory)
    assert (broken > 0) == is_trusted


async def _has(book: Book, directory: Path) -> bool:
    """Whether all that was answered is there."""
    try:
        async with opened(directory, SETTINGS) as store:
            return await book.check(store) == book.durable == 9
    except (StoreBroken, AssertionError):
        return False


async def _end(recorder: Recorder, store: EmbeddedStore) -> None:
    """The process ends here."""
    recorder.stop()
    await store.close()
    recorder.unregister()


# -- the disk ---------------------------------------------------------------------------------------------

OLD, NEW = b"o" * 2 * SECTOR, b"n" * 2 * SECTOR


def _written() -> Platter:
    """A file that was flushed once, and written again."""
    platter = Platter({"f": OLD})
    platter.take(Event("write", "f", 0, NEW))
    return platter


def _left(platter: Platter, mode: str) -> set[bytes]:
    return {bytes(platter.lost(mode, random.Random(seed)).get("f", b"")) for seed in range(200)}


def test_what_was_not_flushed_may_be_there_or_not() -> None:
    halves = {OLD[:SECTOR] + NEW[SECTOR:], NEW[:SECTOR] + OLD[SECTOR:]}
    assert _left(_written(), "nothing") == {OLD}
    assert _left(_written(), "everything") == {NEW}
    for mode in ("prefix", "prefix by file", "whole files"):
        assert _left(_written(), mode) == {OLD, NEW}
    assert _left(_written(), "subset") == {OLD, NEW, *halves}
    assert _left(_written(), "torn") > {OLD, NEW, *halves}


def test_what_was_flushed_is_there() -> None:
    platter = _written()
    platter.take(Event("flush", "f"))
    assert {data for mode in MODES for data in _left(platter, mode)} == {NEW}


def test_what_a_failed_flush_forgot_is_read_and_is_not_there() -> None:
    platter = _written()
    platter.take(Event("failed flush", "f"))
    assert platter.killed() == {"f": NEW}
    assert {data for mode in MODES for data in _left(platter, mode)} == {OLD}
    platter.take(Event("flush", "f"))
    assert {data for mode in MODES for data in _left(platter, mode)} == {OLD}


def test_names_are_there_when_their_directory_is_flushed() -> None:
    platter = Platter()
    for event in (Event("create", "f"), Event("write", "f", 0, NEW), Event("flush", "f")):
        platter.take(event)
    assert platter.lost("nothing", random.Random(0)) == {}
    platter.take(Event("directory", "data"))
    assert _left(platter, "nothing") == {NEW}
    platter.take(Event("remove", "f"))
    assert platter.killed() == {}
    assert _left(platter, "nothing") == {NEW}
    assert platter.lost("everything", random.Random(0)) == {}


def test_what_was_cut_off_does_not_come_back_after_a_flush() -> None:
    platter = Platter({"f": OLD})
    platter.take(Event("cut", "f", 10))
    platter.take(Event("size", "f", 2 * SECTOR))
    assert platter.killed() == {"f": OLD[:10].ljust(2 * SECTOR, b"\0")}
    platter.take(Event("flush", "f"))
    assert {data for mode in MODES for data in _left(platter, mode)} == {OLD[:10].ljust(2 * SECTOR, b"\0")}
