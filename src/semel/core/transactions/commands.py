"""What can be asked of the transaction coordinator, and what it answers.

The rules are in ``coordinator`` (who may do what), ``ending`` (what an end does) and ``pending`` (offsets).
Errors are those of Kafka's coordinator; which number an old client gets for them is a matter of the edge.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from semel.core.data import Data
from semel.core.offsets import Committer
from semel.core.types import (
    NO_PRODUCER,
    ClusterKey,
    CommittedOffset,
    ErrorCode,
    GroupKey,
    Key,
    OffsetKey,
    PartitionKey,
    PendingKey,
    ProducerKey,
    TransactionKey,
)

if TYPE_CHECKING:
    from semel.core.state import BrokerState

NO_EPOCH: Final = -1
NO_CONNECTION: Final = -1
"""Somebody who cannot be overtaken by a newer connection: the broker itself."""


class Superseded(Data):
    """The answer to a request that came on an old connection after a newer one spoke for the id.

    It may have been under way for any time and could end a transaction that it does not know of
    (KAFKA-17754). It is not answered; its connection is closed.
    """


SUPERSEDED: Final = Superseded()


def keys_of(state: "BrokerState", transactional_id: str) -> list[Key]:
    """The entities that an end of the open transaction touches."""
    transaction = state.transactions.get(TransactionKey(transactional_id))
    if transaction is None:
        return []
    keys: list[Key] = [PendingKey(group_id) for group_id in transaction.groups]
    for partition in transaction.partitions:
        keys.append(partition)
        keys.append(ProducerKey(partition.topic_id, partition.index, transaction.producer_id))
    return keys


class InitProducer(Data):
    """A producer begins, or begins anew. The answer is ``ProducerGiven``.

    It is not superseded by a newer connection: it moves the pair, so it is the newest by itself.
    """

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER
    epoch: int = NO_EPOCH
    """The pair that the producer has, if it recovers (KIP-360)."""
    timeout_max_ms: int = 900_000
    is_two_phase: bool = False
    keep_prepared: bool = False
    """Take over the open transaction instead of aborting it, to end it (KIP-939)."""
    may_two_phase: bool = False
    """Whether this broker serves two-phase commit."""
    connection: int = NO_CONNECTION

    def keys(self) -> Iterable[Key]:
        """The id, and the counter of producer ids."""
        return (TransactionKey(self.transactional_id), ClusterKey())

    def more_keys(self, state: "BrokerState") -> Iterable[Key]:
        """An open transaction is aborted."""
        return keys_of(state, self.transactional_id)


class ProducerGiven(Data):
    """The answer to ``InitProducer`` and ``EndTransaction``: the pair to go on with."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER
    epoch: int = NO_EPOCH
    ongoing_producer_id: int = NO_PRODUCER
    ongoing_epoch: int = NO_EPOCH
    """The pair of a prepared transaction that was taken over."""


class AddPartitions(Data):
    """Partitions join the transaction. The answer is an ErrorCode for all of them, or ``SUPERSEDED``."""

    transactional_id: str
    producer_id: int
    epoch: int
    partitions: tuple[PartitionKey, ...]
    """Only partitions that exist."""
    version: int = 1
    block_max_ms: int = -1
    """The smallest ``semel.transaction.block.max.ms`` of their topics; -1 if none has one."""
    connection: int = NO_CONNECTION

    def keys(self) -> Iterable[Key]:
        """The id, the partitions, and the producer on them: an end in the same tick needs them."""
        keys: list[Key] = [TransactionKey(self.transactional_id)]
        for partition in self.partitions:
            keys.append(partition)
            keys.append(ProducerKey(partition.topic_id, partition.index, self.producer_id))
        return keys


class VerifyPartitions(Data):
    """Are these partitions in the transaction? One ErrorCode for each, in the same order."""

    transactional_id: str
    producer_id: int
    epoch: int
    partitions: tuple[PartitionKey, ...]

    def keys(self) -> Iterable[Key]:
        """The id."""
        return (TransactionKey(self.transactional_id),)


