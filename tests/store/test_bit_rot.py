"""Damage at rest: a few stores of ``verification.bit_rot``, and what it is for is found by it."""

from verification import bit_rot
from verification.store_mutants import ROT, rot_killed_by


def test_a_damaged_directory_is_refused_or_served_whole() -> None:
    found = bit_rot.run(100)
    assert found.problems == []
    assert (found.states, found.refused + found.served) == (100, 100)
    # Both happen often.
    assert min(found.refused, found.served) > 25


def test_a_defect_is_found() -> None:
    """The others are tried by ``make verify``."""
    mutant = ROT[0]
    assert mutant.name == "a directory without a ledger is taken for a new one"
    assert rot_killed_by(mutant) is not None


def test_a_seed_is_the_same_every_time() -> None:
    """Otherwise one that fails could not be looked at."""
    assert bit_rot.run(10) == bit_rot.run(10)
