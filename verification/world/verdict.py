"""How a run ended: without error, refused with words of ours, or stopped by a fault that was asked for.

There is no fourth: whatever else a query may raise is a failure of the scenario.
"""

import re
from collections import Counter
from dataclasses import dataclass
from enum import Enum

from semel.spark.failures import explain
from verification.world.truth import Expected

#: What Spark says when the process that commits ends itself, and what the fault behind the commit raises.
_FAULTS = re.compile(
    r"Python worker (exited unexpectedly|failed to connect back)|Writing job failed"
    r"|a fault after all was done"
)
#: The sink plans when Spark pickles it, and Spark says so before it says what the plan has raised.
_WRAPPED = re.compile(r"^PicklingError: Could not serialize object: \w+: ")
_SHOWN = 8


class End(Enum):
    """How a run ended."""

    WELL = "ended without error"
    REFUSED = "refused"
    FAULT = "stopped by the fault"


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended, what it said, and whether it had a batch at all."""

    end: End
    words: str = ""
    had_batch: bool = True


class Broken(AssertionError):
    """The promise is broken: a run ended without error and its output is wrong, or it said nothing useful."""


def result_of(error: BaseException, *, fault_was_asked: bool) -> RunResult:
    """How the run ended that raised this. Broken if it is neither a refusal of ours nor the fault."""
    words = explain(error)
    if is_ours(error, words):
        return RunResult(End.REFUSED, words)
    if fault_was_asked and _FAULTS.search(str(error)):
        return RunResult(End.FAULT)
    raise Broken(f"failed without a refusal of ours: {words}\n{str(error)[-3_000:]}") from error


def is_ours(error: BaseException, words: str) -> bool:
    """Whether the error at the bottom is one of Semel's classes, and says something."""
    lines = _WRAPPED.sub("", words).splitlines()
    if not lines or len(lines[0].split()) < 5:
        return False
    return re.search(rf"^semel(\.\w+)+: {re.escape(lines[0])}", str(error), re.MULTILINE) is not None


def compare(expected: Expected, found: Counter[int]) -> str:
    """What is wrong with an output; nothing if all is well."""
    lost = expected.once - found.keys()
    doubled = {number for number, count in found.items() if count > 1}
    wrong = found.keys() - expected.once - expected.at_most_once
    kinds = (("lost", lost), ("doubled", doubled), ("never committed, but there", wrong))
    return "; ".join(f"{len(each)} {name}: {_few(each)}" for name, each in kinds if each)


def _few(numbers: set[int]) -> str:
    shown = ", ".join(map(str, sorted(numbers)[:_SHOWN]))
    return shown if len(numbers) <= _SHOWN else f"{shown}, …"
