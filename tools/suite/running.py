"""Runs the tests once, and then the failed ones once more, alone. A test that passes then is flaky."""

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
WORKERS: Final = 3
"""Number of xdist workers; ``SEMEL_WORKERS`` in the environment overrides it."""
BESIDE: Final = ("--dist", "loadfile", "--no-loadscope-reorder", f"--max-worker-restart={CHANCE_MAX}")
"""How tests share the processors. Tests of one file share what its fixtures have started."""
ALONE: Final = ("-n", "0")
_PASSED: Final = 0
_TESTS_FAILED: Final = 1
"""The exit code of pytest if tests have failed. All others except 0 mean that they could not be run."""
_INTERNAL_ERROR: Final = 3


@dataclass(frozen=True)
class Outcome:
    """The result of one run of pytest."""

    code: int
    """The exit code of pytest, or another one if pytest has not reported outcomes."""
    failed: Sequence[str] = ()
    passed: Sequence[str] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)
    """How many tests were skipped, by reason."""
    is_whole: bool = True
    """Whether every test was run, and no process crashed outside of a test."""


@dataclass(frozen=True)
class Verdict:
    """The conclusion of one run, with its repetition."""

    seed: int
    code: int
    """The exit code: 0 if all tests have passed, at the latest in the repetition."""
    failed: Sequence[str] = ()
    flaky: Sequence[str] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)

    def beside(self, other: "Verdict") -> "Verdict":
        """Merge two verdicts. More than a few flaky tests in both together are not chance, and fail."""
        flaky = [*self.flaky, *other.flaky]
        code = self.code or other.code or int(len(flaky) > CHANCE_MAX)
        skipped = Counter(self.skipped) + Counter(other.skipped)
        return Verdict(self.seed, code, [*self.failed, *other.failed], flaky, skipped)


def fresh_seed() -> int:
    """Return the seed of ``SEMEL_SEED``, or a random one."""
    return int(os.environ.get("SEMEL_SEED", random.SystemRandom().randrange(2**32)))


def run(arguments: Sequence[str], seed: int) -> Verdict:
    """Run the tests, and the failed ones once more."""
    with tempfile.TemporaryDirectory() as directory:
        first_file, second_file = Path(directory, "first.json"), Path(directory, "second.json")
        workers = os.environ.get("SEMEL_WORKERS", str(WORKERS))
        first = once(["-n", workers, *BESIDE, *arguments], first_file, seed)
        is_chance = first.code == _TESTS_FAILED and first.is_whole and 0 < len(first.failed) <= CHANCE_MAX
        if not is_chance:
            code = first.code or int(bool(first.failed) or not first.is_whole)
            return Verdict(seed, code, first.failed, skipped=first.skipped)
        print(f"\n{len(first.failed)} failed: once more, alone\n", flush=True)  # noqa: T201
        again = once([*arguments, *ALONE, f"--failed-in={first_file}"], second_file, seed)
    # Tests that were skipped or not run in the repetition count as failed, too.
    failed = [each for each in first.failed if each not in again.passed]
    flaky = [each for each in first.failed if each in again.passed]
    return Verdict(seed, again.code or int(bool(failed)), failed, flaky, first.skipped)


def once(arguments: Sequence[str], outcomes: Path, seed: int) -> Outcome:
    """Run pytest once."""
    # With "=", because pytest takes a file after an option it does not know yet for a test path.
    command = [sys.executable, "-m", "pytest", "-p", "tools.suite.outcomes", f"--outcomes={outcomes}"]
    command += [f"--hypothesis-seed={seed}", *arguments]
    done = subprocess.run(command, env={**os.environ, "SEMEL_SEED": str(seed)}, check=False)
    if not outcomes.exists():  # pytest did not get that far, or its process died.
        is_told = done.returncode not in (_PASSED, _TESTS_FAILED)
        return Outcome(done.returncode if is_told else _INTERNAL_ERROR)
    return Outcome(done.returncode, **json.loads(outcomes.read_text()))
