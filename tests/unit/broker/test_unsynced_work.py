"""Work inside a transaction is answered before it is flushed; its end flushes all of it, once."""

import asyncio

import pytest
from support.models.facts import kinds_of
from support.models.rules import PARTITION, TOPIC_ID
from support.stores.commit_loop import ID, Looping, append
from support.waiting import LIMIT_SECONDS

from semel.broker.commit import unsynced_work
from semel.core.facts import BatchAppended, BatchStaged, LogStartAdvanced
from semel.core.groups import GroupTick
from semel.core.groups.offsets import CommitOffsets, Committer
from semel.core.transactions.commands import AbortOpen, AddPartitions, CommitPending
from semel.core.types import CommittedOffset, ErrorCode, OffsetKey, PartitionKey, PendingKey, TransactionKey
from semel.store.contract import StoreFull


async def test_a_transaction_costs_one_flush() -> None:
    looping = Looping()
    producer = await looping.producer()
    store = looping.store
    first = await looping.ask(producer.append())
    await looping.ask(producer.append())
    assert isinstance(first, list)
    assert first[0].error is ErrorCode.NONE
    assert (store.unsynced_commits, store.commits, looping.published) == (2, [], [])
    await looping.ask(producer.end())
    (facts,) = store.commits
    assert sum(type(fact) is BatchAppended for fact in facts) == 3
    assert sum(type(fact) is BatchAppended and fact.closes is not None for fact in facts) == 1
    assert looping.published == [facts], "early work is published by the commit that flushes it"
    assert [bytes(batch or b"") for batch in looping.batches[0][:2]] == [b"x" * 100] * 2
    assert looping.metrics.unsynced_ticks == 2
    await looping.settle()


async def test_every_answer_is_flushed_where_that_is_wanted() -> None:
    looping = Looping(semel_durability="always")
    producer = await looping.producer()
    await looping.ask(producer.append())
    assert looping.store.unsynced_commits == 0
    assert len(looping.published) == 1
    await looping.settle()


async def test_a_store_that_flushed_all_the_same_is_believed() -> None:
    looping = Looping()
    producer = await looping.producer()
    await looping.ask(producer.append())
    looping.store.takes_unsynced = False
    await looping.ask(producer.append())
    assert len(looping.store.commits) == len(looping.published) == 1
    assert not looping.loop.unsynced
    await looping.settle()


async def test_adding_partitions_is_early() -> None:
    looping = Looping()
    given = (await looping.producer()).given
    answer = await looping.ask(AddPartitions(ID, given.producer_id, given.epoch, (PARTITION,)))
    assert answer == [ErrorCode.NONE]
    assert (looping.store.unsynced_commits, looping.published) == (1, [])
    assert not looping.loop.unsynced.partitions, "readers miss nothing"
    await looping.settle()


async def test_plain_records_in_the_same_tick_flush_it() -> None:
    looping = Looping()
    producer = await looping.producer()
    await looping.ask(producer.append(), append())
    assert looping.store.unsynced_commits == 0
    assert len(looping.published) == 1
    await looping.settle()


async def test_plain_records_flush_what_was_early_before_them() -> None:
    looping = Looping()
    producer = await looping.producer()
    await looping.ask(producer.append())
    await looping.ask(append())
    (facts,) = looping.published
    assert [fact.base_offset for fact in facts if type(fact) is BatchAppended] == [0, 1]
    assert looping.store.commits == [facts]
    assert not looping.loop.unsynced
    await looping.settle()


async def test_who_writes_nothing_does_not_make_a_tick_flush() -> None:
    looping = Looping()
    producer = await looping.producer()
    await looping.ask(GroupTick(), producer.append())
    assert looping.store.unsynced_commits == 1
    await looping.ask(GroupTick())
    assert looping.published == [], "a tick without facts shows nobody what is early"
    await looping.settle()


