"""Targets of clusters: faster than Kafka, not dearer with more brokers, short waits in faults."""

from bench.cluster import cost, faults, snapshots, transactions
from bench.cluster.subjects import ClusterOfFour, ClusterOfOne, ClusterOfThree, KafkaOfThree
from bench.figures import median_of, ratio_of
from bench.results import Results
from bench.rows import Row
from bench.side_by_side.comparing import ratio_rows, row_of
from bench.side_by_side.transactions import P99, RATE

COST_MAX = 1.3
"""Processor time with four brokers, divided by that with one."""
SNAPSHOT_MIN = 0.9
"""Transactions per second during a snapshot of ten minutes, divided by those without."""
SNAPSHOT_MAX = 1.1
"""Processor time of PostgreSQL during a snapshot, divided by that without."""
LEASE_MS = 3_000.0
KILL_MS_MAX = LEASE_MS + 1_000.0
RESTART_MS_MAX = 200.0


def rows(results: Results) -> list[Row]:
    """Return the targets that were measured."""
    return [*_beside_kafka(results), *_cost(results), *_faults(results), *_snapshots(results)]


def _beside_kafka(results: Results) -> list[Row]:
    name = transactions.ClusterTransactions.name
    found: list[Row] = []
    for cell in transactions.CELLS:
        for metric, more in ((RATE, True), (P99, False)):
            what = f"cluster, {cell.label}: {metric}, over kafka-3's"
            where = (name, cell.label, metric)
            pair = (ClusterOfThree.name, KafkaOfThree.name)
            found += ratio_rows(results, what, where, pair, 1.0, higher_is_better=more)
    return found


def _cost(results: Results) -> list[Row]:
    found: list[Row] = []
    for unit in (cost.TRANSACTION, cost.GROWING_LOAD, cost.MEGABYTE):
        what = f"cluster, processor time of {unit} with four brokers, over that with one"
        where = (cost.Cost.name, unit, cost.ALL)
        pair = (ClusterOfFour.name, ClusterOfOne.name)
        found += ratio_rows(results, what, where, pair, COST_MAX, higher_is_better=False)
    return found


def _faults(results: Results) -> list[Row]:
    found: list[Row] = []
    for what, metric, target in (
        (faults.KILL, faults.LONGEST, KILL_MS_MAX),
        (faults.RESTART, faults.LONGEST, RESTART_MS_MAX),
        (faults.RESTART, faults.ERRORS, 0.0),
    ):
        ours = results.find(faults.Faults.name, what, ClusterOfThree.name, metric)
        if ours is not None:
            name = f"cluster, {what}: {metric}{', ms' if metric == faults.LONGEST else ''}"
            found.append(row_of(name, median_of(ours.values), target, higher_is_better=False))
    return found


def _snapshots(results: Results) -> list[Row]:
    found: list[Row] = []
    for cell in snapshots.CELLS:
        for what, held, free, target, more in (
            ("transactions per second", snapshots.HELD, snapshots.FREE, SNAPSHOT_MIN, True),
            (
                "processor time of PostgreSQL",
                *(snapshots.POSTGRES_HELD, snapshots.POSTGRES_FREE, SNAPSHOT_MAX, False),
            ),
        ):
            mine, other = (
                results.find(snapshots.OldSnapshots.name, cell.label, ClusterOfOne.name, each)
                for each in (held, free)
            )
            if mine is not None and other is not None:
                name = f"cluster, {what} with {cell.label}, over that without"
                found.append(row_of(name, ratio_of(mine.values, other.values), target, higher_is_better=more))
    return found
