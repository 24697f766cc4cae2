"""The commit loop: one order, one commit per tick, nobody answered before it."""

import pytest
from support.models.rules import PARTITION, TOPIC_ID
from support.stores.commit_loop import ID, Looping, append, create

from semel.core.groups.commands import DescribeGroup
from semel.core.groups.offsets import FetchOffsets
from semel.core.topics import CreateTopic
from semel.core.transactions.commands import AbortOpen, DescribeTransaction, EndTransaction
from semel.core.types import (
    CommittedOffset,
    ErrorCode,
    GroupKey,
    OffsetKey,
    Partition,
    PendingKey,
    PendingOffset,
    ProducerState,
    Topic,
    TopicKey,
    Transaction,
    TransactionKey,
    TransactionState,
)
from semel.store.contract import StoreBroken, StoreFull


async def test_nobody_is_answered_before_the_commit() -> None:
    looping = Looping()
    looping.submit(create())
    await looping.store.began.wait()
    assert looping.outcomes == []
    assert looping.published == []
    looping.store.let.set()
    await looping.settle()
    assert len(looping.outcomes) == 1


async def test_what_arrives_during_a_commit_shares_the_next() -> None:
    looping = Looping()
    looping.submit(create())
    await looping.store.began.wait()
    for _ in range(20):
        looping.submit(append())
    looping.store.let.set()
    await looping.settle()
    # And the partition, once.
    assert [len(facts) for facts in looping.store.commits] == [1, 20 + 1]
    offsets = [outcome[0].base_offset for outcome in looping.outcomes[1:] if isinstance(outcome, list)]
    assert offsets == list(range(20))


async def test_a_tick_is_bounded_in_bytes() -> None:
    looping = Looping(semel_tick_bytes_max=250)
    looping.submit(create())
    await looping.store.began.wait()
    for _ in range(6):
        looping.submit(append())
    looping.store.let.set()
    await looping.settle()
    # With the partition, once per commit.
    assert [len(facts) for facts in looping.store.commits] == [1, 2 + 1, 2 + 1, 2 + 1]


async def test_readers_see_a_commit_before_anyone_is_answered() -> None:
    looping = Looping()
    seen: list[int] = []
    looping.store.let.set()
    looping.loop.submit([create()]).then(lambda outcome: seen.append(len(looping.published)))
    await looping.settle()
    assert seen == [1]


async def test_a_full_store_refuses_the_tick_and_forgets_it() -> None:
    looping = Looping()
    looping.store.let.set()
    assert isinstance(await looping.ask(create()), list)
    looping.store.error = StoreFull("no room")
    assert isinstance(await looping.ask(append()), StoreFull)
    assert not looping.loop.state.partitions
    looping.store.error = None
    await looping.settle()


async def test_records_without_room_are_refused_and_nobody_else_is_disturbed() -> None:
    """Producers that try again on a full disk must not make the broker forget its groups."""
    looping = Looping()
    looping.store.let.set()
    await looping.ask(create())
    state = looping.loop.state
    looping.store.room = 99
    looping.submit(append())
    looping.submit(CreateTopic("other", b"other".ljust(16), 1, {}))
    assert isinstance(await looping.ask(append(), append()), StoreFull)
    refused, made = looping.outcomes
    assert isinstance(refused, StoreFull)
    assert isinstance(made, list)
    assert looping.loop.state is state
    looping.store.room = 100
    assert isinstance(await looping.ask(append()), list)
    assert len(looping.store.commits) == 3
    # Once per tick, for all of its records; never for a tick without any.
    assert looping.store.asked_for == [300, 100]
    await looping.settle()


async def test_a_broken_store_ends_the_loop_without_an_answer() -> None:
    looping = Looping()
    looping.store.let.set()
    looping.store.error = StoreBroken("fsync")
    looping.submit(create())
    with pytest.raises(StoreBroken):
        await looping.task
    assert looping.outcomes == []
    assert looping.published == []


OPEN = Transaction(
    ID, 7, 0, 60_000, TransactionState.ONGOING, (PARTITION,), started_ms=1, deadline_ms=60_001, term=1
)
"""A transaction that was open when the broker started."""


