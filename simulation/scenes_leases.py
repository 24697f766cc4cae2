"""Scenes about leases and owners: a broker that is cut off serves no client, and owners get their notices.

A scene looks into a broker only to find the right moment.
"""

from typing import Any

from semel.core.entities import owner_of, partition_shard
from semel.core.types import PartitionKey
from semel.store.contract import StoreRefused
from simulation import virtual_time
from simulation.cluster import ClusterWorld
from simulation.shared_membership import LEASE_SECONDS
from simulation.stage import (
    TOPIC,
    check_visible,
    committed,
    in_cluster,
    met,
    named,
    open_transaction,
    partition_at,
    partition_of,
    record,
    until,
)


def late_renewal() -> None:
    """A leader misses a notice while the ledger is away, and its lease ends. Then it renews the lease.

    The other broker could not reach the ledger either, so it does not replace the leader at once.
    """

    async def work(world: ClusterWorld) -> None:
        one, two = world.everybody()
        key = partition_of(one)
        end = await open_transaction(two, named(world, two), one, key)
        world.faults.odds["lost notice"] = 1.0
        answer = two.broker.submit([end])
        await committed(world, end)
        one.wire.is_cut = world.server.is_away = True
        await virtual_time.sleep(1.5 * LEASE_SECONDS)
        world.server.is_away = False
        await answer
        one.wire.is_cut = False
        await until(lambda: one.ownership.leads(key))
        await check_visible(world, key)

    in_cluster(work)


def leader_without_ledger() -> None:
    """A leader can neither renew its lease nor get notices, and still serves readers for a while."""

    async def work(world: ClusterWorld) -> None:
        one, two = world.everybody()
        key, row = partition_of(one), world.server.rows[1]
        end = await open_transaction(two, named(world, two), one, key)
        before = row.lease_until
        await until(lambda: row.lease_until > before)
        await virtual_time.sleep(0.005)
        one.wire.is_cut = True
        world.faults.odds["lost notice"] = 1.0
        await two.broker.ask(end)
        await check_visible(world, key)

    in_cluster(work)


def write_of_a_replaced_broker() -> None:
    """A broker's write waits for the ledger until another broker has replaced it, and serves readers."""

    async def work(world: ClusterWorld) -> None:
        one, two = world.everybody()
        key, answers = partition_of(one), list[object]()
        one.wire.is_cut = True
        one.broker.submit([record(key)]).then(answers.append)
        await until(lambda: two.ownership.leads(key))
        met((await partition_at(two, key)).high_watermark == 0)
        assert one.broker.member is not None
        renewing = one.broker.member._renewing
        # Otherwise the broker learns from the renewal first that it was replaced.
        await until(lambda: not renewing.locked())
        one.wire.is_cut = False
        await until(lambda: one.is_over or bool(answers))
        if answers and not isinstance(answers[0], Exception):
            assert (await partition_at(two, key)).high_watermark == 1, (
                "a reader misses an acknowledged record"
            )

    in_cluster(work)


def unknown_owner() -> None:
    """A leader dies. Its successor has begun to serve readers, and the coordinator does not know it yet.

    A fourth broker that the second cannot reach keeps the second from looking again too soon.
    """

    async def work(world: ClusterWorld) -> None:
        one, two, three, _ = world.everybody()
        keys = (PartitionKey(TOPIC, index) for index in range(16))
        key = next(each for each in keys if three.ownership.leads(each) and _next_owner(each, 1, 2, 4) == 1)
        end = await open_transaction(two, named(world, two), three, key)
        shard = partition_shard(key.topic_id, key.index)
        world._end(3, three.process)
        await until(lambda: two.ownership.owner(shard) is None)
        world._cut.add(frozenset((2, 4)))
        await until(lambda: world.server.shards[shard].owner == 1)
        world.faults.odds["lost notice"] = 1.0
        await until(lambda: one.ownership.leads(key))
        met(two.ownership.owner(shard) is None)
        met((await partition_at(one, key)).last_stable_offset == 0)
        await two.broker.ask(end)
        await check_visible(world, key)

    in_cluster(work, brokers=4)


