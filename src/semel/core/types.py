"""The words of the core: keys, values, commands' common parts, and what a decision is.

An *entity* is one thing with state: a topic, a partition, a producer on a partition, a group, a committed
offset. It is named by a *key* and its state is an immutable *value*. The broker loads the entities that a
command names, calls ``decide``, and writes the facts that follow; see ``semel.core.state``.

Values are immutable so that a decision can be thrown away, so that the state read back from the ledger can
be compared with the live one, and so that a reader may keep one while the next is being made.

Everything here is plain data. Nothing in the core reads a clock: ``now`` is always an argument.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Any, Final, Protocol, TypeAlias

from semel.core.data import Data
from semel.wire.errors import ErrorCode
from semel.wire.schema import Buffer

__all__ = [
    "NO_PRODUCER",
    "PARKED",
    "Buffer",
    "Cluster",
    "ClusterKey",
    "Command",
    "CommittedOffset",
    "Decision",
    "ErrorCode",
    "Fact",
    "GroupKey",
    "Key",
    "OffsetKey",
    "OpenTransaction",
    "Partition",
    "PartitionKey",
    "PendingKey",
    "PendingOffset",
    "ProducerKey",
    "ProducerState",
    "Rewritten",
    "SentBatch",
    "Staged",
    "Ticket",
    "Topic",
    "TopicKey",
    "Transaction",
    "TransactionKey",
    "TransactionState",
    "Value",
]

Ticket: TypeAlias = int
"""Names a request that waits; whoever ends the wait answers by this number."""

NO_PRODUCER: Final = -1


class TopicKey(Data, order=True):
    """A topic, by name."""

    name: str


class ProducerKey(Data, order=True):
    """A producer on one partition."""

    topic_id: bytes
    index: int
    producer_id: int


class PartitionKey(Data, order=True):
    """One partition of one topic. The id, not the name: a topic made anew is another topic."""

    topic_id: bytes
    index: int

    def of(self, producer_id: int) -> ProducerKey:
        """A producer here."""
        return ProducerKey(self.topic_id, self.index, producer_id)


class GroupKey(Data, order=True):
    """A consumer group."""

    group_id: str


class OffsetKey(Data, order=True):
    """What a group has committed for one partition. By topic name, as on the wire."""

    group_id: str
    topic: str
    partition: int


class PendingKey(Data, order=True):
    """The offsets of a group that open transactions hold, all of them together."""

    group_id: str


class TransactionKey(Data, order=True):
    """A transactional id, and what its producer is doing."""

    transactional_id: str


class ClusterKey(Data, order=True):
    """The one entity that belongs to no topic and no group."""


Key: TypeAlias = (
    TopicKey | PartitionKey | ProducerKey | GroupKey | OffsetKey | PendingKey | TransactionKey | ClusterKey
)


class Topic(Data):
    """What a topic is. ``configs`` holds only what was set; defaults come from ``topic_configs``."""

    name: str
    topic_id: bytes
    partitions: int
    configs: Mapping[str, str]


class OpenTransaction(Data):
    """A transaction that has written to a partition and has not ended there."""

    first_offset: int
    producer_id: int


class Partition(Data):
    """One log. Invariant: log_start_offset <= last_stable_offset <= high_watermark."""

    log_start_offset: int = 0
    high_watermark: int = 0
    peak_timestamp: int = -1
    """The largest record timestamp ever appended; never falls, so a search by time can bisect."""
    size_bytes: int = 0
    """Bytes of the batches between log start and high watermark."""
    open_transactions: tuple[OpenTransaction, ...] = ()
    """Ordered by first offset."""
    last_aborted_offset: int = -1
    """The marker of the newest aborted transaction: above it nobody need ask which were aborted."""
    cleaned_offset: int = 0
    """Below it compaction has seen every record; it goes on from here."""
    compactions: int = 0
    """How often batches were replaced. Who looked before and reads after looks again."""

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest open transaction, or the high watermark."""
        if self.open_transactions:
            return max(self.open_transactions[0].first_offset, self.log_start_offset)
        return self.high_watermark


class Rewritten(Data):
    """A batch that compaction left fewer records in. It keeps its offsets, also those of what is gone."""

    base_offset: int
    last_offset: int
    max_timestamp: int
    size_bytes: int


