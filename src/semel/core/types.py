"""The types of the core: keys, values, the common parts of commands, and decisions.

An *entity* is one thing with state: a topic, a partition, a producer on a partition, a group, a committed
offset. It is identified by a *key*, and its state is an immutable *value*. The broker loads the entities that
a command names, calls ``decide``, and writes the facts of the decision; see ``semel.core.state``.

Values are immutable so that a decision can be discarded, so that the state read back from the ledger can be
compared with the live one, and so that a reader can keep a value while the next one is made.

A key is packed with the number of its kind, because a ``Put`` may have any kind of key.

Everything here is plain data. Nothing in the core reads a clock: ``now`` is always an argument.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar, Union

from semel.core.data import Data
from semel.wire.errors import ErrorCode
from semel.wire.schema import Buffer

if TYPE_CHECKING:
    from semel.core.groups.model import Group
    from semel.core.shares.partition import SharePartition

__all__ = ["Buffer", "ErrorCode"]  # of other modules, but part of this one

Ticket: TypeAlias = int
"""The number of a parked request. A later decision answers the request by this number."""

NO_PRODUCER: Final = -1


V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)


class EntityKey(Data, Generic[V_co], order=True):
    """Identifies an entity, whose values have the type ``V_co``."""


class TopicKey(EntityKey["Topic"], tag=0):
    """A topic, by name."""

    name: str


class ProducerKey(EntityKey["ProducerState"], tag=1):
    """A producer on one partition."""

    topic_id: bytes
    index: int
    producer_id: int


class PartitionKey(EntityKey["Partition"], tag=2):
    """One partition, by topic id and not by name: a topic that is created again is another topic."""

    topic_id: bytes
    index: int

    def of(self, producer_id: int) -> ProducerKey:
        """Return the key of a producer on this partition."""
        return ProducerKey(self.topic_id, self.index, producer_id)


class GroupKey(EntityKey["Group"], tag=3):
    """A consumer group."""

    group_id: str


class OffsetKey(EntityKey["CommittedOffset"], tag=4):
    """The committed offset of a group for one partition. By topic name, as on the wire."""

    group_id: str
    topic: str
    partition: int


class PendingKey(EntityKey["tuple[PendingOffset, ...]"], tag=5):
    """All pending offsets of a group, of all open transactions, as one entity."""

    group_id: str


class TransactionKey(EntityKey["Transaction"], tag=6):
    """A transactional id."""

    transactional_id: str


class ClusterKey(EntityKey["Cluster"], tag=7):
    """The cluster's counters and feature level. There is one such entity."""


class ShareKey(EntityKey["SharePartition"], tag=8):
    """A share-partition: what a share group has done with the records of one partition."""

    topic_id: bytes
    index: int
    group_id: str

    @property
    def partition(self) -> PartitionKey:
        """The partition whose records are shared."""
        return PartitionKey(self.topic_id, self.index)


class PolicyKey(EntityKey[str], tag=9):
    """A policy: what administrators have decided for the whole cluster (``semel.core.security.policies``)."""

    kind: str
    name: str


Key: TypeAlias = EntityKey[Any]
"""A key of any kind, and so with values of any type."""


class Topic(Data):
    """A topic. ``configs`` holds only what was set; defaults come from ``topic_configs``."""

    name: str
    topic_id: bytes
    partitions: int
    configs: Mapping[str, str]

    @property
    def key(self) -> TopicKey:
        """The topic's key."""
        return TopicKey(self.name)


class OpenTransaction(Data):
    """A transaction that has written to a partition and has not ended there."""

    first_offset: int
    producer_id: int


class Partition(Data):
    """One log. Invariant: log_start_offset <= last_stable_offset <= high_watermark."""

    log_start_offset: int = 0
    high_watermark: int = 0
    peak_timestamp: int = -1
    """The largest record timestamp ever appended. It never decreases, so a search by time can bisect."""
    size_bytes: int = 0
    """Bytes of the batches between log start and high watermark."""
    open_transactions: tuple[OpenTransaction, ...] = ()
    """Ordered by first offset."""
    last_aborted_offset: int = -1
    """The offset of the newest abort marker. Reads above it need no list of aborted transactions."""
    cleaned_offset: int = 0
    """The log is compacted below this offset. Only below it are there gaps between batches. The next
    compaction continues here."""
    compactions: int = 0
    """How often batches were replaced. If it has changed, a reader must look its batches up again."""

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest open transaction, or the high watermark."""
        if self.open_transactions:
            return max(self.open_transactions[0].first_offset, self.log_start_offset)
        return self.high_watermark


class Rewritten(Data):
    """A batch from which compaction removed records. It keeps its offset range."""

    base_offset: int
    last_offset: int
    max_timestamp: int
    size_bytes: int


class SentBatch(Data):
    """What is remembered of a batch to recognise its duplicates."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int


class Staged(Data):
    """The staged batches of an open transaction in a partition with journal visibility."""

    batches: int = 0
    offsets: int = 0
    """How many offsets the batches take when they are committed."""
    size_bytes: int = 0
    max_timestamp: int = -1


