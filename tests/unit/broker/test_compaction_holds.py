"""Holds: who keeps compaction waiting, for how long, and what a reader is told of it."""

import asyncio
from typing import Any

from support.stores.compacting import Table, compacting

from semel.broker.upkeep.compaction import Holds
from semel.core.types import PartitionKey

A, B, C = (PartitionKey(b"t" * 16, index) for index in range(3))


def test_a_hold_ends_by_itself_and_is_renewed() -> None:
    holds = Holds(100, 1_000)
    assert not holds.must_wait(A, 0)
    assert holds.hold(A, 0) == 100
    assert holds.must_wait(A, 99)
    assert not holds.must_wait(B, 99)
    assert not holds.must_wait(A, 100)
    assert holds.hold(A, 100) == 100
    assert holds.must_wait(A, 199)


def test_a_pass_waits_for_a_bounded_time_however_often_holds_are_renewed() -> None:
    holds = Holds(100, 1_000)
    holds.hold(A, 0)
    # Nobody waits yet, so the time does not run.
    assert holds.hold(A, 5_000) == 100
    assert holds.must_wait(A, 5_000)
    assert holds.hold(A, 5_950) == 50, "no longer than the pass waits"
    assert holds.must_wait(A, 5_999)
    assert holds.hold(A, 6_000) == 0
    assert not holds.must_wait(A, 6_000)


def test_holds_have_no_effect_until_the_pass_is_complete() -> None:
    holds = Holds(100, 1_000)
    holds.hold(A, 0)
    assert holds.must_wait(A, 0)
    # The hold has ended, and the pass begins. It is not to be broken off for ever.
    assert not holds.must_wait(A, 500)
    assert holds.hold(A, 999) == 1
    assert holds.must_wait(A, 999)
    assert holds.hold(A, 1_500) == 0
    assert not holds.must_wait(A, 1_500)
    holds.passed(A, 1_510)
    assert holds.must_wait(A, 1_510), "the renewed hold counts for the next pass"
    assert holds.hold(A, 1_520) == 100


def test_a_pass_forgets_what_has_ended() -> None:
    holds = Holds(100, 1_000)
    holds.hold(A, 0)
    holds.passed(A, 50)
    assert len(holds) == 1
    holds.passed(A, 100)
    assert len(holds) == 0
    holds.passed(B, 100)


def test_only_so_many_partitions_are_held() -> None:
    holds = Holds(100, 1_000, held_max=2)
    assert [holds.hold(key, 0) for key in (A, B, C)] == [100, 100, 0]
    assert not holds.must_wait(C, 1)
    assert holds.hold(A, 1_000) == 100
    assert holds.hold(C, 1_100) == 100, "B was not held any more"
    assert len(holds) == 2


def test_no_time_is_no_hold() -> None:
    holds = Holds(0, 1_000)
    assert holds.hold(A, 0) == 0
    assert not holds.must_wait(A, 0)


async def told(table: Table) -> int | None:
    return (await table.broker.reads.compactions([table.key]))[table.key]


async def test_a_partition_that_is_held_is_not_compacted() -> None:
    async with compacting() as table:
        await table.put_each(("a", "1"), ("a", "2"))
        table.broker.holds.hold(table.key, table.broker.now())
        await table.compact()
        assert await told(table) == 0
        assert len(await table.records()) == 2
        table.broker.holds._held.clear()
        await table.compact()
        assert await told(table) == 1
        assert len(await table.records()) == 1


async def test_a_hold_during_a_pass_ends_it_at_its_next_swap() -> None:
    async with compacting() as table:
        await table.put_each(("a", "1"), ("a", "2"))
        read = table.broker.store.chunks.read

        async def read_late(locations: Any) -> Any:
            table.broker.holds.hold(table.key, table.broker.now())
            return await read(locations)

        table.broker.store.chunks.read = read_late  # type: ignore[method-assign]
        await table.compact()
        assert await told(table) == 0


async def test_a_swap_that_was_submitted_before_the_hold_is_in_the_number() -> None:
    async with compacting() as table:
        await table.put_each(("a", "1"), ("a", "2"))
        commit, submitted, go_on = table.broker.store.commit, asyncio.Event(), asyncio.Event()

        async def commit_late(*arguments: Any, **named: Any) -> Any:
            submitted.set()
            await go_on.wait()
            return await commit(*arguments, **named)

        table.broker.store.commit = commit_late  # type: ignore[method-assign]
        compacting_ = asyncio.create_task(table.compact())
        await submitted.wait()
        table.broker.holds.hold(table.key, table.broker.now())
        question = asyncio.create_task(told(table))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not question.done(), "the answer waits for the swap"
        go_on.set()
        assert await question == 1
        await compacting_
        assert await told(table) == 1
