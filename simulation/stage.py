"""The stage for scenes of a cluster: brokers that no fault disturbs, and what clients do and see there.

A scene (``scenes``) makes one thing happen at the worst moment, and nothing else. Histories meet such moments
rarely.
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

from semel.config import Settings
from semel.core.log.partition import Append, TransactionContext
from semel.core.transactions.commands import EndTransaction, InitProducer, ProducerGiven, Superseded
from semel.core.types import NO_PRODUCER, Command, Partition, PartitionKey, TransactionKey, TransactionState
from semel.wire.records import Record, encode_batch, read_header
from simulation import virtual_time
from simulation.cluster import BrokerLife, ClusterWorld
from simulation.faults import Faults
from simulation.processes import ProcessLoop

TOPIC: Final = b"t".ljust(16, b".")
STEP: Final = 0.0001
"""How often a scene checks whether its moment has come. No message arrives faster."""


class MomentMissedError(Exception):
    """A scene has not reached the moment that it tests, so it has no result."""


def met(is_met: bool) -> None:
    """Check that a scene has reached its moment. Not for what clients must see."""
    if not is_met:
        raise MomentMissedError


def in_cluster(work: Callable[[ClusterWorld], Awaitable[None]], brokers: int = 2) -> None:
    """Run a scene with brokers that no fault disturbs, and a topic `t` of 16 partitions."""

    async def main() -> None:
        await world.start()
        await world.make_topics(2)
        try:
            async with asyncio.timeout(60):
                await work(world)
        finally:
            assert not world.errors, world.errors
        await world.stop()

    loop = ProcessLoop()
    settings = Settings(transaction_abort_timed_out_transaction_cleanup_interval_ms=50)
    world = ClusterWorld(loop, Random(1), Faults(), settings, {"t": {"partitions": "16"}}, brokers)
    virtual_time.run(loop, main())


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for a moment. TimeoutError if it does not come within ten seconds: then something hangs."""
    async with asyncio.timeout(10):
        while not is_so():
            await virtual_time.sleep(STEP)


def named(world: ClusterWorld, owner: BrokerLife) -> str:
    """Return a name that a broker owns, as a group and as a transactional id."""
    return next(name for name in map(str, range(100)) if owner.ownership.coordinates(name))


def partition_of(owner: BrokerLife) -> PartitionKey:
    """Return a partition that a broker leads."""
    keys = (PartitionKey(TOPIC, index) for index in range(16))
    return next(key for key in keys if owner.ownership.leads(key))


# -- what clients send --------------------------------------------------------------------------------------


def record(partition: PartitionKey, producer_id: int = NO_PRODUCER) -> Append:
    """One record, outside of transactions; with a producer id it can be repeated."""
    is_idempotent = producer_id != NO_PRODUCER
    records = encode_batch(
        [Record(0, 1_700_000_000_000, None, b"x")],
        producer_id=producer_id,
        producer_epoch=0 if is_idempotent else -1,
        base_sequence=0 if is_idempotent else -1,
    )
    return Append(partition, read_header(records), bytes(records))


def batch(
    transactional_id: str, partition: PartitionKey, producer_id: int, sequence: int = 0, version: int = 2
) -> Append:
    """One record of a transaction. In version 2, its partition joins the transaction by the write."""
    records = encode_batch(
        [Record(0, 1_700_000_000_000, None, b"x")],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=True,
    )
    context = TransactionContext(transactional_id, version)
    return Append(partition, read_header(records), bytes(records), transaction_context=context)


async def open_transaction(
    coordinator: BrokerLife, name: str, leader: BrokerLife, key: PartitionKey
) -> EndTransaction:
    """Write one record in a transaction, which stays open. Return the command that ends the transaction."""
    given = await coordinator.broker.ask(InitProducer(name, 60_000))
    await leader.broker.ask(batch(name, key, given.producer_id))
    await leader.broker.flush()
    met((await partition_at(leader, key)).last_stable_offset == 0)
    return EndTransaction(name, given.producer_id, 0, True, 2)


async def committed(world: ClusterWorld, end: EndTransaction) -> None:
    """Wait until an end is in the ledger. Its client was not answered yet."""
    key, values = (TransactionKey, TransactionKey(end.transactional_id)), world.server.ledger.values
    await until(lambda: values[key].state is TransactionState.COMPLETE_COMMIT)


# -- what clients see ---------------------------------------------------------------------------------------


async def partition_at(life: BrokerLife, key: PartitionKey) -> Partition:
    """Return a partition as a broker shows it to readers."""
    found = await life.broker.reads.partition(key)
    assert found is not None, "a partition is gone"
    return found


async def check_visible(world: ClusterWorld, key: PartitionKey) -> None:
    """Check that every broker that claims to lead the partition shows the acknowledged transaction."""
    for life in world.everybody():
        if life.ownership.leads(key):
            seen = await partition_at(life, key)
            if life.ownership.leads(key):
                assert seen.last_stable_offset == 2, "a reader does not see what was acknowledged"


async def given_by(life: BrokerLife, command: Command[ProducerGiven | Superseded]) -> ProducerGiven:
    """Ask a broker. No newer connection of the transactional id supersedes the request."""
    given = await life.broker.ask(command)
    assert isinstance(given, ProducerGiven)
    return given
