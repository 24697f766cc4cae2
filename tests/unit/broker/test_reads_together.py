"""The ends of several partitions are those after one and the same commit, whatever happens meanwhile."""

import asyncio

from support.stores.slow import ONE, TOPIC_ID, ZERO, PublishedReader, Reading

from semel.broker.reads.reads import Isolation
from semel.core.facts import BatchAppended
from semel.core.types import PartitionKey

BOTH = [ZERO, ONE]
AT_ONCE = {ZERO: 1, ONE: 1}


def commit_both(reading: Reading) -> list[tuple[BatchAppended, memoryview]]:
    """What one commit wrote to both partitions. The ledger has it; it is not published."""
    return [reading.commit(ZERO), reading.commit(ONE)]


class Turning:
    """A commit loop that publishes when it turns."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.pending: list[tuple[BatchAppended, memoryview]] = []
        self.turns = 0
        reading.watch(frozenset(), self._flush, self.turn)

    async def turn(self) -> None:
        self.turns += 1
        await asyncio.sleep(0)
        pending, self.pending = self.pending, []
        if pending:
            self.reading.publish(*pending)

    async def _flush(self) -> bool:
        return True


async def test_what_is_published_is_answered_without_waiting() -> None:
    reading = Reading()
    loop = Turning(reading)
    reading.publish(*commit_both(reading))
    assert await reading.reads.ends(BOTH) == AT_ONCE
    assert (reading.shelf.calls["load"], loop.turns) == (0, 0)


async def test_a_load_that_is_ahead_of_the_publication_tears_nothing() -> None:
    reading = Reading()
    loop = Turning(reading)
    # One of the two is known as it was before the commit; the other is loaded as it is after it.
    await reading.reads.partition(ZERO)
    loop.pending = commit_both(reading)
    assert await reading.reads.ends(BOTH) == AT_ONCE
    assert loop.turns > 0


async def test_also_if_another_reader_brought_it() -> None:
    reading = Reading()
    loop = Turning(reading)
    await reading.reads.partition(ZERO)
    loop.pending = commit_both(reading)
    await reading.reads.partition(ONE)
    assert await reading.reads.ends(BOTH) == AT_ONCE
    loop.turns = 0
    assert await reading.reads.ends(BOTH) == AT_ONCE
    assert loop.turns == 0


async def test_a_commit_that_is_published_during_a_load_tears_nothing() -> None:
    reading = Reading()
    Turning(reading)
    reading.publish(reading.commit(ZERO))
    reading.shelf.hold("load")
    asking = asyncio.create_task(reading.reads.ends(BOTH))
    await reading.shelf.reached["load"].wait()
    reading.publish(*commit_both(reading))
    reading.shelf.let("load")
    assert await asking == {ZERO: 2, ONE: 1}


async def test_work_that_is_not_flushed_is_flushed_once_before_all_are_looked_at() -> None:
    reading = Reading()
    reading.publish(*commit_both(reading))
    kept: list[tuple[BatchAppended, memoryview]] = []
    unflushed = set(BOTH)
    flushes = 0

    async def flush() -> bool:
        nonlocal flushes
        flushes += 1
        await asyncio.sleep(0)
        reading.publish(*kept)
        return True

    reading.watch(unflushed, flush)
    kept += commit_both(reading)
    assert await reading.reads.ends(BOTH, Isolation.READ_UNCOMMITTED) == {ZERO: 2, ONE: 2}
    assert flushes == 1


async def test_a_partition_that_is_not_there_has_no_end() -> None:
    reading = Reading()
    Turning(reading)
    reading.append()
    unknown = PartitionKey(TOPIC_ID, 9)
    assert await reading.reads.ends([ZERO, unknown]) == {ZERO: 1, unknown: None}


async def test_more_partitions_than_are_known_at_once_are_answered_all_the_same() -> None:
    from semel.broker.metrics import Metrics
    from semel.config import Settings

    reading = Reading()
    reading.reads = PublishedReader(reading.shelf, Settings(semel_entities_max=1), Metrics()).reads
    Turning(reading)
    commit_both(reading)
    assert await reading.reads.ends(BOTH) == AT_ONCE
