"""Scenes that one history in ten thousand has met: an end mistaken for another, decisions made too late."""

import asyncio
from functools import partial
from typing import Any

from semel.broker.cluster.commit_loop import SharedCommitLoop
from semel.core.entities import name_shard, owner_of, partition_shard
from semel.core.groups.commands import JoinGroup
from semel.core.transactions.commands import AddPartitions, EndTransaction, InitProducer
from semel.core.types import ErrorCode, PartitionKey, TransactionKey
from simulation import virtual_time
from simulation.cluster import BrokerLife, ClusterWorld
from simulation.stage import (
    TOPIC,
    batch,
    check_visible,
    committed,
    given_by,
    in_cluster,
    met,
    named,
    open_transaction,
    partition_at,
    partition_of,
    record,
    until,
)


def end_of_a_lost_transaction() -> None:
    """The ledger crashes and loses a transaction. In version 1, its end looks like that of the one before.

    The scene is played twice: the coordinator has to load the transaction, or has a copy of the lost one.
    """

    async def work(world: ClusterWorld, *, has_copy: bool) -> None:
        one = world.everybody()[0]
        server, key, name = world.server, partition_of(one), named(world, one)
        given = await one.broker.ask(InitProducer(name, 60_000))
        end = EndTransaction(name, given.producer_id, 0, True, 1)
        for sequence in range(2):
            added = await one.broker.ask(AddPartitions(name, given.producer_id, 0, (key,)))
            written = await one.broker.ask(batch(name, key, given.producer_id, sequence, version=1))
            met(added is ErrorCode.NONE and written.error is ErrorCode.NONE)
            if sequence == 0:
                met((await given_by(one, end)).error is ErrorCode.NONE)
        # Everything that was not flushed is lost.
        del server._commits[server._durable :]
        server.crash()
        met(not world.open_transactions())
        if not has_copy:
            loop = one.broker._loop
            assert isinstance(loop, SharedCommitLoop)
            loop.state.forget([TransactionKey(name)])
        error = (await given_by(one, end)).error
        assert error is ErrorCode.PRODUCER_FENCED, "a transaction that is lost is said to be committed"

    in_cluster(partial(work, has_copy=False))
    in_cluster(partial(work, has_copy=True))


def end_decided_after_a_hand_over() -> None:
    """An end is queued while its coordinator hands the transaction over to another broker.

    The client repeats the end there. The first broker cannot reach the leader, and the next coordinator does
    not know that.
    """

    async def work(world: ClusterWorld) -> None:
        one, two, _ = world.everybody()
        key, name = partition_of(two), await _name_for_a_while(world)
        assert one.broker.member is not None
        end = await open_transaction(one, name, two, key)
        async with one.broker.member._renewing:
            # The third broker is back, and the first has not seen that yet.
            await world._start(3)
            met((await partition_at(two, key)).last_stable_offset == 0)
        world._cut.add(frozenset((1, 2)))
        await until(lambda: not one.ownership.coordinates(name))
        one.broker.submit([end])
        three = world.everybody()[2]
        await until(lambda: three.ownership.coordinates(name))
        met(two.ownership.leads(key))
        assert (await given_by(three, end)).error is ErrorCode.NONE, "an end cannot be repeated"
        await check_visible(world, key)

    in_cluster(work, brokers=3)


def join_decided_after_a_hand_over() -> None:
    """A request to join a group is queued while the group gets another coordinator."""

    async def work(world: ClusterWorld) -> None:
        one, group, answers = world.everybody()[0], await _name_for_a_while(world), list[object]()
        await world._start(3)
        await until(lambda: not one.ownership.coordinates(group))
        protocols = (("range", b""),)
        join = JoinGroup(group, "", None, "consumer", protocols, 10_000, 5_000, "c", "h", 1, "member")
        one.broker.submit([join.but(requires_member_id=False)]).then(answers.append)
        await virtual_time.sleep(10)
        assert answers, "a member waits for others that cannot come"

    in_cluster(work, brokers=3)


def end_of_a_history() -> None:
    """A notice is lost in a cut that heals before its sender gives up and leaves the notice in the ledger.

    No client is answered before that, so a leader may show the transaction as open. A history must not end
    before.
    """

    async def work(world: ClusterWorld) -> None:
        one, two = world.everybody()
        key = partition_of(one)
        end = await open_transaction(two, named(world, two), one, key)
        answers = list[object]()
        world._cut.add(frozenset((1, 2)))
        two.broker.submit([end]).then(answers.append)
        await committed(world, end)
        await virtual_time.sleep(0.01)
        world._cut.clear()
        met(not answers)
        await world.settled()
        await world.turn()
        await check_visible(world, key)

    in_cluster(work)


def late_division() -> None:
    """A leader dies, and two brokers divide its shards; when the first divides them, it already owns some.

    The leader is back by then, so it should get these shards. The first broker must stop serving them before.
    """

    async def work(world: ClusterWorld) -> None:
        one, two, three = world.everybody()
        keys = (PartitionKey(TOPIC, index) for index in range(16))
        key = next(each for each in keys if three.ownership.leads(each) and _next_owner(each) == 1)
        end = await open_transaction(one, named(world, one), three, key)
        divide = _hold_division(one)
        world._end(3, three.process)
        await until(lambda: one.ownership.leads(key))
        world._cut.add(frozenset((1, 2)))
        # Its notice is under way for a while, so the first broker keeps its shards.
        one.broker.submit([record(partition_of(two))])
        world._later(world._start, 3)
        await until(lambda: len(one.ownership.nodes()) == 3)
        divide.set()
        await virtual_time.sleep(0.05)
        met(one.ownership.leads(key))
        for life in world.everybody():
            if life.ownership.leads(key):
                met((await partition_at(life, key)).last_stable_offset == 0)
        await one.broker.ask(end)
        await check_visible(world, key)

    in_cluster(work, brokers=3)


async def _name_for_a_while(world: ClusterWorld) -> str:
    """Kill the third broker; return a name that the first broker owns until the third one is back."""
    one, _, three = world.everybody()
    names = [each for each in map(str, range(100)) if three.ownership.coordinates(each)]
    name = next(each for each in names if owner_of(name_shard(each), (1, 2)) == 1)
    world._end(3, three.process)
    await until(lambda: one.ownership.coordinates(name))
    return name


def _hold_division(life: BrokerLife) -> asyncio.Event:
    """Have a broker wait for others to forget their copies until the event is set."""
    may_end = asyncio.Event()
    assert life.broker.member is not None
    sender: Any = life.broker.member._sender
    forget = sender.forget

    async def held() -> None:
        await forget()
        await may_end.wait()

    sender.forget = held
    return may_end


def _next_owner(key: PartitionKey) -> int | None:
    return owner_of(partition_shard(key.topic_id, key.index), (1, 2))
