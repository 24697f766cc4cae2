"""The harness: workloads, their cells and sizes, and rounds in which the subjects take turns.

A round measures every cell on every subject, one right after the other and in another order each time, so
that what the machine does meanwhile meets all of them alike. What cannot be measured is noted with the
reason, and the rest goes on.
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
"""Characters of a reason: an error may bring a whole log."""


@dataclass(frozen=True)
class Size:
    """How much is done."""

    name: str
    rounds: int
    """Of cells that the bar is about."""
    rounds_of_others: int
    warm_seconds: float
    """Of one window in which every subject works before it is measured."""
    seconds: float
    """Of one measurement that goes by the clock."""
    seconds_of_others: float
    """The same, of transactions that no target is about."""
    records: int
    """Of one measurement that goes by the number of records, at 1 KiB."""
    rows: int
    """That Spark reads and writes."""
    batches: tuple[int, ...]
    """That a broker has when it is started again."""
    doublings: int


# Quick is for seeing that everything works: Java is not warm by then, so that its figures say little.
QUICK = Size("quick", 1, 0, 2.0, 0.4, 0.4, 40_000, 100_000, (20_000,), 3)
DEFAULT = Size("default", 3, 1, 6.0, 1.5, 0.5, 100_000, 600_000, (1_000_000,), 5)
FULL = Size("full", 7, 5, 8.0, 2.0, 2.0, 200_000, 4_000_000, (1_000_000, 10_000_000), 7)
SIZES = {size.name: size for size in (QUICK, DEFAULT, FULL)}


@dataclass(frozen=True)
class Cell:
    """One point at which a workload is measured; subclasses add what it depends on."""

    @property
    def label(self) -> str:
        raise NotImplementedError

    def rounds(self, size: Size) -> int:
        """How often it is measured; fewer times, or never, if no target is about it."""
        return size.rounds


def counted(number: int, word: str) -> str:
    """A number of things, or one of them."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


C = TypeVar("C", bound=Cell)
_numbers = itertools.count(1)


class Workload(ABC, Generic[C]):
    """A kind of work. It may hold what it needs beside the subjects, from `with` until its end."""

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
        """All that a full run measures."""

    @abstractmethod
    def measure(self, subject: Subject, cell: C, size: Size) -> dict[str, float]:
        """One round: a value for each metric, or for some of them."""

    def why_not(self, subject: Subject, cell: C) -> str | None:
        """The reason, if this cell has no meaning on this subject."""
        return None

    def fresh(self, word: str) -> str:
        """A name for a topic, an id or a group that is used once, also if the workload is done again."""
        return f"{self.name}-{word}-{next(_numbers)}"

    @property
    def about(self) -> About:
        return About(self.name, self.title, self.text, self.metrics)


Say = Callable[[str], None]


@contextmanager
def started(makes: Sequence[Callable[[Path], Subject]], results: Results) -> Iterator[list[Subject]]:
    """Those subjects that can be had; the others are noted."""
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
    """All rounds of a workload; one that cannot be held is noted."""
    results.workloads.append(replace(workload.about, measured=results.run))
    with noted(workload.name, results, say), workload:
        _rounds(workload, subjects, size, results, say)


@contextmanager
def noted(what: str, results: Results, say: Say) -> Iterator[None]:
    """What goes wrong inside is told in the end: hours of measurements are not lost for one of them."""
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
                # By the cell, too: who is first is at an advantage, or not, and that has to go around.
                for subject in _turned(subjects, number + at):
                    if (cell.label, subject.name) not in broken and not _once(
                        workload, subject, cell, size, results, say
                    ):
                        broken.add((cell.label, subject.name))


def _once(workload: Workload[C], subject: Subject, cell: C, size: Size, results: Results, say: Say) -> bool:
    """Whether it was measured; if not, it is noted and not tried again."""
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
    """The same, begun with another one each time."""
    at = number % len(subjects) if subjects else 0
    return [*subjects[at:], *subjects[:at]]
