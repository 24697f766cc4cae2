"""The contract of a ledger, continued: producers, offsets and groups. See ``test_ledger_contract``."""

from typing import Any

from semel.core.facts import GroupDeleted, Put
from semel.core.groups import ClassicGroup, ConsumerGroup
from semel.core.types import (
    CommittedOffset,
    GroupKey,
    OffsetKey,
    ProducerKey,
    ProducerState,
    SentBatch,
)
from semel.store.contract import GroupSummary

# -- producers --------------------------------------------------------------------------------------------


def _state(epoch: int, batches: int, seen_ms: int = 0, first_offset: int = -1) -> ProducerState:
    sent = tuple(SentBatch(number, number * 10, 9, 1_000 + number) for number in range(batches))
    return ProducerState(epoch, sent, 1_000, seen_ms, -1, first_offset)


async def test_producers_are_remembered_and_forgotten(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    keys = await scribe.create(ledger, 2)
    first, second = (ProducerKey(key.topic_id, key.index, 7) for key in keys)
    third = ProducerKey(keys[0].topic_id, 0, 8)
    facts = [Put(first, _state(0, count)) for count in range(6)]
    facts += [Put(second, _state(3, 0)), Put(third, _state(1, 2))]
    await ledger.commit(facts, [])
    assert await ledger.load([first, second, third]) == [_state(0, 5), _state(3, 0), _state(1, 2)]
    assert await ledger.producers(keys[0]) == [(7, _state(0, 5)), (8, _state(1, 2))]
    gone = ProducerKey(keys[0].topic_id, 0, 9)
    await ledger.commit(
        [
            Put(first, None),
            Put(gone, _state(0, 1)),
            Put(gone, None),
            Put(second, None),
            Put(second, _state(4, 1)),
        ],
        [],
    )
    assert await ledger.load([first, second, third, gone]) == [None, _state(4, 1), _state(1, 2), None]
    await ledger.close()


async def test_many_producers_come_and_go_in_one_commit(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    (key,) = await scribe.create(ledger)
    producers = [ProducerKey(key.topic_id, 0, number) for number in range(700)]
    await ledger.commit([Put(each, _state(0, each.producer_id % 6)) for each in producers], [])
    expected = [(each.producer_id, _state(0, each.producer_id % 6)) for each in producers]
    assert await ledger.producers(key) == expected
    await ledger.commit([Put(each, None) for each in producers[:600]], [])
    assert await ledger.producers(key) == expected[600:]
    await ledger.close()


async def test_silent_producers_are_found(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    keys = await scribe.create(ledger, 2)
    facts = []
    for key in keys:
        for number in range(10):
            # Number 3 has a transaction open and is never silent, however long ago it was seen.
            state = _state(0, 1, seen_ms=number * 100, first_offset=5 if number == 3 else -1)
            facts.append(Put(ProducerKey(key.topic_id, key.index, number), state))
    await ledger.commit(facts, [])
    silent = [ProducerKey(key.topic_id, key.index, number) for key in keys for number in (0, 1, 2, 4)]
    assert sorted(await ledger.producers_unseen_since(500, limit=100)) == silent
    pages: list[list[ProducerKey]] = []
    while page := await ledger.producers_unseen_since(500, after=pages[-1][-1] if pages else None, limit=3):
        pages.append(page)
        # What was returned may be gone when the next page is read.
        await ledger.commit([Put(page[-1], None)], [])
    assert [len(page) for page in pages] == [3, 3, 2]
    assert sorted(key for page in pages for key in page) == silent
    assert await ledger.producers_unseen_since(0, limit=100) == []
    await ledger.close()


# -- offsets and groups -----------------------------------------------------------------------------------


async def test_offsets_are_committed_and_deleted(ledgers: Any) -> None:
    ledger = await ledgers.open()
    keys = [OffsetKey("g", "t", index) for index in range(600)]
    facts: list[Any] = [Put(key, CommittedOffset(key.partition, 1, "first", 5)) for key in keys]
    facts += [Put(keys[0], CommittedOffset(99, 2, "second", 6))]
    await ledger.commit(facts, [])
    expected = [CommittedOffset(99, 2, "second", 6)]
    expected += [CommittedOffset(key.partition, 1, "first", 5) for key in keys[1:]]
    assert await ledger.load(keys) == expected
    assert await ledger.group_offsets("g") == list(zip(keys, expected, strict=True))
    await ledger.commit([Put(key, None) for key in keys[:500]], [])
    assert await ledger.group_offsets("g") == list(zip(keys, expected, strict=True))[500:]
    assert await ledger.group_offsets("nobody") == []
    await ledger.close()


async def test_groups_are_kept_whole(ledgers: Any) -> None:
    ledger = await ledgers.open()
    classic = ClassicGroup("classic", generation=5, protocol_type="consumer", protocol_name="range")
    modern = ConsumerGroup("modern", epoch=3, assignor="uniform")
    await ledger.commit([Put.of(classic.but(generation=1)), Put.of(modern)], [])
    await ledger.commit([Put.of(classic)], [])
    assert await ledger.load([GroupKey("classic"), GroupKey("modern")]) == [classic, modern]
    assert await ledger.groups() == [
        GroupSummary("classic", "classic", "consumer", classic.state_name),
        GroupSummary("modern", "consumer", "consumer", modern.state_name),
    ]
    await ledger.close()


async def test_groups_with_nothing_but_offsets_are_listed(ledgers: Any) -> None:
    ledger = await ledgers.open()
    facts: list[Any] = [Put.of(ClassicGroup(name)) for name in ("b", "d", "f")]
    facts += [
        Put(OffsetKey(name, "t", index), CommittedOffset(1))
        for name in ("a", "b", "c", "e")
        for index in range(3)
    ]
    await ledger.commit(facts, [])
    listed = await ledger.groups()
    assert [(group.group_id, bool(group.kind)) for group in listed] == [
        ("a", False),
        ("b", True),
        ("c", False),
        ("d", True),
        ("e", False),
        ("f", True),
    ]
    for limit in range(1, 7):
        paged: list[GroupSummary] = []
        while page := await ledger.groups(after=paged[-1].group_id if paged else "", limit=limit):
            assert len(page) <= limit
            paged += page
        assert paged == listed
    await ledger.close()


async def test_a_deleted_group_takes_its_offsets_along(ledgers: Any) -> None:
    ledger = await ledgers.open()
    mine, theirs = OffsetKey("mine", "t", 0), OffsetKey("theirs", "t", 0)
    await ledger.commit(
        [
            Put.of(ClassicGroup("mine")),
            Put(mine, CommittedOffset(1)),
            Put(theirs, CommittedOffset(2)),
        ],
        [],
    )
    again = OffsetKey("mine", "u", 0)
    facts = [
        Put(mine, CommittedOffset(5)),
        GroupDeleted("mine"),
        Put(again, CommittedOffset(3)),
    ]
    await ledger.commit(facts, [])
    assert await ledger.load([GroupKey("mine"), mine, again, theirs]) == [
        None,
        None,
        CommittedOffset(3),
        CommittedOffset(2),
    ]
    await ledger.close()


# -- shards -----------------------------------------------------------------------------------------------
