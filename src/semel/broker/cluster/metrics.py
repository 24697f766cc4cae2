"""Registers the metrics of a broker in a cluster."""

from semel.broker.cluster.announcing import NoticeSender
from semel.broker.cluster.commit_loop import SharedCommitLoop
from semel.broker.cluster.member import ClusterMember
from semel.broker.cluster.shard_ownership import ShardOwnership
from semel.broker.metrics import Metrics
from semel.store.cluster.contract import SharedStore


def register(
    metrics: Metrics,
    ownership: ShardOwnership,
    sender: NoticeSender,
    loop: SharedCommitLoop,
    member: ClusterMember,
    store: SharedStore,
) -> None:
    """Register the metrics of shards, leases, notices, conflicts and the shared ledger."""
    gauge, counter = metrics.gauge, metrics.counter
    gauge("shards_owned", "Shards that this broker serves.", lambda: len(ownership.shards()))
    gauge("shards_without_owner", "Shards that no broker owns.", lambda: len(ownership.unowned()))
    gauge("live_brokers", "Brokers whose lease runs, this one included.", lambda: len(ownership.nodes()))
    gauge(
        "lease_seconds", "How long the lease of this broker runs; 0 if it is over.", ownership.lease_seconds
    )
    gauge(
        "waiting_answers",
        "Committed ticks that are answered when other brokers have their notices.",
        lambda: len(loop.unannounced),
    )
    gauge(
        "oldest_snapshot_seconds",
        "Age of the oldest snapshot that others hold in PostgreSQL; 0 if none, or if it is not known.",
        lambda: store.oldest_snapshot.seconds,
        lambda: {"holder": store.oldest_snapshot.holder},
    )
    gauge(
        "oldest_snapshot_transactions",
        "Transactions since the oldest snapshot that others hold in PostgreSQL; 0 if there is none.",
        lambda: store.oldest_snapshot.transactions,
        lambda: {"holder": store.oldest_snapshot.holder},
    )
    counter(
        "conflicts",
        "Ticks decided again, because another broker had changed what they read.",
        lambda: loop.conflicts,
    )
    counter("notices_sent", "Messages with notices that other brokers have taken.", lambda: sender.sent)
    counter("notices_left", "Messages with notices left in the ledger.", lambda: sender.left)
    counter("notices_received", "Messages with notices of other brokers.", lambda: member.received)
    counter("lost_rows", "How often a row was met that the ledger has lost.", lambda: store.lost_rows)
