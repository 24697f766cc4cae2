"""Helpers for tests of the commit loop: a store whose commits a test releases, and a source of commands."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from semel.broker.clock import Clock
from semel.broker.commit.loop import CommitLoop
from semel.broker.commit.pending_commands import Answers
from semel.broker.metrics import Metrics
from semel.config import Settings
from semel.core.log.partition import Append, TransactionContext
from semel.core.topics import CreateTopic
from semel.core.transactions.commands import EndTransaction, InitProducer, ProducerGiven
from semel.core.types import (
    Buffer,
    EntityKey,
    Fact,
    Key,
    Partition,
    PartitionKey,
    Transaction,
    V,
    Value,
)
from semel.store.contract import StoreFull
from support.models.rules import PARTITION, TOPIC_ID, header

ID = "id"


class Nothing:
    """A ledger with only the values that a test puts into it."""

    def __init__(self) -> None:
        self._values: dict[tuple[type, Key], Any] = {}
        self.open: list[Transaction] = []
        self.loads: list[list[Key]] = []

    def keep(self, key: Key, value: Value) -> None:
        # The type is part of the key, because keys of different types can be equal as tuples.
        self._values[type(key), key] = value

    async def load(self, keys: Sequence[EntityKey[V]]) -> list[V | None]:
        self.loads.append(list(keys))
        return [self._values.get((type(key), key)) for key in keys]

    async def open_transactions(self, *, after: str = "", limit: int) -> list[Transaction]:
        return [each for each in self.open if each.transactional_id > after][:limit]


class HeldStore:
    """Commits when the test releases it, fails on request. Keeps unsynced work until a commit flushes."""

    flush_seconds = 0.0

    def __init__(self, term: int = 1) -> None:
        self.term = term
        self.ledger = Nothing()
        self.let = asyncio.Event()
        self.began = asyncio.Event()
        self.commits: list[list[Fact]] = []
        """The facts that each flush made durable, unsynced work included."""
        self.unsynced: list[Fact] = []
        self.unsynced_commits = 0
        self.takes_unsynced = True
        self.error: Exception | None = None
        self.room = 2**62
        self.asked_for: list[int] = []

    @property
    def has_unsynced(self) -> bool:
        return bool(self.unsynced)

    async def make_room(self, length: int) -> None:
        self.asked_for.append(length)
        if length > self.room:
            raise StoreFull("no room")

    async def commit(
        self, facts: Sequence[Fact], batches: Sequence[Buffer], *, defers_sync: bool = False
    ) -> int:
        self.began.set()
        await self.let.wait()
        if self.error is not None:
            raise self.error
        if defers_sync and self.takes_unsynced:
            self.unsynced_commits += 1
            self.unsynced += facts
        else:
            self.commits.append([*self.unsynced, *facts])
            self.unsynced = []
        return len(self.commits)


class Looping:
    """A commit loop over a held store, and the facts it has published."""

    def __init__(self, *, term: int = 1, **settings: Any) -> None:
        self.store = HeldStore(term)
        self.metrics = Metrics()
        self.published: list[list[Fact]] = []
        self.shown = asyncio.Event()
        self.batches: list[list[Buffer | None]] = []
        self.awaited: set[PartitionKey] = set()
        self.loop = CommitLoop(
            self.store,  # type: ignore[arg-type]
            Settings(**settings),
            Clock(),
            self.metrics,
            self,  # type: ignore[arg-type]
        )
        self.task = asyncio.create_task(self.loop.run())
        self.outcomes: list[Answers] = []

    def is_awaited(self, keys: Iterable[PartitionKey]) -> bool:
        return not self.awaited.isdisjoint(keys)

    def publish(self, facts: Sequence[Fact], batches: Sequence[Buffer | None]) -> None:
        self.published.append(list(facts))
        self.shown.set()
        self.batches.append(list(batches))

    def submit(self, *commands: Any) -> None:
        self.loop.submit(commands).then(self.outcomes.append)

    async def ask(self, *commands: Any) -> Answers:
        answered: asyncio.Future[Answers] = asyncio.get_running_loop().create_future()
        self.loop.submit(commands).then(answered.set_result)
        return await answered

    async def settle(self) -> None:
        self.loop.stop()
        await self.task

    async def producer(self, **fields: Any) -> "Producer":
        """Create a topic and a producer; its InitProducerId is durable and published."""
        self.store.let.set()
        await self.ask(create())
        self.store.ledger.keep(PARTITION, Partition())
        outcome = await self.ask(InitProducer(ID, 60_000, **fields))
        assert isinstance(outcome, list)
        self.store.commits.clear()
        self.published.clear()
        self.shown.clear()
        self.batches.clear()
        return Producer(outcome[0])


class Producer:
    """Builds the commands of one transactional producer of version 2."""

    def __init__(self, given: ProducerGiven) -> None:
        self.given = given
        self.sequence = 0

    def append(self, size: int = 100, *, is_journal: bool = False) -> Append:
        batch = header(self.sequence, producer_id=self.given.producer_id, epoch=self.given.epoch)
        self.sequence += 1
        return Append(
            PARTITION,
            batch._replace(length=size),
            b"x" * size,
            transaction_context=TransactionContext(ID, 2),
            is_journal=is_journal,
        )

    def end(self, *, is_commit: bool = True, connection: int = -1) -> EndTransaction:
        return EndTransaction(
            ID, self.given.producer_id, self.given.epoch, is_commit, version=2, connection=connection
        )


def create() -> CreateTopic:
    return CreateTopic("t", TOPIC_ID, 1, {})


def append() -> Append:
    return Append(PARTITION, header(producer_id=-1, epoch=-1), b"x" * 100)
