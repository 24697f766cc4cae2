"""Power loss at scale: a recorded store, the disk as a power cut could have left it, and the store again.

The check itself is in ``verification.power_loss``; here it runs on a few recordings, and is shown to find
what it is for.
"""

import random

import pytest

from simulation.mutants import Mutant, applied
from verification.power_loss import PowerLoss, one, run
from verification.recorded_disk import MODES, SECTOR, Event, Platter
from verification.store_mutants import MUTANTS, killed_by


def test_no_power_cut_takes_what_was_answered() -> None:
    found = run(600)
    assert (found.problems, found.lost, found.torn) == ([], 0, 0)
    assert found.states == 600


def test_a_seed_is_the_same_every_time() -> None:
    """Otherwise one that fails could not be looked at."""
    mutant = MUTANTS[0]
    assert killed_by(mutant) == killed_by(mutant)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_defect_is_found(mutant: Mutant) -> None:
    assert killed_by(mutant) is not None


def test_what_a_defect_loses_is_told_with_its_seed() -> None:
    found = PowerLoss()
    with applied(MUTANTS[0]):
        one(5, found)
    assert found.lost
    assert found.problems[0].startswith("seed 5: ")


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
