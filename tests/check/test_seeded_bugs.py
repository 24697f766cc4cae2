"""Correct histories have no anomalies; a bug that is put into one is found.

These are few correct histories; `make verify` makes 10,000.
"""

import random

import pytest
from support.models.perfect_log import correct_history
from support.models.seeded_bugs import BUGS

from semel.check import check
from semel.check.verdict import Verdict
from verification import checking
from verification.checking import TICKS

PARTS, HISTORIES = 5, 30
#: Of so many histories, this many or more must have had a place for the bug.
TRIED, PLACED = 60, 5


@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_is_found_in_correct_histories(part: int) -> None:
    ran = checking.run(HISTORIES, part * HISTORIES)
    assert not ran.problems, ran.problems[0]
    # A history in which nothing happens proves nothing.
    assert min(ran.transactions[name] for name in ("committed", "aborted", "unknown")) >= HISTORIES // 10


@pytest.mark.parametrize("name", BUGS)
def test_a_seeded_bug_is_found(name: str) -> None:
    found_as, bug = BUGS[name]
    placed = 0
    for seed in range(TRIED):
        broken = bug(correct_history(seed, TICKS), random.Random(seed))
        if broken is None:
            continue
        placed += 1
        verdict: Verdict = check(broken)
        assert found_as & set(verdict.anomalies), f"seed {seed}: {verdict}"
        if placed == PLACED:
            break
    assert placed == PLACED, "there was hardly a place for the bug"


def test_there_are_enough_bugs() -> None:
    assert len(BUGS) >= 15
