"""Counts the anomalies found so far, and keeps the first few of each as examples."""

from collections import Counter
from collections.abc import Iterable

from semel.check.catalogue import Anomaly
from semel.check.history import Topic

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