class AddOffsets(Data):
    """A group's offsets join the transaction. The answer is an ErrorCode, or ``SUPERSEDED``."""

    transactional_id: str
    producer_id: int
    epoch: int
    group_id: str
    connection: int = NO_CONNECTION

    def keys(self) -> Iterable[Key]:
        """The id, and what is pending in the group: an end in the same tick needs it."""
        return (TransactionKey(self.transactional_id), PendingKey(self.group_id))


class CommitPending(Data):
    """Offsets that count when the transaction commits.

    The answer is one ErrorCode for each, in the same order, or ``SUPERSEDED``.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    group_id: str
    committer: Committer
    offsets: tuple[tuple[OffsetKey, CommittedOffset], ...]
    """Only partitions that exist; the time of the commit is filled in here."""
    version: int = 1
    must_be_added: bool = True
    """Version 1: refuse a group that was not added before (``transaction.partition.verification.enable``)."""
    metadata_chars_max: int = 4_096
    knows_consumer_groups: bool = False
    """Whether the client knows the errors of KIP-848 groups (TxnOffsetCommit from version 6)."""
    connection: int = NO_CONNECTION

    def keys(self) -> Iterable[Key]:
        """The id, the group, and what is pending in it."""
        return (TransactionKey(self.transactional_id), GroupKey(self.group_id), PendingKey(self.group_id))


class EndTransaction(Data):
    """The producer commits or aborts. The answer is ``ProducerGiven`` or ``SUPERSEDED``."""

    transactional_id: str
    producer_id: int
    epoch: int
    is_commit: bool
    version: int = 1
    connection: int = NO_CONNECTION

    def keys(self) -> Iterable[Key]:
        """The id, and the counter of producer ids."""
        return (TransactionKey(self.transactional_id), ClusterKey())

    def more_keys(self, state: "BrokerState") -> Iterable[Key]:
        """What the transaction touched."""
        return keys_of(state, self.transactional_id)


class AbortOpen(Data):
    """The broker aborts what is open and fences the producer. The answer is whether it did.

    Each of these narrows it, and is looked at again here:
    """

    transactional_id: str
    overdue_only: bool = False
    """Only if its deadline is over."""
    connection: int = NO_CONNECTION
    """Only if this connection, which is gone, was the last that spoke for the id."""
    before_term: int = 0
    """Only if it is of an older term than this."""

    def keys(self) -> Iterable[Key]:
        """The id, and the counter of producer ids."""
        return (TransactionKey(self.transactional_id), ClusterKey())

    def more_keys(self, state: "BrokerState") -> Iterable[Key]:
        """What the transaction touched."""
        return keys_of(state, self.transactional_id)


class ForgetTransaction(Data):
    """Forget an id that was not used since a moment and has nothing open. The answer is whether it was."""

    transactional_id: str
    unused_since_ms: int

    def keys(self) -> Iterable[Key]:
        """The id."""
        return (TransactionKey(self.transactional_id),)


class DescribeTransaction(Data):
    """What is this id? The answer is the Transaction, or None."""

    transactional_id: str

    def keys(self) -> Iterable[Key]:
        """The id."""
        return (TransactionKey(self.transactional_id),)


class WriteMarker(Data):
    """End what a producer has open in one partition, whatever its coordinator thinks: an ErrorCode."""

    partition: PartitionKey
    producer_id: int
    epoch: int
    coordinator_epoch: int
    is_commit: bool
    version: int = 0
    is_journal: bool = False
    """Whether the topic has journal visibility, which has no markers."""

    def keys(self) -> Iterable[Key]:
        """The partition, and its memory of the producer."""
        return (
            self.partition,
            ProducerKey(self.partition.topic_id, self.partition.index, self.producer_id),
        )


class ChangeFeature(Data):
    """Tell new clients which generation of transactions to use. The answer is an ErrorCode."""

    transaction_version: int

    def keys(self) -> Iterable[Key]:
        """The cluster."""
        return (ClusterKey(),)


class ReadFeatures(Data):
    """The answer is the Cluster."""

    def keys(self) -> Iterable[Key]:
        """The cluster."""
        return (ClusterKey(),)
