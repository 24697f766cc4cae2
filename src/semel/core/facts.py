"""All facts. Facts are the only input of the ledger.

A fact is immutable and named in the past tense. ``DURABLE`` facts are written to the ledger; the others
change only state that a broker may lose (parked requests, when a member was last heard from).

``Put`` gives an entity its complete new value, so applying it needs no rule. A fact about batches says which
of them to add, move or remove; if that changes their partition, a ``Put`` of the partition follows. The other
facts change many entities at once, or a counter.

The facts of a tick are in the order in which they became true.
"""

from enum import StrEnum
from typing import TYPE_CHECKING

from semel.core import types
from semel.core.data import Data

if TYPE_CHECKING:
    from semel.core.groups.model import Group
    from semel.core.groups.session import GroupSession
    from semel.core.shares.partition import Locks


class Put(types.Fact):
    """An entity has a new value, or is gone (None). ``entities`` lists the kinds of entities."""

    key: types.Key
    value: types.Value | None

    @staticmethod
    def of(value: "types.Transaction | Group") -> "Put":
        """Return the fact for a value that names its own entity."""
        return Put(value.key, value)


class TopicCreated(types.Fact):
    """A topic was created, with empty partitions."""

    topic: types.Topic


class TopicChanged(types.Fact):
    """A topic has new configs, or more partitions (the new ones are empty)."""

    topic: types.Topic


class TopicDeleted(types.Fact):
    """A topic was deleted with its partitions, their producers, and all group offsets on it, also pending."""

    topic: types.Topic


class Closing(Data):
    """The effect of a marker: the transaction of its producer is no longer open.

    ``last_stable_offset`` is the partition's new one. A response whose range overlaps the offsets from
    ``first_offset`` to the marker lists the transaction if it was aborted.
    """

    first_offset: int
    last_stable_offset: int
    is_commit: bool


class BatchAppended(types.Fact):
    """A batch was appended. Its bytes travel beside the facts; the store chooses their location."""

    partition: types.PartitionKey
    base_offset: int
    last_offset: int
    max_timestamp: int
    peak_timestamp: int
    size_bytes: int
    producer_id: int
    is_transactional: bool
    opens_transaction: bool
    closes: Closing | None = None
    """Set only for the marker that ends the producer's transaction."""


class LogStartAdvanced(types.Fact):
    """Everything below this offset was deleted."""

    partition: types.PartitionKey
    log_start_offset: int


class BatchesReplaced(types.Fact):
    """Compaction rewrote or removed batches. No offset has changed.

    The bytes of the rewritten batches travel beside the facts, in the same order.
    """

    partition: types.PartitionKey
    rewritten: tuple[types.Rewritten, ...]
    removed: tuple[int, ...]
    """Base offsets of the removed batches. Removing the marker of an aborted transaction also removes the
    transaction from the aborted ones: none of its data remains by then."""


class BatchStaged(types.Fact):
    """A batch was staged until the outcome of its transaction is known. Its bytes travel beside the facts."""

    partition: types.PartitionKey
    producer_id: int
    offsets: int
    """How many offsets the batch takes when it is committed."""
    max_timestamp: int
    size_bytes: int


class StagedCommitted(types.Fact):
    """The staged batches of a producer were added to the log at these offsets, in staging order."""

    partition: types.PartitionKey
    producer_id: int
    base_offset: int
    last_offset: int
    peak_before: int
    """The partition's peak timestamp before these batches. The peak of each batch includes all before it."""
    peak_timestamp: int
    """The peak of the last batch."""


class StagedDropped(types.Fact):
    """The staged batches of a producer in a partition were discarded."""

    partition: types.PartitionKey
    producer_id: int


class EndReason(StrEnum):
    """Why an open transaction ended."""

    CLIENT = "client"
    FENCED = "fenced"
    TIMEOUT = "timeout"
    DISCONNECT = "disconnect"
    TERM = "term"
    ADMIN = "admin"


class TransactionEnded(types.Fact):
    """An open transaction has ended. For metrics and audit: the durable fact is a ``Put``."""

    transactional_id: str
    is_commit: bool
    reason: EndReason


class ProducerIdAllocated(types.Fact):
    """A producer id was allocated. It is never allocated again."""

    producer_id: int


class FeatureChanged(types.Fact):
    """The transaction version that is announced to clients has changed."""

    transaction_version: int
    features_epoch: int


class GroupGathered(types.Fact):
    """Members joined or left while a classic group prepares its next, unannounced generation. Not durable.

    The generation is written when it starts. If the broker restarts before that, the members join again.
    """

    group: "Group"


class GroupDeleted(types.Fact):
    """A group was deleted with all its offsets, committed and pending."""

    group_id: str


class SessionChanged(types.Fact):
    """The volatile state of a group has changed: deadlines, parked requests. A restart may lose it."""

    group_id: str
    session: "GroupSession | None"


class ShareLocksChanged(types.Fact):
    """The locks of a share-partition have changed (None: there are none). Not durable: see ``Locks``."""

    key: types.ShareKey
    locks: "Locks | None"


class LatestConnectionChanged(types.Fact):
    """A transactional id has a new latest connection. Not durable: a restart ends all connections."""

    transactional_id: str
    connection: int
    for_offsets: bool = False
    """Whether it is the latest connection for offsets. Clients send those to the coordinator of the group,
    so on another connection."""


DURABLE: tuple[type, ...] = (
    Put,
    TopicCreated,
    TopicChanged,
    TopicDeleted,
    BatchAppended,
    LogStartAdvanced,
    BatchesReplaced,
    BatchStaged,
    StagedCommitted,
    StagedDropped,
    ProducerIdAllocated,
    FeatureChanged,
    GroupDeleted,
)
"""The facts that a ledger must be able to write."""
