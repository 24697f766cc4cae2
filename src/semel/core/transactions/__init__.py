"""Transactions: the rules of the coordinator.

Read in this order: ``states`` (the transitions), ``model`` (which producer and connection may act),
``commands``, ``coordinator`` and ``beginning`` (the decisions), ``joining``, ``ending`` and ``pending``
(their consequences). ``attempts`` is Semel's extension for pipelines: several transactions with one outcome.
"""

from semel.core.facts import FeatureChanged, LatestConnectionChanged, TransactionEnded
from semel.core.groups.lifecycle import expiring
from semel.core.transactions import attempts, beginning, coordinator, pending
from semel.core.transactions.attempts import BeginAttempt, CommitTransactions, TransactionsCommitted
from semel.core.transactions.commands import (
    SUPERSEDED,
    AbortOpen,
    AddOffsets,
    AddPartitions,
    ChangeFeature,
    CommitPending,
    DescribeTransaction,
    EndTransaction,
    ForgetTransaction,
    InitProducer,
    ProducerGiven,
    ReadFeatures,
    VerifyPartitions,
    WriteMarker,
)
from semel.core.types import Apply, Decide

__all__ = [
    "APPLY",
    "DECIDE",
    "SUPERSEDED",
    "AbortOpen",
    "AddOffsets",
    "AddPartitions",
    "BeginAttempt",
    "ChangeFeature",
    "CommitPending",
    "CommitTransactions",
    "DescribeTransaction",
    "EndTransaction",
    "ForgetTransaction",
    "InitProducer",
    "ProducerGiven",
    "ReadFeatures",
    "TransactionsCommitted",
    "VerifyPartitions",
    "WriteMarker",
]

DECIDE: dict[type, Decide] = {
    InitProducer: beginning.init_producer,
    AddPartitions: coordinator.add_partitions,
    VerifyPartitions: coordinator.verify_partitions,
    AddOffsets: coordinator.add_offsets,
    CommitPending: expiring(pending.commit_pending),
    EndTransaction: coordinator.end_transaction,
    BeginAttempt: attempts.begin_attempt,
    CommitTransactions: attempts.commit_transactions,
    AbortOpen: coordinator.abort_open,
    ForgetTransaction: coordinator.forget_transaction,
    DescribeTransaction: coordinator.describe_transaction,
    WriteMarker: coordinator.write_marker,
    ChangeFeature: coordinator.change_feature,
    ReadFeatures: coordinator.read_features,
}

APPLY: dict[type, Apply] = {
    FeatureChanged: coordinator.feature_changed,
    LatestConnectionChanged: coordinator.latest_connection_changed,
    TransactionEnded: lambda state, fact: None,
}
