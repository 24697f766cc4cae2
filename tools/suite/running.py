"""Run the tests once, and those that failed once more, alone. What passes then was flaky."""

import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

CHANCE_MAX: Final = 3
"""If more tests fail, it is not by chance, and none of them is run again."""
BESIDE: Final = ("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder")
"""How the tests share the processors. Tests of one file share what its fixtures have started."""
ALONE: Final = ("-n", "0")
_TESTS_FAILED: Final = 1
"""The exit code of pytest if tests have failed. All others but 0 mean that they could not be run."""


@dataclass(frozen=True)
class Outcome:
    """What became of a run."""

    code: int
    """What pytest exited with."""
    failed: Sequence[str]
    skipped: Mapping[str, int]
    """How many tests were skipped, by the reason."""


@dataclass(frozen=True)
class Verdict:
    """What a run says about the code."""

    seed: int
    code: int
    """What to exit with: 0 if all tests have passed, if necessary at the second time."""
    failed: Sequence[str] = ()
    flaky: Sequence[str] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)

    def beside(self, other: "Verdict") -> "Verdict":
        """Both of two runs."""
        return Verdict(
            self.seed,
            self.code or other.code,
            [*self.failed, *other.failed],
            [*self.flaky, *other.flaky],
            Counter(self.skipped) + Counter(other.skipped),
        )


def fresh_seed() -> int:
    """Return the seed that is asked for by ``SEMEL_SEED``, or any."""
    return int(os.environ.get("SEMEL_SEED", random.SystemRandom().randrange(2**32)))


def run(arguments: Sequence[str], seed: int) -> Verdict:
    """Run tests, and those that failed once more."""
    with tempfile.TemporaryDirectory() as directory:
        first_file, second_file = Path(directory, "first.json"), Path(directory, "second.json")
        first = _pytest([*BESIDE, *arguments], first_file, seed)
        if first.code != _TESTS_FAILED or not 0 < len(first.failed) <= CHANCE_MAX:
            return Verdict(seed, first.code, first.failed, skipped=first.skipped)
        print(f"\n{len(first.failed)} failed: once more, alone\n", flush=True)  # noqa: T201
        again = _pytest([*arguments, *ALONE, f"--failed-in={first_file}"], second_file, seed)
    if again.code not in (0, _TESTS_FAILED):
        return Verdict(seed, again.code, first.failed, skipped=first.skipped)
    flaky = [each for each in first.failed if each not in again.failed]
    return Verdict(seed, again.code, again.failed, flaky, first.skipped)


def _pytest(arguments: Sequence[str], outcomes: Path, seed: int) -> Outcome:
    # With "=": pytest takes a file behind an option that it does not know yet for a place of tests.
    command = [sys.executable, "-m", "pytest", "-p", "tools.suite.outcomes", f"--outcomes={outcomes}"]
    command += [f"--hypothesis-seed={seed}", *arguments]
    done = subprocess.run(command, env={**os.environ, "SEMEL_SEED": str(seed)}, check=False)
    if not outcomes.exists():  # pytest has not come so far.
        return Outcome(done.returncode, (), {})
    found = json.loads(outcomes.read_text())
    return Outcome(done.returncode, found["failed"], found["skipped"])
