"""The simulation finds nothing in the code as it is, and every known defect in the code as it must not be."""

import hashlib
import logging
import os

import pytest

from simulation.__main__ import killed_by
from simulation.mutants import MUTANTS, Mutant
from simulation.plan import make
from simulation.run import run
from simulation.shrinking import shrink

HISTORIES = int(os.environ.get("SEMEL_HISTORIES", "2000"))
PART = 50


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, HISTORIES, PART))
def test_nothing_is_wrong_in_any_history(first: int) -> None:
    for seed in range(first, first + PART):
        outcome = run(make(seed))
        assert not outcome.problems, f"seed {seed}: {outcome.problems[0]}"
        assert outcome.operations


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_defect_is_found(mutant: Mutant) -> None:
    assert killed_by(mutant) is not None, f"{mutant.name!r} survives"


def test_a_seed_is_the_same_history_every_time() -> None:
    def digest(seed: int) -> str:
        return hashlib.sha256(repr(run(make(seed)).operations).encode()).hexdigest()

    for seed in range(5):
        assert digest(seed) == digest(seed)


def test_faults_of_every_kind_happen() -> None:
    seen: set[str] = set()
    planned: set[str] = set()
    for seed in range(60):
        outcome = run(make(seed))
        seen |= outcome.faults.keys()
        planned |= outcome.plan.odds.keys()
    assert seen == planned


def test_a_failing_history_is_made_smaller() -> None:
    plan = make(0)
    smallest = shrink(plan, lambda each: "committed reader" in each.actors and each.seconds > 1)
    assert smallest.actors == ("committed reader",)
    assert smallest.odds == {}
    assert 1 < smallest.seconds <= 2
