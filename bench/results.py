"""Everything that a run has measured, as it is kept in results/benchmarks.json."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.rows import Row


@dataclass(frozen=True)
class Metric:
    """One figure of a workload."""

    name: str
    unit: str
    higher_is_better: bool = True


@dataclass(frozen=True)
class About:
    """What a workload is, for the page."""

    name: str
    title: str
    text: str
    metrics: tuple[Metric, ...]


@dataclass
class Series:
    """The values of one figure, one for each round that was measured."""

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
    """A run."""

    size: str
    environment: dict[str, str]
    workloads: list[About] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    failed: list[Skipped] = field(default_factory=list)
    bars: list[Row] = field(default_factory=list)
    """The targets of earlier work, by what is measured for them alone."""
    seconds: float = 0.0

    def add(self, workload: str, cell: str, subject: str, values: dict[str, float]) -> None:
        """One round of one cell."""
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
        """What was not measured, and why; what has the same reason is put together."""
        reasons: dict[str, list[str]] = {}
        for each in self.skipped:
            reasons.setdefault(each.why, []).append(each.what)
        lines = []
        for why, whats in reasons.items():
            more = f" and {len(whats) - 1} more" if len(whats) > 1 else ""
            lines.append(f"{whats[0]}{more}: {why}")
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
            seconds=kept["seconds"],
        )

    def replace(self, others: "Results") -> None:
        """Take what another run has measured anew, and keep what it has not."""
        names = {each.name for each in others.workloads}
        self.workloads = [each for each in self.workloads if each.name not in names] + others.workloads
        self.series = [each for each in self.series if each.workload not in names] + others.series
        self.skipped, self.failed = _joined(self.skipped, others.skipped), others.failed
        self.bars = others.bars or self.bars
        self.environment, self.size = others.environment, others.size


def _joined(kept: Iterable[Skipped], new: Iterable[Skipped]) -> list[Skipped]:
    return list({each.what: each for each in (*kept, *new)}.values())
