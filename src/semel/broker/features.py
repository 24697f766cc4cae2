"""The features of this broker (KIP-584), as ApiVersions tells them to clients. One obvious table.

A level here changes how clients behave: the finalized level of ``transaction.version`` switches Java and
franz-go producers to the second generation of transactions (KIP-890) at 2. It is the only one that can be
changed while the broker runs, so the ledger has it, together with the epoch of the features: a client takes
over finalized levels only if their epoch is larger than the largest it has seen.

Those that begin with ``semel.`` are our own, and say that this is Semel: clients of ours use what they stand
for, others pass over them. ``semel.extensions.enable=false`` hides them.

The APIs are not here: those that have a handler are served, in the versions of ``semel.wire.messages.APIS``.
"""

from typing import Final, NamedTuple

from semel.core.types import Cluster
from semel.wire.messages.semel import COMMIT_TRANSACTIONS

TRANSACTION_VERSION: Final = "transaction.version"
SNAPSHOT: Final = "semel.snapshot"
OWN: Final = "semel."


class Feature(NamedTuple):
    """The levels a broker could run at, and the one it runs at (0: the feature is off)."""

    name: str
    min_level: int
    max_level: int
    finalized: int


FEATURES: Final = (
    # The format of Kafka's own metadata log, which we do not have; clients only show it. 30 is Kafka 4.3.
    Feature("metadata.version", 7, 30, finalized=30),
    # 1: the KIP-848 consumer protocol.
    Feature("group.version", 0, 1, finalized=1),
    # 2: KIP-890, see above. The level of a new cluster.
    Feature(TRANSACTION_VERSION, 0, 2, finalized=Cluster().transaction_version),
    # Ours. 1: the ends that one ListOffsets asks for are those after one and the same commit.
    # 2: ListOffsets also tells how often a partition was compacted, and holds compaction.
    Feature(SNAPSHOT, 1, 2, finalized=2),
    # Ours. 1: CommitTransactions and BeginAttempt, which are API keys from 20000 on.
    Feature(COMMIT_TRANSACTIONS, 1, 1, finalized=1),
)


def features(*, extensions: bool) -> list[Feature]:
    """Those that clients are told of."""
    return [each for each in FEATURES if extensions or not each.name.startswith(OWN)]


def finalized_levels(cluster: Cluster, *, extensions: bool) -> dict[str, int]:
    """The level that each feature runs at, now."""
    return {
        **{each.name: each.finalized for each in features(extensions=extensions)},
        TRANSACTION_VERSION: cluster.transaction_version,
    }
