"""Helpers for tests of share groups: a state that decides and applies, a clock, a log and a ledger."""

from typing import Any

from semel.core.facts import DURABLE, GroupDeleted, ProducerIdAllocated, Put
from semel.core.groups.commands import ConsumerAnswer, DeleteGroup, GroupTick
from semel.core.groups.model import Group, TopicShape, unpack_group
from semel.core.shares.commands import (
    Acknowledge,
    AcknowledgedRun,
    AcknowledgeInTransaction,
    Acquirable,
    Acquire,
    AcquiredRun,
    AcquireFrom,
    DeliveryLimits,
    FindAcquirable,
    ReadBatch,
    ReleaseMember,
    ShareTick,
    StartShare,
)
from semel.core.shares.group import ShareGroup
from semel.core.shares.members import ShareHeartbeat
from semel.core.shares.partition import SharePartition
from semel.core.state import BrokerState
from semel.core.transactions.commands import AbortOpen, EndTransaction, InitProducer, ProducerGiven
from semel.core.types import (
    Cluster,
    ClusterKey,
    Command,
    Decision,
    ErrorCode,
    GroupKey,
    Key,
    Partition,
    ShareKey,
    Topic,
    TopicKey,
    Transaction,
    TransactionKey,
)

GROUP = "g"
TOPIC_ID = b"t" * 16
KEY = ShareKey(TOPIC_ID, 0, GROUP)
LOCK_MS = 30_000
TRANSACTION_MS = 60_000
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)


