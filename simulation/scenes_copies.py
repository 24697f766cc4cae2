"""Scenes about copies in memory that another broker has made old, without a notice that arrives in time."""

import asyncio

from semel.core.offsets import Committer, FetchOffsets
from semel.core.transactions.commands import CommitPending, EndTransaction, InitProducer
from semel.core.types import CommittedOffset, ErrorCode, OffsetKey
from simulation import virtual_time
from simulation.cluster import BrokerLife, ClusterWorld
from simulation.stage import (
    batch,
    check_visible,
    committed,
    in_cluster,
    met,
    named,
    open_transaction,
    partition_at,
    partition_of,
)


def lost_notice_of_a_join() -> None:
    """A write at the first broker opens a transaction; its coordinator is not told, and has to commit it."""

    async def work(world: ClusterWorld) -> None:
        one, two = world.everybody()
        world.faults.odds["lost notice"] = 1.0
        key = partition_of(one)
        end = await open_transaction(two, named(world, two), one, key)
        given = await two.broker.ask(end)
        assert given.error is ErrorCode.NONE, "a transaction that was written cannot be committed"
        await check_visible(world, key)

    in_cluster(work)


def lost_notice_of_a_join_without_end() -> None:
    """As before, but the producer dies: the coordinator has to abort it, so that readers go on."""

    async def work(world: ClusterWorld) -> None:
        one, two = world.everybody()
        world.faults.odds["lost notice"] = 1.0
        key, name = partition_of(one), named(world, two)
        given = await two.broker.ask(InitProducer(name, 100))
        await one.broker.ask(batch(name, key, given.producer_id))
        async with asyncio.timeout(30):
            while (await partition_at(one, key)).last_stable_offset < 2:
                await virtual_time.sleep(0.1)

    in_cluster(work)


def notices_in_another_order() -> None:
    """Two brokers commit offsets of one group, and the notice of the later commit arrives first."""

    async def work(world: ClusterWorld) -> None:
        one, two, three = world.everybody()
        group = named(world, one)
        keys = [OffsetKey(group, "t", index) for index in range(2)]
        ends = [
            await _offset_in_transaction(world, one, *each) for each in zip((two, three), keys, strict=True)
        ]
        world._cut.add(frozenset((1, 2)))
        two.broker.submit([ends[0]])
        await committed(world, ends[0])
        met((await three.broker.ask(ends[1])).error is ErrorCode.NONE)
        for _ in range(2):
            fetched = await one.broker.ask(FetchOffsets(group, offsets=(keys[1],), require_stable=True))
            found = [each and each.offset for each in fetched.offsets]
            assert found == [5], "an offset that was committed is not shown"
            assert keys[1] not in fetched.unstable, "an offset that was committed is said to be open"
            # By then the first notice has arrived, through the ledger.
            await virtual_time.sleep(0.5)

    in_cluster(work, brokers=3)


async def _offset_in_transaction(
    world: ClusterWorld, group_owner: BrokerLife, coordinator: BrokerLife, key: OffsetKey
) -> EndTransaction:
    """An offset in a transaction. Return the end of it."""
    name = named(world, coordinator)
    given = await coordinator.broker.ask(InitProducer(name, 60_000))
    offsets = ((key, CommittedOffset(5)),)
    pending = CommitPending(name, given.producer_id, 0, key.group_id, Committer(), offsets, version=2)
    met(await group_owner.broker.ask(pending) == (ErrorCode.NONE,))
    return EndTransaction(name, given.producer_id, 0, True, 2)
