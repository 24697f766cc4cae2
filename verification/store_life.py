"""Runs a store under a random workload. ``store_history`` models what it must hold after each commit.

The real rules decide (``semel.core``), so the facts are those that a broker would commit: plain batches,
small ones and ones too large for the WAL, transactions of both visibilities with offsets, log starts,
compaction, created and deleted topics. In between the store is swept, checkpointed, read, closed and opened.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from semel.broker.upkeep.housekeeping import sweep
from semel.core import transactions
from semel.core.facts import DURABLE, GroupDeleted, ProducerIdAllocated, Put
from semel.core.groups import ClassicGroup
from semel.core.groups.offsets import CommitOffsets, Committer
from semel.core.log.partition import AllocateProducerId, Append, DeleteRecords, TransactionContext
from semel.core.state import BrokerState
from semel.core.topics import CreateTopic, DeleteTopic
from semel.core.types import (
    Buffer,
    Cluster,
    ClusterKey,
    Command,
    CommittedOffset,
    Fact,
    GroupKey,
    OffsetKey,
    PartitionKey,
    PendingKey,
    TopicKey,
    TransactionKey,
)
from semel.store.embedded.store import EmbeddedStore
from semel.wire.records import Record, encode_batch, read_header
from verification.compacting import compaction_of
from verification.store_history import History

SIZES: Final = (10, 10, 300, 700, 1_500)
LARGE: Final = 4_000
"""The size of a record that is too large for the WAL."""
MANY: Final = 400
"""The number of facts that are too many for the WAL."""
SWEEP_ROWS: Final = 5
TOPICS: Final = {"orders": 2, "payments": 1, "staged": 2}
IDS: Final = ("x", "y")
KEYS: Final = (b"a", b"b", b"c", None)
COMMITS: Final = ("append", "append", "append", "write", "write", "write", "write", "pend", "end", "end")
RARE: Final = ("large",) * 4 + (
    *("write large", "many", "trim", "trim", "compact", "compact", "topic", "init", "group", "offsets"),
)
AROUND: Final = ("read",) * 4 + (
    "checkpoint",
    "flush",
    "sweep",
    "sweep beside",
    "sweep rows",
    "clear",
    "restart",
)


class Told(NamedTuple):
    """The commits that the clients of a store have requested, and those that were answered."""

    asked: int = 0
    """The number of requested commits."""
    answered: int = 0
    """The number of answered commits, of which the last may be unsynced."""
    durable: int = 0
    """The number of commits answered as durable."""
    term: int = 0


class Life:
    """One store and its workload."""

    def __init__(
        self,
        history: History,
        chance: random.Random,
        reopen: Callable[[], Awaitable[EmbeddedStore]],
        tell: Callable[[Told], None],
    ) -> None:
        self.told = Told()
        self._history = history
        self._chance = chance
        self._reopen = reopen
        self._tell = tell
        self._now = 1_000
        self._sequences: dict[tuple[Any, ...], int] = {}

    def use(self, store: EmbeddedStore) -> None:
        """Continue with an opened store."""
        self._store = store
        self._state = BrokerState(store.term)
        self._sequences.clear()

    def know(self, told: Told) -> None:
        """Set what the clients know."""
        self.told = told
        self._tell(told)

    @property
    def store(self) -> EmbeddedStore:
        """The open store."""
        return self._store

    async def close(self) -> None:
        """Close the store."""
        await self._store.close()

    async def settle(self) -> None:
        """Append a batch, and checkpoint ledger and chunks."""
        await self._tick([self._create("orders")])
        await self._tick([await self._command("append")])
        await self._around("checkpoint")

    async def flush(self) -> None:
        """Flush everything answered to the WAL."""
        await self._around("flush")

    async def go(self, steps: int) -> None:
        """Do this many random steps."""
        await self._step("init")
        for name in TOPICS:
            await self._tick([self._create(name)])
        for _ in range(steps):
            kinds = self._chance.choices((COMMITS, RARE, AROUND), weights=(5, 3, 2))[0]
            await self._step(self._chance.choice(kinds))

    async def _step(self, what: str) -> None:
        if what in AROUND:
            await self._around(what)
        elif what == "many":
            await self._commit_many()
        elif what == "group":
            group = ClassicGroup("g", generation=self._now)
            fact = Put.of(group) if self._chance.random() < 0.8 else GroupDeleted("g")
            await self._load([GroupKey("g"), PendingKey("g")])
            await self._load(OffsetKey("g", name, index) for name in TOPICS for index in range(2))
            await self._tick([], [fact])
        else:
            await self._tick([await self._command(what) for _ in range(self._chance.choice((1, 1, 2, 3)))])

    async def _around(self, what: str) -> None:
        if what == "read":
            await self._store.ledger.topics()
        elif what == "flush":
            await self._commit([], [], defers_sync=False)
        elif what == "sweep":
            await sweep(self._store, SWEEP_ROWS)
        elif what in ("clear", "sweep rows"):
            if what == "clear":
                await self._tick([await self._below(key, 8) for key in await self._partitions()])
            await self._store.ledger.sweep(limit=50)
            await self._store.sweep_orphans()
        elif what == "sweep beside":
            await asyncio.gather(sweep(self._store, SWEEP_ROWS), self._some_commits())
        elif what == "checkpoint":
            await self._store.checkpoint()
        else:
            await self._store.close()
            self.use(await self._reopen())
            await self._step("init")
        if not self._store.has_unsynced:
            self.know(self.told._replace(durable=self.told.answered))

    async def _some_commits(self) -> None:
        for _ in range(self._chance.randint(1, 4)):
            await self._step(self._chance.choice(COMMITS))

    # -- commits ------------------------------------------------------------------------------------------

    async def _tick(self, commands: list[Command[Any] | None], more: list[Fact] | None = None) -> None:
        """Decide these commands, and commit the facts."""
        facts: list[Fact] = list(more or ())
        batches: list[Buffer] = []
        defers_sync = not more
        asked = [command for command in commands if command is not None]
        await self._load([ClusterKey()])
        # Load everything first: decisions of this tick are not in the ledger yet.
        for command in asked:
            await self._load(command.keys())
            if hasattr(command, "more_keys"):
                await self._load(command.more_keys(self._state))
        for fact in facts:
            self._state.apply(fact)
        for command in asked:
            decision = self._state.decide(command, self._now)
            self._remember_sequence(command, decision.answer)
            defers_sync = defers_sync and (decision.defers_sync or not decision.facts)
            batches += decision.batches
            for fact in decision.facts:
                self._state.apply(fact)
                facts.append(fact)
        (fact,) = self._state.decide(AllocateProducerId(), self._now).facts
        self._state.apply(fact)
        self._now += 1
        durable = [each for each in (*facts, fact) if type(each) in DURABLE]
        await self._commit(durable, batches, defers_sync=defers_sync)

    async def _commit_many(self) -> None:
        await self._load([ClusterKey()])
        cluster = self._state.cluster[ClusterKey()] or Cluster()
        first = cluster.next_producer_id
        facts: list[Fact] = [ProducerIdAllocated(first + at) for at in range(MANY)]
        for fact in facts:
            self._state.apply(fact)
        await self._commit(facts, [], defers_sync=False)

    async def _commit(self, facts: list[Fact], batches: list[Buffer], *, defers_sync: bool) -> None:
        if facts:
            self.know(self.told._replace(asked=self._history.add(facts, batches)))
        asked = self.told.asked
        await self._store.commit(facts, batches, defers_sync=defers_sync)
        durable = self.told.durable if self._store.has_unsynced else asked
        self.know(self.told._replace(answered=asked, durable=durable))

    async def _load(self, keys: Any) -> None:
        missing = self._state.missing(keys)
        if not missing:
            return
        if self._store.has_unsynced:
            # The ledger does not have the unsynced work yet.
            await self._commit([], [], defers_sync=False)
        for key, value in zip(missing, await self._store.ledger.load(missing), strict=True):
            self._state.put(key, value)

    # -- commands -----------------------------------------------------------------------------------------

    async def _command(self, what: str) -> Command[Any] | None:
        chance = self._chance
        if what in ("append", "large"):
            size = LARGE if what == "large" else chance.choice(SIZES)
            batch = encode_batch(self._records(size))
            key = await self._partition(chance.choice(["orders", "payments"]))
            return None if key is None else Append(key, read_header(batch), batch)
        if what in ("trim", "compact"):
            return await (self._trim() if what == "trim" else self._compact())
        if what == "topic":
            name = chance.choice([*TOPICS])
            await self._load([TopicKey(name)])
            return DeleteTopic(name) if self._state.topics[TopicKey(name)] else self._create(name)
        if what == "offsets":
            position = (OffsetKey("g", chance.choice([*TOPICS]), 0), CommittedOffset(self._now))
            return CommitOffsets("g", Committer(), (position,))
        return await self._transactional(what, chance.choice(IDS))

    async def _transactional(self, what: str, name: str) -> Command[Any] | None:
        await self._load([TransactionKey(name), ClusterKey()])
        await self._load(transactions.commands.keys_of(self._state, name))
        known = self._state.transactions[TransactionKey(name)]
        if what == "init" or known is None:
            return transactions.commands.InitProducer(name, 60_000)
        pair = (known.producer_id, known.epoch)
        if what == "end":
            return transactions.commands.EndTransaction(name, *pair, self._chance.random() < 0.6, 2)
        if what == "pend":
            offset = (OffsetKey("g", self._chance.choice([*TOPICS]), 0), CommittedOffset(self._now))
            return transactions.commands.CommitPending(
                name, *pair, "g", Committer(), (offset,), 2, must_be_added=False
            )
        topic = self._chance.choice(["orders", "staged", "staged"])
        key = await self._partition(topic)
        if key is None:
            return None
        await self._load([key.of(known.producer_id)])
        size = LARGE if what == "write large" else self._chance.choice(SIZES)
        batch = encode_batch(
            self._records(size),
            producer_id=known.producer_id,
            producer_epoch=known.epoch,
            base_sequence=self._sequences.get((key, *pair), 0),
            transactional=True,
        )
        transaction_context = TransactionContext(name, 2, must_be_added=False)
        return Append(
            key,
            read_header(batch),
            batch,
            transaction_context=transaction_context,
            is_journal=topic == "staged",
        )

    def _records(self, size: int) -> list[Record]:
        count = self._chance.choice((1, 1, 2))
        return [
            Record(at, self._now, self._chance.choice(KEYS), self._chance.randbytes(size // count))
            for at in range(count)
        ]

    def _remember_sequence(self, command: Command[Any], answer: Any) -> None:
        if isinstance(command, Append) and command.header.producer_id >= 0 and not answer.error:
            sent = command.header
            owner = (command.partition, sent.producer_id, sent.producer_epoch)
            self._sequences[owner] = sent.base_sequence + sent.last_offset_delta + 1

    async def _partition(self, name: str) -> PartitionKey | None:
        await self._load([TopicKey(name)])
        topic = self._state.topics[TopicKey(name)]
        return (
            None if topic is None else PartitionKey(topic.topic_id, self._chance.randrange(topic.partitions))
        )

    async def _trim(self) -> Command[Any] | None:
        key = await self._partition(self._chance.choice([*TOPICS]))
        return None if key is None else await self._below(key, self._chance.randint(1, 8))

    async def _compact(self) -> Command[Any] | None:
        name = self._chance.choice([*TOPICS])
        key = await self._partition(name)
        if key is None:
            return None
        if self._store.has_unsynced:
            await self._commit([], [], defers_sync=False)
        await self._load([key])
        partition = self._state.partitions[key]
        assert partition is not None
        return await compaction_of(self._store, name, key, partition, self._now, self._chance.choice((0, 20)))

    async def _partitions(self) -> list[PartitionKey]:
        topics = await self._store.ledger.topics()
        return [PartitionKey(each.topic_id, index) for each in topics for index in range(each.partitions)]

    async def _below(self, key: PartitionKey, eighths: int) -> Command[Any]:
        """Return the command that deletes the first eighths of a partition's offsets."""
        if self._store.has_unsynced:
            await self._commit([], [], defers_sync=False)
        await self._load([key])
        partition = self._state.partitions[key]
        offset = (partition.high_watermark if partition else 0) * eighths // 8
        below = await self._store.ledger.size_below(key, offset)
        return DeleteRecords(key, offset, *below, partition.compactions if partition else 0)

    def _create(self, name: str) -> Command[Any]:
        configs = {"cleanup.policy": "compact"}
        if name == "staged":
            configs["semel.visibility"] = "journal"
        return CreateTopic(name, self._chance.randbytes(16), TOPICS[name], configs)