async def test_two_phase_work_is_durable_with_every_step() -> None:
    looping = Looping()
    producer = await looping.producer(is_two_phase=True, may_two_phase=True)
    await looping.ask(producer.append())
    assert looping.store.unsynced_commits == 0
    await looping.settle()


async def test_a_flush_makes_early_work_durable_and_shows_it() -> None:
    looping = Looping()
    producer = await looping.producer()
    assert await looping.loop.flush()
    assert looping.store.commits == [], "nothing to flush costs nothing"
    await looping.ask(producer.append())
    assert looping.loop.unsynced.partitions == {PARTITION}
    assert await asyncio.gather(*(looping.loop.flush() for _ in range(3))) == [True] * 3
    assert len(looping.store.commits) == len(looping.published) == 1
    assert not looping.loop.unsynced
    assert not looping.loop.unsynced.partitions
    await looping.settle()


async def test_early_work_is_flushed_after_a_while_by_itself() -> None:
    looping = Looping()
    producer = await looping.producer()
    await looping.ask(producer.append())
    assert not looping.shown.is_set()
    await asyncio.wait_for(looping.shown.wait(), LIMIT_SECONDS)
    assert len(looping.store.commits) == 1
    await looping.settle()


async def test_the_end_of_the_broker_flushes() -> None:
    looping = Looping()
    producer = await looping.producer()
    looping.submit(producer.append())
    await looping.settle()
    assert looping.store.unsynced_commits == 1
    assert len(looping.store.commits) == len(looping.published) == 1


async def test_a_reader_that_waits_for_the_partition_makes_the_tick_flush() -> None:
    looping = Looping()
    producer = await looping.producer()
    looping.awaited.add(PARTITION)
    await looping.ask(producer.append())
    assert looping.store.unsynced_commits == 0
    assert len(looping.published) == 1
    looping.awaited = {PartitionKey(TOPIC_ID, 1)}
    await looping.ask(producer.append())
    assert looping.store.unsynced_commits == 1
    await looping.settle()


async def test_a_reader_that_begins_to_wait_during_an_early_commit_is_served() -> None:
    looping = Looping()
    producer = await looping.producer()
    store = looping.store
    store.let.clear()
    store.began.clear()
    looping.submit(producer.append())
    await store.began.wait()
    looping.awaited.add(PARTITION)
    store.let.set()
    await looping.ask(GroupTick())
    assert store.unsynced_commits == 1
    assert len(looping.published) == 1, "the flush is asked for in the same step"
    await looping.settle()


async def test_readers_of_staged_records_miss_nothing_and_flush_nothing() -> None:
    looping = Looping()
    producer = await looping.producer()
    looping.awaited.add(PARTITION)
    await looping.ask(producer.append(is_journal=True))
    assert looping.store.unsynced_commits == 1
    assert not looping.loop.unsynced.partitions
    await looping.ask(append())
    (facts,), (batches,) = looping.published, looping.batches
    with_bytes = [type(fact) for fact in facts if type(fact) in (BatchAppended, BatchStaged)]
    assert with_bytes == [BatchStaged, BatchAppended]
    assert batches[0] is None, "staged bytes are not kept for readers"
    assert batches[1] is not None
    await looping.settle()


@pytest.mark.parametrize(("name", "limit"), [("FACTS_MAX", 13), ("BYTES_MAX", 400)])
async def test_what_is_unflushed_is_bounded(name: str, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsynced_work, name, limit)
    looping = Looping()
    producer = await looping.producer()
    for _ in range(20):
        await looping.ask(producer.append())
        assert len(looping.loop.unsynced.facts) <= 13
    assert looping.store.unsynced_commits > len(looping.store.commits) > 1
    await looping.settle()


async def test_what_is_unflushed_is_not_evicted() -> None:
    looping = Looping(semel_entities_max=1)
    producer = await looping.producer()
    await looping.ask(producer.append())
    assert looping.store.unsynced_commits == 1
    loads = len(looping.store.ledger.loads)
    for _ in range(3):
        await looping.ask(GroupTick())
        await looping.ask(producer.append())
    assert len(looping.store.ledger.loads) == loads
    await looping.settle()


