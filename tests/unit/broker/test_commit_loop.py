"""The commit loop: one order, one commit per tick, nobody answered before it."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from support.rules import PARTITION, TOPIC_ID, header

from semel.broker.clock import Clock
from semel.broker.commit_loop import CommitLoop, Outcome
from semel.broker.metrics import Metrics
from semel.config import Settings
from semel.core.partition import Append
from semel.core.topics import CreateTopic
from semel.core.types import Buffer, Fact
from semel.store.interface import StoreBroken, StoreFull


class Nothing:
    """A ledger in which nothing exists."""

    async def load(self, keys: Sequence[Any]) -> list[None]:
        return [None] * len(keys)


class HeldStore:
    """Commits when it is let, fails when it is told."""

    flush_seconds = 0.0

    def __init__(self) -> None:
        self.ledger = Nothing()
        self.let = asyncio.Event()
        self.began = asyncio.Event()
        self.commits: list[list[Fact]] = []
        self.error: Exception | None = None
        self.room = 2**62
        self.asked_for: list[int] = []

    async def make_room(self, length: int) -> None:
        self.asked_for.append(length)
        if length > self.room:
            raise StoreFull("no room")

    async def commit(self, facts: Sequence[Fact], batches: Sequence[Buffer]) -> int:
        self.began.set()
        await self.let.wait()
        if self.error is not None:
            raise self.error
        self.commits.append(list(facts))
        return len(self.commits)


class Harness:
    def __init__(self, **settings: int) -> None:
        self.store = HeldStore()
        self.published: list[list[Fact]] = []
        self.loop = CommitLoop(
            self.store,  # type: ignore[arg-type]
            Settings(**settings),  # type: ignore[arg-type]
            Clock(),
            Metrics(),
            lambda state, facts, batches: self.published.append(list(facts)),
        )
        self.task = asyncio.create_task(self.loop.run())
        self.outcomes: list[Outcome] = []

    def submit(self, *commands: Any) -> None:
        self.loop.submit(commands, self.outcomes.append)

    async def ask(self, *commands: Any) -> Outcome:
        answered: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.loop.submit(commands, answered.set_result)
        return await answered

    async def settle(self) -> None:
        self.loop.stop()
        await self.task


def create() -> CreateTopic:
    return CreateTopic("t", TOPIC_ID, 1, {})


def append() -> Append:
    return Append(PARTITION, header(producer_id=-1, epoch=-1), b"x" * 100)


async def test_nobody_is_answered_before_the_commit() -> None:
    harness = Harness()
    harness.submit(create())
    await harness.store.began.wait()
    assert harness.outcomes == []
    assert harness.published == []
    harness.store.let.set()
    await harness.settle()
    assert len(harness.outcomes) == 1


async def test_what_arrives_during_a_commit_shares_the_next() -> None:
    harness = Harness()
    harness.submit(create())
    await harness.store.began.wait()
    for _ in range(20):
        harness.submit(append())
    harness.store.let.set()
    await harness.settle()
    assert [len(facts) for facts in harness.store.commits] == [1, 20]
    offsets = [outcome[0].base_offset for outcome in harness.outcomes[1:] if isinstance(outcome, list)]
    assert offsets == list(range(20))


async def test_a_tick_is_bounded_in_bytes() -> None:
    harness = Harness(semel_tick_bytes_max=250)
    harness.submit(create())
    await harness.store.began.wait()
    for _ in range(6):
        harness.submit(append())
    harness.store.let.set()
    await harness.settle()
    assert [len(facts) for facts in harness.store.commits] == [1, 2, 2, 2]


async def test_readers_see_a_commit_before_anyone_is_answered() -> None:
    harness = Harness()
    seen: list[int] = []
    harness.store.let.set()
    harness.loop.submit([create()], lambda outcome: seen.append(len(harness.published)))
    await harness.settle()
    assert seen == [1]


async def test_a_full_store_refuses_the_tick_and_forgets_it() -> None:
    harness = Harness()
    harness.store.let.set()
    assert isinstance(await harness.ask(create()), list)
    harness.store.error = StoreFull("no room")
    assert isinstance(await harness.ask(append()), StoreFull)
    assert not harness.loop.state.partitions
    harness.store.error = None
    await harness.settle()


async def test_records_without_room_are_refused_and_nobody_else_is_disturbed() -> None:
    """Producers that try again on a full disk must not make the broker forget its groups."""
    harness = Harness()
    harness.store.let.set()
    await harness.ask(create())
    state = harness.loop.state
    harness.store.room = 99
    harness.submit(append())
    harness.submit(CreateTopic("other", b"other".ljust(16), 1, {}))
    assert isinstance(await harness.ask(append(), append()), StoreFull)
    refused, made = harness.outcomes
    assert isinstance(refused, StoreFull)
    assert isinstance(made, list)
    assert harness.loop.state is state
    harness.store.room = 100
    assert isinstance(await harness.ask(append()), list)
    assert len(harness.store.commits) == 3
    # Once per tick, for all of its records; never for a tick without any.
    assert harness.store.asked_for == [300, 100]
    await harness.settle()


async def test_a_broken_store_ends_the_loop_without_an_answer() -> None:
    harness = Harness()
    harness.store.let.set()
    harness.store.error = StoreBroken("fsync")
    harness.submit(create())
    with pytest.raises(StoreBroken):
        await harness.task
    assert harness.outcomes == []
    assert harness.published == []
