"""The contract of a ledger. Runs on every entry of ``LEDGERS`` in ``conftest``.

What is here holds for every ledger: SQLite in memory and on disk now, others later, unchanged. A ledger is
asked to write facts and to give back what they came to; it is never asked for a rule. The ``durable``
fixtures leave out those that are gone with the process.
"""

import os
import random
from typing import Any

import pytest
from support.stores.embedded import EVERYTHING, all_batches

from semel.core.facts import (
    BatchAppended,
    LogStartAdvanced,
    ProducerIdAllocated,
    Put,
    SessionChanged,
    TopicChanged,
    TopicCreated,
    TopicDeleted,
)
from semel.core.groups import ClassicGroup
from semel.core.types import (
    Cluster,
    ClusterKey,
    CommittedOffset,
    GroupKey,
    OffsetKey,
    OpenTransaction,
    Partition,
    PartitionKey,
    ProducerKey,
    ProducerState,
    SentBatch,
    TopicKey,
)
from semel.store.contract import BatchLocation

BIG = 2**63 - 1


# -- commits ----------------------------------------------------------------------------------------------


async def test_commits_are_numbered_one_by_one(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    first = await ledger.commit([scribe.created("a")], [])
    assert await ledger.commit([scribe.created("b")], []) == first + 1
    assert await ledger.commit([ProducerIdAllocated(0), ProducerIdAllocated(1)], []) == first + 2
    await ledger.close()


async def test_what_does_not_exist_is_none_and_order_is_kept(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    created = scribe.created("there", 2)
    await ledger.commit([created], [])
    topic = created.topic
    keys = [
        OffsetKey("g", "there", 0),
        TopicKey("there"),
        PartitionKey(topic.topic_id, 2),
        PartitionKey(topic.topic_id, 1),
        TopicKey("not there"),
        ProducerKey(topic.topic_id, 0, 5),
        GroupKey("g"),
        ClusterKey(),
    ]
    expected = [None, topic, None, Partition(), None, None, None, Cluster(0)]
    assert await ledger.load(keys) == expected
    assert await ledger.load([]) == []
    await ledger.close()


async def test_facts_that_are_not_durable_are_passed_over(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    await ledger.commit([SessionChanged("g", None), scribe.created("t")], [])
    assert [topic.name for topic in await ledger.topics()] == ["t"]
    await ledger.close()


async def test_producer_ids_count_up(ledgers: Any) -> None:
    ledger = await ledgers.open()
    await ledger.commit([ProducerIdAllocated(number) for number in range(3)], [])
    assert await ledger.load([ClusterKey()]) == [Cluster(next_producer_id=3)]
    await ledger.close()


# -- topics -----------------------------------------------------------------------------------------------


async def test_topics_are_found_by_name_and_by_id_and_in_order(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    facts = [scribe.created(name, 1, **{"retention.ms": "5"}) for name in ("b", "a", "Z", "c.d_e-f")]
    await ledger.commit(facts, [])
    names = ["Z", "a", "b", "c.d_e-f"]
    assert [topic.name for topic in await ledger.topics()] == names
    assert [topic.name for topic in await ledger.topics(limit=2)] == names[:2]
    assert [topic.name for topic in await ledger.topics(after="a", limit=2)] == names[2:]
    assert await ledger.topics(after="c.d_e-f") == []
    for fact in facts:
        assert await ledger.topic_by_id(fact.topic.topic_id) == fact.topic
    assert await ledger.topic_by_id(os.urandom(16)) is None
    await ledger.close()


async def test_a_topic_grows_and_keeps_what_it_has(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    created = scribe.created("t", 2)
    key = PartitionKey(created.topic.topic_id, 0)
    fact, location = scribe.append(key)
    await ledger.commit([created, fact, *scribe.changed()], [location])
    grown = created.topic.but(partitions=4, configs={"cleanup.policy": "delete"})
    await ledger.commit([TopicChanged(grown)], [])
    last = PartitionKey(grown.topic_id, 3)
    assert await ledger.load([TopicKey("t"), key, last]) == [grown, scribe.partitions[key], Partition()]
    # And again, with configs alone.
    changed = grown.but(configs={})
    await ledger.commit([TopicChanged(changed)], [])
    assert await ledger.load([TopicKey("t"), key, last]) == [changed, scribe.partitions[key], Partition()]
    await ledger.close()


async def test_a_deleted_topic_takes_everything_along(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    (key,) = await scribe.create(ledger)
    other = scribe.created("other")
    fact, location = scribe.append(key)
    producer = ProducerKey(key.topic_id, 0, 7)
    await ledger.commit(
        [
            other,
            fact,
            *scribe.changed(),
            Put(producer, ProducerState(0)),
            Put(OffsetKey("g", "orders", 0), CommittedOffset(1)),
            Put(OffsetKey("g", "other", 0), CommittedOffset(2)),
        ],
        [location],
    )
    (topic,) = await ledger.load([TopicKey("orders")])
    await ledger.commit([TopicDeleted(topic)], [])
    gone = [TopicKey("orders"), key, producer, OffsetKey("g", "orders", 0)]
    assert await ledger.load(gone) == [None] * 4
    assert await ledger.topics() == [other.topic]
    assert await ledger.topic_by_id(key.topic_id) is None
    assert await all_batches(ledger, key) == []
    assert await ledger.first_batch_since(key, 0) is None
    assert await ledger.producers(key) == []
    assert await ledger.producers_unseen_since(BIG, limit=10) == []
    assert await ledger.group_offsets("g") == [(OffsetKey("g", "other", 0), CommittedOffset(2))]
    await ledger.close()


async def test_a_topic_made_anew_in_the_same_commit_shares_nothing(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    (key,) = await scribe.create(ledger)
    (topic,) = await ledger.load([TopicKey("orders")])
    fact, location = scribe.append(key)
    changed = scribe.changed()
    offset = OffsetKey("g", "orders", 0)
    anew = scribe.created("orders")
    new_key = PartitionKey(anew.topic.topic_id, 0)
    new_fact, new_location = scribe.append(new_key, records=3)
    facts = [
        fact,
        *changed,
        Put(offset, CommittedOffset(1)),
        TopicDeleted(topic),
        anew,
        new_fact,
        *scribe.changed(),
        Put(offset, CommittedOffset(3)),
    ]
    await ledger.commit(facts, [location, new_location])
    expected = [anew.topic, None, scribe.partitions[new_key], CommittedOffset(3)]
    assert await ledger.load([TopicKey("orders"), key, new_key, offset]) == expected
    assert await all_batches(ledger, new_key) == scribe.batches[new_key]
    await ledger.close()


async def test_many_topics_in_one_commit(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    facts = [scribe.created(f"t{number:03}", 3) for number in range(120)]
    await ledger.commit(facts, [])
    assert await ledger.topics() == [fact.topic for fact in facts]
    await ledger.commit([TopicDeleted(fact.topic) for fact in facts[:60]], [])
    assert len(await ledger.topics()) == 60
    assert await ledger.sweep(limit=50) == []
    await ledger.close()


# -- batches ----------------------------------------------------------------------------------------------


async def test_batches_become_a_log(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    keys = await scribe.create(ledger, 3)
    for number in range(20):
        await scribe.fill(ledger, keys[number % 3], [{"records": 1 + number % 4, "size": 50 + number}] * 2)
    assert await ledger.load(keys) == [scribe.partitions[key] for key in keys]
    for key in keys:
        assert await all_batches(ledger, key) == scribe.batches[key]
    await ledger.close()


async def test_a_large_tick_is_written_whole(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    keys = await scribe.create(ledger, 10)
    pairs = [scribe.append(keys[number % 10], records=1 + number % 3) for number in range(1_000)]
    facts = [fact for fact, _ in pairs]
    await ledger.commit([*facts, *scribe.changed()], [location for _, location in pairs])
    assert await ledger.load(keys) == [scribe.partitions[key] for key in keys]
    for key in keys:
        assert await all_batches(ledger, key) == scribe.batches[key]
    assert await ledger.chunk_references() == {1: 100_000}
    await ledger.close()


async def test_find_batches_begins_with_the_one_that_holds_the_offset(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    (key,) = await scribe.create(ledger)
    await scribe.fill(ledger, key, [{"records": 5}] * 4)
    batches = scribe.batches[key]
    for offset in range(20):
        assert await ledger.find_batches(key, offset, **EVERYTHING) == batches[offset // 5 :], offset
    assert await ledger.find_batches(key, 20, **EVERYTHING) == []
    await ledger.close()


async def test_find_batches_ends_before_an_offset(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    (key,) = await scribe.create(ledger)
    await scribe.fill(ledger, key, [{"records": 5}] * 4)
    for before, count in ((0, 0), (4, 0), (5, 1), (9, 1), (10, 2), (20, 4), (99, 4)):
        found = await ledger.find_batches(key, 0, before=before, bytes_max=9_999, batches_max=99)
        assert found == scribe.batches[key][:count], before
    await ledger.close()


async def test_find_batches_gives_one_and_then_what_fits(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    (key,) = await scribe.create(ledger)
    await scribe.fill(ledger, key, [{"size": size} for size in (500, 100, 100, 300, 10)])
    for bytes_max, count in ((0, 1), (499, 1), (500, 1), (599, 1), (600, 2), (700, 3), (999, 3), (1_000, 4)):
        found = await ledger.find_batches(key, 0, before=99, bytes_max=bytes_max, batches_max=99)
        assert found == scribe.batches[key][:count], bytes_max
    for batches_max in range(1, 6):
        found = await ledger.find_batches(key, 0, before=99, bytes_max=9_999, batches_max=batches_max)
        assert found == scribe.batches[key][:batches_max]
    await ledger.close()


async def test_find_batches_reads_many_pages(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    (key,) = await scribe.create(ledger)
    for _ in range(4):
        await scribe.fill(ledger, key, [{"records": 2, "size": 10}] * 1_000)
    batches = scribe.batches[key]
    assert await all_batches(ledger, key) == batches
    found = await ledger.find_batches(key, 501, before=2**62, bytes_max=15_005, batches_max=9_999)
    assert found == batches[250:1750]
    found = await ledger.find_batches(key, 1_000, before=2**62, bytes_max=2**40, batches_max=777)
    assert found == batches[500:1277]
    await ledger.close()


async def test_open_transactions_are_kept(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    (key,) = await scribe.create(ledger)
    for producer_id, opens in ((7, True), (8, True), (7, False)):
        fact, location = scribe.append(key)
        fact = scribe.opens(fact, producer_id) if opens else fact.but(producer_id=producer_id)
        await ledger.commit([fact, *scribe.changed()], [location])
    (partition,) = await ledger.load([key])
    assert partition.open_transactions == (OpenTransaction(0, 7), OpenTransaction(1, 8))
    assert partition.last_stable_offset == 0
    await ledger.close()


async def test_numbers_as_large_as_the_wire_allows(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    (key,) = await scribe.create(ledger)
    base = BIG - 10
    producer = ProducerKey(key.topic_id, 0, BIG)
    state = ProducerState(
        32767, (SentBatch(2**31 - 1, BIG - 1, 2**31 - 1, BIG),) * 5, -(2**63), BIG, 2**31 - 1, BIG
    )
    offset = OffsetKey("", "t\0\u00fc\U0001f600", 2**31 - 1)
    committed = CommittedOffset(-(2**63), -(2**31), "\0 \u20ac", BIG)
    fact = BatchAppended(key, base, BIG - 1, -(2**63), BIG, 2**31 - 1, BIG, True, True)
    partition = Partition(base, BIG, BIG, 2**31 - 1, (OpenTransaction(base, BIG),) * 3, BIG - 1, BIG, BIG)
    await ledger.commit(
        [
            LogStartAdvanced(key, base),
            fact.but(last_offset=BIG - 1),
            Put(key, partition),
            Put(producer, state),
            Put(offset, committed),
        ],
        [BatchLocation(BIG, BIG - 5, 2**31 - 1)],
    )
    loaded = await ledger.load([key, producer, offset])
    assert loaded == [partition, state, committed]
    (batch,) = await ledger.find_batches(key, base, before=BIG, bytes_max=1, batches_max=1)
    assert batch.location == BatchLocation(BIG, BIG - 5, 2**31 - 1)
    await ledger.close()


# -- by time and by size ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
async def test_searches_agree_with_looking_at_every_batch(ledgers: Any, scribe: Any, seed: int) -> None:
    """Timestamps go back and forth, and the log start lies somewhere, also inside a batch."""
    chance = random.Random(seed)
    ledger = await ledgers.open()
    (key,) = await scribe.create(ledger)
    batches = [
        {
            "records": chance.randint(1, 5),
            "timestamp": 100 + number // 3 + chance.choice([0, 0, 0, 30, -40]),
            "size": chance.randint(1, 500),
        }
        for number in range(chance.randint(1, 90))
    ]
    await scribe.fill(ledger, key, batches)
    if seed % 3:
        trim = scribe.trim(key, chance.randint(0, scribe.partitions[key].high_watermark))
        await ledger.commit([trim, *scribe.changed()], [])
        if seed % 3 == 2:
            await ledger.sweep(limit=1_000)
    visible = scribe.batches[key]
    for timestamp in range(40, 200, 3):
        expected = next((batch for batch in visible if batch.max_timestamp >= timestamp), None)
        assert await ledger.first_batch_since(key, timestamp) == expected, timestamp
    total = scribe.partitions[key].size_bytes
    assert await ledger.offset_at_size(key, total) == scribe.partitions[key].log_start_offset
    for size in [0, 1, *range(5, total, 197)]:
        rest, expected_offset = total, scribe.partitions[key].log_start_offset
        for batch in visible:
            if rest <= size:
                break
            rest -= batch.location.length
            expected_offset = batch.last_offset + 1
        assert await ledger.offset_at_size(key, size) == expected_offset, size
    start = scribe.partitions[key].log_start_offset
    for offset in range(0, scribe.partitions[key].high_watermark + 2, 3):
        below = sum(batch.location.length for batch in visible if batch.last_offset < offset)
        assert await ledger.size_below(key, offset) == (start, below), offset
    await ledger.close()


async def test_searches_in_what_is_empty_or_unknown(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    (key,) = await scribe.create(ledger)
    for each in (key, PartitionKey(os.urandom(16), 0)):
        assert await ledger.first_batch_since(each, -1) is None
        assert await ledger.offset_at_size(each, 0) == 0
        assert await ledger.size_below(each, 10) == (0, 0)
        assert await all_batches(ledger, each) == []
        assert await ledger.producers(each) == []
    await ledger.close()


# -- what is left behind ----------------------------------------------------------------------------------


async def test_batches_below_the_log_start_are_not_found(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    (key,) = await scribe.create(ledger)
    await scribe.fill(ledger, key, [{"records": 5}] * 6)
    for offset, first in ((0, 0), (3, 0), (4, 0), (5, 5), (12, 10), (29, 25), (30, None)):
        await ledger.commit([scribe.trim(key, offset), *scribe.changed()], [])
        found = await all_batches(ledger, key)
        assert found == scribe.batches[key]
        assert (found[0].base_offset if found else None) == first
        assert await ledger.load([key]) == [scribe.partitions[key]]
    await ledger.close()


async def test_a_sweep_frees_what_nobody_can_reach_and_nothing_else(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    keys = await scribe.create(ledger, 3)
    gone = scribe.created("gone", 2)
    await ledger.commit([gone], [])
    gone_keys = [PartitionKey(gone.topic.topic_id, index) for index in range(2)]
    for key in [*keys, *gone_keys]:
        for chunk_id in (1, 2):
            await scribe.fill(ledger, key, [{"records": 3, "chunk_id": chunk_id}] * 10)
    producer = ProducerKey(gone.topic.topic_id, 1, 9)
    await ledger.commit([Put(producer, ProducerState(0))], [])
    assert await ledger.sweep(limit=100) == []

    expected = [batch.location for key in gone_keys for batch in scribe.batches[key]]
    expected += [batch.location for batch in scribe.batches[keys[0]][:7]]
    await ledger.commit([scribe.trim(keys[0], 22), *scribe.changed(), TopicDeleted(gone.topic)], [])
    assert sorted(await ledger.leftovers(limit=1_000)) == sorted(expected)
    freed: list[BatchLocation] = []
    while locations := await ledger.leftovers(limit=10):
        assert len(locations) <= 10
        assert await ledger.sweep(limit=10) == locations
        freed += locations
    assert sorted(freed) == sorted(expected)
    for key in keys:
        assert await all_batches(ledger, key) == scribe.batches[key]
    assert await ledger.sweep(limit=10) == []

    live = [batch.location for key in keys for batch in scribe.batches[key]]
    counted = {
        chunk_id: sum(each.length for each in live if each.chunk_id == chunk_id) for chunk_id in (1, 2)
    }
    assert await ledger.chunk_references() == counted
    await ledger.close()


async def test_a_chunk_that_nobody_points_at_has_no_reference(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    (key,) = await scribe.create(ledger)
    assert await ledger.chunk_references() == {}
    await scribe.fill(ledger, key, [{"chunk_id": 1, "size": 10}, {"chunk_id": 1, "size": 20}])
    await scribe.fill(ledger, key, [{"chunk_id": 2, "size": 30}])
    assert await ledger.chunk_references() == {1: 30, 2: 30}
    await ledger.commit([scribe.trim(key, 2), *scribe.changed()], [])
    # Rows that nobody can reach still point until they are swept.
    assert await ledger.chunk_references() == {1: 30, 2: 30}
    await ledger.sweep(limit=100)
    assert await ledger.chunk_references() == {2: 30}
    await scribe.fill(ledger, key, [{"chunk_id": 1, "size": 5}])
    assert await ledger.chunk_references() == {1: 5, 2: 30}
    await ledger.close()


async def test_appending_and_trimming_in_one_commit(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    (key,) = await scribe.create(ledger)
    first, location = scribe.append(key, records=2)
    second, next_location = scribe.append(key, records=2)
    trim = scribe.trim(key, 2)
    third, last_location = scribe.append(key, records=2)
    facts = [first, second, trim, third, *scribe.changed()]
    await ledger.commit(facts, [location, next_location, last_location])
    assert await ledger.load([key]) == [scribe.partitions[key]]
    assert await all_batches(ledger, key) == scribe.batches[key]
    assert await ledger.sweep(limit=9) == [location]
    await ledger.close()


# -- after a restart --------------------------------------------------------------------------------------


async def test_everything_is_there_after_a_restart(durable_ledgers: Any, scribe: Any) -> None:
    ledger = await durable_ledgers.open()
    keys = await scribe.create(ledger, 2)
    await scribe.fill(ledger, keys[0], [{"records": 3}] * 50)
    await scribe.fill(ledger, keys[1], [{"records": 2}] * 50)
    await ledger.commit([scribe.trim(keys[1], 31), *scribe.changed(), ProducerIdAllocated(41)], [])
    number = await ledger.commit([Put.of(ClassicGroup("g"))], [])
    await ledger.close()

    ledger = await durable_ledgers.open()
    assert await ledger.load(keys) == [scribe.partitions[key] for key in keys]
    for key in keys:
        assert await all_batches(ledger, key) == scribe.batches[key]
    assert await ledger.load([ClusterKey(), GroupKey("g")]) == [Cluster(42), ClassicGroup("g")]
    assert len(await ledger.sweep(limit=100)) == 15
    # Numbers go on, and so do logs: the partition's row is read before it is written.
    await scribe.fill(ledger, keys[1], [{"records": 7}])
    assert await ledger.load(keys) == [scribe.partitions[key] for key in keys]
    assert await ledger.commit([ProducerIdAllocated(42)], []) == number + 2
    await ledger.close()


async def test_partitions_of_a_topic_made_after_a_restart_are_others(
    durable_ledgers: Any, scribe: Any
) -> None:
    ledger = await durable_ledgers.open()
    (key,) = await scribe.create(ledger)
    await scribe.fill(ledger, key, [{}] * 3)
    (topic,) = await ledger.topics()
    await ledger.commit([TopicDeleted(topic)], [])
    await ledger.close()
    ledger = await durable_ledgers.open()
    created: TopicCreated = scribe.created("orders")
    new_key = PartitionKey(created.topic.topic_id, 0)
    await ledger.commit([created], [])
    assert await all_batches(ledger, new_key) == []
    await scribe.fill(ledger, new_key, [{}])
    assert len(await ledger.sweep(limit=100)) == 3
    assert await all_batches(ledger, new_key) == scribe.batches[new_key]
    await ledger.close()
