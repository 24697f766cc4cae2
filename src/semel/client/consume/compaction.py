"""Queries how often a partition was compacted, and asks the broker to hold compaction.

Brokers with the feature `semel.snapshot` at level 2 serve both through ListOffsets. If the number is the same
before and after a read, no record was removed meanwhile. A hold makes that likely: compaction skips the
partition until the hold ends. A hold is no proof, because a broker limits its holds and loses them when it
restarts; only the number is.
"""

from collections.abc import Iterable
from typing import NamedTuple

from semel.client.consume.offsets import Partition, list_offsets
from semel.client.net.cluster import Client

FEATURE = "semel.snapshot"
FEATURE_LEVEL = 2
#: Timestamps with a special meaning to Semel.
COMPACTIONS = -1001
HOLD_COMPACTION = -1002


class Compactions(NamedTuple):
    """How often batches of a partition were replaced, and for how long compaction is held."""

    number: int
    held_ms: int  # -1 if compaction is not held, or the topic is not compacted


def tells_compactions(client: Client) -> bool:
    """Whether the brokers support the queries of this module."""
    return client.feature(FEATURE) >= FEATURE_LEVEL


def compactions(
    client: Client, partitions: Iterable[Partition], *, hold: bool = False
) -> dict[Partition, Compactions]:
    """Return how often each partition was compacted; with `hold`, also hold compaction from now on."""
    wanted = dict.fromkeys(partitions, HOLD_COMPACTION if hold else COMPACTIONS)
    return {key: Compactions(*each) for key, each in list_offsets(client, wanted).items()}
