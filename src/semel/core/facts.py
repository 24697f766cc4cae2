"""Everything that can become true. Facts are the ledger's only input.

A fact is immutable and in the past tense. ``durable`` facts are written to the ledger; the others only move
what a broker keeps in memory and may lose (who is waiting, when a member was last heard of). Each fact says
which entity it changes and carries what that entity becomes, so that applying it needs no rule.

The order of facts in a tick is the order in which they became true.
"""

from typing import Any, NamedTuple

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


class TopicCreated(NamedTuple):
    """A topic and its empty partitions exist."""

    topic: Topic


class TopicChanged(NamedTuple):
    """A topic has other configs, or more partitions (the new ones are empty)."""

    topic: Topic


class TopicDeleted(NamedTuple):
    """A topic is gone: its partitions, their producers, every group's offsets on it, also pending ones."""

    topic: Topic


class BatchAppended(NamedTuple):
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


class ProducerAdvanced(NamedTuple):
    """A producer's state on a partition is now this."""

    key: ProducerKey
    state: ProducerState


class ProducerExpired(NamedTuple):
    """A partition has forgotten a producer."""

    key: ProducerKey


class LogStartAdvanced(NamedTuple):
    """Everything below this offset is deleted. ``size_bytes`` is what remains in the partition."""

    partition: PartitionKey
    log_start_offset: int
    size_bytes: int


class BatchesReplaced(NamedTuple):
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


class TransactionClosed(NamedTuple):
    """A transaction ended in a partition with marker visibility; its marker was appended just before.

    ``last_stable_offset`` is that of the partition from now on. An aborted transaction is told to readers
    whose range touches ``first_offset`` to ``marker_offset``.
    """

    partition: PartitionKey
    producer_id: int
    first_offset: int
    marker_offset: int
    last_stable_offset: int
    is_commit: bool


class BatchStaged(NamedTuple):
    """A batch is kept until the outcome of its transaction is known. Its bytes travel beside the facts."""

    partition: PartitionKey
    producer_id: int
    offsets: int
    """How many it takes when it is committed."""
    max_timestamp: int
    size_bytes: int


class StagedCommitted(NamedTuple):
    """What a producer staged in a partition is in the log, in the order of staging, with these offsets."""

    partition: PartitionKey
    producer_id: int
    base_offset: int
    last_offset: int
    peak_timestamp: int
    """Of the partition, from now on."""
    size_bytes: int
    """Of all the batches together."""


class StagedDropped(NamedTuple):
    """What a producer staged in a partition will never be read."""

    partition: PartitionKey
    producer_id: int


class TransactionChanged(NamedTuple):
    """A transactional id is now this."""

    transaction: Transaction


class TransactionForgotten(NamedTuple):
    """A transactional id was not used for long and is unknown from now on."""

    transactional_id: str


class PendingChanged(NamedTuple):
    """The offsets of a group that open transactions hold are now these."""

    group_id: str
    pending: tuple[PendingOffset, ...]


class ProducerIdAllocated(NamedTuple):
    """This producer id is given away and never again."""

    producer_id: int


class FeatureChanged(NamedTuple):
    """New clients are told to use this generation of transactions."""

    transaction_version: int
    features_epoch: int


class OffsetCommitted(NamedTuple):
    """A group's position in a partition is now this."""

    key: OffsetKey
    value: CommittedOffset


class OffsetDeleted(NamedTuple):
    """A group has no committed position in this partition any more. What is pending is another fact."""

    key: OffsetKey


class GroupChanged(NamedTuple):
    """A group's durable state is now this (``semel.core.groups.Group``)."""

    group: Any


class GroupDeleted(NamedTuple):
    """A group is gone, with all its offsets, committed and pending."""

    group_id: str


class SessionChanged(NamedTuple):
    """What a broker keeps in memory beside a group: deadlines, who waits. Lost at a restart, harmlessly."""

    group_id: str
    session: Any


class SpeakerChanged(NamedTuple):
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
    TransactionClosed,
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
