"""Scenes about the repeated end of a transaction.

What its answer acknowledges must be visible to the next reader, at any broker.
"""

from typing import Any

from semel.core.entities import name_shard, owner_of
from semel.core.transactions.commands import EndTransaction
from semel.core.types import ErrorCode, PartitionKey
from simulation import virtual_time
from simulation.cluster import BrokerLife, ClusterWorld
from simulation.peers import ANSWER_SECONDS
from simulation.stage import (
    STEP,
    check_visible,
    committed,
    given_by,
    in_cluster,
    met,
    named,
    open_transaction,
    partition_of,
    until,
)


def repeated_end() -> None:
    """The end is repeated while the notice of the first one is on its way."""

    async def work(world: ClusterWorld) -> None:
        two = world.everybody()[1]
        key, end = await _open(world)
        world.faults.odds["held notice"] = 1.0
        first = two.broker.submit([end])
        await virtual_time.sleep(0.02)
        await two.broker.ask(end)
        await check_visible(world, key)
        await first

    in_cluster(work)


def dead_coordinator() -> None:
    """The coordinator dies after the commit and before its notices; the end is repeated at the next one."""

    async def work(world: ClusterWorld) -> None:
        two = world.everybody()[1]
        key, end = await _open(world)
        world.faults.odds["lost notice"] = 1.0
        two.broker.submit([end])
        await committed(world, end)
        world._end(2, two.process)
        world.faults.odds.clear()
        await _repeat_elsewhere(world, two, end)
        await check_visible(world, key)

    in_cluster(work, brokers=3)


def dead_coordinator_and_paused_leader() -> None:
    """As before, and the leader is paused while the next coordinator takes over, for less than its lease.

    When the leader resumes, it may still serve readers, but not with what it had in memory.
    """

    async def work(world: ClusterWorld) -> None:
        one, two, three = world.everybody()
        key, row = partition_of(one), world.server.rows[2]
        names = (str(number) for number in range(1_000))
        name = next(
            each
            for each in names
            if two.ownership.coordinates(each) and owner_of(name_shard(each), (1, 3)) == 3
        )
        end = await open_transaction(two, name, one, key)
        world.faults.odds["lost notice"] = 1.0
        two.broker.submit([end])
        await committed(world, end)
        world._end(2, two.process)
        world.faults.odds.clear()
        await until(lambda: world.server.now() > row.lease_until - 2 * STEP)
        met(row.is_member and one.ownership.leads(key))
        one.process.pause()
        await until(lambda: three.ownership.coordinates(name))
        given = await given_by(three, end)
        assert given.error is ErrorCode.NONE, "an end cannot be repeated"
        one.process.resume()
        await until(lambda: any(life.ownership.leads(key) for life in world.everybody()))
        await check_visible(world, key)

    in_cluster(work, brokers=3)


def leaving_coordinator() -> None:
    """The coordinator leaves after the commit and before its notices; the end is repeated at the next one."""

    async def work(world: ClusterWorld) -> None:
        two = world.everybody()[1]
        key, end = await _open(world)
        member: Any = two.broker.member
        member._sender._peers._delay = lambda: 0.9 * ANSWER_SECONDS
        two.broker.submit([end])
        await committed(world, end)
        leaving = two.do(member.leave())
        await _repeat_elsewhere(world, two, end)
        await check_visible(world, key)
        await leaving

    in_cluster(work, brokers=3)


async def _open(world: ClusterWorld) -> tuple[PartitionKey, EndTransaction]:
    """Open a transaction that the second broker coordinates, with a batch in a partition of the first."""
    one, two = world.everybody()[:2]
    key = partition_of(one)
    return key, await open_transaction(two, named(world, two), one, key)


async def _repeat_elsewhere(world: ClusterWorld, before: BrokerLife, end: EndTransaction) -> None:
    others = [life for life in world.everybody() if life is not before]

    def owners() -> list[BrokerLife]:
        return [life for life in others if life.ownership.coordinates(end.transactional_id)]

    await until(lambda: bool(owners()))
    given = await given_by(owners()[0], end)
    assert given.error is ErrorCode.NONE, "an end cannot be repeated"
