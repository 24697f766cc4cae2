"""Checks correct histories, as a perfect log would produce them. The checker must find nothing in them."""

import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.models.perfect_log import correct_history

from semel.check import check

TICKS: Final = 900
"""The length of a history."""


@dataclass
class Checked:
    """The results of all histories."""

    histories: int = 0
    transactions: Counter[str] = field(default_factory=Counter)
    """The transactions by outcome: a history without transactions proves nothing."""
    problems: list[str] = field(default_factory=list)
    seeds: range = range(0)


def run(histories: int, first_seed: int = 0) -> Checked:
    """Create this many histories, and check each."""
    found = Checked(seeds=range(first_seed, first_seed + histories))
    for seed in found.seeds:
        verdict = check(correct_history(seed, TICKS))
        found.histories += 1
        found.transactions.update(verdict.transactions)
        if not verdict.is_clean:
            found.problems.append(f"seed {seed}: {verdict}")
    return found
