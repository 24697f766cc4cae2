"""Scenes about a ledger that crashes: what it loses must not have been shown to any reader.

The test is the next record after the crash: its offset must not be one that a reader has passed already.
"""

from random import Random

from semel.broker.reads.offset_search import LATEST
from semel.broker.reads.published_partitions import Isolation
from semel.core.transactions.commands import InitProducer, VerifyPartitions
from semel.core.types import ErrorCode, PartitionKey
from simulation.cluster import BrokerLife, ClusterWorld
from simulation.stage import (
    batch,
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


def write_at_another_broker() -> None:
    """A record of a transaction arrives at a broker that does not lead its partition; the leader shows it."""

    async def work(world: ClusterWorld) -> None:
        one, two = world.everybody()
        key, name = partition_of(two), named(world, two)
        given = await two.broker.ask(InitProducer(name, 60_000))
        # The leader has a copy of the partition, to which it applies the notice.
        await two.broker.ask(record(key))
        await one.broker.ask(batch(name, key, given.producer_id))
        seen = (await partition_at(two, key)).high_watermark
        met(seen == 2)
        await _crash_and_write(world, two, key, seen)

    in_cluster(work)


def end_seen_from_elsewhere() -> None:
    """A record of a transaction is not flushed yet when another broker is asked where the log ends."""

    async def work(world: ClusterWorld) -> None:
        one, two = world.everybody()
        key, name = partition_of(one), named(world, one)
        given = await one.broker.ask(InitProducer(name, 60_000))
        await one.broker.ask(batch(name, key, given.producer_id))
        seen = (await two.broker.reads.ends((key,), Isolation.READ_UNCOMMITTED))[key]
        assert seen is not None, "a partition is gone"
        met(seen == 1)
        await _crash_and_write(world, one, key, seen)

    in_cluster(work)


def end_seen_at_the_leader() -> None:
    """A record of a transaction is not flushed yet when its leader is asked where the log ends."""

    async def work(world: ClusterWorld) -> None:
        one, server = world.everybody()[0], world.server
        key, name = partition_of(one), named(world, one)
        given = await one.broker.ask(InitProducer(name, 60_000))
        # The leader has a value of the partition for readers.
        await one.broker.ask(record(key))
        await one.broker.ask(batch(name, key, given.producer_id))
        met(not server.is_durable([server.ledger.versions[key]]))
        seen = (await one.broker.reads.list_offsets(key, LATEST)).offset
        met(seen == 2)
        await _crash_and_write(world, one, key, seen)

    in_cluster(work)


def end_after_a_crash() -> None:
    """The second record of a transaction is lost; it was acknowledged, so the transaction cannot commit.

    Its coordinator is another broker than the leader, and has nothing in memory that reveals the loss.
    """

    async def work(world: ClusterWorld) -> None:
        one, two = world.everybody()
        key, name = partition_of(one), named(world, two)
        end = await open_transaction(two, name, one, key)
        # The coordinator knows that the partition has joined.
        met(await two.broker.ask(VerifyPartitions(name, end.producer_id, 0, (key,))) == (ErrorCode.NONE,))
        written = await one.broker.ask(batch(name, key, end.producer_id, sequence=1))
        met(written.error is ErrorCode.NONE)
        _crash(world)
        met(world.server.ledger.values[PartitionKey, key].high_watermark == 1)
        ended = await given_by(two, end)
        assert ended.error is not ErrorCode.NONE, "a committed transaction lacks an acknowledged record"

    in_cluster(work)


def shards_given_away_after_a_crash() -> None:
    """A record of a transaction is lost in a crash. Before the leader finds out, it gives shards away.

    To do so, the leader writes to the ledger, whose answer does not reveal the loss. It keeps the partition.
    """

    async def work(world: ClusterWorld) -> None:
        one, _, three = world.everybody()
        key, name = partition_of(one), named(world, one)
        given = await one.broker.ask(InitProducer(name, 60_000))
        await one.broker.ask(record(key))
        world._end(3, three.process)
        shards = world.server.shards
        await until(lambda: {each.owner for each in shards} == {1, 2})
        assert one.broker.member is not None
        async with one.broker.member._renewing:
            # The third broker is back, and the first has not seen that yet.
            await world._start(3)
            met(one.ownership.leads(key))
            for sequence in range(10):
                await one.broker.ask(batch(name, key, given.producer_id, sequence))
                if not world.server.is_durable([world.server.ledger.versions[key]]):
                    break
            met(key in one.broker._loop.unsynced.partitions)
            _crash(world)
            mine = sum(each.owner == 1 for each in shards)
        await until(lambda: sum(each.owner == 1 for each in shards) < mine)
        await until(lambda: key not in one.broker._loop.unsynced.partitions)
        seen = (await one.broker.reads.list_offsets(key, LATEST)).offset
        there = world.server.ledger.values[PartitionKey, key].high_watermark
        assert seen <= there, "a reader sees a record that is lost"

    in_cluster(work, brokers=3)


def _crash(world: ClusterWorld) -> None:
    world.server.random = _Worst()
    world.server.crash()


async def _crash_and_write(world: ClusterWorld, leader: BrokerLife, key: PartitionKey, seen: int) -> None:
    _crash(world)
    written = await leader.broker.ask(record(key))
    assert written.error is ErrorCode.NONE, "nothing can be written after a crash"
    assert written.base_offset >= seen, "a reader has passed the offset of a new record"


class _Worst(Random):
    """Makes a crash lose everything that was not flushed."""

    def randint(self, a: int, b: int) -> int:
        return a