def with_open(looping: Looping, transaction: Transaction = OPEN) -> None:
    ledger = looping.store.ledger
    ledger.open = [transaction]
    ledger.keep(TransactionKey(transaction.transactional_id), transaction)
    ledger.keep(PARTITION, Partition())
    ledger.keep(PARTITION.of(7), ProducerState(epoch=0))


async def test_what_a_command_finds_through_others_is_loaded_before_it_is_decided() -> None:
    looping = Looping()
    with_open(looping)
    looping.store.let.set()
    outcome = await looping.ask(EndTransaction(ID, 7, 0, is_commit=True, version=2))
    assert isinstance(outcome, list)
    first, second = looping.store.ledger.loads
    assert TransactionKey(ID) in first
    assert {PARTITION, PARTITION.of(7)} == set(second)
    # In the next turn everything is there.
    await looping.ask(AbortOpen(ID))
    assert len(looping.store.ledger.loads) == 2
    await looping.settle()


async def test_entities_of_one_name_are_all_loaded_each_as_what_it_is() -> None:
    """A topic, a group and a transactional id may have the same name."""
    assert len({TopicKey(ID), GroupKey(ID), PendingKey(ID), TransactionKey(ID)}) == 4
    offset, partition = CommittedOffset(5), OffsetKey(ID, "t", 0)
    looping = Looping()
    with_open(looping)
    looping.store.let.set()
    looping.store.ledger.keep(TopicKey(ID), Topic(ID, TOPIC_ID, 1, {}))
    looping.store.ledger.keep(PendingKey(ID), (PendingOffset(7, partition, offset),))
    outcome = await looping.ask(
        CreateTopic(ID, TOPIC_ID, 1, {}),
        DescribeGroup(ID),
        DescribeTransaction(ID),
        FetchOffsets(ID, offsets=(partition,), require_stable=True),
    )
    assert isinstance(outcome, list)
    created, group, transaction, fetched = outcome
    assert created.error is ErrorCode.TOPIC_ALREADY_EXISTS
    assert group is None
    assert transaction == OPEN
    assert fetched.unstable == {partition}
    (keys,) = looping.store.ledger.loads
    named = [type(key) for key in keys if key.values() == (ID,)]
    assert sorted(named, key=str) == [GroupKey, PendingKey, TopicKey, TransactionKey]
    await looping.settle()


async def test_open_transactions_are_known_from_the_start() -> None:
    looping = Looping()
    with_open(looping)
    await looping.loop.load_open_transactions()
    assert looping.loop.state.ongoing == {ID: 60_001}
    await looping.settle()


async def test_a_full_store_forgets_the_tick_and_not_the_open_transactions() -> None:
    looping = Looping()
    with_open(looping)
    looping.store.let.set()
    looping.store.error = StoreFull("no room")
    assert isinstance(await looping.ask(create()), StoreFull)
    # The answer comes first, then what is known is loaded anew: the next in the queue finds it.
    looping.store.error = None
    assert isinstance(await looping.ask(append()), list)
    assert looping.loop.state.ongoing == {ID: 60_001}
    await looping.settle()


async def test_what_was_open_in_an_older_term_is_aborted_before_anyone_is_served() -> None:
    looping = Looping(term=2)
    with_open(looping)
    looping.store.let.set()
    await looping.loop.load_open_transactions()
    await looping.loop.abort_older_terms()
    assert looping.loop.state.ongoing == {}
    assert len(looping.store.commits) == 1
    assert looping.metrics.transactions.ended == {("abort", "term"): 1}
    await looping.settle()


async def test_what_was_open_in_this_term_goes_on() -> None:
    looping = Looping(term=1)
    with_open(looping)
    looping.store.let.set()
    await looping.loop.load_open_transactions()
    await looping.loop.abort_older_terms()
    assert ID in looping.loop.state.ongoing
    assert looping.store.commits == []
    await looping.settle()


async def test_whoever_ends_a_transaction_on_a_full_disk_is_refused_before_anything_is_decided() -> None:
    looping = Looping()
    with_open(looping)
    looping.store.let.set()
    await looping.loop.load_open_transactions()
    state = looping.loop.state
    looping.store.room = 0
    assert isinstance(await looping.ask(AbortOpen(ID)), StoreFull)
    assert looping.loop.state is state
    assert ID in state.ongoing
    looping.store.room = 2**62
    assert await looping.ask(AbortOpen(ID)) == [True]
    await looping.settle()