def next_owner() -> None:
    """A leader leaves, and its successor has begun to serve readers. The coordinator does not know that yet.

    The coordinator sends the notice of an end to the former leader, which still answers.
    """

    async def work(world: ClusterWorld) -> None:
        one, two, three = world.everybody()
        keys = (PartitionKey(TOPIC, index) for index in range(16))
        key = next(each for each in keys if three.ownership.leads(each) and _next_owner(each, 1, 2) == 1)
        end = await open_transaction(two, named(world, two), three, key)
        row, shard = world.server.rows[2], partition_shard(key.topic_id, key.index)
        before = row.lease_until
        # The coordinator has just renewed its lease, so it does not learn the new owners for a while.
        await until(lambda: row.lease_until > before)
        await virtual_time.sleep(0.005)
        world._cut.add(frozenset((2, 3)))
        assert three.broker.member is not None
        await three.do(three.broker.member.leave())
        await until(lambda: one.ownership.leads(key))
        world._cut.clear()
        met((await partition_at(one, key)).last_stable_offset == 0)
        met(two.ownership.owner(shard) == 3)
        await two.broker.ask(end)
        await check_visible(world, key)

    in_cluster(work, brokers=3)


def late_hand_over() -> None:
    """A hand-over gets no answer, and the ledger carries it out later.

    Meanwhile the giver cannot repeat it, because notices of its commits have not arrived yet.
    """

    async def work(world: ClusterWorld) -> None:
        one, two = world.everybody()
        key, row = partition_of(two), world.server.rows[1]
        world._end(2, two.process)
        await until(lambda: one.ownership.leads(key))
        member: Any = one.broker.member
        membership, unannounced = member._membership, member._loop.unannounced
        hand_over, given = membership.hand_over, list[Any]()

        async def refuse(*arguments: Any) -> None:
            given.append(arguments)
            unannounced.wait = wait_in_vain
            membership.hand_over = hand_over
            raise StoreRefused("simulated: no answer")

        async def wait_in_vain(_: float) -> None:
            raise StoreRefused("simulated: notices are under way")

        membership.hand_over = refuse
        await world._start(2)
        two = world.everybody()[1]
        await until(lambda: bool(given))
        before = row.lease_until
        await until(lambda: row.lease_until > before)
        await virtual_time.sleep(0.005)
        await hand_over(*given[0])
        assert two.broker.member is not None
        await two.do(two.broker.member._renew())
        met(two.ownership.leads(key))
        assert not one.ownership.leads(key), "a partition has two leaders"

    in_cluster(work)


def _next_owner(key: PartitionKey, *brokers: int) -> int | None:
    return owner_of(partition_shard(key.topic_id, key.index), brokers)


def long_commit() -> None:
    """A commit takes longer than a lease, and so does a search for open transactions meanwhile."""

    async def work(world: ClusterWorld) -> None:
        one, _ = world.everybody()
        key = partition_of(one)
        member: Any = one.broker.member
        begun: list[bool] = []

        async def slow() -> None:
            begun.append(True)
            await virtual_time.sleep(10 * LEASE_SECONDS)

        ledger = member._loop._store.ledger
        search = ledger.open_transactions

        async def slow_search(**page: Any) -> Any:
            await virtual_time.sleep(10 * LEASE_SECONDS)
            return await search(**page)

        ledger.open_transactions = slow_search
        member._look_at = 0.0
        done = one.do(member._loop.between_ticks(slow))
        await until(lambda: bool(begun))
        await virtual_time.sleep(5 * LEASE_SECONDS)
        met(not done.done())
        assert one.ownership.leads(key), "a long commit, or a long search, cost the lease"
        ledger.open_transactions = search
        await done

    in_cluster(work)


def slow_notices() -> None:
    """Notices take almost half a lease, as if they arrived only through the ledger."""

    async def work(world: ClusterWorld) -> None:
        one, two = world.everybody()
        key = partition_of(two)
        world._end(2, two.process)
        await until(lambda: one.ownership.leads(key))
        member: Any = one.broker.member
        tried: list[float] = []

        async def wait(seconds: float) -> None:
            tried.append(seconds)
            await virtual_time.sleep(min(seconds, 0.45 * LEASE_SECONDS))
            if seconds < 0.45 * LEASE_SECONDS:
                raise StoreRefused("simulated: notices are under way")

        member._loop.unannounced.wait = wait
        await world._start(2)
        two = world.everybody()[1]
        await until(lambda: two.ownership.leads(key))
        met(len(tried) > 1)

    in_cluster(work)
