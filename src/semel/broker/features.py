"""What this broker says it can do: the APIs it serves, and the features of KIP-584.

One obvious table each. ApiVersions is the answer that clients build on, so a line here changes how they
behave:

- an API that is not in ``SERVED`` is not advertised, and a request for it closes the connection;
- the *finalized* level of ``transaction.version`` switches Java and franz-go producers to the second
  generation of transactions (KIP-890): 2 turns it on. It is 0, hence not shown, until transactions are
  served;
- a client takes over finalized features only if their epoch is larger than the largest it has seen, so raise
  ``FEATURES_EPOCH`` with every change of a finalized level.

The versions of each API are in ``semel.wire.messages.APIS``; its handlers are in ``semel.handlers``.
"""

from typing import Final, NamedTuple

from semel.wire.messages import APIS, Api


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

NOT_SERVED: Final = frozenset(
    {
        17,  # SaslHandshake
        24,  # AddPartitionsToTxn
        25,  # AddOffsetsToTxn
        26,  # EndTxn
        27,  # WriteTxnMarkers
        28,  # TxnOffsetCommit
        36,  # SaslAuthenticate
        57,  # UpdateFeatures
        65,  # DescribeTransactions
        66,  # ListTransactions
    }
)
"""APIs that ``wire`` can speak and that no handler answers yet."""

SERVED: Final[dict[int, Api]] = {key: api for key, api in sorted(APIS.items()) if key not in NOT_SERVED}
"""What is advertised and answered, by API key."""
