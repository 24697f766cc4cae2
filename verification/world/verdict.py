"""Classifies how a run ended: without error, refused by Semel with a message, or stopped by a fault.

There is no fourth end: any other error of a query is a failure of the scenario.
"""

import re
from collections import Counter
from dataclasses import dataclass
from enum import Enum

from semel.spark.pipeline.running import explain
from verification.world.truth import Expected

#: Spark's errors when the committing process ends itself, and the error of a fault after the commit.
_FAULTS = re.compile(
    r"Python worker (exited unexpectedly|failed to connect back)|Writing job failed"
    r"|a fault after all was done|DriverDied: the driver ends here"
)
#: Spark's text before an error of the plan: the sink plans when Spark pickles it.
_WRAPPED = re.compile(r"^PicklingError: Could not serialize object: \w+: ")
_SHOWN = 8


class End(Enum):
    """How a run ended."""

    WELL = "ended without error"
    REFUSED = "refused"
    FAULT = "stopped by the fault"


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended, its message, and whether it had a batch."""

    end: End
    words: str = ""
    had_batch: bool = True


class Broken(AssertionError):
    """A run ended without error but with wrong output, failed without a message of Semel, or hangs."""


def result_of(error: BaseException, *, fault_was_asked: bool) -> RunResult:
    """Return how a run ended that raised this error. Broken if it is neither a refusal nor the fault."""
    words = explain(error)
    if is_ours(error, words):
        return RunResult(End.REFUSED, words)
    if fault_was_asked and _FAULTS.search(str(error)):
        return RunResult(End.FAULT)
    raise Broken(f"failed without a refusal of ours: {words}\n{str(error)[-3_000:]}") from error


def is_ours(error: BaseException, words: str) -> bool:
    """Whether the root error is of one of Semel's classes, with a message of at least five words."""
    lines = _WRAPPED.sub("", words).splitlines()
    if not lines or len(lines[0].split()) < 5:
        return False
    return re.search(rf"^semel(\.\w+)+: {re.escape(lines[0])}", str(error), re.MULTILINE) is not None


def compare(expected: Expected, found: Counter[int]) -> str:
    """Return what is wrong with an output; empty if nothing is."""
    lost = expected.once - found.keys()
    doubled = {number for number, count in found.items() if count > 1}
    wrong = found.keys() - expected.once - expected.at_most_once
    kinds = (("lost", lost), ("doubled", doubled), ("never committed, but there", wrong))
    return "; ".join(f"{len(each)} {name}: {_few(each)}" for name, each in kinds if each)


def _few(numbers: set[int]) -> str:
    shown = ", ".join(map(str, sorted(numbers)[:_SHOWN]))
    return shown if len(numbers) <= _SHOWN else f"{shown}, …"