class ProducerState(Data):
    """The state of a producer on a partition. The blank state has epoch -1."""

    epoch: int = -1
    batches: tuple[SentBatch, ...] = ()
    """At most five, of the current epoch, oldest first."""
    last_timestamp: int = -1
    seen_ms: int = 0
    """The broker's time of day at the last append: expiry must not depend on the client's clock."""
    coordinator_epoch: int = -1
    transaction_first_offset: int = -1
    """Where the open transaction starts in the log; -1 if none is open, or if it is staged."""
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
    """A later commit of this partition wins, whatever the outcome of this transaction."""


class TransactionState(IntEnum):
    """The state of a transactional id, with Kafka's numbers and names.

    Kafka's intermediate states do not exist: one ledger commit ends a transaction, so it is never half ended.
    """

    EMPTY = 0
    ONGOING = 1
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def label(self) -> str:
        """The name as tools show it."""
        return self.name.title().replace("_", "")


class Transaction(Data):
    """A transactional id: its current producer, and the open or the last transaction."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: tuple[PartitionKey, ...] = ()
    """The partitions of the open transaction, in the order in which they joined."""
    groups: tuple[str, ...] = ()
    """The groups whose offsets are in the open transaction."""
    started_ms: int = -1
    """By the steady clock, like ``deadline_ms``."""
    updated_ms: int = 0
    """By the time of day: expiry compares it days later, perhaps after a restart."""
    deadline_ms: int = -1
    """When the broker aborts the open transaction; -1 is never."""
    previous_producer_id: int = NO_PRODUCER
    """The producer id before this one, whose epochs were used up."""
    last_epoch: int = -1
    """The epoch before the current one: a retry of the request that bumped the epoch presents it. -1: no
    retry is accepted."""
    version: int = 0
    """The version of the open or last transaction: 1 adds partitions by request, 2 by writing (KIP-890)."""
    term: int = 0
    """The term in which the producer was initialised or last ended a transaction. Work done since then may be
    lost if a new term has begun."""
    is_two_phase: bool = False
    """Transactions of this id never time out, and every step is durable when it is answered (KIP-939)."""
    prepared_epoch: int = -1
    """The epoch that wrote a prepared transaction that was handed over to a new producer; -1 otherwise."""
    shares: tuple[ShareKey, ...] = ()
    """The share-partitions with acknowledgements in the open transaction."""

    @property
    def key(self) -> TransactionKey:
        """The key of the transactional id."""
        return TransactionKey(self.transactional_id)


class Cluster(Data):
    """The counters of the cluster, and the only feature that can change."""

    next_producer_id: int = 0
    transaction_version: int = 2
    features_epoch: int = 1
    """Incremented with every feature change, so that clients adopt the change."""


# Not "|", which cannot name classes that are defined elsewhere.
Value: TypeAlias = Union[
    Topic,
    Partition,
    ProducerState,
    CommittedOffset,
    tuple[PendingOffset, ...],
    Transaction,
    Cluster,
    str,
    "Group",
    "SharePartition",
]


class Fact(Data, tag=True):
    """A fact (``semel.core.facts``). Packed, it starts with the name of its class, followed by the fields."""


A_co = TypeVar("A_co", covariant=True)


class Command(Data, Generic[A_co]):
    """A request to the core, with an answer of the type ``A_co``. It names the entities that it reads."""

    def keys(self) -> Iterable[Key]:
        """Return the entities that must be loaded before the command can be decided.

        If these entities refer to others, the command also has ``more_keys(state)``, which is called when
        these are loaded. It need not return references that an earlier command of the same tick adds: that
        command loads what it adds.
        """
        raise NotImplementedError


class _Parked:
    __slots__ = ()

    def __repr__(self) -> str:
        return "PARKED"


PARKED: Final = _Parked()
"""The answer of a command that must wait; a later decision replies to its ticket."""


Answer: TypeAlias = Any
"""An answer. Any: each command declares the type of its own (``Command``)."""
AnyCommand: TypeAlias = Command[Any]


class Decision(Data):
    """The facts and answers that follow from a command. All facts are committed before any answer."""

    answer: Answer
    """Of the type that the command declares, or ``PARKED``."""
    facts: tuple[Fact, ...] = ()
    batches: tuple[Buffer, ...] = ()
    """The bytes of each ``BatchAppended`` and ``BatchStaged`` among the facts, in the same order, and of all
    batches that a ``BatchesReplaced`` rewrote."""
    replies: tuple[tuple[Ticket, Answer], ...] = ()
    """Answers to requests that were parked earlier."""
    defers_sync: bool = False
    """Whether the answer may be sent when the operating system has the facts, before they are flushed: for
    work inside an open transaction. The end of the transaction flushes all of it. If the operating system
    crashes before that, the producer is fenced (the term rule)."""


# Any: each rule takes a command, or a fact, of its own kind, and the state, which knows the rules.
Decide: TypeAlias = Callable[[Any, Any, int], Decision]
Apply: TypeAlias = Callable[[Any, Any], None]
