"""The commands of share-partitions, and their answers. The rules are in ``delivery``.

The caller provides the configs of the group, because the core has none.
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from semel.core.data import Data
from semel.core.types import Command, ErrorCode, Key, ShareKey, TransactionKey

if TYPE_CHECKING:
    from semel.core.state import BrokerState

SHARE_TICK_MS: Final = 100
"""How often ``ShareTick`` should be submitted: the precision of lock timeouts."""


class AcknowledgeType(IntEnum):
    """How a member acknowledges a record, with Kafka's numbers."""

    GAP = 0
    """There is no record at the offset."""
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4
    """The member is not finished: extend its lock (KIP-1222)."""


class DeliveryLimits(Data):
    """The configs of a share group that concern deliveries."""

    locks_max: int = 2_000
    """Most records from the start offset to the last delivered one (share.partition.max.record.locks)."""
    delivery_limit: int = 5
    lock_ms: int = 30_000


class StartShare(Command[ErrorCode]):
    """Set the start offset, unless the share-partition has one. The answer is an ErrorCode."""

    key: ShareKey
    offset: int

    def keys(self) -> Iterable[Key]:
        """The share-partition and its log."""
        return (self.key, self.key.partition)


class FindAcquirable(Command["Acquirable"]):
    """Find the next offset that could be acquired. The answer is ``Acquirable``."""

    key: ShareKey
    limits: DeliveryLimits = DeliveryLimits()

    def keys(self) -> Iterable[Key]:
        """The share-partition and its log."""
        return (self.key, self.key.partition)


class Acquirable(Data):
    """The answer to ``FindAcquirable``."""

    error: ErrorCode
    is_started: bool = True
    """Whether the start offset is known; if not, see ``StartShare``."""
    offset: int | None = None
    """The first record that can be acquired, or the next one to arrive; None if too many are in flight."""


class ReadBatch(Data):
    """The offsets of a batch that was read."""

    first: int
    last: int


class AcquireFrom(Data):
    """The batches that were read from one partition, in order."""

    key: ShareKey
    offset: int
    """Where the read began. Offsets between there and the last batch that are in no batch no longer exist."""
    batches: tuple[ReadBatch, ...]
    aborted: frozenset[int] = frozenset()
    """The first offsets of batches of aborted transactions, which are archived instead of acquired."""


class Acquire(Command["tuple[Acquired, ...]"]):
    """Acquire records that were read. The answer has an ``Acquired`` for each partition."""

    member_id: str
    reads: tuple[AcquireFrom, ...]
    records_max: int
    """Unless ``is_strict``, a batch is acquired as a whole even if that exceeds this number."""
    batch_size: int = 500
    is_strict: bool = False
    limits: DeliveryLimits = DeliveryLimits()

    def keys(self) -> Iterable[Key]:
        """The share-partitions and their logs."""
        return [key for each in self.reads for key in (each.key, each.key.partition)]


class AcquiredRun(Data):
    """Offsets that a member has acquired."""

    first: int
    last: int
    deliveries: int


class Acquired(Data):
    """The part of the answer to ``Acquire`` for one partition."""

    error: ErrorCode
    runs: tuple[AcquiredRun, ...] = ()


class AcknowledgedRun(Data):
    """The acknowledgement of a run of records: one type for all of them, or one for each."""

    first: int
    last: int
    types: tuple[int, ...]


class Acknowledge(Command[ErrorCode]):
    """Acknowledge acquired records of a share-partition, all or none. The answer is an ErrorCode."""

    key: ShareKey
    member_id: str
    runs: tuple[AcknowledgedRun, ...]
    limits: DeliveryLimits = DeliveryLimits()

    def keys(self) -> Iterable[Key]:
        """The share-partition and its log."""
        return (self.key, self.key.partition)


class AcknowledgeInTransaction(Command[ErrorCode]):
    """Acknowledge acquired records when a transaction commits, all or none. The answer is an ErrorCode.

    The types are ACCEPT, REJECT and GAP.
    """

    key: ShareKey
    member_id: str
    runs: tuple[AcknowledgedRun, ...]
    transactional_id: str
    producer_id: int
    epoch: int
    limits: DeliveryLimits = DeliveryLimits()

    def keys(self) -> Iterable[Key]:
        """The share-partition and its log, and the transactional id."""
        return (self.key, self.key.partition, TransactionKey(self.transactional_id))


class ReleaseMember(Command[bool]):
    """End all locks of a member on a share-partition. The answer is whether it had any."""

    key: ShareKey
    member_id: str

    def keys(self) -> Iterable[Key]:
        """The share-partition and its log."""
        return (self.key, self.key.partition)


class ShareTick(Command["tuple[ShareKey, ...]"]):
    """End the locks whose time is over. The answer is the share-partitions that were due."""

    def keys(self) -> Iterable[Key]:
        """None in advance."""
        return ()

    def more_keys(self, state: "BrokerState") -> Iterable[Key]:
        """Share-partitions with locks that are not in memory: another broker has just changed them."""
        return [
            key
            for each in state.share_locks
            if each not in state.shares or each.partition not in state.partitions
            for key in (each, each.partition)
        ]


class ReadShares(Command["tuple[ReadShare | None, ...]"]):
    """Read share-partitions. The answer has the value (or None) and the end of the log of each."""

    shares: tuple[ShareKey, ...]

    def keys(self) -> Iterable[Key]:
        """The share-partitions and their logs."""
        return [key for each in self.shares for key in (each, each.partition)]


class ReadShare(Data):
    """The part of the answer to ``ReadShares`` for one share-partition."""

    start_offset: int
    settled: int
    high_watermark: int
