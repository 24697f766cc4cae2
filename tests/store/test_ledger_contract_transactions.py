"""The contract of a ledger, continued: transactions, staged batches and pending offsets.

See ``test_ledger_contract``. Many run with all facts in one commit and with one commit for each: what begins
and ends within one commit may take another way than what an earlier one has written.
"""

import os
import random
from typing import Any

import pytest
from support.stores.embedded import all_batches

from semel.core.facts import (
    BatchStaged,
    Closing,
    FeatureChanged,
    GroupDeleted,
    ProducerIdAllocated,
    Put,
    StagedCommitted,
    StagedDropped,
    TopicDeleted,
)
from semel.core.types import (
    Cluster,
    ClusterKey,
    CommittedOffset,
    OffsetKey,
    OpenTransaction,
    PartitionKey,
    PendingKey,
    PendingOffset,
    PolicyKey,
    ProducerState,
    Staged,
    Transaction,
    TransactionKey,
    TransactionState,
)
from semel.store.contract import BatchLocation, StoredBatch

BIG = 2**63 - 1


async def _commit(
    ledger: Any, scribe: Any, pairs: list[tuple[Any, BatchLocation | None]], *, at_once: bool
) -> None:
    """Facts and the places of those that have one, in one commit or in one each; then the partitions."""
    pairs = [*pairs, *((fact, None) for fact in scribe.changed())]
    for part in [pairs] if at_once else [[pair] for pair in pairs]:
        await ledger.commit(
            [fact for fact, _ in part], [location for _, location in part if location is not None]
        )


# -- transactional ids ------------------------------------------------------------------------------------


def _full(name: str) -> Transaction:
    """One in which no field has its default."""
    return Transaction(
        transactional_id=name,
        producer_id=BIG,
        epoch=32_767,
        timeout_ms=2**31 - 1,
        state=TransactionState.ONGOING,
        partitions=(PartitionKey(os.urandom(16), 3), PartitionKey(bytes(16), 2**31 - 1)),
        groups=("g", "", 'with "quotes", \0 and \U0001f600'),
        started_ms=BIG,
        updated_ms=BIG - 1,
        deadline_ms=BIG - 2,
        previous_producer_id=BIG - 3,
        last_epoch=32_766,
        version=2,
        term=BIG,
        is_two_phase=True,
        prepared_epoch=32_765,
    )


async def test_transactional_ids_are_kept_whole(ledgers: Any) -> None:
    ledger = await ledgers.open()
    blank, full = Transaction("a", 0, 0, 60_000), _full("b \0 \u20ac")
    await ledger.commit([Put.of(blank.but(epoch=7)), Put.of(full)], [])
    await ledger.commit([Put.of(blank)], [])
    keys = [TransactionKey("a"), TransactionKey("nobody"), TransactionKey(full.transactional_id)]
    loaded = await ledger.load(keys)
    assert loaded == [blank, None, full]
    assert [type(value) for value in loaded[2].values()] == [type(value) for value in full.values()]
    await ledger.close()


@pytest.mark.parametrize("state", list(TransactionState))
async def test_every_state_comes_back(ledgers: Any, state: TransactionState) -> None:
    ledger = await ledgers.open()
    transaction = Transaction("t", 1, 1, 1, state)
    await ledger.commit([Put.of(transaction)], [])
    (loaded,) = await ledger.load([TransactionKey("t")])
    assert loaded.state is state
    await ledger.close()


async def test_a_forgotten_id_is_unknown(ledgers: Any) -> None:
    ledger = await ledgers.open()
    ids = [f"t{number:03}" for number in range(300)]
    await ledger.commit([Put.of(Transaction(each, 1, 1, 1)) for each in ids], [])
    again = Transaction("t000", 2, 0, 1)
    facts: list[Any] = [Put(TransactionKey(each), None) for each in ids[:280]]
    await ledger.commit([*facts, Put.of(again)], [])
    assert await ledger.transactions() == [again, *(Transaction(each, 1, 1, 1) for each in ids[280:])]
    await ledger.commit([Put.of(again), Put(TransactionKey("t000"), None)], [])
    assert await ledger.load([TransactionKey("t000")]) == [None]
    await ledger.close()