async def test_too_many_entities_make_a_tick_flush() -> None:
    looping = Looping(semel_entities_max=1)
    producer = await looping.producer()
    elsewhere = producer.append().but(partition=PartitionKey(TOPIC_ID, 1))
    producer.sequence = 0
    await looping.ask(elsewhere, producer.append())
    assert looping.store.unsynced_commits == 0
    assert len(looping.published) == 1
    await looping.settle()


async def test_a_full_store_refuses_the_tick_and_keeps_what_was_answered_before() -> None:
    looping = Looping()
    producer = await looping.producer()
    store, loop = looping.store, looping.loop
    await looping.ask(producer.append())
    opened = loop.state.transactions[TransactionKey(ID)]
    log = loop.state.partitions[PARTITION]
    store.error = StoreFull("no room")
    assert isinstance(await looping.ask(producer.end()), StoreFull)
    assert isinstance(await looping.ask(append()), StoreFull)
    store.error = None
    answer = await looping.ask(producer.append())
    assert isinstance(answer, list)
    assert answer[0].base_offset == 1, "the batch that was answered is there"
    assert loop.state.transactions[TransactionKey(ID)] == opened
    assert log is not None
    assert looping.published == []
    await looping.ask(producer.end())
    (facts,) = store.commits
    assert [fact.base_offset for fact in facts if type(fact) is BatchAppended] == [0, 1, 2]
    assert looping.published == [facts]
    await looping.settle()


async def test_a_full_store_keeps_the_early_work_of_a_group_and_of_an_id_of_the_same_name() -> None:
    """The keys of the two were equal while they were tuples."""
    looping = Looping()
    given = (await looping.producer()).given
    state, pair = looping.loop.state, (given.producer_id, given.epoch)
    offsets = ((OffsetKey(ID, "t", 0), CommittedOffset(5)),)
    await looping.ask(CommitOffsets(ID, Committer(), offsets))  # Who makes a group flushes.
    command = CommitPending(ID, *pair, ID, Committer(), offsets, version=2)
    assert await looping.ask(command) == [(ErrorCode.NONE,)]
    assert looping.store.unsynced_commits == 1
    transaction, pending = state.transactions[TransactionKey(ID)], state.pending[PendingKey(ID)]
    assert pending
    looping.store.error = StoreFull("no room")
    assert isinstance(await looping.ask(append()), StoreFull)
    looping.store.error = None
    await looping.ask(GroupTick())
    again = looping.loop.state
    assert again is not state
    assert again.transactions[TransactionKey(ID)] == transaction
    assert again.pending[PendingKey(ID)] == pending
    await looping.settle()


async def test_a_flush_without_room_changes_nothing() -> None:
    looping = Looping()
    producer = await looping.producer()
    await looping.ask(producer.append())
    state = looping.loop.state
    looping.store.error = StoreFull("no room")
    assert not await looping.loop.flush()
    assert looping.loop.state is state
    assert looping.loop.unsynced
    looping.store.error = None
    assert await looping.loop.flush()
    assert len(looping.published) == 1
    await looping.settle()


async def test_only_what_the_ledger_can_take_later_is_early() -> None:
    """When the store is full, what is early is applied again: only what needs nothing else to be loaded."""
    kept = unsynced_work.UnsyncedWork()
    assert kept.has_room_for([BatchStaged(PARTITION, 7, 1, 1, 100)], 100)
    assert not kept.has_room_for([LogStartAdvanced(PARTITION, 1)], 0)


async def test_the_broker_aborts_with_a_flush() -> None:
    looping = Looping()
    producer = await looping.producer()
    await looping.ask(producer.append())
    assert await looping.ask(AbortOpen(ID)) == [True]
    (facts,) = looping.published
    assert kinds_of(facts).count(TransactionKey) == 2
    await looping.settle()
