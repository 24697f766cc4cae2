"""Scenes about conflicting decisions of two brokers: a commit overtakes another, or their clocks differ.

A decision that was made before another broker's commit must not take effect after it.
"""

import asyncio
from random import Random

from semel.broker.reads.offset_search import LATEST
from semel.broker.reads.published_partitions import Isolation
from semel.core.groups.offsets import CommitOffsets, Committer, FetchOffsets
from semel.core.log.partition import Append
from semel.core.transactions.commands import AddPartitions, EndTransaction, InitProducer
from semel.core.types import CommittedOffset, ErrorCode, OffsetKey, TransactionKey
from simulation import virtual_time
from simulation.cluster import ClusterWorld
from simulation.stage import (
    batch,
    committed,
    in_cluster,
    met,
    named,
    partition_at,
    partition_of,
    until,
)


def write_decided_before_an_end() -> None:
    """The first write of a transaction is decided, and the transaction ends before the write is committed.

    The end has nothing to do in that partition. Of what the write has read, it changes only the transaction.
    """

    async def work(world: ClusterWorld) -> None:
        one, two = world.everybody()
        key, name = partition_of(one), named(world, two)
        given = await two.broker.ask(InitProducer(name, 60_000))
        met(await two.broker.ask(AddPartitions(name, given.producer_id, 0, (key,))) is ErrorCode.NONE)
        write = _in_version_1(batch(name, key, given.producer_id))
        written = one.broker.submit([write])
        await until(lambda: TransactionKey(name) in one.broker._loop.state.transactions)
        one.wire.is_cut = True
        end = EndTransaction(name, given.producer_id, 0, True)
        two.broker.submit([end])
        await committed(world, end)
        one.wire.is_cut = False
        await written
        seen = await partition_at(one, key)
        assert seen.last_stable_offset == seen.high_watermark, "readers wait for a transaction that has ended"

    in_cluster(work)


def late_commit() -> None:
    """The connection breaks during a commit, which is repeated; the first one is carried out much later.

    It commits an offset that has advanced meanwhile. The next coordinator of the group knows that offset only
    from the ledger.
    """

    async def work(world: ClusterWorld) -> None:
        one, two = world.everybody()
        group, faults = named(world, one), world.faults
        key = OffsetKey(group, "t", 0)

        def commit(offset: int) -> CommitOffsets:
            return CommitOffsets(group, Committer(), ((key, CommittedOffset(offset)),))

        await one.broker.ask(commit(1))
        one.wire.random, faults.odds["lost commit"] = _Late(), 1.0
        answer = one.broker.submit([commit(2)])
        await until(lambda: faults.counts.get("lost commit") == 1)
        faults.odds.clear()
        await answer
        await one.broker.ask(commit(3))
        await virtual_time.sleep(0.3)
        assert one.broker.member is not None
        await one.do(one.broker.member.leave())
        await until(lambda: two.ownership.coordinates(group))
        fetched = await two.broker.ask(FetchOffsets(group, offsets=(key,)))
        found = [each and each.offset for each in fetched.offsets]
        assert found == [3], "an offset that was committed is not shown"

    in_cluster(work)


def flush_after_an_end_elsewhere() -> None:
    """A leader shows an end that another broker has committed, and then flushes what it wrote before it."""

    async def work(world: ClusterWorld) -> None:
        one, two = world.everybody()
        key, name = partition_of(one), named(world, two)
        given = await two.broker.ask(InitProducer(name, 60_000))
        await one.broker.ask(batch(name, key, given.producer_id))
        world.faults.odds["lost notice"] = 1.0
        end = EndTransaction(name, given.producer_id, 0, True, 2)
        two.broker.submit([end])
        await committed(world, end)
        reads = one.broker.reads
        before = (await reads.list_offsets(key, LATEST, Isolation.READ_COMMITTED)).offset
        met(before == 2 and key in one.broker._loop.unsynced.partitions)
        # The leader must flush first, so that its answer includes everything.
        after = (await reads.list_offsets(key, LATEST, Isolation.READ_UNCOMMITTED)).offset
        assert after >= before, "the end of the log goes back"

    in_cluster(work)


def two_clocks() -> None:
    """A write at one broker opens a transaction that another coordinates, and its producer dies.

    The clocks of their machines differ by minutes or more. The scene is played twice, so that the later clock
    is at the leader once. The transaction must time out both times.
    """

    async def work(world: ClusterWorld) -> None:
        one, two = world.everybody()
        for leader, coordinator in ((one, two), (two, one)):
            key, name = partition_of(leader), named(world, coordinator)
            given = await coordinator.broker.ask(InitProducer(name, 100))
            await leader.broker.ask(batch(name, key, given.producer_id))
            async with asyncio.timeout(15):
                while (await partition_at(leader, key)).last_stable_offset < 2:
                    await virtual_time.sleep(0.1)

    in_cluster(work)


def _in_version_1(write: Append) -> Append:
    """Return the same write, from a client that has added the partition to the transaction before."""
    context = write.transaction_context
    assert context is not None
    return write.but(transaction_context=context.but(version=1))


class _Late(Random):
    """Makes every delay as long as possible."""

    def random(self) -> float:
        return 0.0

    def uniform(self, a: float, b: float) -> float:
        return b
