"""The steps of a check, each a function of all operations with one key.

1. By transaction: its outcome (`judge_transaction`).
2. By partition, with the outcomes of the transactions that wrote there: what readers received, what they saw
   of each transaction, and what that says about the order of transactions (`judge_partition`).
3. By transaction again, with what was seen of it: whether it was complete (`judge_whole`).
4. By transactional id: whether the previous owners were fenced (`judge_owners`).
5. By partition again, for what groups claimed of it (`judge_groups`).
6. Finally, the order of all transactions (`semel.check.cycles`).

`check` runs them in one process over a dictionary; `semel.spark.pipeline.check` runs the same functions on
Spark.

`check` holds the history in memory and visits every operation a fixed number of times: a million operations
take some tens of seconds. Use Spark for larger histories.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import NamedTuple, TypeAlias

from semel.check import groups, places, reads, writes
from semel.check.catalogue import Anomaly
from semel.check.cycles import Edge, cycles, edges
from semel.check.groups import GroupHistory, GroupOperation
from semel.check.history import (
    NAMES,
    Abort,
    Assign,
    Begin,
    Commit,
    Ends,
    Init,
    Name,
    OffsetCommit,
    OffsetFetch,
    Operation,
    Partition,
    Poll,
    Produce,
    SendOffsets,
    Topic,
    Trim,
)
from semel.check.partitions import PartitionHistory
from semel.check.transactions import (
    Fate,
    Trace,
    error_but_committed,
    fate_of,
    final_fate,
    incomplete,
    two_outcomes,
)
from semel.check.verdict import Tally, Verdict
from semel.check.zombies import Owners, needless_fences, zombies

TRANSACTION = "transaction"
PARTITION = "partition"
OWNER = "owner"
Key: TypeAlias = tuple[str, Name] | tuple[str, str, int]

PARTITION_CHECKS = (
    reads.uncommitted_reads,
    reads.precommitted_reads,
    reads.phantoms,
    reads.reads_past_stable,
    places.inconsistent_offsets,
    places.duplicates,
    places.wrong_acknowledgements,
    places.nonmonotonic_sends,
    places.offset_inversions,
    places.split_transactions,
    reads.nonmonotonic_polls,
    reads.skipped_polls,
    writes.lost_writes,
    places.watermark_regresses,
    places.watermark_orders,
    places.hanging_transactions,
)
GROUP_CHECKS = (
    groups.double_claims,
    groups.skipped_inputs,
    groups.fetched_positions,
    groups.unstable_positions,
)


def routes(operation: Operation) -> Iterator[Key]:
    """Return the keys under which an operation is checked."""
    if isinstance(operation, Produce):
        yield (PARTITION, operation.topic, operation.partition)
        if operation.transaction is not None:
            yield (TRANSACTION, operation.transaction)
    elif isinstance(operation, Poll | Assign | Ends | Trim | OffsetCommit | OffsetFetch):
        yield (PARTITION, operation.topic, operation.partition)
    elif isinstance(operation, SendOffsets):
        yield (TRANSACTION, operation.transaction)
        yield from {(PARTITION, each.topic, each.partition): None for each in operation.claims}
    elif isinstance(operation, Begin | Commit | Abort):
        yield (TRANSACTION, operation.transaction)
    elif isinstance(operation, Init):
        yield (OWNER, operation.transactional_id)


def declared(topics: Iterable[Topic], written: Set[str], name: str) -> Topic:
    """Return the declared or default topic. Without a writer in the history, it must have other writers."""
    found = next((each for each in topics if each.topic == name), Topic(name))
    return found if name in written else found._replace(has_other_writers=True)


def judge_transaction(name: Name, operations: list[Operation]) -> tuple[Fate, list[Anomaly]]:
    """Determine the outcome of a transaction."""
    fate = fate_of(name, operations)
    return fate, list(two_outcomes(fate, operations))


class Input(NamedTuple):
    """The input for checking the groups that read a partition."""

    partition: Partition
    visible: "array[int]"
    operations: list[GroupOperation]


class PartitionResult(NamedTuple):
    """The results of a partition."""

    anomalies: list[Anomaly]
    traces: list[Trace]
    edges: list[Edge]
    input: Input | None


def judge_partition(
    key: Partition, operations: list[Operation], fates: Mapping[Name, Fate], topic: Topic
) -> PartitionResult:
    """Check what readers received of a partition."""
    partition = PartitionHistory(key, operations, fates, topic)
    found = [each for check in PARTITION_CHECKS for each in check(partition)]
    steps = [each for each in operations if isinstance(each, SendOffsets | OffsetCommit | OffsetFetch)]
    return PartitionResult(
        anomalies=found,
        traces=list(writes.traces(partition)),
        edges=list(edges(partition)),
        input=Input(key, array("q", partition.committed.offsets), steps) if steps else None,
    )


def judge_whole(fate: Fate, traces: list[Trace]) -> tuple[Fate, list[Anomaly]]:
    """Check that readers saw a transaction completely; return its outcome with what they know."""
    traces = sorted(traces, key=lambda each: each.partition)
    return final_fate(fate, traces), [*error_but_committed(fate, traces), *incomplete(fate, traces)]


def judge_owners(transactional_id: str, inits: list[Init], fates: list[Fate]) -> list[Anomaly]:
    """Check that previous owners of a transactional id were fenced, and no other producer."""
    owners = Owners(inits)
    return [*zombies(transactional_id, owners, fates), *needless_fences(transactional_id, owners, fates)]


def judge_groups(given: Input, fates: Mapping[Name, Fate]) -> list[Anomaly]:
    """Check that groups read a partition once and completely, and have the right positions."""
    by_group: dict[str, list[GroupOperation]] = {}
    for operation in given.operations:
        by_group.setdefault(operation.group, []).append(operation)
    visible = list(given.visible)
    histories = [
        GroupHistory(name, given.partition, operations, fates, visible)
        for name, operations in by_group.items()
    ]
    return [each for history in histories for check in GROUP_CHECKS for each in check(history)]


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
