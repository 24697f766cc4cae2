"""The contract of a ledger where compaction replaces batches. Runs on every entry of ``LEDGERS``."""

from typing import Any

import pytest
from support.stores.embedded import EVERYTHING, all_batches

from semel.core.facts import BatchesReplaced, Closing, TopicDeleted
from semel.core.types import PartitionKey, Rewritten
from semel.store.contract import BatchLocation, StoredBatch


async def _filled(ledger: Any, scribe: Any, batches: int = 6) -> PartitionKey:
    """A partition with batches of two records, each a second later than the one before."""
    key: PartitionKey
    (key,) = await scribe.create(ledger)
    await scribe.fill(ledger, key, [{"records": 2, "timestamp": 1_000 * nth} for nth in range(batches)])
    return key


def _replace(
    scribe: Any, key: PartitionKey, rewritten: dict[int, int], removed: tuple[int, ...], cleaned: int
) -> tuple[BatchesReplaced, list[BatchLocation]]:
    """A fact as the core would make it: base offsets to new sizes, those that go, and how far it has come."""
    before = scribe.partitions[key]
    old = {batch.base_offset: batch for batch in scribe.batches[key]}
    locations, new = [], []
    for base_offset, size in rewritten.items():
        location = BatchLocation(2, scribe._chunk_end, size)
        scribe._chunk_end += size
        locations.append(location)
        last_offset, latest = old[base_offset].last_offset, old[base_offset].max_timestamp - 1
        new.append(Rewritten(base_offset, last_offset, latest, size))
        old[base_offset] = StoredBatch(base_offset, last_offset, latest, location)
    for base_offset in removed:
        del old[base_offset]
    scribe.batches[key] = list(old.values())
    size = sum(batch.location.length for batch in old.values())
    after = before.but(size_bytes=size, cleaned_offset=cleaned, compactions=before.compactions + 1)
    scribe.partitions[key] = after
    return BatchesReplaced(key, tuple(new), removed), locations


async def test_replaced_batches_are_found_and_what_they_were_is_left_to_the_sweep(
    ledgers: Any, scribe: Any
) -> None:
    ledger = await ledgers.open()
    key = await _filled(ledger, scribe)
    old = {batch.base_offset: batch.location for batch in scribe.batches[key]}
    fact, locations = _replace(scribe, key, {2: 40, 8: 60}, (0, 4), 10)
    await ledger.commit([fact, *scribe.changed()], locations)
    assert await all_batches(ledger, key) == scribe.batches[key]
    assert await ledger.load([key]) == [scribe.partitions[key]]
    assert await ledger.chunk_references() == {1: 600, 2: 100}
    gone = {old[base_offset] for base_offset in (0, 2, 4, 8)}
    assert set(await ledger.leftovers(limit=10)) == gone
    assert set(await ledger.sweep(limit=10)) == gone
    assert await ledger.chunk_references() == {1: 200, 2: 100}
    assert await all_batches(ledger, key) == scribe.batches[key]
    await ledger.close()


async def test_questions_step_over_gaps(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    key = await _filled(ledger, scribe, 40)
    removed = tuple(each for each in range(0, 80, 2) if each not in (30, 32, 60, 78))
    fact, locations = _replace(scribe, key, {}, removed, 80)
    await ledger.commit([fact, *scribe.changed()], locations)
    for offset, found in ((0, 30), (29, 30), (31, 30), (34, 60), (59, 60), (61, 60), (62, 78), (79, 78)):
        (first, *_) = await ledger.find_batches(key, offset, **EVERYTHING)
        assert first.base_offset == found, offset
    for nth in range(42):
        expected = next((each for each in scribe.batches[key] if each.max_timestamp >= 1_000 * nth), None)
        assert await ledger.first_batch_since(key, 1_000 * nth) == expected, nth
    assert await ledger.size_below(key, 34) == (0, 200)
    assert await ledger.size_below(key, 60) == (0, 200)
    assert [await ledger.offset_at_size(key, size) for size in (400, 399, 200, 0)] == [0, 32, 34, 80]
    await ledger.close()


async def test_a_replaced_log_can_be_trimmed_grown_and_deleted(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    key = await _filled(ledger, scribe)
    fact, locations = _replace(scribe, key, {4: 10, 10: 20}, (0, 6), 12)
    await ledger.commit([fact, *scribe.changed()], locations)
    await ledger.commit([scribe.trim(key, 3), *scribe.changed()], [])
    await scribe.fill(ledger, key, [{"records": 3}])
    again, more = _replace(scribe, key, {4: 5}, (8,), 12)
    await ledger.commit([again, *scribe.changed()], more)
    assert await ledger.find_batches(key, 3, **EVERYTHING) == scribe.batches[key]
    assert await ledger.load([key]) == [scribe.partitions[key]]
    topic = await ledger.topic_by_id(key.topic_id)
    await ledger.commit([TopicDeleted(topic)], [])
    while await ledger.sweep(limit=3):
        pass
    assert await ledger.chunk_references() == {}
    await ledger.close()


async def test_batches_of_the_same_commit_can_be_replaced(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    key = await _filled(ledger, scribe, 1)
    pairs = [scribe.append(key) for _ in range(3)]
    fact, locations = _replace(scribe, key, {3: 7}, (0, 2), 4)
    last = scribe.append(key)
    facts = [*(each for each, _ in pairs), fact, last[0], *scribe.changed()]
    await ledger.commit(facts, [*(location for _, location in pairs), *locations, last[1]])
    assert await all_batches(ledger, key) == scribe.batches[key]
    assert await ledger.load([key]) == [scribe.partitions[key]]
    await ledger.close()


async def test_with_its_marker_an_aborted_transaction_is_forgotten(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    key = await _filled(ledger, scribe)
    markers: list[int] = []
    for first, stable in ((1, 5), (5, 14)):
        marker, location = scribe.append(key)
        markers.append(marker.base_offset)
        closes = Closing(first, stable, is_commit=False)
        await ledger.commit([scribe.closes(marker, 7, closes), *scribe.changed()], [location])
    assert await ledger.aborted(key, 0, 12) == [(7, 1), (7, 5)]
    fact, locations = _replace(scribe, key, {}, (2, markers[0]), 12)
    await ledger.commit([fact, *scribe.changed()], locations)
    assert await ledger.aborted(key, 0, 12) == [(7, 5)]
    await ledger.close()


@pytest.mark.parametrize("is_swept", [True, False])
async def test_it_is_the_same_after_a_restart(durable_ledgers: Any, scribe: Any, is_swept: bool) -> None:
    ledger = await durable_ledgers.open()
    key = await _filled(ledger, scribe)
    fact, locations = _replace(scribe, key, {2: 40}, (0, 4), 8)
    await ledger.commit([fact, *scribe.changed()], locations)
    if is_swept:
        await ledger.sweep(limit=10)
    await ledger.close()
    ledger = await durable_ledgers.open()
    assert await all_batches(ledger, key) == scribe.batches[key]
    assert await ledger.load([key]) == [scribe.partitions[key]]
    assert len(await ledger.leftovers(limit=10)) == (0 if is_swept else 3)
    await ledger.close()
