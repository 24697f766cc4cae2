"""Scenes of a cluster: one thing happens at the worst moment, and nothing else.

Histories meet such moments rarely. All scenes are about the repeated end of a transaction: what its answer
acknowledges must be visible to whoever reads next, at whichever broker.
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

from semel.config import Settings
from semel.core.partition import Append, TransactionContext
from semel.core.transactions.commands import EndTransaction, InitProducer
from semel.core.types import ErrorCode, PartitionKey, TransactionKey, TransactionState
from semel.wire.records import Record, encode_batch, read_header
from simulation import virtual_time
from simulation.cluster import BrokerLife, ClusterWorld
from simulation.faults import Faults
from simulation.processes import ProcessLoop

TOPIC: Final = b"t".ljust(16, b".")


def in_cluster(work: Callable[[ClusterWorld], Awaitable[None]], brokers: int = 2) -> None:
    """Do something with brokers that no fault disturbs, and a topic t of many partitions."""

    async def main() -> None:
        await world.start()
        await world.make_topics(2)
        try:
            async with asyncio.timeout(60):
                await work(world)
        finally:
            assert not world.errors
        await world.stop()

    loop = ProcessLoop()
    settings = Settings(transaction_abort_timed_out_transaction_cleanup_interval_ms=50)
    world = ClusterWorld(loop, Random(1), Faults(), settings, {"t": {"partitions": "16"}}, brokers)
    virtual_time.run(loop, main())


def named(world: ClusterWorld, owner: BrokerLife) -> str:
    """A name that a broker owns, as a group and as a transactional id."""
    return next(name for name in map(str, range(100)) if owner.ownership.coordinates(name))


def partition_of(owner: BrokerLife) -> PartitionKey:
    """A partition that a broker leads."""
    keys = (PartitionKey(TOPIC, index) for index in range(16))
    return next(key for key in keys if owner.ownership.leads(key))


def batch(transactional_id: str, partition: PartitionKey, producer_id: int, sequence: int = 0) -> Append:
    """One record of a transaction, whose partition joins it by the write."""
    records = encode_batch(
        [Record(0, 1_700_000_000_000, None, b"x")],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=True,
    )
    context = TransactionContext(transactional_id, 2)
    return Append(partition, read_header(records), bytes(records), transaction_context=context)


def repeated_end() -> None:
    """The end is repeated while the notice of the first one is on its way."""

    async def work(world: ClusterWorld) -> None:
        two = world.everybody()[1]
        key, end = await _open_transaction(world)
        world.faults.odds["held notice"] = 1.0
        first = two.broker.submit([end])
        await virtual_time.sleep(0.02)
        await two.broker.ask(end)
        await _check_visible(world, key)
        await first

    in_cluster(work)


def dead_coordinator() -> None:
    """The coordinator dies after the commit and before its notices; the end is repeated at the next."""

    async def work(world: ClusterWorld) -> None:
        two = world.everybody()[1]
        key, end = await _open_transaction(world)
        world.faults.odds["lost notice"] = 1.0
        two.broker.submit([end])
        await _until_committed(world, end)
        world._end(2, two.process)
        world.faults.odds.clear()
        await _repeat_elsewhere(world, two, end)
        await _check_visible(world, key)

    in_cluster(work, brokers=3)


def leaving_coordinator() -> None:
    """The coordinator leaves after the commit and before its notices; the end is repeated at the next."""

    async def work(world: ClusterWorld) -> None:
        two = world.everybody()[1]
        key, end = await _open_transaction(world)
        world.faults.odds["held notice"] = 1.0
        two.broker.submit([end])
        await _until_committed(world, end)
        assert two.broker.member is not None
        leaving = two.do(two.broker.member.leave())
        await _repeat_elsewhere(world, two, end)
        await _check_visible(world, key)
        await leaving

    in_cluster(work, brokers=3)


async def _open_transaction(world: ClusterWorld) -> tuple[PartitionKey, EndTransaction]:
    """A transaction that the second broker coordinates, with a batch in a partition that the first leads."""
    one, two = world.everybody()[:2]
    key = partition_of(one)
    given = await two.broker.ask(InitProducer(name := named(world, two), 60_000))
    await one.broker.ask(batch(name, key, given.producer_id))
    await one.broker.flush()
    assert (await one.broker.reads.partition(key)).last_stable_offset == 0  # type: ignore[union-attr]
    return key, EndTransaction(name, given.producer_id, 0, True, 2)


async def _until_committed(world: ClusterWorld, end: EndTransaction) -> None:
    key = TransactionKey(end.transactional_id)
    while world.server.ledger.values[TransactionKey, key].state is not TransactionState.COMPLETE_COMMIT:
        await virtual_time.sleep(0.001)


async def _repeat_elsewhere(world: ClusterWorld, before: BrokerLife, end: EndTransaction) -> None:
    others = [life for life in world.everybody() if life is not before]
    while not (owners := [life for life in others if life.ownership.coordinates(end.transactional_id)]):
        await virtual_time.sleep(0.001)
    given = await owners[0].broker.ask(end)
    assert given.error is ErrorCode.NONE


async def _check_visible(world: ClusterWorld, key: PartitionKey) -> None:
    found = await world.everybody()[0].broker.reads.partition(key)
    assert found is not None
    assert found.last_stable_offset == 2, "a reader does not see what was acknowledged"


SCENES: Final[tuple[Callable[[], None], ...]] = (repeated_end, dead_coordinator, leaving_coordinator)
