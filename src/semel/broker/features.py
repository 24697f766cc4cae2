"""The features of this broker (KIP-584), as ApiVersions tells them to clients. One obvious table.

A level here changes how clients behave: the finalized level of ``transaction.version`` switches Java and
franz-go producers to the second generation of transactions (KIP-890) at 2. It is the only one that can be
changed while the broker runs, so the ledger has it, together with the epoch of the features: a client takes
over finalized levels only if their epoch is larger than the largest it has seen.

The APIs are not here: those that have a handler are served, in the versions of ``semel.wire.messages.APIS``.
"""

from typing import Final, NamedTuple

from semel.core.types import Cluster

TRANSACTION_VERSION: Final = "transaction.version"


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
)


def finalized_levels(cluster: Cluster) -> dict[str, int]:
    """The level that each feature runs at, now."""
    return {
        **{each.name: each.finalized for each in FEATURES},
        TRANSACTION_VERSION: cluster.transaction_version,
    }
