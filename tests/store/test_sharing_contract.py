"""What every store that several brokers share must do with versions, conflicts, locks and unsynced work.

The suite knows no implementation: it runs on each entry of ``SHARED_STORES`` (conftest). How brokers join,
leave and replace one another is in ``test_membership_contract``.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from semel.core.entities import ABSENT
from semel.core.facts import (
    BatchAppended,
    FeatureChanged,
    GroupDeleted,
    ProducerIdAllocated,
    Put,
    TopicChanged,
    TopicDeleted,
)
from semel.core.groups import ClassicGroup
from semel.core.shares.partition import SharePartition
from semel.core.types import (
    ClusterKey,
    CommittedOffset,
    GroupKey,
    Key,
    OffsetKey,
    PartitionKey,
    PendingKey,
    PendingOffset,
    PolicyKey,
    ProducerState,
    ShareKey,
    TopicKey,
    Transaction,
    TransactionKey,
)
from semel.store.cluster.contract import Conflict, SharedStore, Versioned

SOON = 30.0
"""Seconds. A lock that is free, or becomes free, is got in this time, also on a busy machine."""


@asynccontextmanager
async def opened(shared_stores: Any, count: int = 2) -> AsyncIterator[list[Any]]:
    stores = [await shared_stores.open(broker_id) for broker_id in range(count)]
    try:
        yield stores
    finally:
        for store in stores:
            await store.close()


def of_id(name: str, producer_id: int = 0, **more: Any) -> Put:
    return Put.of(Transaction(name, producer_id, 0, 1, **more))


async def version_of(store: SharedStore, key: Key) -> int:
    ((_, version),) = await store.load([key])
    return version


async def versions_of(store: SharedStore, *keys: Key) -> dict[Key, int]:
    return {key: each.version for key, each in zip(keys, await store.load(keys), strict=True)}


async def is_waiting(task: asyncio.Task[Any]) -> bool:
    await asyncio.wait([task], timeout=0.3)
    return not task.done()


# -- versions ---------------------------------------------------------------------------------------------


async def test_every_kind_of_entity_has_the_version_of_the_commit_that_wrote_it(
    shared_stores: Any, scribe: Any
) -> None:
    async with opened(shared_stores) as (one, other):
        created = scribe.created("orders")
        partition = PartitionKey(created.topic.topic_id, 0)
        facts: dict[Key, Any] = {
            TopicKey("orders"): created,
            partition: None,
            partition.of(7): Put(partition.of(7), ProducerState(1)),
            TransactionKey("t"): of_id("t"),
            GroupKey("g"): Put.of(ClassicGroup("g")),
            PendingKey("g"): Put(PendingKey("g"), None),
        }
        keys = list(facts)
        assert await one.load(keys) == [Versioned(None, ABSENT)] * len(keys)
        first = await one.commit([fact for fact in facts.values() if fact is not None], [])
        assert first > 0
        assert await versions_of(other, *keys) == dict.fromkeys(keys, first)
        for key, fact in facts.items():
            if key in (TopicKey("orders"), partition):
                continue
            version = await other.commit([fact], [], expected={key: first})
            assert version != first
            assert await version_of(one, key) == version
        version = await other.commit([TopicChanged(created.topic)], [], expected={TopicKey("orders"): first})
        assert await version_of(one, TopicKey("orders")) == version
        assert await version_of(one, partition) == first
        fact, _ = scribe.append(partition, size=3)
        version = await other.commit([fact, *scribe.changed()], [b"abc"], expected={partition: first})
        assert await version_of(one, partition) == version


async def test_versions_are_never_used_twice(shared_stores: Any) -> None:
    seen: set[int] = set()
    for _ in range(2):
        async with opened(shared_stores, 3) as stores:
            for number in range(4):
                for store in stores:
                    seen.add(await store.commit([of_id("t", number)], []))
    assert len(seen) == 24


async def test_an_entity_that_was_deleted_has_no_version(shared_stores: Any, scribe: Any) -> None:
    async with opened(shared_stores) as (one, other):
        (key,) = await scribe.create(one)
        facts = [of_id("t"), Put.of(ClassicGroup("g")), Put(PendingKey("g"), None)]
        version = await one.commit([*facts, Put(key.of(7), ProducerState(1))], [])
        keys = (TransactionKey("t"), GroupKey("g"), PendingKey("g"), key.of(7))
        assert await versions_of(other, *keys) == dict.fromkeys(keys, version)
        gone = [Put(TransactionKey("t"), None), GroupDeleted("g"), Put(key.of(7), None)]
        await other.commit(gone, [], expected=dict.fromkeys(keys, version))
        assert await one.load(keys) == [Versioned(None, ABSENT)] * 4
        with pytest.raises(Conflict) as conflict:
            await one.commit([], [], expected=dict.fromkeys(keys, version))
        assert set(conflict.value.keys) == set(keys)


async def test_entities_without_versions_are_loaded_too(shared_stores: Any) -> None:
    async with opened(shared_stores) as (one, other):
        offset = OffsetKey("g", "t", 0)
        await one.commit([Put(offset, CommittedOffset(5))], [])
        found, cluster = await other.load([offset, ClusterKey()])
        assert found == Versioned(CommittedOffset(5), ABSENT)
        assert cluster.version == ABSENT


async def test_pending_offsets_that_are_gone_keep_their_version(shared_stores: Any) -> None:
    async with opened(shared_stores) as (one, other):
        pending = (PendingOffset(7, OffsetKey("g", "t", 0), CommittedOffset(5)),)
        first = await one.commit([Put(PendingKey("g"), pending)], [])
        assert await other.load([PendingKey("g")]) == [Versioned(pending, first)]
        second = await one.commit([Put(PendingKey("g"), None)], [], expected={PendingKey("g"): first})
        assert await other.load([PendingKey("g")]) == [Versioned(None, second)]


async def test_a_deleted_topic_gives_a_version_to_the_groups_whose_offsets_it_removes(
    shared_stores: Any, scribe: Any
) -> None:
    async with opened(shared_stores) as (one, other):
        created = scribe.created("orders")
        value = CommittedOffset(5)
        facts = [
            created,
            Put(OffsetKey("committed", "orders", 0), value),
            Put(PendingKey("pending"), (PendingOffset(7, OffsetKey("pending", "orders", 0), value),)),
            Put(OffsetKey("elsewhere", "other", 0), value),
        ]
        await one.commit(facts, [])
        topic, partition = TopicKey("orders"), PartitionKey(created.topic.topic_id, 0)
        expected = await versions_of(other, topic, PendingKey("committed"))
        version = await one.commit([TopicDeleted(created.topic)], [], expected={topic: expected[topic]})
        assert await other.load([PendingKey("committed")]) == [Versioned(None, version)]
        assert await other.load([PendingKey("pending")]) == [Versioned(None, version)]
        keys = (topic, partition, PendingKey("elsewhere"))
        assert await versions_of(other, *keys) == dict.fromkeys(keys, ABSENT)
        with pytest.raises(Conflict) as conflict:
            await other.commit([], [], expected=expected)
        assert set(conflict.value.keys) == set(expected)


async def test_a_producer_of_a_deleted_partition_does_not_exist(shared_stores: Any, scribe: Any) -> None:
    async with opened(shared_stores) as (one, other):
        created = scribe.created("orders")
        producer = PartitionKey(created.topic.topic_id, 0).of(7)
        version = await one.commit([created, Put(producer, ProducerState(1))], [])
        await one.commit([TopicDeleted(created.topic)], [])
        assert await other.load([producer]) == [Versioned(None, ABSENT)]
        await other.commit([of_id("t")], [], expected={producer: ABSENT})
        with pytest.raises(Conflict):
            await other.commit([of_id("t")], [], expected={producer: version})


# -- conflicts --------------------------------------------------------------------------------------------


async def test_a_commit_on_old_versions_writes_nothing(shared_stores: Any, scribe: Any) -> None:
    async with opened(shared_stores) as (one, other):
        keys = await scribe.create(one, 2)
        await one.commit([of_id("a"), of_id("b")], [])
        wanted = (*keys, TransactionKey("a"), TransactionKey("b"))
        expected = await versions_of(other, *wanted)
        moved = await one.commit([of_id("b", 5)], [])
        pairs = [scribe.append(key, size=3) for key in keys]
        facts = [*(fact for fact, _ in pairs), *scribe.changed(), of_id("a", 6)]
        with pytest.raises(Conflict) as conflict:
            await other.commit(facts, [b"abc"] * 2, expected=expected)
        assert conflict.value.keys == (TransactionKey("b"),)
        assert await versions_of(one, *wanted) == expected | {TransactionKey("b"): moved}
        version = await other.commit(facts, [b"abc"] * 2, expected=expected | {TransactionKey("b"): moved})
        assert await version_of(one, TransactionKey("a")) == version
        assert await one.ledger.load(keys) == [scribe.partitions[key] for key in keys]


async def test_what_a_commit_only_read_conflicts_too(shared_stores: Any, scribe: Any) -> None:
    async with opened(shared_stores) as (one, other):
        await one.commit([scribe.created("orders"), Put.of(ClassicGroup("g"))], [])
        (topic,) = await one.ledger.topics()
        expected = await versions_of(other, TopicKey("orders"), GroupKey("g"))
        await one.commit([TopicChanged(topic)], [])
        with pytest.raises(Conflict) as conflict:
            await other.commit([Put.of(ClassicGroup("g"))], [], expected=expected)
        assert conflict.value.keys == (TopicKey("orders"),)


async def test_two_brokers_that_add_one_entity(shared_stores: Any, scribe: Any) -> None:
    async with opened(shared_stores) as stores:
        for number in range(10):
            names = TopicKey(f"t{number}"), TransactionKey(f"x{number}"), PendingKey(f"g{number}")
            expected: dict[Key, int] = dict.fromkeys(names, ABSENT)
            results = await asyncio.gather(
                *(
                    store.commit(
                        [
                            scribe.created(f"t{number}"),
                            of_id(f"x{number}"),
                            Put(PendingKey(f"g{number}"), None),
                        ],
                        [],
                        expected=expected,
                    )
                    for store in stores
                ),
                return_exceptions=True,
            )
            (conflict,) = [each for each in results if isinstance(each, Conflict)]
            assert set(conflict.keys) == set(names)
            (version,) = set(results) - {conflict}
            assert await versions_of(stores[0], *names) == dict.fromkeys(names, version)


@pytest.mark.parametrize("exist", [False, True])
async def test_two_brokers_that_each_read_what_the_other_writes(shared_stores: Any, exist: bool) -> None:
    """Both may not pass: each would be decided on what the other has changed."""
    async with opened(shared_stores) as stores:
        for number in range(20):
            names = [f"a{number}", f"b{number}"]
            keys = [TransactionKey(name) for name in names]
            if exist:
                await stores[0].commit([of_id(name) for name in names], [])
            expected = await versions_of(stores[0], *keys)
            async with asyncio.timeout(SOON):
                results = await asyncio.gather(
                    *(
                        store.commit([of_id(name, 9)], [], expected=expected)
                        for store, name in zip(stores, names, strict=True)
                    ),
                    return_exceptions=True,
                )
            conflicts = [each for each in results if isinstance(each, Conflict)]
            assert len(conflicts) == 1
            assert conflicts[0].keys[0] in keys


async def test_many_writers_of_the_same_entities_all_get_through(shared_stores: Any) -> None:
    """Each adds one to the same three counters, in its own order, and tries again after a conflict."""
    keys = [TransactionKey(name) for name in "abc"]

    async def count(store: Any, order: list[TransactionKey]) -> None:
        for _ in range(10):
            locks = False
            while True:
                found = dict(zip(order, await store.load(order, locks=locks), strict=True))
                facts = [of_id(key.transactional_id, found[key].value.producer_id + 1) for key in order]
                try:
                    versions = {key: each.version for key, each in found.items()}
                    await store.commit(facts, [], expected=versions)
                    break
                except Conflict:
                    locks = True

    async with opened(shared_stores, 3) as stores:
        await stores[0].commit([of_id(key.transactional_id, 0) for key in keys], [])
        async with asyncio.timeout(SOON):
            await asyncio.gather(*(count(store, keys[at:] + keys[:at]) for at, store in enumerate(stores)))
        assert [each.value.producer_id for each in await stores[0].load(keys)] == [30] * 3


async def test_what_is_not_expected_is_not_checked(shared_stores: Any) -> None:
    async with opened(shared_stores) as (one, other):
        await one.commit([of_id("a"), of_id("b")], [])
        expected = await versions_of(other, TransactionKey("a"))
        await one.commit([of_id("b", 1)], [])
        version = await other.commit([of_id("a", 2), of_id("b", 2)], [], expected=expected)
        assert await version_of(one, TransactionKey("b")) == version


async def test_two_brokers_that_change_the_features(shared_stores: Any) -> None:
    async with opened(shared_stores) as (one, other):
        await one.commit([FeatureChanged(1, 2)], [])
        with pytest.raises(Conflict) as conflict:
            await other.commit([FeatureChanged(1, 2), of_id("t")], [])
        assert conflict.value.keys == (ClusterKey(),)
        assert await version_of(one, TransactionKey("t")) == ABSENT
        await other.commit([FeatureChanged(2, 3)], [])
        ((cluster, _),) = await one.load([ClusterKey()])
        assert (cluster.transaction_version, cluster.features_epoch) == (2, 3)


async def test_of_two_brokers_that_change_a_policy_the_later_wins(shared_stores: Any) -> None:
    key = PolicyKey("acl", "x")
    async with opened(shared_stores) as (one, other):
        await one.commit([Put(key, "1")], [])
        await other.commit([Put(key, "2")], [], expected={})
        ((body, _),) = await one.load([key])
        assert body == "2"


async def test_a_share_partition_that_another_broker_has_changed_is_a_conflict(shared_stores: Any) -> None:
    key = ShareKey(b"t" * 16, 0, "g\0")
    async with opened(shared_stores) as (one, other):
        await one.commit([Put(key, SharePartition(1))], [], expected={key: ABSENT})
        with pytest.raises(Conflict) as conflict:
            await other.commit([Put(key, SharePartition(2))], [], expected={key: ABSENT})
        assert tuple(conflict.value.keys) == (key,)
        expected = await versions_of(other, key)
        await other.commit([Put(key, SharePartition(3))], [], expected=expected)
        with pytest.raises(Conflict):
            # Together with other rows.
            await one.commit([Put(key, None), of_id("a")], [], expected=expected)
        assert await version_of(one, TransactionKey("a")) == ABSENT
        await one.commit([Put(key, None), of_id("a")], [], expected=await versions_of(one, key))
        assert await version_of(other, key) == ABSENT


async def test_brokers_count_producer_ids_for_themselves(shared_stores: Any) -> None:
    async with opened(shared_stores) as stores:
        firsts = []
        for store in stores:
            ((cluster, _),) = await store.load([ClusterKey()])
            firsts.append(cluster.next_producer_id)
            await store.commit([ProducerIdAllocated(cluster.next_producer_id)], [])
        assert abs(firsts[0] - firsts[1]) >= 2**32
        for store, first in zip(stores, firsts, strict=True):
            ((cluster, _),) = await store.load([ClusterKey()])
            assert cluster.next_producer_id == first + 1


# -- locks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exists", [False, True])
async def test_nobody_changes_what_was_loaded_with_locks(shared_stores: Any, exists: bool) -> None:
    async with opened(shared_stores) as (one, other):
        key = TransactionKey("t")
        if exists:
            await one.commit([of_id("t")], [])
        ((_, version),) = await one.load([key], locks=True)
        waiting = asyncio.create_task(other.commit([of_id("t", 5)], [], expected={key: version}))
        assert await is_waiting(waiting)
        written = await one.commit([of_id("t", 6)], [], expected={key: version})
        with pytest.raises(Conflict):
            await waiting
        assert await version_of(other, key) == written


async def test_locks_that_are_given_up(shared_stores: Any) -> None:
    async with opened(shared_stores) as (one, other):
        key = TransactionKey("t")
        version = await one.commit([of_id("t")], [])
        await one.load([key], locks=True)
        waiting = asyncio.create_task(other.commit([of_id("t", 5)], [], expected={key: version}))
        assert await is_waiting(waiting)
        await one.unlock()
        moved = await asyncio.wait_for(waiting, SOON)
        await one.unlock()
        with pytest.raises(Conflict):
            await one.commit([of_id("t", 6)], [], expected={key: version})
        await one.commit([of_id("t", 6)], [], expected={key: moved})


async def test_locks_are_given_up_by_a_conflict(shared_stores: Any) -> None:
    async with opened(shared_stores) as (one, other):
        key = TransactionKey("t")
        version = await one.commit([of_id("t")], [])
        await one.load([key], locks=True)
        with pytest.raises(Conflict):
            await one.commit([], [], expected={key: version + 1})
        await asyncio.wait_for(other.commit([of_id("t", 5)], [], expected={key: version}), SOON)


async def test_more_and_more_is_locked(shared_stores: Any) -> None:
    async with opened(shared_stores) as (one, other):
        keys = [TransactionKey(name) for name in "ab"]
        await one.commit([of_id("a"), of_id("b")], [])
        for key in keys:
            await one.load([key], locks=True)
        waiting = [asyncio.create_task(other.commit([of_id(name, 5)], [])) for name in "a"]
        assert await is_waiting(waiting[0])
        expected = await versions_of(one, *keys)
        await one.commit([of_id("a", 6), of_id("b", 6)], [], expected=expected)
        await asyncio.wait_for(waiting[0], SOON)


async def test_two_brokers_that_lock_in_different_orders_both_get_through(shared_stores: Any) -> None:
    async with opened(shared_stores) as stores:
        keys = [TransactionKey(name) for name in "ab"]
        await stores[0].commit([of_id("a"), of_id("b")], [])

        async def change(store: Any, order: list[TransactionKey]) -> None:
            while True:
                found = {}
                for key in order:
                    (found[key],) = await store.load([key], locks=True)
                    await asyncio.sleep(0.05)
                facts = [of_id(key.transactional_id, found[key].value.producer_id + 1) for key in order]
                try:
                    await store.commit(facts, [], expected={key: found[key].version for key in order})
                    return
                except Conflict:
                    continue

        async with asyncio.timeout(SOON):
            await asyncio.gather(change(stores[0], keys), change(stores[1], keys[::-1]))
        assert [each.value.producer_id for each in await stores[0].load(keys)] == [2, 2]


async def test_reading_does_not_wait_for_locks(shared_stores: Any) -> None:
    async with opened(shared_stores) as (one, other):
        key = TransactionKey("t")
        version = await one.commit([of_id("t")], [])
        await one.load([key], locks=True)
        assert await asyncio.wait_for(version_of(other, key), SOON) == version
        await one.unlock()


# -- unsynced work ----------------------------------------------------------------------------------------


async def test_unsynced_work_is_unsynced_until_the_next_flush(shared_stores: Any, scribe: Any) -> None:
    async with opened(shared_stores) as (one, other):
        (key,) = await scribe.create(one)
        assert not one.has_unsynced
        fact: BatchAppended
        for _ in range(2):
            fact, _ = scribe.append(key, size=3)
            await one.commit([fact, *scribe.changed()], [b"abc"], defers_sync=True)
            assert one.has_unsynced
            assert not other.has_unsynced
        await one.commit([], [])
        assert not one.has_unsynced
        await one.commit([of_id("t")], [], defers_sync=True)
        assert one.has_unsynced
        await one.commit([of_id("t")], [])
        assert not one.has_unsynced


async def test_what_readers_of_a_partition_see_is_durable(shared_stores: Any, scribe: Any) -> None:
    async with opened(shared_stores) as (one, other):
        (key,) = await scribe.create(one)
        for reader in (one, other):
            fact, _ = scribe.append(key, size=3)
            await one.commit([fact, *scribe.changed()], [b"abc"], defers_sync=True)
            assert await reader.ledger.load([key]) == [scribe.partitions[key]]
            if reader is one:
                assert not one.has_unsynced


async def test_all_brokers_are_in_the_same_term(shared_stores: Any) -> None:
    async with opened(shared_stores) as (one, other):
        term = one.term
        assert other.term == term
    async with opened(shared_stores) as (one, other):
        assert (one.term, other.term) == (term, term)


async def test_several_brokers_sweep_at_once_and_free_every_row_once(shared_stores: Any, scribe: Any) -> None:
    """Beside commits that leave more rows behind."""
    async with opened(shared_stores, 3) as (writer, *sweepers):
        keys = await scribe.create(writer, 3)
        is_over = False
        freed: list[Any] = []

        async def sweep(store: Any) -> None:
            while True:
                was_over = is_over
                swept = await store.ledger.sweep(limit=4)
                freed.extend(swept)
                if was_over and not swept:
                    return
                await asyncio.sleep(0)

        async def write() -> None:
            nonlocal is_over
            for number in range(30):
                for key in keys:
                    pairs = [scribe.append(key, size=3) for _ in range(3)]
                    await writer.commit([*(fact for fact, _ in pairs), *scribe.changed()], [b"abc"] * 3)
                trims = [scribe.trim(key, scribe.partitions[key].high_watermark - number % 2) for key in keys]
                await writer.commit([*trims, *scribe.changed()], [])
            is_over = True

        await asyncio.gather(write(), *map(sweep, sweepers))
        kept = sum(len(scribe.batches[key]) for key in keys)
        assert len(freed) == len(set(freed)) == 30 * 3 * 3 - kept
        references = await writer.ledger.chunk_references()
        assert sum(references.values()) == 3 * kept
