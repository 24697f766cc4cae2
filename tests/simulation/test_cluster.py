"""Several brokers over one ledger: histories, the small cluster, and what once went wrong, one by one."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semel.broker.cluster.announcing import pack_notices
from semel.broker.cluster.notice import Notice
from semel.core.entities import SHARDS, owner_of
from semel.core.facts import TopicDeleted
from semel.core.groups.offsets import Committer, FetchOffsets
from semel.core.log.partition import AllocateProducerId
from semel.core.transactions.commands import CommitPending, EndTransaction, InitProducer
from semel.core.types import (
    CommittedOffset,
    ErrorCode,
    OffsetKey,
    Transaction,
)
from semel.store.contract import StoreRefused
from simulation import virtual_time
from simulation.__main__ import _killed_by_scene, one_of_several, several
from simulation.cluster import ClusterWorld
from simulation.cluster_mutants import CLUSTER_MUTANTS
from simulation.explorer import explore
from simulation.plan import make
from simulation.run import run
from simulation.scenes import SCENES
from simulation.stage import batch, given_by, in_cluster, named, partition_of

ROOT = Path(__file__).parents[2]
DIGESTS = """
from simulation.plan import make
from simulation.run import run
print(*(run(make(seed, 2 + seed % 4)).digest for seed in range(count)))
"""
FOUND_BY = {
    "versions of entities that were only read are not checked": "write_decided_before_an_end",
    "an error is based on an old copy of a transaction": "lost_notice_of_a_join",
    "a late notice brings back what was deleted": "late_notice_of_a_deleted_group",
    "a leader acknowledges what its readers do not see": "write_repeated_at_the_leader",
    "a copy that a notice finds old is kept": "notices_in_another_order",
    "notices in the ledger are carried out after the lease is prolonged": "late_renewal",
    "a notice is not sent on to the next owner": "next_owner",
    "an old view says that nobody needs a notice": "unknown_owner",
    "the shards of a dead broker are divided while others have old copies": (
        "dead_coordinator_and_paused_leader"
    ),
    "a broker is replaced before its lease is over": "leader_without_ledger",
    "a commit does not check the epoch": "write_of_a_replaced_broker",
    "an old copy hides an open transaction": "lost_notice_of_a_join_without_end",
    "a broker decides by its own time of day": "two_clocks",
    "a commit that arrives late counts": "late_commit",
    "a commit does not check the term": "end_after_a_crash",
    "unsynced work is published before it is durable": "end_seen_at_the_leader",
    "facts about entities of others are committed unsynced": "write_at_another_broker",
    "unsynced work is published when shards are given away": "shards_given_away_after_a_crash",
    "unsynced work is published over a newer value": "flush_after_an_end_elsewhere",
    "readers load what is not durable": "end_seen_from_elsewhere",
    "the end of a transaction that is lost is taken for that of the one before": "end_of_a_lost_transaction",
    "a history is judged while notices are under way": "end_of_a_history",
    "a broker ends a transaction whose shard it has given away": "end_decided_after_a_hand_over",
    "a member joins where its group is not any more": "join_decided_after_a_hand_over",
    "a broker gives away shards that it serves": "late_division",
    "a shard is given away although its owner has changed": "late_division",
}
"""Defects that histories find rarely, and the scene that finds each."""


# -- histories --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seeds", [8, pytest.param(24, marks=pytest.mark.slow)])
def test_histories_of_several_brokers_are_correct(seeds: int) -> None:
    for seed in range(seeds):
        _, problems, operations, _ = one_of_several(seed)
        assert not problems
        assert operations


@pytest.mark.parametrize("count", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_a_seed_is_the_same_history_in_every_process(count: int) -> None:
    def digests(hash_seed: str) -> list[str]:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        told = subprocess.run(
            [sys.executable, "-c", f"count = {count}{DIGESTS}"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            check=True,
        )
        return told.stdout.decode().split()

    assert digests("1") == digests("2")


def test_faults_of_every_kind_happen() -> None:
    plans = [make(seed, several(seed)) for seed in range(40)]
    planned = {fault for plan in plans for fault in plan.odds}
    seen: set[str] = set()
    for plan in plans:
        seen |= run(plan).faults.keys()
        if seen >= planned:
            break
    assert seen == planned


def test_every_interleaving_of_a_small_cluster_is_correct() -> None:
    for faults in ({"crashes": 0, "lost": 1, "lapses": 0}, {"crashes": 0, "lost": 0, "lapses": 0}):
        found = explore(**faults)
        assert found.is_complete
        assert not found.problems
        assert found.ends


# -- what once went wrong ---------------------------------------------------------------------------------


def test_offsets_of_a_foreign_group_are_not_kept() -> None:
    async def work(world: ClusterWorld) -> None:
        one, two = world.everybody()
        group, transactional_id = named(world, one), named(world, two)
        given = await two.broker.ask(InitProducer(transactional_id, 60_000))
        offset = (OffsetKey(group, "t", 0), CommittedOffset(5))
        pending = CommitPending(
            transactional_id, given.producer_id, 0, group, Committer(), (offset,), version=2
        )
        assert await one.broker.ask(pending) == (ErrorCode.NONE,)
        ended = await given_by(two, EndTransaction(transactional_id, given.producer_id, 0, True, 2))
        assert ended.error is ErrorCode.NONE
        assert not two.broker._loop.state.offsets

    in_cluster(work)


def test_committed_offsets_are_as_new_as_the_pending_ones() -> None:
    async def work(world: ClusterWorld) -> None:
        one, two = world.everybody()
        group, first, second = named(world, one), named(world, two), named(world, one)
        key, other = OffsetKey(group, "t", 0), OffsetKey(group, "t", 1)
        assert (await one.broker.ask(FetchOffsets(group, offsets=(key,)))).offsets == (None,)
        producers = {}
        for life, name, offset in ((two, first, key), (one, second, other)):
            given = await life.broker.ask(InitProducer(name, 60_000))
            producers[name] = given.producer_id, offset

        def pending(name: str) -> CommitPending:
            producer_id, offset = producers[name]
            return CommitPending(
                name, producer_id, 0, group, Committer(), ((offset, CommittedOffset(5)),), version=2
            )

        await one.broker.ask(pending(first))
        world.faults.odds["lost notice"] = 1.0
        two.broker.submit([EndTransaction(first, producers[first][0], 0, True, 2)])
        while world.open_transactions():
            await virtual_time.sleep(0.001)
        # The version of the pending offsets has moved, so this loads them again.
        await one.broker.ask(pending(second))
        (found,) = (await one.broker.ask(FetchOffsets(group, offsets=(key,)))).offsets
        assert found is not None
        assert found.offset == 5

    in_cluster(work)


def test_entities_of_others_are_not_kept_after_a_refused_tick() -> None:
    async def work(world: ClusterWorld) -> None:
        one, two = world.everybody()
        key = partition_of(one)
        given = await two.broker.ask(InitProducer(name := named(world, two), 60_000))
        world.faults.odds["full"] = 1.0
        with pytest.raises(StoreRefused):
            await two.broker.ask(batch(name, key, given.producer_id))
        assert key not in two.broker._loop.state.partitions
        assert key.of(given.producer_id) not in two.broker._loop.state.producers

    in_cluster(work)


def test_a_transaction_whose_notice_was_lost_times_out() -> None:
    async def work(world: ClusterWorld) -> None:
        one, two = world.everybody()
        given = await two.broker.ask(InitProducer(name := named(world, two), 100))
        world.faults.odds["lost notice"] = 1.0
        await one.broker.ask(batch(name, partition_of(one), given.producer_id))
        assert world.open_transactions() == [name]
        while world.open_transactions():
            await virtual_time.sleep(0.1)
        assert world.loop.now < 30

    in_cluster(work)


@pytest.mark.parametrize("why", ["a look", "copies are forgotten", "shards are adopted"])
def test_commits_do_not_wait_for_the_search_for_open_transactions(why: str) -> None:
    """It may take seconds if there are many transactional ids, or many old versions of them."""

    async def work(world: ClusterWorld) -> None:
        one, two = world.everybody()
        given = await two.broker.ask(InitProducer(name := named(world, two), 60_000))
        world.faults.odds["lost notice"] = 1.0
        await one.broker.ask(batch(name, partition_of(one), given.producer_id))
        loop: Any = two.broker._loop
        ledger = loop._store.ledger
        search, is_searching, may_search = ledger.open_transactions, asyncio.Event(), asyncio.Event()

        async def slow_search(**page: Any) -> list[Transaction]:
            is_searching.set()
            await may_search.wait()
            found: list[Transaction] = await search(**page)
            return found

        ledger.open_transactions = slow_search
        searching = asyncio.ensure_future(
            {
                "a look": loop.look_for_open_transactions,
                "copies are forgotten": loop.forget_copies,
                "shards are adopted": lambda: loop.adopt(two.ownership.shards()),
            }[why]()
        )
        try:
            await is_searching.wait()
            assert await two.broker.ask(AllocateProducerId()) > 0
            assert not searching.done()
            assert name not in loop.state.ongoing
        finally:
            ledger.open_transactions = search
            may_search.set()
            await searching
        assert name in loop.state.ongoing

    in_cluster(work)


def test_a_term_begins_although_the_ledger_is_away_again() -> None:
    async def work(world: ClusterWorld) -> None:
        one, _ = world.everybody()
        loop: Any = one.broker._loop
        load = loop.load_open_transactions

        async def refuse_once() -> None:
            loop.load_open_transactions = load
            raise StoreRefused("the ledger is away")

        loop.load_open_transactions = refuse_once
        world.server.crash()
        # Decided again in the new term; the client is not told of it.
        assert await one.broker.ask(AllocateProducerId()) > 0

    in_cluster(work)


def test_unsynced_work_of_a_deleted_topic_is_not_published() -> None:
    async def work(world: ClusterWorld) -> None:
        one, _ = world.everybody()
        key = partition_of(one)
        given = await one.broker.ask(InitProducer(name := named(world, one), 60_000))
        await one.broker.ask(batch(name, key, given.producer_id))
        assert key in one.broker._loop.unsynced.partitions
        (topic,) = await one.broker.catalog.all()
        assert one.broker.member is not None
        notice = Notice((TopicDeleted(topic),), (), 1, (0,))
        await one.broker.member.receive(pack_notices({None: notice}))
        await one.broker.flush()
        assert one.broker.reads.view(key) is None

    in_cluster(work)


# -- scenes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scene", SCENES)
def test_a_scene_ends_well(scene: Callable[[], None]) -> None:
    scene()


@pytest.mark.parametrize("name", FOUND_BY)
def test_a_defect_that_histories_find_rarely_is_found_by_its_scene(name: str) -> None:
    (mutant,) = (each for each in CLUSTER_MUTANTS if each.name == name)
    scene = next(each for each in SCENES if each.__name__ == FOUND_BY[name])
    found = _killed_by_scene(mutant, (scene,))
    assert found is not None
    assert found[0] == -1


# -- shards -----------------------------------------------------------------------------------------------


def test_shards_are_divided_by_rendezvous() -> None:
    async def work(world: ClusterWorld) -> None:
        owners = [shard.owner for shard in world.server.shards]
        assert owners == [owner_of(shard, (1, 2, 3)) for shard in range(SHARDS)]

    in_cluster(work, brokers=3)
