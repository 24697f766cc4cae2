"""The harness: workloads, their cells and sizes, and rounds in which the subjects take turns.

A round measures every cell on every subject, one right after another and in a different order each time, so
that disturbances of the machine affect all of them alike. What cannot be measured is noted with the reason,
and the rest goes on.
"""

import itertools
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Generic, Self, TypeVar

from bench.results import About, Metric, Results, Skipped
from bench.subjects import SUBJECTS, Subject, running
from peers.programs import CannotBuild

LESS = "only measured where there is a target, to keep a run under three hours"
REASON_MAX = 500
"""The longest reason in characters: an error may contain a whole log."""


@dataclass(frozen=True)
class Size:
    """How much each measurement does."""

    name: str
    rounds: int
    """Rounds of cells with targets."""
    rounds_of_others: int
    warm_seconds: float
    """The length of one window in which every subject works before it is measured."""
    seconds: float
    """The length of one timed measurement."""
    seconds_of_others: float
    """The length for transactions without targets."""
    records: int
    """The size of one measurement by number of records, at 1 KiB."""
    rows: int
    """Rows that Spark reads and writes."""
    batches: tuple[int, ...]
    """Batches that a broker has when it is restarted."""
    doublings: int


# Quick only shows that everything works: Java is not warm by then, so its figures say little.
QUICK = Size("quick", 1, 0, 2.0, 0.4, 0.4, 40_000, 100_000, (20_000,), 3)
DEFAULT = Size("default", 3, 1, 6.0, 1.5, 0.5, 100_000, 600_000, (1_000_000,), 5)
FULL = Size("full", 7, 5, 8.0, 2.0, 2.0, 200_000, 4_000_000, (1_000_000, 10_000_000), 7)
SIZES = {size.name: size for size in (QUICK, DEFAULT, FULL)}


@dataclass(frozen=True)
class Cell:
    """One point at which a workload is measured; subclasses add its parameters."""

    @property
    def label(self) -> str:
        raise NotImplementedError

    def rounds(self, size: Size) -> int:
        """Return how often the cell is measured; fewer times, or never, if it has no target."""
        return size.rounds


def counted(number: int, word: str) -> str:
    """Return a number with its noun, in singular or plural."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


C = TypeVar("C", bound=Cell)
_numbers = itertools.count(1)


class Workload(ABC, Generic[C]):
    """A kind of work. Between `with` and its end it may hold resources beside the subjects."""

    name: ClassVar[str]
    title: ClassVar[str]
    text: ClassVar[str]
    metrics: ClassVar[tuple[Metric, ...]]
    subjects: ClassVar[tuple[type[Subject], ...]] = SUBJECTS

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    @abstractmethod
    def cells(self, size: Size) -> Sequence[C]:
        """Return all cells of a full run."""

    @abstractmethod
    def measure(self, subject: Subject, cell: C, size: Size) -> dict[str, float]:
        """Measure one round; return a value for all or some of the metrics."""

    def why_not(self, subject: Subject, cell: C) -> str | None:
        """Return the reason if this cell has no meaning on this subject."""
        return None

    def fresh(self, word: str) -> str:
        """Return a name for a topic, an id or a group that is used once, even if the workload repeats."""
        return f"{self.name}-{word}-{next(_numbers)}"

    @property
    def about(self) -> About:
        return About(self.name, self.title, self.text, self.metrics)


Say = Callable[[str], None]


@contextmanager
def started(makes: Sequence[Callable[[Path], Subject]], results: Results) -> Iterator[list[Subject]]:
    """Start the subjects that are available; note the others."""
    with ExitStack() as stack:
        subjects: list[Subject] = []
        for make in makes:
            try:
                subjects.append(stack.enter_context(running(make)))
            except CannotBuild as error:
                results.skipped.append(Skipped(getattr(make, "name", str(make)), str(error)))
            except (OSError, AssertionError, subprocess.SubprocessError) as error:
                results.skipped.append(Skipped(getattr(make, "name", str(make)), _in_one_line(error)))
        yield subjects


def measure(
    workload: Workload[C], subjects: Sequence[Subject], size: Size, results: Results, say: Say = print
) -> None:
    """Run all rounds of a workload; note it if it cannot run."""
    results.workloads.append(replace(workload.about, measured=results.run))
    with noted(workload.name, results, say), workload:
        _rounds(workload, subjects, size, results, say)


@contextmanager
def noted(what: str, results: Results, say: Say) -> Iterator[None]:
    """Note errors inside the block instead of raising: one error must not lose hours of measurements."""
    try:
        yield
    except CannotBuild as error:
        results.skipped.append(Skipped(what, str(error)))
    except Exception as error:  # noqa: BLE001 - see above
        results.failed.append(Skipped(what, _in_one_line(error)))
        say(f"  {what}: FAILED: {error}")


def _in_one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:REASON_MAX]


def _rounds(
    workload: Workload[C], subjects: Sequence[Subject], size: Size, results: Results, say: Say
) -> None:
    cells = workload.cells(size)
    broken: set[tuple[str, str]] = set()
    for number in range(size.rounds):
        for at, cell in enumerate(cells):
            if number < cell.rounds(size):
                # The cell shifts the order too: if being first is an advantage, every subject has it equally
                # often.
                for subject in _turned(subjects, number + at):
                    if (cell.label, subject.name) not in broken and not _once(
                        workload, subject, cell, size, results, say
                    ):
                        broken.add((cell.label, subject.name))


def _once(workload: Workload[C], subject: Subject, cell: C, size: Size, results: Results, say: Say) -> bool:
    """Measure once; return whether it was measured. If not, it is noted and not tried again."""
    where = f"{workload.name}: {cell.label}: {subject.name}"
    why_not = workload.why_not(subject, cell)
    if why_not is not None:
        results.skipped.append(Skipped(where, why_not))
        return False
    began = time.perf_counter()
    values: dict[str, float] = {}
    with noted(where, results, say):
        values = workload.measure(subject, cell, size)
        results.add(workload.name, cell.label, subject.name, values)
        figures = ", ".join(f"{name} {value:,.4g}" for name, value in values.items())
        say(f"  {where}: {figures} ({time.perf_counter() - began:.1f} s)")
    return bool(values)


def _turned(subjects: Sequence[Subject], number: int) -> list[Subject]:
    """Return the subjects, starting with another one each time."""
    at = number % len(subjects) if subjects else 0
    return [*subjects[at:], *subjects[:at]]