async def test_transactional_ids_are_listed_in_order_and_open_transactions_in_any(ledgers: Any) -> None:
    ledger = await ledgers.open()
    states = list(TransactionState)
    known = [Transaction(f"t{number:02}", number, 0, 1, states[number % 4]) for number in range(40)]
    chance = random.Random(1)
    await ledger.commit([Put.of(each) for each in chance.sample(known, len(known))], [])
    assert await ledger.transactions() == known
    open_ones = [transaction for transaction in known if transaction.state is TransactionState.ONGOING]
    for listed, wanted in ((ledger.transactions, known), (ledger.open_transactions, open_ones)):
        paged: list[Transaction] = []
        while page := await listed(after=paged[-1].transactional_id if paged else "", limit=3):
            assert len(page) <= 3
            paged += page
        assert paged == await listed(limit=100)
        assert sorted(paged, key=lambda transaction: transaction.transactional_id) == wanted
    # One that ends is not listed as open any more.
    await ledger.commit([Put.of(known[1].but(state=TransactionState.COMPLETE_ABORT))], [])
    assert known[1] not in await ledger.open_transactions(limit=100)
    await ledger.close()


async def test_unused_ids_are_found_unless_something_is_open(
    ledgers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.store.embedded.ledger.TRANSACTIONS_PAGE", 7)
    ledger = await ledgers.open()
    states = list(TransactionState)
    known = [
        Transaction(f"\0 {number:02} \u20ac", number, 0, 1, states[number % 4], updated_ms=number)
        for number in range(40)
    ]
    await ledger.commit([Put.of(each) for each in known], [])
    unused = [
        each.transactional_id
        for each in known
        if each.updated_ms <= 20 and each.state is not TransactionState.ONGOING
    ]
    found = await ledger.transactions_unused_since(20, limit=100)
    assert sorted(found) == unused
    assert await ledger.transactions_unused_since(20, limit=5) == found[:5]
    assert await ledger.transactions_unused_since(20, after=found[4], limit=100) == found[5:]
    assert await ledger.transactions_unused_since(20, after=found[-1], limit=100) == []
    assert await ledger.transactions_unused_since(-1, limit=100) == []
    await ledger.close()


async def test_the_feature_changes_and_counters_go_on(ledgers: Any) -> None:
    ledger = await ledgers.open()
    assert await ledger.load([ClusterKey()]) == [Cluster(0, 2, 1)]
    await ledger.commit([ProducerIdAllocated(4), FeatureChanged(1, 2), ProducerIdAllocated(5)], [])
    assert await ledger.load([ClusterKey()]) == [Cluster(6, 1, 2)]
    await ledger.commit([ProducerIdAllocated(6)], [])
    assert await ledger.load([ClusterKey()]) == [Cluster(7, 1, 2)]
    await ledger.close()


async def test_policies_are_written_replaced_removed_and_listed_in_order(ledgers: Any) -> None:
    ledger = await ledgers.open()
    keys = [PolicyKey(kind, f"{name}\0\u20ac") for kind in ("acl", "user") for name in ("B", "a", "z")]
    assert await ledger.load(keys) == [None] * 6
    assert await ledger.policies() == []
    await ledger.commit([Put(key, "1") for key in reversed(keys)], [])
    await ledger.commit([Put(keys[1], "2\0"), Put(keys[3], None)], [])
    # Removing what does not exist is no error: a retry may do that.
    await ledger.commit([Put(keys[3], None)], [])
    assert await ledger.load(keys) == ["1", "2\0", "1", None, "1", "1"]
    listed = [(key, "2\0" if key == keys[1] else "1") for key in keys if key != keys[3]]
    assert await ledger.policies() == listed
    assert await ledger.policies(limit=2) == listed[:2]
    assert await ledger.policies(after=listed[1][0]) == listed[2:]
    assert await ledger.policies(after=listed[-1][0]) == []
    await ledger.close()


# -- pending offsets --------------------------------------------------------------------------------------


def _pending(group_id: str, topics: str, producer_id: int = 7) -> tuple[PendingOffset, ...]:
    return tuple(
        PendingOffset(
            producer_id,
            OffsetKey(group_id, topic, index),
            CommittedOffset(100 + index, index - 1, f"m \0 {index}", 5),
            is_superseded=index % 2 == 1,
        )
        for index, topic in enumerate(topics)
    )


async def test_pending_offsets_are_replaced_as_a_whole(ledgers: Any) -> None:
    ledger = await ledgers.open()
    g, h = PendingKey("g"), PendingKey("h")
    assert await ledger.load([g]) == [None]
    # The order in which they came is not that of their names.
    first, other = _pending("g", "cabbage"), _pending("h", "ab")
    await ledger.commit([Put(PendingKey("g"), first), Put(PendingKey("h"), other)], [])
    assert await ledger.load([g, h]) == [first, other]
    (loaded,) = await ledger.load([g])
    assert type(loaded[0].is_superseded) is bool
    second = _pending("g", "ba", producer_id=8)
    await ledger.commit([Put(PendingKey("g"), None), Put(PendingKey("g"), second)], [])
    assert await ledger.load([g, h]) == [second, other]
    await ledger.commit([Put(PendingKey("g"), first), Put(PendingKey("g"), None)], [])
    assert await ledger.load([g, h]) == [None, other]
    # What is pending is another fact than what is committed.
    await ledger.commit([Put(other[0].key, None)], [])
    assert await ledger.load([h]) == [other]
    await ledger.close()


async def test_a_deleted_group_or_topic_takes_what_is_pending_along(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    a, b = scribe.created("a"), scribe.created("b")
    await ledger.commit([a, b], [])
    g, h = PendingKey("g"), PendingKey("h")
    mine, theirs = _pending("g", "abab"), _pending("h", "ba")
    await ledger.commit([Put(PendingKey("g"), mine), Put(PendingKey("h"), theirs)], [])
    await ledger.commit([Put(PendingKey("g"), mine), TopicDeleted(a.topic)], [])
    assert await ledger.load([g, h]) == [(mine[1], mine[3]), theirs[:1]]
    again = _pending("g", "b", producer_id=9)
    await ledger.commit([GroupDeleted("g"), Put(PendingKey("g"), again), GroupDeleted("h")], [])
    assert await ledger.load([g, h]) == [again, None]
    await ledger.commit([Put(PendingKey("h"), theirs), GroupDeleted("h"), TopicDeleted(b.topic)], [])
    assert await ledger.load([g, h]) == [None, None]
    await ledger.close()


# -- markers ----------------------------------------------------------------------------------------------


class _Log:
    """A partition in which transactions open and end, and what a reader of it must be told."""

    def __init__(self, key: PartitionKey, scribe: Any) -> None:
        self._key = key
        self._scribe = scribe
        self.open: dict[int, int] = {}
        self.aborted: list[tuple[int, int, int]] = []
        """Marker, producer, first offset."""

    @property
    def end(self) -> int:
        return int(self._scribe.partitions[self._key].high_watermark)

    @property
    def stable(self) -> int:
        return min(self.open.values(), default=self.end)

    def write(self, producer_id: int) -> tuple[Any, BatchLocation]:
        fact, location = self._scribe.append(self._key)
        opens = producer_id not in self.open
        self.open.setdefault(producer_id, fact.base_offset)
        if opens:
            return self._scribe.opens(fact, producer_id), location
        return fact.but(producer_id=producer_id, is_transactional=True), location

    def close(self, producer_id: int, *, is_commit: bool) -> list[tuple[Any, BatchLocation | None]]:
        marker, location = self._scribe.append(self._key)
        first = self.open.pop(producer_id)
        if not is_commit:
            self.aborted.append((marker.base_offset, producer_id, first))
        closes = Closing(first, self.stable, is_commit)
        return [(self._scribe.closes(marker, producer_id, closes), location)]

    def told(self, first: int, before: int) -> list[tuple[int, int]]:
        touched = [each for each in self.aborted if each[0] >= first and each[2] < before]
        return [(producer_id, began) for _, producer_id, began in sorted(touched, key=lambda each: each[2])]


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_closed_transaction_is_not_open(ledgers: Any, scribe: Any, at_once: bool) -> None:
    ledger = await ledgers.open()
    (key,) = await scribe.create(ledger)
    log = _Log(key, scribe)
    pairs: list[Any] = [log.write(7), log.write(8), log.write(9), log.write(7)]
    await _commit(ledger, scribe, [*pairs, *log.close(8, is_commit=True)], at_once=at_once)
    (partition,) = await ledger.load([key])
    assert partition.open_transactions == (OpenTransaction(0, 7), OpenTransaction(2, 9))
    assert (partition.last_stable_offset, partition.last_aborted_offset) == (0, -1)
    await _commit(ledger, scribe, log.close(7, is_commit=False), at_once=at_once)
    (partition,) = await ledger.load([key])
    assert partition.open_transactions == (OpenTransaction(2, 9),)
    assert (partition.last_stable_offset, partition.last_aborted_offset) == (2, 5)
    assert await ledger.aborted(key, 0, 99) == [(7, 0)]
    # A producer may open the next one at once.
    await _commit(ledger, scribe, [log.write(7), *log.close(9, is_commit=True)], at_once=at_once)
    (partition,) = await ledger.load([key])
    assert partition.open_transactions == (OpenTransaction(6, 7),)
    assert partition == scribe.partitions[key]
    await ledger.close()


@pytest.mark.parametrize("seed", range(6))
async def test_readers_are_told_every_abort_that_touches_them(ledgers: Any, scribe: Any, seed: int) -> None:
    chance = random.Random(seed)
    ledger = await ledgers.open()
    keys = await scribe.create(ledger, 2)
    logs = [_Log(key, scribe) for key in keys]
    pairs: list[tuple[Any, BatchLocation | None]] = []
    for _ in range(160):
        log = chance.choice(logs)
        if log.open and chance.random() < 0.4:
            pairs += log.close(chance.choice(list(log.open)), is_commit=chance.random() < 0.4)
        else:
            pairs.append(log.write(chance.randint(1, 6)))
    await _commit(ledger, scribe, pairs, at_once=seed % 2 == 0)
    for key, log in zip(keys, logs, strict=True):
        assert len(log.aborted) > 5
        for first in range(0, log.end + 2, 3):
            for before in range(first, log.end + 2, 5):
                assert await ledger.aborted(key, first, before) == log.told(first, before), (first, before)
    assert await ledger.aborted(PartitionKey(os.urandom(16), 0), 0, BIG) == []
    await ledger.close()


async def test_aborts_below_the_log_start_are_swept(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    keys = await scribe.create(ledger, 2)
    logs = [_Log(key, scribe) for key in keys]
    for _ in range(10):
        for log in logs:
            await _commit(ledger, scribe, [log.write(7), *log.close(7, is_commit=False)], at_once=True)
    await ledger.commit([scribe.trim(keys[0], 10), *scribe.changed()], [])
    assert len(await ledger.sweep(limit=100)) == 10
    assert await ledger.aborted(keys[0], 0, BIG) == logs[0].told(10, BIG)
    assert await ledger.aborted(keys[1], 0, BIG) == logs[1].told(0, BIG)
    (topic,) = await ledger.topics()
    await ledger.commit([TopicDeleted(topic)], [])
    assert await ledger.aborted(keys[1], 0, BIG) == []
    assert len(await ledger.sweep(limit=100)) == 30
    assert await ledger.chunk_references() == {}
    await ledger.close()


# -- staged batches ---------------------------------------------------------------------------------------


class _Stage:
    """Stages batches as the core would, and knows what they come to when they are committed."""

    def __init__(self, scribe: Any) -> None:
        self._scribe = scribe
        self._end = 0
        self.held: dict[tuple[PartitionKey, int], list[tuple[BatchStaged, BatchLocation]]] = {}

    def stage(
        self, key: PartitionKey, producer_id: int, offsets: int = 1, timestamp: int = 1_000, size: int = 10
    ) -> tuple[BatchStaged, BatchLocation]:
        pair = BatchStaged(key, producer_id, offsets, timestamp, size), BatchLocation(3, self._end, size)
        self._end += size
        self.held.setdefault((key, producer_id), []).append(pair)
        return pair

    def commit(self, key: PartitionKey, producer_id: int) -> tuple[StagedCommitted, None]:
        before = self._scribe.partitions[key]
        offset, peak, size = before.high_watermark, before.peak_timestamp, 0
        for fact, location in self.held.pop((key, producer_id)):
            last = offset + fact.offsets - 1
            self._scribe.batches[key].append(StoredBatch(offset, last, fact.max_timestamp, location))
            offset, peak, size = last + 1, max(peak, fact.max_timestamp), size + location.length
        self._scribe.partitions[key] = before.but(
            high_watermark=offset, peak_timestamp=peak, size_bytes=before.size_bytes + size
        )
        offsets = before.high_watermark, offset - 1
        return StagedCommitted(key, producer_id, *offsets, before.peak_timestamp, peak), None

    def drop(self, key: PartitionKey, producer_id: int) -> tuple[StagedDropped, None]:
        del self.held[key, producer_id]
        return StagedDropped(key, producer_id), None


@pytest.mark.parametrize("at_once", [True, False])
async def test_staged_batches_get_offsets_when_they_are_committed(
    ledgers: Any, scribe: Any, at_once: bool
) -> None:
    ledger = await ledgers.open()
    keys = await scribe.create(ledger, 2)
    stage = _Stage(scribe)
    pairs: list[tuple[Any, BatchLocation | None]] = [
        stage.stage(keys[0], 7, 3, timestamp=50),
        stage.stage(keys[0], 8, 2, timestamp=900),
        scribe.append(keys[0], records=4, timestamp=60),
        stage.stage(keys[0], 7, 1, timestamp=10),
        stage.stage(keys[1], 7, 5),
        stage.stage(keys[0], 7, 2, timestamp=70),
    ]
    await _commit(ledger, scribe, pairs, at_once=at_once)
    # Nobody sees what is staged.
    for key in keys:
        assert await all_batches(ledger, key) == scribe.batches[key]
        assert await ledger.load([key]) == [scribe.partitions[key]]
    # In the order of the commits; plain records in between are where they were appended.
    pairs = [
        stage.commit(keys[0], 7),
        scribe.append(keys[0], timestamp=20),
        stage.commit(keys[0], 8),
        stage.commit(keys[1], 7),
        stage.stage(keys[0], 7, 2),
        scribe.append(keys[0], timestamp=20),
    ]
    await _commit(ledger, scribe, pairs, at_once=at_once)
    await _commit(ledger, scribe, [stage.commit(keys[0], 7)], at_once=at_once)
    offsets = [batch.base_offset for batch in scribe.batches[keys[0]]]
    assert offsets == [0, 4, 7, 8, 10, 11, 13, 14]
    for key in keys:
        assert await all_batches(ledger, key) == scribe.batches[key]
        assert await ledger.load([key]) == [scribe.partitions[key]]
    for timestamp in range(0, 1_100, 5):
        expected = next((each for each in scribe.batches[keys[0]] if each.max_timestamp >= timestamp), None)
        assert await ledger.first_batch_since(keys[0], timestamp) == expected, timestamp
    await ledger.close()


async def test_what_was_staged_by_earlier_commits_and_this_one_is_committed_together(
    ledgers: Any, scribe: Any
) -> None:
    ledger = await ledgers.open()
    (key,) = await scribe.create(ledger)
    stage = _Stage(scribe)
    for number in range(700):
        pairs: list[tuple[Any, BatchLocation | None]] = [
            stage.stage(key, 7, 1 + number % 3, timestamp=number * 37 % 500),
            stage.stage(key, 8),
        ]
        if number == 699:
            pairs.append(stage.commit(key, 7))
        await _commit(ledger, scribe, pairs, at_once=True)
    assert await all_batches(ledger, key) == scribe.batches[key]
    assert await ledger.load([key]) == [scribe.partitions[key]]
    await _commit(ledger, scribe, [stage.commit(key, 8)], at_once=True)
    assert await all_batches(ledger, key) == scribe.batches[key]
    assert await ledger.chunk_references() == {3: 14_000}
    await ledger.close()


@pytest.mark.parametrize("at_once", [True, False])
async def test_what_is_dropped_gives_its_space_back(ledgers: Any, scribe: Any, at_once: bool) -> None:
    ledger = await ledgers.open()
    (key,) = await scribe.create(ledger)
    stage = _Stage(scribe)
    dropped = [stage.stage(key, 7) for _ in range(25)]
    kept = [stage.stage(key, 8, size=20) for _ in range(2)]
    again: list[Any] = [stage.drop(key, 7), stage.stage(key, 7, size=30)]
    await _commit(ledger, scribe, [*dropped, *kept, *again], at_once=at_once)
    # Rows point at the bytes until they are swept.
    assert await ledger.chunk_references() == {3: 25 * 10 + 2 * 20 + 30}
    expected = [location for _, location in dropped]
    assert await ledger.leftovers(limit=100) == expected
    freed: list[BatchLocation] = []
    while locations := await ledger.leftovers(limit=10):
        assert await ledger.sweep(limit=10) == locations
        freed += locations
    assert freed == expected
    assert await ledger.chunk_references() == {3: 2 * 20 + 30}
    await _commit(ledger, scribe, [stage.commit(key, 8), stage.commit(key, 7)], at_once=at_once)
    assert await all_batches(ledger, key) == scribe.batches[key]
    assert await ledger.sweep(limit=10) == []
    await ledger.close()


async def test_a_sweep_takes_trimmed_and_dropped_batches_within_its_limit(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    keys = await scribe.create(ledger, 2)
    stage = _Stage(scribe)
    for key in keys:
        await scribe.fill(ledger, key, [{}] * 7)
    pairs = [stage.stage(keys[0], 7) for _ in range(9)]
    await _commit(ledger, scribe, [*pairs, stage.drop(keys[0], 7)], at_once=False)
    expected = [batch.location for key in keys for batch in scribe.batches[key][:5]]
    expected += [location for _, location in pairs]
    trims = [scribe.trim(key, 5) for key in keys]
    await ledger.commit([*trims, *scribe.changed()], [])
    freed: list[BatchLocation] = []
    while locations := await ledger.leftovers(limit=4):
        assert len(locations) <= 4
        swept = await ledger.sweep(limit=4)
        # A partition with nothing left counts as a row of a sweep, so a look may see more.
        assert swept
        assert set(swept) <= set(locations)
        freed += swept
    assert sorted(freed) == sorted(expected)
    await ledger.close()


async def test_a_deleted_topic_takes_what_is_staged_along(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    (key,) = await scribe.create(ledger)
    other = scribe.created("other")
    other_key = PartitionKey(other.topic.topic_id, 0)
    await ledger.commit([other], [])
    stage = _Stage(scribe)
    pairs: list[Any] = [stage.stage(key, 7), stage.stage(other_key, 7)]
    await _commit(ledger, scribe, pairs, at_once=True)
    (topic, _) = await ledger.topics()
    last = stage.stage(key, 8)
    await _commit(ledger, scribe, [last, (TopicDeleted(topic), None)], at_once=True)
    assert sorted(await ledger.leftovers(limit=10)) == [pairs[0][1], last[1]]
    assert sorted(await ledger.sweep(limit=10)) == [pairs[0][1], last[1]]
    assert await ledger.chunk_references() == {3: 10}
    await _commit(ledger, scribe, [stage.commit(other_key, 7)], at_once=True)
    assert await all_batches(ledger, other_key) == scribe.batches[other_key]
    await ledger.close()


async def test_a_producer_that_has_something_staged_is_remembered(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    (key,) = await scribe.create(ledger)
    states = [
        ProducerState(1, staged=Staged(2, 5, BIG, -(2**63))),
        ProducerState(1, staged=Staged()),
        ProducerState(1),
    ]
    producers = [key.of(number) for number in range(3)]
    facts = [Put(each, state) for each, state in zip(producers, states, strict=True)]
    await ledger.commit(facts, [])
    assert await ledger.load(producers) == states
    assert await ledger.producers(key) == list(enumerate(states))
    assert await ledger.producers_unseen_since(BIG, limit=10) == producers[2:]
    await ledger.close()


# -- after a restart --------------------------------------------------------------------------------------


async def test_transactions_are_there_after_a_restart(durable_ledgers: Any, scribe: Any) -> None:
    ledger = await durable_ledgers.open()
    keys = await scribe.create(ledger, 2)
    log, stage = _Log(keys[0], scribe), _Stage(scribe)
    pairs: list[tuple[Any, BatchLocation | None]] = [
        log.write(7),
        *log.close(7, is_commit=False),
        log.write(8),
        stage.stage(keys[1], 7, 2),
        stage.stage(keys[1], 7, 3),
        (Put.of(_full("t")), None),
        (Put(PendingKey("g"), _pending("g", "ba")), None),
        (FeatureChanged(1, 9), None),
    ]
    await _commit(ledger, scribe, pairs, at_once=True)
    before = await ledger.load([keys[0], TransactionKey("t"), PendingKey("g"), ClusterKey()])
    assert None not in before
    await ledger.close()

    ledger = await durable_ledgers.open()
    assert await ledger.load([keys[0], TransactionKey("t"), PendingKey("g"), ClusterKey()]) == before
    assert await ledger.aborted(keys[0], 0, 99) == [(7, 0)]
    await _commit(ledger, scribe, [*log.close(8, is_commit=True), stage.commit(keys[1], 7)], at_once=True)
    for key in keys:
        assert await all_batches(ledger, key) == scribe.batches[key]
    (partition,) = await ledger.load([keys[0]])
    assert partition == scribe.partitions[keys[0]]
    assert partition.last_aborted_offset == 1
    await ledger.close()
