"""The features of this broker (KIP-584), as ApiVersions lists them.

A level changes how clients behave: level 2 of ``transaction.version`` switches Java and franz-go producers to
the second generation of transactions (KIP-890). It is the only level that can change while the broker runs,
so it is stored in the ledger, together with the epoch of the features: a client adopts finalized levels only
if their epoch is larger than the largest it has seen.

Features that begin with ``semel.`` are Semel's own: its clients use them, other clients ignore them.
``semel.extensions.enable=false`` hides them.

APIs are not features: those with a handler are served, in the versions of ``semel.wire.messages.APIS``.
"""

from typing import Final, NamedTuple

from semel.core.types import Cluster
from semel.wire.messages.semel import COMMIT_TRANSACTIONS

TRANSACTION_VERSION: Final = "transaction.version"
SNAPSHOT: Final = "semel.snapshot"
OWN: Final = "semel."


class Feature(NamedTuple):
    """The levels that a broker supports, and the one in force (0: the feature is off)."""

    name: str
    min_level: int
    max_level: int
    finalized: int


FEATURES: Final = (
    # The format of Kafka's metadata log, which Semel does not have; clients only show it. 30 is Kafka 4.3.
    Feature("metadata.version", 7, 30, finalized=30),
    # 1: the KIP-848 consumer protocol.
    Feature("group.version", 0, 1, finalized=1),
    # 1: share groups (KIP-932).
    Feature("share.version", 0, 1, finalized=1),
    # 2: KIP-890, see above. The level of a new cluster.
    Feature(TRANSACTION_VERSION, 0, 2, finalized=Cluster().transaction_version),
    # Semel's own. 1: the ends in one ListOffsets response are those after the same commit.
    # 2: ListOffsets also returns how often a partition was compacted, and holds compaction.
    # 3: any broker of a cluster returns the ends of all partitions after the same commit.
    Feature(SNAPSHOT, 1, 3, finalized=3),
    # Semel's own. 1: API keys from 20000 on, if ApiVersions lists them, are those of wire/messages/semel.py.
    Feature(COMMIT_TRANSACTIONS, 1, 1, finalized=1),
)


def features(*, extensions: bool) -> list[Feature]:
    """The features that ApiVersions lists."""
    return [each for each in FEATURES if extensions or not each.name.startswith(OWN)]


def finalized_levels(cluster: Cluster, *, extensions: bool) -> dict[str, int]:
    """The current level of each feature."""
    return {
        **{each.name: each.finalized for each in features(extensions=extensions)},
        TRANSACTION_VERSION: cluster.transaction_version,
    }
