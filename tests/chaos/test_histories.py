"""Real processes and real clients under faults; the checker reads what they wrote down.

These are short versions of what ``verification/chaos.py`` does at length. A run that is not clean says where
its history is, which ``semel check`` shows again. ``SEMEL_SEED`` repeats the choices of a run, though not its
timing.
"""

import os
import random
from collections.abc import Callable

import pytest
from support.chaos_run import Outcome

from verification import chaos

Record = Callable[[str, object], None]


@pytest.fixture
def seed() -> int:
    chosen = int(os.environ.get("SEMEL_SEED", random.SystemRandom().randrange(2**32)))
    print(f"SEMEL_SEED={chosen}")  # noqa: T201 - shown when the test fails
    return chosen


def check(outcome: Outcome, faults: int, record_property: Record) -> None:
    record_property("chaos", str(outcome))
    assert outcome.is_clean, str(outcome)
    assert outcome.episodes >= faults
    # Otherwise nothing was proved.
    assert outcome.committed > faults / 2
    assert outcome.aborted > 0


@pytest.mark.timeout(300)
def test_kills(seed: int, record_property: Record) -> None:
    check(chaos.kills(10, seed=seed, seconds=120), 10, record_property)


@pytest.mark.timeout(300)
def test_ends_that_come_late_twice_or_never(seed: int, record_property: Record) -> None:
    check(chaos.end_faults(200, seed=seed), 200, record_property)


@pytest.mark.timeout(300)
def test_pauses(seed: int, record_property: Record) -> None:
    check(chaos.pauses(5, seed=seed), 5, record_property)


@pytest.mark.timeout(300)
def test_disks_that_fail_or_are_slow_or_full_and_other_limits(seed: int, record_property: Record) -> None:
    check(chaos.disk_faults(6, seed=seed), 6, record_property)
