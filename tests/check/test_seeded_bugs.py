"""Correct histories have no anomalies; a bug that is put into one is found.

`SEMEL_HISTORIES` is how many correct histories are made: few in an ordinary run, 10,000 in a thorough one.
"""

import os
import random

import pytest
from support.perfect_log import correct_history
from support.seeded_bugs import BUGS

from semel.check import check
from semel.check.verdict import Verdict

HISTORIES = int(os.environ.get("SEMEL_HISTORIES", "150"))
#: Of so many histories, this many or more must have had a place for the bug.
TRIED, PLACED = 60, 5
TICKS = 900
PARTS = 5


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_is_found_in_correct_histories(part: int) -> None:
    seen: dict[str, int] = {}
    for seed in range(part, HISTORIES, PARTS):
        verdict = check(correct_history(seed, TICKS))
        assert verdict.is_clean, f"seed {seed}: {verdict}"
        for name, count in verdict.transactions.items():
            seen[name] = seen.get(name, 0) + count
    # A history in which nothing happens proves nothing.
    assert min(seen.get(name, 0) for name in ("committed", "aborted", "unknown")) >= HISTORIES // PARTS // 10


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