class SentBatch(Data):
    """What is remembered of one batch, to recognise it when it is sent again."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int


class Staged(Data):
    """What an open transaction holds back in a partition with journal visibility."""

    batches: int = 0
    offsets: int = 0
    """How many offsets the batches will take when they are committed."""
    size_bytes: int = 0
    max_timestamp: int = -1


class ProducerState(Data):
    """What a partition remembers of a producer. The blank one has epoch -1."""

    epoch: int = -1
    batches: tuple[SentBatch, ...] = ()
    """At most five, of the current epoch, oldest first."""
    last_timestamp: int = -1
    seen_ms: int = 0
    """The broker's time of day at the last append: expiry must not depend on what a client calls the time."""
    coordinator_epoch: int = -1
    transaction_first_offset: int = -1
    """Where the open transaction began in the log; -1 if none is open, or if it is staged."""
    staged: Staged | None = None

    @property
    def has_open_transaction(self) -> bool:
        """Whether the producer has written here in a transaction that has not ended."""
        return self.transaction_first_offset >= 0 or self.staged is not None


class CommittedOffset(Data):
    """A group's position in a partition."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    committed_ms: int = 0


class PendingOffset(Data):
    """An offset that becomes the group's position when a transaction commits."""

    producer_id: int
    key: OffsetKey
    value: CommittedOffset
    is_superseded: bool = False
    """Somebody committed this partition later; the later one stays, whatever the outcome of this."""


class TransactionState(IntEnum):
    """Where a transactional id stands. Kafka's numbers and names.

    There is no state between: one ledger commit ends a transaction, so nobody can see it half ended.
    """

    EMPTY = 0
    ONGOING = 1
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def label(self) -> str:
        """As tools show it."""
        return self.name.title().replace("_", "")


class Transaction(Data):
    """A transactional id: who its producer is, and the transaction that is open or ended last."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: tuple[PartitionKey, ...] = ()
    """Those in the open transaction, in the order in which they joined."""
    groups: tuple[str, ...] = ()
    """Groups whose offsets are in the open transaction."""
    started_ms: int = -1
    """By the steady clock, as the deadline."""
    updated_ms: int = 0
    """The time of day: expiry looks at it days later, perhaps after a restart."""
    deadline_ms: int = -1
    """When the broker aborts the open transaction; -1 is never."""
    previous_producer_id: int = NO_PRODUCER
    """The id before this one, when the epochs of that one were used up."""
    last_epoch: int = -1
    """The epoch with which the request that gave the current one may come again."""
    version: int = 0
    """Of the open transaction, or of the last: 1 adds partitions by request, 2 by writing (KIP-890)."""
    term: int = 0
    """In which the producer began or last ended; what it did since may be lost with the term."""
    is_two_phase: bool = False
    """A transaction of this id never times out and is durable with every step (KIP-939)."""
    prepared_epoch: int = -1
    """The epoch a prepared transaction was written with, once a new producer took it over to end it."""


class Cluster(Data):
    """Counters of the whole cluster, and its one feature that can change."""

    next_producer_id: int = 0
    transaction_version: int = 2
    features_epoch: int = 1
    """Grows with every change of a feature, so that clients take the change over."""


Value: TypeAlias = Any
Fact: TypeAlias = Any
"""One of the classes in ``semel.core.facts``."""


class Command(Protocol):
    """What is asked: ``Data`` that names the entities it reads."""

    def keys(self) -> Iterable[Key]:
        """The entities that must be loaded before this command can be decided.

        A command that finds more through the entities it names also has ``more_keys(state)``, which is asked
        when the first are loaded. What commands before it in the same tick bring in is loaded by them.
        """


class _Parked:
    __slots__ = ()

    def __repr__(self) -> str:
        return "PARKED"


PARKED: Final = _Parked()
"""The answer of a command that must wait; a later decision replies to its ticket."""


class Decision(Data):
    """What follows from a command. The facts are written together, or not at all; then all are answered."""

    answer: Any
    facts: tuple[Fact, ...] = ()
    batches: tuple[Buffer, ...] = ()
    """The bytes of each ``BatchAppended`` and ``BatchStaged`` among the facts, in the same order, and of all
    that a ``BatchesReplaced`` rewrote."""
    replies: tuple[tuple[Ticket, Any], ...] = ()
    """Answers for requests that were parked earlier."""
    defers_sync: bool = False
    """Work inside an open transaction: may be answered when the operating system has it, before it is
    flushed. The end of the transaction flushes all of it; if the system dies before, the transaction is
    fenced (the term rule)."""


Decide: TypeAlias = Callable[[Any, Any, int], Decision]
Apply: TypeAlias = Callable[[Any, Any], None]
