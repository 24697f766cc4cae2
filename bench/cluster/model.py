"""A model of a cluster of a hundred brokers: its first bottleneck, computed from figures of four brokers."""

import statistics

from bench.cluster import cost
from bench.cluster.subjects import ClusterOfFour
from bench.figures import number
from bench.results import Results

BROKERS, CORES = 100, 32
SHARDS = 256
CONNECTIONS = 8
"""The most connections of each broker to PostgreSQL."""


def on_paper(results: Results) -> str:
    """Return a paragraph; nothing if four brokers were not measured."""

    def figure(metric: str) -> float | None:
        found = results.find(cost.Cost.name, cost.GROWING_LOAD, ClusterOfFour.name, metric)
        return statistics.median(found.values) if found is not None and found.values else None

    brokers, postgres, commits = figure(cost.BROKERS), figure(cost.POSTGRES), figure(cost.COMMITS)
    if not brokers or not postgres or not commits:
        return ""
    most = CORES / (postgres / 1e3)
    return (
        f"\n**A hundred brokers, on paper.** With four brokers and a growing load, a transaction costs"
        f" {number(postgres)} ms of PostgreSQL and {number(brokers)} ms of the brokers. Brokers add up:"
        f" {BROKERS} cores of them are enough for {number(BROKERS / (brokers / 1e3))} such transactions a"
        f" second. PostgreSQL does not: on {CORES} cores it is busy with {number(most)}, that is"
        f" {number(most * commits)} commits a second, each with its record in one write-ahead log. So"
        " PostgreSQL gives out first, by its processors or by the flushes of that log, and more brokers than"
        f" {number(most * (brokers / 1e3))} with one core each are of no use for transactions. Two limits are"
        f" near: {BROKERS} brokers may hold {BROKERS * CONNECTIONS} connections"
        " (`max_connections`), and"
        f" {SHARDS} shards are {SHARDS / BROKERS:.1f} for each broker, so some have twice the work of others."
        " Bytes are no such limit: large requests go to the object store, and PostgreSQL gets a row.\n"
    )
