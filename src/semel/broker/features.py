"""The features of this broker (KIP-584), as ApiVersions tells them to clients. One obvious table.

A line here changes how clients behave:

- the *finalized* level of ``transaction.version`` switches Java and franz-go producers to the second
  generation of transactions (KIP-890): 2 turns it on. It is 0, hence not shown, until transactions are
  served;
- a client takes over finalized features only if their epoch is larger than the largest it has seen, so raise
  ``FEATURES_EPOCH`` with every change of a finalized level.

The APIs are not here: those that have a handler are served, in the versions of ``semel.wire.messages.APIS``.
"""

from typing import Final, NamedTuple


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
    # 2: KIP-890, see above.
    Feature("transaction.version", 0, 2, finalized=0),
)

FEATURES_EPOCH: Final = 1
