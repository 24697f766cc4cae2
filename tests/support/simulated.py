"""Simulated histories in parts, for test files that workers share."""

import os
from typing import Final

from simulation.plan import make
from simulation.run import run

HISTORIES: Final = int(os.environ.get("SEMEL_HISTORIES", "2000"))
PART: Final = 50
FIRST_HALF: Final = range(0, HISTORIES // 2, PART)
SECOND_HALF: Final = range(FIRST_HALF.stop, HISTORIES, PART)


def nothing_is_wrong(first: int, stop: int) -> None:
    """Run the histories from a seed on, none of them at or behind ``stop``."""
    for seed in range(first, min(first + PART, stop)):
        outcome = run(make(seed))
        assert not outcome.problems, f"seed {seed}: {outcome.problems[0]}"
        assert outcome.operations
