"""The commands of the transaction coordinator, and their answers.

The rules are in ``coordinator``, ``ending`` (the effects of an end) and ``pending`` (offsets). Errors are
those of Kafka's coordinator; the handlers translate them for old clients.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from semel.core.data import Data
from semel.core.groups.offsets import Committer
from semel.core.types import (
    NO_PRODUCER,
    Cluster,
    ClusterKey,
    Command,
    CommittedOffset,
    ErrorCode,
    GroupKey,
    Key,
    OffsetKey,
    PartitionKey,
    PendingKey,
    ProducerKey,
    Transaction,
    TransactionKey,
)

if TYPE_CHECKING:
    from semel.core.state import BrokerState

NO_EPOCH: Final = -1
NO_CONNECTION: Final = -1
"""A command of the broker itself, which no connection supersedes."""


class Superseded(Data):
    """The result of a request on an old connection, after a newer one was used for the transactional id.

    The request may have been delayed for any time and could end a transaction that its sender does not know
    of (KAFKA-17754). The client gets no response; its connection is closed.
    """


SUPERSEDED: Final = Superseded()


def keys_of(state: "BrokerState", transactional_id: str) -> list[Key]:
    """Return the entities that ending the open transaction touches."""
    transaction = state.transactions.get(TransactionKey(transactional_id))
    if transaction is None:
        return []
    keys: list[Key] = [PendingKey(group_id) for group_id in transaction.groups]
    keys += transaction.shares
    for partition in transaction.partitions:
        keys.append(partition)
        keys.append(ProducerKey(partition.topic_id, partition.index, transaction.producer_id))
    return keys


class InitProducer(Command["ProducerGiven"]):
    """Initialise a producer. The answer is ``ProducerGiven``.

    No newer connection supersedes this command: it bumps the epoch, so its connection becomes the latest.
    """

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER
    epoch: int = NO_EPOCH
    """The current epoch of a producer that recovers (KIP-360)."""
    timeout_max_ms: int = 900_000
    is_two_phase: bool = False
    keep_prepared: bool = False
    """Take over the open transaction in order to end it, instead of aborting it (KIP-939)."""
    may_two_phase: bool = False
    """Whether this broker serves two-phase commit."""
    connection: int = NO_CONNECTION

    def keys(self) -> Iterable[Key]:
        """The id, and the counter of producer ids."""
        return (TransactionKey(self.transactional_id), ClusterKey())

    def more_keys(self, state: "BrokerState") -> Iterable[Key]:
        """Everything that the open transaction touched, because it is aborted."""
        return keys_of(state, self.transactional_id)


class ProducerGiven(Data):
    """The answer to ``InitProducer`` and ``EndTransaction``: the producer id and epoch to continue with."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER
    epoch: int = NO_EPOCH
    ongoing_producer_id: int = NO_PRODUCER
    ongoing_epoch: int = NO_EPOCH
    """The producer epoch of a prepared transaction that was handed over."""


class AddPartitions(Command["ErrorCode | Superseded"]):
    """Add partitions to the transaction. The answer is an ErrorCode for all of them, or ``SUPERSEDED``."""

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
        """The id, the partitions, and the producer on them, which an end in the same tick needs."""
        keys: list[Key] = [TransactionKey(self.transactional_id)]
        for partition in self.partitions:
            keys.append(partition)
            keys.append(ProducerKey(partition.topic_id, partition.index, self.producer_id))
        return keys


class VerifyPartitions(Command[tuple[ErrorCode, ...]]):
    """Check that partitions are in the transaction. The answer is one ErrorCode per partition, in order."""

    transactional_id: str
    producer_id: int
    epoch: int
    partitions: tuple[PartitionKey, ...]

    def keys(self) -> Iterable[Key]:
        """The id."""
        return (TransactionKey(self.transactional_id),)


