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
    ProducerKey,
    ProducerState,
    Topic,
)


class TopicCreated(NamedTuple):
    """A topic and its empty partitions exist."""

    topic: Topic


class TopicChanged(NamedTuple):
    """A topic has other configs, or more partitions (the new ones are empty)."""

    topic: Topic


class TopicDeleted(NamedTuple):
    """A topic is gone, with its partitions, its producers' states and every group's offsets on it."""

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


class ProducerIdAllocated(NamedTuple):
    """This producer id is given away and never again."""

    producer_id: int


class OffsetCommitted(NamedTuple):
    """A group's position in a partition is now this."""

    key: OffsetKey
    value: CommittedOffset


class OffsetDeleted(NamedTuple):
    """A group has no position in this partition any more."""

    key: OffsetKey


class GroupChanged(NamedTuple):
    """A group's durable state is now this (``semel.core.groups.Group``)."""

    group: Any


class GroupDeleted(NamedTuple):
    """A group is gone, with all its committed offsets."""

    group_id: str


class SessionChanged(NamedTuple):
    """What a broker keeps in memory beside a group: deadlines, who waits. Lost at a restart, harmlessly."""

    group_id: str
    session: Any


DURABLE: tuple[type, ...] = (
    TopicCreated,
    TopicChanged,
    TopicDeleted,
    BatchAppended,
    ProducerAdvanced,
    ProducerExpired,
    LogStartAdvanced,
    ProducerIdAllocated,
    OffsetCommitted,
    OffsetDeleted,
    GroupChanged,
    GroupDeleted,
)
"""What a ledger must be able to write."""
