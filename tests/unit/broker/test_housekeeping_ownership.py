"""A broker keeps house for what it owns, however much others own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.brokers.in_memory import make_topic, send
from support.brokers.offline import Producer, make_topics
from support.clients.raw import batch
from support.clocks import TurnedClock
from support.models.ownership import Owners, Seat, endpoint
from support.stores.compacting import compacting

from semel.broker.broker import Broker
from semel.broker.ownership import Node
from semel.broker.upkeep import housekeeping
from semel.config import Settings
from semel.core.groups.offsets import CommitOffsets, Committer
from semel.core.log.partition import Append
from semel.core.transactions.commands import InitProducer
from semel.core.types import CommittedOffset, ErrorCode, OffsetKey, PartitionKey
from semel.wire.messages import ConsumerGroupHeartbeatRequest
from semel.wire.records import read_header

HERE, THERE = 0, 1
YEAR_MS = 365 * 24 * 3_600_000


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the rows of others fill several pages."""
    monkeypatch.setattr(housekeeping, "EXPIRE_AT_ONCE", 2)


@asynccontextmanager
async def divided(clock: TurnedClock, **settings: Any) -> AsyncIterator[tuple[Broker, Owners]]:
    broker = await Broker.open(Settings(**settings), None, clock)
    owners = Owners(*(Node(node_id, {"": endpoint(node_id)}) for node_id in (HERE, THERE)))
    broker.ownership = Seat(owners, HERE)
    try:
        yield broker, owners
    finally:
        await broker.close()


def init(name: str) -> InitProducer:
    return InitProducer(name, 60_000, timeout_max_ms=900_000)


async def test_ids_of_others_stay_and_hide_no_own_ids() -> None:
    clock = TurnedClock()
    async with divided(clock) as (broker, owners):
        for name in "abcdefgh":
            await broker.ask(init(name))
            if name in "abcdeg":
                owners.move_coordinator(name, THERE)
        clock.passes(YEAR_MS)
        await broker._housekeeping.forget_transactions()
        left = [each.transactional_id for each in await broker.store.ledger.transactions()]
        assert left == list("abcdeg")


async def test_producers_of_others_stay_and_hide_no_own_producers() -> None:
    clock = TurnedClock()
    async with divided(clock) as (broker, owners):
        topic = await make_topic(broker, "t", 4)
        keys = [PartitionKey(topic.topic_id, index) for index in range(4)]
        for key in keys:
            for producer_id in range(3):
                data = batch(0, producer_id=producer_id, producer_epoch=0)
                await broker.ask(Append(key, read_header(data), data))
            if key.index != 2:
                owners.move_leader(key, THERE)
        clock.passes(YEAR_MS)
        await broker._housekeeping.expire()
        left = [len(await broker.store.ledger.producers(key)) for key in keys]
        assert left == [3, 3, 0, 3]


async def test_offsets_of_others_stay() -> None:
    clock = TurnedClock()
    async with divided(clock) as (broker, owners):
        await make_topic(broker, "t")
        for name in ("mine", "yours"):
            key = OffsetKey(name, "t", 0)
            await broker.ask(CommitOffsets(name, Committer(), ((key, CommittedOffset(1)),)))
        owners.move_coordinator("yours", THERE)
        clock.passes(YEAR_MS)
        await broker._housekeeping.expire()
        assert [each.group_id for each in await broker.store.ledger.groups()] == ["yours"]


async def test_only_own_transactions_time_out() -> None:
    clock = TurnedClock()
    async with divided(clock) as (broker, owners):
        await make_topics(broker)
        for name in ("mine", "yours"):
            producer = await Producer(broker, name).init()
            await producer.send()
        owners.move_coordinator("yours", THERE)
        clock.passes(YEAR_MS)
        await broker._housekeeping.abort_overdue()
        await broker.flush()
        ongoing = await broker.store.ledger.open_transactions(limit=10)
        assert [each.transactional_id for each in ongoing] == ["yours"]


async def test_only_led_partitions_are_retained_and_one_broker_sweeps() -> None:
    clock = TurnedClock()
    async with divided(clock) as (broker, owners):
        topic = await make_topic(broker, "t", 2, retention_ms="1000")
        keys = [PartitionKey(topic.topic_id, index) for index in range(2)]
        for key in keys:
            data = batch()
            await broker.ask(Append(key, read_header(data), data))
        owners.move_leader(keys[1], THERE)
        clock.passes(YEAR_MS)
        broker.ownership = Seat(owners, THERE)
        owners.move_leader(keys[0], THERE)
        owners.move_leader(keys[1], HERE)
        await broker._housekeeping.retain()
        starts = [(await broker.reads.partition(key)).log_start_offset for key in keys]  # type: ignore[union-attr]
        assert starts == [1, 0]
        assert len(await broker.store.ledger.leftovers(limit=10)) == 1
        broker.ownership = Seat(owners, HERE)
        await broker._housekeeping.sweep()
        assert await broker.store.ledger.leftovers(limit=10) == []


async def test_members_of_a_group_that_was_taken_over_time_out() -> None:
    clock = TurnedClock()
    async with divided(clock) as (broker, owners):
        await make_topic(broker, "t")
        heartbeat = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="m",
            member_epoch=0,
            rebalance_timeout_ms=10_000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        )
        assert (await send(broker, heartbeat.api_key, heartbeat, 1)).error_code == ErrorCode.NONE
        owners.move_coordinator("g", THERE)
        # As after a change of owners: the members are in the ledger, and nobody counts their time.
        broker._loop.state.sessions.clear()
        await broker._housekeeping._groups()
        assert not broker._loop.state.sessions
        owners.move_coordinator("g", HERE)
        await broker._housekeeping._groups()
        assert list(broker._loop.state.sessions) == ["g"]


async def test_only_led_partitions_are_compacted() -> None:
    async with compacting() as table:
        broker = table.broker
        owners = Owners(Node(HERE, {}), Node(THERE, {}))
        broker.ownership = Seat(owners, THERE)
        await table.put_each(("k", "1"), ("k", "2"), ("k", "3"))
        await table.compact()
        assert (await table.partition()).compactions == 0
        broker.ownership = Seat(owners, HERE)
        await table.compact()
        assert (await table.partition()).compactions > 0
