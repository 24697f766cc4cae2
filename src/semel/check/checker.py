"""`check`: checks a history in one process.

The history is held in memory, and every operation is visited a fixed number of times: a million operations
take some tens of seconds. Use `semel.spark.pipeline.check` for larger histories.
"""

from collections import Counter
from collections.abc import Iterable

from semel.check.cycles import Edge, cycles
from semel.check.history import NAMES, Init, Name, Operation, Produce, Topic
from semel.check.stages import (
    OWNER,
    PARTITION,
    TRANSACTION,
    Input,
    Key,
    declared,
    judge_groups,
    judge_owners,
    judge_partition,
    judge_transaction,
    judge_whole,
    routes,
)
from semel.check.tally import Tally
from semel.check.transactions import Fate, Trace
from semel.check.verdict import Verdict


def check(operations: Iterable[Operation]) -> Verdict:
    """Search for every anomaly of the catalogue."""
    history = _Grouped(operations)
    tally = Tally()
    fates: dict[Name, Fate] = {}
    for name, steps in history.by(TRANSACTION):
        fates[name], found = judge_transaction(name, steps)
        tally.add(found)
    traces, edges, inputs = _partitions(history, fates, tally)
    for name, fate in fates.items():
        fates[name], found = judge_whole(fate, traces.get(name, []))
        tally.add(found)
    by_owner: dict[str, list[Fate]] = {}
    for fate in fates.values():
        if fate.transactional_id is not None:
            by_owner.setdefault(fate.transactional_id, []).append(fate)
    for name, steps in history.by(OWNER):
        inits = [each for each in steps if isinstance(each, Init)]
        tally.add(judge_owners(str(name), inits, by_owner.get(str(name), [])))
    for given in inputs:
        tally.add(judge_groups(given, fates))
    tally.add(cycles(edges))
    return Verdict.of(history.counts, Counter(each.outcome for each in fates.values()), tally)


def _partitions(
    history: "_Grouped", fates: dict[Name, Fate], tally: Tally
) -> tuple[dict[Name, list[Trace]], list[Edge], list[Input]]:
    traces: dict[Name, list[Trace]] = {}
    edges: list[Edge] = []
    inputs: list[Input] = []
    for key, steps in history.partitions():
        topic = declared(history.topics, history.written, key[0])
        result = judge_partition(key, steps, fates, topic)
        tally.add(result.anomalies)
        edges += result.edges
        for trace in result.traces:
            traces.setdefault(trace.transaction, []).append(trace)
        if result.input is not None:
            inputs.append(result.input)
    return traces, edges, inputs


class _Grouped:
    """The operations of a history, grouped by their subject."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self.topics: list[Topic] = []
        self.written: set[str] = set()
        self.counts: Counter[tuple[str, str]] = Counter()
        self._groups: dict[Key, list[Operation]] = {}
        for operation in operations:
            self._take(operation)

    def _take(self, operation: Operation) -> None:
        if isinstance(operation, Topic):
            self.topics.append(operation)
            return
        self.counts[NAMES[type(operation)], operation.outcome] += 1
        if isinstance(operation, Produce):
            self.written.add(operation.topic)
        for key in routes(operation):
            group = self._groups.get(key)
            if group is None:
                self._groups[key] = [operation]
            else:
                group.append(operation)

    def by(self, kind: str) -> list[tuple[Name, list[Operation]]]:
        """Return all transactions, or all transactional ids, with their operations."""
        return [(key[1], steps) for key, steps in self._groups.items() if key[0] == kind]

    def partitions(self) -> list[tuple[tuple[str, int], list[Operation]]]:
        """Return all partitions with their operations."""
        return [
            ((str(key[1]), key[2]), steps)
            for key, steps in self._groups.items()
            if key[0] == PARTITION and len(key) == 3
        ]
