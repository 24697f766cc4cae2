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
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import NamedTuple, TypeAlias

from semel.check import groups, places, polls, reads, watermarks, writes
from semel.check.catalogue import Anomaly
from semel.check.cycles import Edge, edges
from semel.check.groups import GroupHistory, GroupOperation
from semel.check.history import (
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
    polls.nonmonotonic_polls,
    polls.skipped_polls,
    writes.lost_writes,
    watermarks.watermark_regresses,
    watermarks.watermark_orders,
    watermarks.hanging_transactions,
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
