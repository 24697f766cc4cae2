"""Verdicts: what was checked and what was found, for people and for programs.

A `Tally` counts the anomalies found so far, and keeps the first few of each as examples.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from semel.check.catalogue import DEFINITIONS, Anomaly
from semel.check.history import NAMES, Operation, Topic

#: How many of each anomaly are kept with their proof; the others are only counted.
EXAMPLES = 3


def order(anomaly: Anomaly) -> tuple[int, str, str]:
    """Return the sort key of an anomaly: earlier ones first, in the same order in every run."""
    times = [each.started for each in anomaly.proof if not isinstance(each, Topic)]
    return (min(times, default=0), anomaly.where, anomaly.says)


class Tally:
    """Counts and examples, which can be merged."""

    def __init__(self, anomalies: Iterable[Anomaly] = ()) -> None:
        self.counts: Counter[str] = Counter()
        self._examples: dict[str, list[Anomaly]] = {}
        self.add(anomalies)

    def add(self, anomalies: Iterable[Anomaly]) -> None:
        """Add anomalies."""
        for each in anomalies:
            self.counts[each.name] += 1
            self._keep(each)

    def merge(self, other: "Tally") -> None:
        """Add another tally."""
        self.counts.update(other.counts)
        for examples in other._examples.values():
            for each in examples:
                self._keep(each)

    def _keep(self, anomaly: Anomaly) -> None:
        kept = self._examples.setdefault(anomaly.name, [])
        kept.append(anomaly)
        if len(kept) > EXAMPLES:
            kept.sort(key=order)
            kept.pop()

    def examples(self, name: str) -> list[Anomaly]:
        """Return the examples of an anomaly."""
        return sorted(self._examples.get(name, ()), key=order)


#: Fields that a line of a proof does not show by name.
_PLAIN = frozenset({"process", "started", "ended", "outcome"})


class Verdict(NamedTuple):
    """The result of a check."""

    operations: dict[str, dict[str, int]]
    """By kind, the number of operations that ended ok, fail and info."""
    transactions: dict[str, int]
    """The number of committed, aborted and unknown transactions."""
    anomalies: dict[str, int]
    """The number of each anomaly that was found, by name."""
    examples: list[Anomaly]
    """The first few of each, with their proof."""

    @classmethod
    def of(
        cls, operations: Mapping[tuple[str, str], int], transactions: Mapping[str, int], tally: Tally
    ) -> "Verdict":
        """Build a verdict from the counts of operations and transactions, and the anomalies."""
        by_kind: dict[str, dict[str, int]] = {}
        for (kind, outcome), count in sorted(operations.items()):
            by_kind.setdefault(kind, {})[outcome] = count
        names = [each for each in DEFINITIONS if tally.counts[each]]
        return cls(
            operations=by_kind,
            transactions=dict(sorted(transactions.items())),
            anomalies={name: tally.counts[name] for name in names},
            examples=[each for name in names for each in tally.examples(name)],
        )

    @property
    def is_clean(self) -> bool:
        """Whether no anomaly was found."""
        return not self.anomalies

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as values for programs."""
        return {
            "is_clean": self.is_clean,
            "operations": self.operations,
            "transactions": self.transactions,
            "anomalies": [
                {
                    "name": name,
                    "definition": DEFINITIONS[name],
                    "count": count,
                    "examples": [_as_json(each) for each in self.examples if each.name == name],
                }
                for name, count in self.anomalies.items()
            ],
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        outcomes: Counter[str] = Counter()
        for counts in self.operations.values():
            outcomes.update(counts)
        yield f"{_many(outcomes.total(), 'operation')}: {_counted(outcomes, ('ok', 'fail', 'info'))}"
        fates = Counter(self.transactions)
        summary = _counted(fates, ("committed", "aborted", "unknown"))
        yield f"{_many(fates.total(), 'transaction')}: {summary}"
        if self.is_clean:
            yield "No anomalies."
            return
        total = sum(self.anomalies.values())
        yield "1 anomaly." if total == 1 else f"{total:,} anomalies."
        for name, count in self.anomalies.items():
            yield ""
            yield (
                f"{name}, {count:,} times: {DEFINITIONS[name]}."
                if count != 1
                else f"{name}: {DEFINITIONS[name]}."
            )
            for example in self.examples:
                if example.name == name:
                    yield f"  {example.where}: {example.says}"
                    yield from (f"    {describe(each)}" for each in example.proof)


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _counted(counts: Mapping[str, int], names: tuple[str, ...]) -> str:
    return ", ".join(f"{counts.get(name, 0):,} {name}" for name in names)


def _as_json(anomaly: Anomaly) -> dict[str, Any]:
    proof = [{"op": NAMES[type(each)], **each._asdict()} for each in anomaly.proof]
    return {"where": anomaly.where, "says": anomaly.says, "proof": proof}


def describe(operation: Operation) -> str:
    """Format an operation in one line: when, which process, what, and its outcome."""
    kind = type(operation)
    fields = operation._asdict()
    summary = " ".join(
        f"{name}={_shown(value)}"
        for name, value in fields.items()
        if name not in _PLAIN and (name not in kind._field_defaults or value != kind._field_defaults[name])
    )
    if isinstance(operation, Topic):
        return f"{NAMES[kind]} {summary}"
    ended = "…" if operation.ended is None else operation.ended
    when = f"[{operation.started}–{ended}]"
    return f"{when} process {operation.process}: {NAMES[kind]} {summary}: {operation.outcome}"


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_shown, value)) + "]"
    return repr(value) if isinstance(value, str) else str(value)