class AddOffsets(Command["ErrorCode | Superseded"]):
    """Add a group's offsets to the transaction. The answer is an ErrorCode, or ``SUPERSEDED``."""

    transactional_id: str
    producer_id: int
    epoch: int
    group_id: str
    connection: int = NO_CONNECTION

    def keys(self) -> Iterable[Key]:
        """The id and the group's pending offsets, which an end in the same tick needs."""
        return (TransactionKey(self.transactional_id), PendingKey(self.group_id))


class CommitPending(Command["tuple[ErrorCode, ...] | Superseded"]):
    """Commit offsets as part of a transaction.

    The answer is one ErrorCode per offset, in the same order, or ``SUPERSEDED``.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    group_id: str
    committer: Committer
    offsets: tuple[tuple[OffsetKey, CommittedOffset], ...]
    """Only partitions that exist. The decision fills in the commit time."""
    version: int = 1
    must_be_added: bool = True
    """Version 1: refuse a group that was not added before (``transaction.partition.verification.enable``)."""
    metadata_chars_max: int = 4_096
    knows_consumer_groups: bool = False
    """Whether the client knows the errors of KIP-848 groups (TxnOffsetCommit from version 6)."""
    connection: int = NO_CONNECTION

    def keys(self) -> Iterable[Key]:
        """The id, the group, and its pending offsets."""
        return (TransactionKey(self.transactional_id), GroupKey(self.group_id), PendingKey(self.group_id))


class EndTransaction(Command["ProducerGiven | Superseded"]):
    """Commit or abort. The answer is ``ProducerGiven`` or ``SUPERSEDED``."""

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
        """Everything that the transaction touched."""
        return keys_of(state, self.transactional_id)


class AbortOpen(Command[bool]):
    """Abort the open transaction and fence its producer, on behalf of the broker. Answer: whether it did.

    The conditions below are checked again when the command is decided.
    """

    transactional_id: str
    overdue_only: bool = False
    """Only if its deadline has passed."""
    connection: int = NO_CONNECTION
    """Only if this connection, which was closed, is the latest of the transactional id."""
    before_term: int = 0
    """If not 0: only if the transaction belongs to an older term than the current one."""

    def keys(self) -> Iterable[Key]:
        """The id, and the counter of producer ids."""
        return (TransactionKey(self.transactional_id), ClusterKey())

    def more_keys(self, state: "BrokerState") -> Iterable[Key]:
        """Everything that the transaction touched."""
        return keys_of(state, self.transactional_id)


class ForgetTransaction(Command[bool]):
    """Forget an unused transactional id, if it has no open transaction. The answer is whether it did."""

    transactional_id: str
    unused_since_ms: int

    def keys(self) -> Iterable[Key]:
        """The id."""
        return (TransactionKey(self.transactional_id),)


class DescribeTransaction(Command[Transaction | None]):
    """Describe a transactional id. The answer is the Transaction, or None."""

    transactional_id: str

    def keys(self) -> Iterable[Key]:
        """The id."""
        return (TransactionKey(self.transactional_id),)


class WriteMarker(Command[ErrorCode]):
    """End a producer's transaction in one partition, bypassing its coordinator. Answer: an ErrorCode."""

    partition: PartitionKey
    producer_id: int
    epoch: int
    coordinator_epoch: int
    is_commit: bool
    version: int = 0
    is_journal: bool = False
    """Whether the topic has journal visibility, which has no markers."""

    def keys(self) -> Iterable[Key]:
        """The partition, and the producer on it."""
        return (
            self.partition,
            ProducerKey(self.partition.topic_id, self.partition.index, self.producer_id),
        )


class ChangeFeature(Command[ErrorCode]):
    """Set the transaction version that new clients use. The answer is an ErrorCode."""

    transaction_version: int

    def keys(self) -> Iterable[Key]:
        """The cluster."""
        return (ClusterKey(),)


class ReadFeatures(Command[Cluster]):
    """Read the features of the cluster. The answer is the Cluster."""

    def keys(self) -> Iterable[Key]:
        """The cluster."""
        return (ClusterKey(),)
