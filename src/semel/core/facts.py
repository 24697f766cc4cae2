"""Everything that can become true. Facts are the ledger's only input.

A fact is immutable and in the past tense. ``durable`` facts are written to the ledger; the others only move
what a broker keeps in memory and may lose (who is waiting, when a member was last heard of). Each fact says
which entity it changes and carries what that entity becomes, so that applying it needs no rule.

The order of facts in a tick is the order in which they became true.
"""

from enum import StrEnum
from typing import Any

from semel.core.data import Data
from semel.core.types import (
    CommittedOffset,
    OffsetKey,
    PartitionKey,
    PendingOffset,
    ProducerKey,
    ProducerState,
    Rewritten,
    Topic,
    Transaction,
)


class _Fact(Data, tag=True):
    """Where facts are packed, the name of the class stands before the fields."""


class TopicCreated(_Fact):
    """A topic and its empty partitions exist."""

    topic: Topic


class TopicChanged(_Fact):
    """A topic has other configs, or more partitions (the new ones are empty)."""

    topic: Topic


class TopicDeleted(_Fact):
    """A topic is gone: its partitions, their producers, every group's offsets on it, also pending ones."""

    topic: Topic


class Closing(Data):
    """What a marker does: the transaction of its producer is not open any more.

    ``last_stable_offset`` is that of the partition from now on. An aborted transaction is told to readers
    whose range touches ``first_offset`` to the marker.
    """

    first_offset: int
    last_stable_offset: int
    is_commit: bool


class BatchAppended(_Fact):
    """A batch is in the log. Its bytes travel beside the facts; where they lie is the store's matter."""

    partition: PartitionKey
    base_offset: int
    last_offset: int
    max_timestamp: int
    peak_timestamp: int
    size_bytes: int
    producer_id: int
    is_transactional: bool
    opens_transaction: bool
    closes: Closing | None = None
    """Given for the marker that ends the producer's transaction, and only for that."""


class ProducerAdvanced(_Fact):
    """A producer's state on a partition is now this."""

    key: ProducerKey
    state: ProducerState


class ProducerExpired(_Fact):
    """A partition has forgotten a producer."""

    key: ProducerKey


class LogStartAdvanced(_Fact):
    """Everything below this offset is deleted. ``size_bytes`` is what remains in the partition."""

    partition: PartitionKey
    log_start_offset: int
    size_bytes: int


class BatchesReplaced(_Fact):
    """Compaction took records out of a log: some batches have fewer, some are gone. No offset has changed.

    The bytes of those that were rewritten travel beside the facts, in the same order.
    """

    partition: PartitionKey
    rewritten: tuple[Rewritten, ...]
    removed: tuple[int, ...]
    """The base offsets of the batches that are gone. With the marker of an aborted transaction goes what
    readers are told of it: nothing else is left of it by then."""
    size_bytes: int
    """What is in the partition now."""
    cleaned_offset: int
    compactions: int


class BatchStaged(_Fact):
    """A batch is kept until the outcome of its transaction is known. Its bytes travel beside the facts."""

    partition: PartitionKey
    producer_id: int
    offsets: int
    """How many it takes when it is committed."""
    max_timestamp: int
    size_bytes: int


class StagedCommitted(_Fact):
    """What a producer staged in a partition is in the log, in the order of staging, with these offsets."""

    partition: PartitionKey
    producer_id: int
    base_offset: int
    last_offset: int
    peak_timestamp: int
    """Of the partition, from now on."""
    size_bytes: int
    """Of all the batches together."""


class StagedDropped(_Fact):
    """What a producer staged in a partition will never be read."""

    partition: PartitionKey
    producer_id: int


class TransactionChanged(_Fact):
    """A transactional id is now this."""

    transaction: Transaction


class EndReason(StrEnum):
    """Why an open transaction ended."""

    CLIENT = "client"
    FENCED = "fenced"
    TIMEOUT = "timeout"
    DISCONNECT = "disconnect"
    TERM = "term"
    ADMIN = "admin"


class TransactionEnded(_Fact):
    """An open transaction has ended. For metrics; ``TransactionChanged`` has the outcome that is written."""

    transactional_id: str
    is_commit: bool
    reason: EndReason


class TransactionForgotten(_Fact):
    """A transactional id was not used for long and is unknown from now on."""

    transactional_id: str


class PendingChanged(_Fact):
    """The offsets of a group that open transactions hold are now these."""

    group_id: str
    pending: tuple[PendingOffset, ...]


class ProducerIdAllocated(_Fact):
    """This producer id is given away and never again."""

    producer_id: int


class FeatureChanged(_Fact):
    """New clients are told to use this generation of transactions."""

    transaction_version: int
    features_epoch: int


class OffsetCommitted(_Fact):
    """A group's position in a partition is now this."""

    key: OffsetKey
    value: CommittedOffset


class OffsetDeleted(_Fact):
    """A group has no committed position in this partition any more. What is pending is another fact."""

    key: OffsetKey


class GroupChanged(_Fact):
    """A group's durable state is now this (``semel.core.groups.Group``)."""

    group: Any


class GroupGathered(_Fact):
    """Members came or left while a classic group prepares its next generation, of which nobody was told yet.

    The generation is written when it begins. Lost at a restart, harmlessly: the members join again.
    """

    group: Any


class GroupDeleted(_Fact):
    """A group is gone, with all its offsets, committed and pending."""

    group_id: str


class SessionChanged(_Fact):
    """What a broker keeps in memory beside a group: deadlines, who waits. Lost at a restart, harmlessly."""

    group_id: str
    session: Any


class LatestConnectionChanged(_Fact):
    """The newest connection that spoke for a transactional id. A restart ends all connections."""

    transactional_id: str
    connection: int
    for_offsets: bool = False
    """Offsets go to the coordinator of their group, so clients send them on a connection of their own."""


DURABLE: tuple[type, ...] = (
    TopicCreated,
    TopicChanged,
    TopicDeleted,
    BatchAppended,
    ProducerAdvanced,
    ProducerExpired,
    LogStartAdvanced,
    BatchesReplaced,
    BatchStaged,
    StagedCommitted,
    StagedDropped,
    TransactionChanged,
    TransactionForgotten,
    PendingChanged,
    ProducerIdAllocated,
    FeatureChanged,
    OffsetCommitted,
    OffsetDeleted,
    GroupChanged,
    GroupDeleted,
)
"""What a ledger must be able to write."""