class ShareRules:
    """Decides and applies like the commit loop."""

    def __init__(self, *, locks_max: int = 100, delivery_limit: int = 3) -> None:
        self.state = BrokerState()
        self.now = 1_000_000
        self.limits = DeliveryLimits(locks_max, delivery_limit, LOCK_MS)
        self.ledger: dict[Key, Any] = {}
        self.flushed: dict[Key, Any] = {}
        """The ledger after the last decision that was flushed before its answer."""
        self.flushes = 0
        self.writes = 0
        self.batches: list[tuple[int, int]] = []
        self.topics: dict[str, TopicShape] = {}

    # The commit loop.

    def run(self, command: Command[Any]) -> Any:
        return self.decided(command).answer

    def decided(self, command: Command[Any]) -> Decision:
        self._load(command.keys())
        if hasattr(command, "more_keys"):
            self._load(command.more_keys(self.state))
        before = repr((self.state.shares, self.state.share_locks, self.state.groups, self.state.sessions))
        decision = self.state.decide(command, self.now)
        after = repr((self.state.shares, self.state.share_locks, self.state.groups, self.state.sessions))
        assert after == before, "decide changed the state"
        for fact in decision.facts:
            self.state.apply(fact)
            self.writes += type(fact) in DURABLE
            self._write(fact)
        if not decision.defers_sync and any(type(fact) in DURABLE for fact in decision.facts):
            self.flushed = dict(self.ledger)
            self.flushes += 1
        return decision

    def _load(self, keys: Any) -> None:
        for key in self.state.missing(keys):
            self.state.put(key, self.ledger.get(key))

    def _write(self, fact: Any) -> None:
        if isinstance(fact, Put) and fact.value is None:
            del self.ledger[fact.key]
        elif isinstance(fact, Put):
            if isinstance(fact.value, Group):
                assert unpack_group(fact.value.kind, fact.value.pack()) == fact.value
            self.ledger[fact.key] = fact.value
        elif isinstance(fact, GroupDeleted):
            del self.ledger[GroupKey(fact.group_id)]
        elif isinstance(fact, ProducerIdAllocated):
            self.ledger[ClusterKey()] = Cluster(fact.producer_id + 1)

    def restart(self, term: int = 0) -> None:
        """Kill the broker: locks and sessions are lost, everything else is loaded when it is needed."""
        self.state = BrokerState(term)

    def lose_power(self) -> None:
        """Lose what was not flushed, and begin a term, which aborts open transactions."""
        self.ledger = dict(self.flushed)
        self.restart(self.state.term + 1)
        for key in [each for each in self.ledger if isinstance(each, TransactionKey)]:
            self.abort_open(key.transactional_id, before_term=self.state.term)

    # The log of partition 0.

    def begin(self, start: int = 0) -> None:
        """Set the start of the share-partition, without a group."""
        self.ledger[KEY] = SharePartition()
        self._set_log(0, 0)
        assert self.run(StartShare(KEY, start)) is ErrorCode.NONE

    def append(self, *sizes: int) -> None:
        """Append batches with these numbers of records."""
        log = self._log
        end = log.high_watermark
        for size in sizes:
            self.batches.append((end, end + size - 1))
            end += size
        self._set_log(log.log_start_offset, end)

    def delete_below(self, offset: int) -> None:
        self._set_log(offset, self._log.high_watermark)

    @property
    def _log(self) -> Partition:
        found: Partition = self.ledger[KEY.partition]
        return found

    def _set_log(self, start: int, end: int) -> None:
        self.ledger[KEY.partition] = log = Partition(log_start_offset=start, high_watermark=end)
        self.flushed[KEY.partition] = log
        self.state.put(KEY.partition, log)

    # Members.

    def look(self) -> Acquirable:
        answer: Acquirable = self.run(FindAcquirable(KEY, self.limits))
        return answer

    def read(self, records_max: int = 1_000, **fields: Any) -> AcquireFrom | None:
        """Return what a broker would read for a member now."""
        offset = self.look().offset
        if offset is None:
            return None
        start = self._log.log_start_offset
        batches = tuple(ReadBatch(*each) for each in self.batches if each[1] >= max(offset, start))
        return AcquireFrom(KEY, offset, batches, **fields)

    def acquire(self, member: str, records_max: int = 1_000, **fields: Any) -> list[AcquiredRun]:
        read = self.read()
        return [] if read is None else self.take(member, read, records_max, **fields)

    def take(
        self, member: str, read: AcquireFrom, records_max: int = 1_000, **fields: Any
    ) -> list[AcquiredRun]:
        (answer,) = self.run(Acquire(member, (read,), records_max, limits=self.limits, **fields))
        assert answer.error is ErrorCode.NONE
        return list(answer.runs)

    def acknowledge(self, member: str, first: int, last: int, *types: int) -> ErrorCode:
        run = AcknowledgedRun(first, last, types)
        answer: ErrorCode = self.run(Acknowledge(KEY, member, (run,), self.limits))
        return answer

    def release(self, member: str) -> bool:
        answer: bool = self.run(ReleaseMember(KEY, member))
        return answer

    def tick(self, passed_ms: int = 0) -> None:
        self.now += passed_ms
        self.run(ShareTick())

    # Producers.

    def init(self, name: str, **fields: Any) -> ProducerGiven:
        given: ProducerGiven = self.run(InitProducer(name, TRANSACTION_MS, **fields))
        return given

    def in_transaction(
        self, member: str, first: int, last: int, *types: int, name: str = "p", **fields: Any
    ) -> ErrorCode:
        """Acknowledge inside a producer's transaction, with its current epoch."""
        return ErrorCode(
            self.run(self.acknowledging(member, AcknowledgedRun(first, last, types), name=name, **fields))
        )

    def acknowledging(
        self, member: str, *runs: AcknowledgedRun, name: str = "p", key: ShareKey = KEY, **fields: Any
    ) -> AcknowledgeInTransaction:
        known = self.transaction(name)
        pair = {"producer_id": known.producer_id, "epoch": known.epoch} | fields
        return AcknowledgeInTransaction(key, member, runs, name, **pair, limits=self.limits)

    def end(self, name: str = "p", *, commit: bool, version: int = 2, **fields: Any) -> ErrorCode:
        known = self.transaction(name)
        pair = {"producer_id": known.producer_id, "epoch": known.epoch} | fields
        answer = self.run(EndTransaction(name, **pair, is_commit=commit, version=version))
        return ErrorCode(answer.error)

    def abort_open(self, name: str = "p", **fields: Any) -> bool:
        answer: bool = self.run(AbortOpen(name, **fields))
        return answer

    def transaction(self, name: str = "p") -> Transaction:
        found: Transaction = self.ledger[TransactionKey(name)]
        return found

    @property
    def share(self) -> SharePartition:
        found: SharePartition = self.ledger[KEY]
        return found

    # Groups.

    def make_topic(self, name: str, partitions: int, topic_id: bytes = b"") -> None:
        shape = TopicShape(topic_id or name.encode().ljust(16, b"-"), partitions)
        self.topics[name] = shape
        topic = Topic(name, shape.topic_id, partitions, {})
        self.ledger[TopicKey(name)] = topic
        self.state.put(TopicKey(name), topic)

    def beat(self, member: str, epoch: int, *names: str, **fields: Any) -> ConsumerAnswer:
        group = self.ledger.get(GroupKey(GROUP))
        wanted = {*names} | (set(group.topics) if isinstance(group, ShareGroup) else set())
        topics = {name: self.topics.get(name) for name in wanted}
        answer: ConsumerAnswer = self.run(
            ShareHeartbeat(GROUP, member, epoch, topic_names=names or None, topics=topics, **fields)
        )
        return answer

    def group_tick(self, passed_ms: int) -> None:
        self.now += passed_ms
        self.run(GroupTick())

    def delete_group(self) -> ErrorCode:
        answer: ErrorCode = self.run(DeleteGroup(GROUP))
        return answer

    @property
    def group(self) -> ShareGroup:
        found: ShareGroup = self.ledger[GroupKey(GROUP)]
        return found
