"""The results of a run, as stored in results/benchmarks.json."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.rows import Row

NAMED_MAX = 4
"""The largest number of items that are all named if they share a reason."""
BARS = "bars"
"""The name of the earlier targets, as a part of a run."""


@dataclass(frozen=True)
class Metric:
    """One figure of a workload."""

    name: str
    unit: str
    higher_is_better: bool = True


@dataclass(frozen=True)
class About:
    """A workload's texts for the page, and the run that has measured it."""

    name: str
    title: str
    text: str
    metrics: tuple[Metric, ...]
    measured: str = ""


@dataclass
class Series:
    """The values of one figure, one for each measured round."""

    workload: str
    cell: str
    subject: str
    metric: str
    values: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Skipped:
    """What was not measured, and why."""

    what: str
    why: str


@dataclass
class Results:
    """The results of one run."""

    size: str
    environment: dict[str, str]
    workloads: list[About] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    failed: list[Skipped] = field(default_factory=list)
    bars: list[Row] = field(default_factory=list)
    """Earlier targets, each from its own measurement."""
    bars_measured: str = ""
    seconds: float = 0.0

    @property
    def run(self) -> str:
        """The commit, date and size that identify this run."""
        commit, date = self.environment.get("commit", "unknown"), self.environment.get("date", "unknown")
        return f"commit {commit}, {date}, size {self.size}"

    def add(self, workload: str, cell: str, subject: str, values: dict[str, float]) -> None:
        """Add one round of one cell."""
        for metric, value in values.items():
            found = self.find(workload, cell, subject, metric)
            if found is None:
                found = Series(workload, cell, subject, metric)
                self.series.append(found)
            found.values.append(value)

    def find(self, workload: str, cell: str, subject: str, metric: str) -> Series | None:
        wanted = (workload, cell, subject, metric)
        for each in self.series:
            if (each.workload, each.cell, each.subject, each.metric) == wanted:
                return each
        return None

    def of(self, workload: str) -> list[Series]:
        return [each for each in self.series if each.workload == workload]

    def left_out(self) -> list[str]:
        """List what was not measured, and why; items with the same reason share a line."""
        lines = by_reason((each.what, each.why) for each in self.skipped)
        return lines + [f"**failed** {each.what}: {each.why}" for each in self.failed]

    def write(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "Results":
        kept = json.loads(path.read_text(encoding="utf-8"))
        about = [
            About(**{**each, "metrics": tuple(Metric(**metric) for metric in each["metrics"])})
            for each in kept["workloads"]
        ]
        return cls(
            size=kept["size"],
            environment=kept["environment"],
            workloads=about,
            series=[Series(**each) for each in kept["series"]],
            skipped=[Skipped(**each) for each in kept["skipped"]],
            failed=[Skipped(**each) for each in kept["failed"]],
            bars=[Row(**each) for each in kept["bars"]],
            bars_measured=kept["bars_measured"],
            seconds=kept["seconds"],
        )

    def replace(self, others: "Results") -> None:
        """Replace what another run has measured, and keep everything else.

        A note belongs to a workload, or to a whole subject: it is replaced if that was measured again.
        """
        names = {each.name for each in others.workloads}
        anew = names | {each.subject for each in others.series}
        if others.bars:
            self.bars, self.bars_measured = others.bars, others.bars_measured
            anew.add(BARS)
        self.workloads = [each for each in self.workloads if each.name not in names] + others.workloads
        self.series = [each for each in self.series if each.workload not in names] + others.series
        self.skipped = _joined(self.skipped, others.skipped, anew)
        self.failed = _joined(self.failed, others.failed, anew)
        self.environment, self.size = others.environment, others.size
        self.seconds += others.seconds


def by_reason(notes: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line for each reason, with everything it applies to, or with the first of many."""
    reasons: dict[str, list[str]] = {}
    for what, why in notes:
        reasons.setdefault(why, []).append(what)
    return [
        f"{'; '.join(whats)}: {why}"
        if len(whats) <= NAMED_MAX
        else f"{whats[0]} and {len(whats) - 1} more: {why}"
        for why, whats in reasons.items()
    ]


def _joined(kept: Iterable[Skipped], new: Iterable[Skipped], anew: set[str]) -> list[Skipped]:
    """Join notes, dropping kept ones about what was measured again; of two about the same, keep the newer."""
    still = [each for each in kept if each.what.partition(":")[0] not in anew]
    return list({each.what: each for each in (*still, *new)}.values())
