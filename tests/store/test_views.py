"""Views for people who look at a ledger while it is written, the same in SQLite and in PostgreSQL."""

import re
from pathlib import Path
from typing import Any

from semel.core.facts import Closing, Put
from semel.core.types import (
    CommittedOffset,
    OffsetKey,
    PartitionKey,
    PendingKey,
    PendingOffset,
    ProducerState,
    Staged,
    TopicKey,
    Transaction,
    TransactionState,
)
from semel.store.cluster.postgres import opening
from semel.store.contract import Ledger
from semel.store.embedded.queries import SCHEMA


def test_every_ledger_has_the_same_views_and_describes_them() -> None:
    postgres = (Path(opening.__file__).parent / "views.sql").read_text()
    views = [
        re.findall(r"((?:^--.*\n)+)CREATE VIEW (\w+)", text, re.MULTILINE) for text in (SCHEMA, postgres)
    ]
    assert views[0] == views[1]
    assert len(views[0]) == SCHEMA.count("CREATE VIEW") == postgres.count("CREATE VIEW")


async def _busy(ledgers: Any, scribe: Any) -> Ledger:
    """Two topics; transactions of 7 (two partitions, one staged), 8 (offsets only), and 9, which hangs."""
    ledger: Ledger = await ledgers.open()
    orders, journal = scribe.created("orders", 2), scribe.created("journal")
    facts: list[Any] = [orders, journal]
    keys = [PartitionKey(orders.topic.topic_id, index) for index in range(2)]
    staged = PartitionKey(journal.topic.topic_id, 0)
    locations = []
    for key, producer_id in ((keys[0], 5), (keys[0], 7), (keys[0], 9), (keys[1], 9), (keys[1], 5)):
        fact, location = scribe.append(key)
        is_transactional = producer_id > 5
        facts.append(
            scribe.opens(fact, producer_id) if is_transactional else fact.but(producer_id=producer_id)
        )
        locations.append(location)
        first = fact.base_offset if is_transactional else -1
        state = ProducerState(0, transaction_first_offset=first)
        facts.append(Put(key.of(producer_id), state))
    facts += [
        *scribe.changed(),
        Put(staged.of(7), ProducerState(0, staged=Staged(1, 1, 1))),
        Put.of(
            Transaction(
                "seven",
                7,
                3,
                1_000,
                TransactionState.ONGOING,
                partitions=(keys[0], staged),
                started_ms=50,
                deadline_ms=1_050,
            )
        ),
        Put.of(Transaction("eight", 8, 0, 1_000, TransactionState.ONGOING, groups=("g",), started_ms=60)),
        Put.of(Transaction("nine", 9, 0, 1_000, TransactionState.COMPLETE_COMMIT)),
        Put(OffsetKey("g", "orders", 0), CommittedOffset(1, 0, "m", 40)),
        Put(OffsetKey("g", "gone", 0), CommittedOffset(5)),
        Put(
            PendingKey("g"),
            (
                PendingOffset(8, OffsetKey("g", "orders", 1), CommittedOffset(2, 0, "", 70)),
                PendingOffset(9, OffsetKey("g", "orders", 0), CommittedOffset(3), is_superseded=True),
            ),
        ),
    ]
    await ledger.commit(facts, locations)
    return ledger


async def test_open_transactions_are_seen(durable_ledgers: Any, scribe: Any) -> None:
    ledger = await _busy(durable_ledgers, scribe)
    rows = await durable_ledgers.look("SELECT * FROM open_transactions ORDER BY transactional_id, topic")
    seven = {
        "transactional_id": "seven",
        "producer_id": 7,
        "epoch": 3,
        "state": "Ongoing",
        "started_ms": 50,
        "deadline_ms": 1_050,
        "is_two_phase": 0,
    }
    nowhere = {"topic": None, "partition_index": None, "first_offset": None}
    assert rows == [
        {
            **seven,
            "transactional_id": "eight",
            "producer_id": 8,
            "epoch": 0,
            "started_ms": 60,
            "deadline_ms": None,
            **nowhere,
        },
        {**seven, "topic": "journal", "partition_index": 0, "first_offset": None},
        {**seven, "topic": "orders", "partition_index": 0, "first_offset": 1},
    ]
    await ledger.close()


async def test_blocked_partitions_are_seen(durable_ledgers: Any, scribe: Any) -> None:
    ledger = await _busy(durable_ledgers, scribe)
    assert await durable_ledgers.look("SELECT * FROM blocked_partitions ORDER BY partition_index") == [
        {
            "topic": "orders",
            "partition_index": 0,
            "last_stable_offset": 1,
            "high_watermark": 3,
            "producer_id": 7,
            "transactional_id": "seven",
            "started_ms": 50,
        },
        {
            "topic": "orders",
            "partition_index": 1,
            "last_stable_offset": 0,
            "high_watermark": 2,
            "producer_id": 9,
            "transactional_id": None,
            "started_ms": None,
        },
    ]
    # The view says what the core says, also when the log begins behind the first offset.
    (topic, *_) = await ledger.load([TopicKey("orders")])
    assert topic is not None
    key = PartitionKey(topic.topic_id, 0)
    await ledger.commit([scribe.trim(key, 2), *scribe.changed()], [])
    (partition,) = await ledger.load([key])
    assert partition is not None
    (row,) = await durable_ledgers.look("SELECT * FROM blocked_partitions WHERE partition_index = 0")
    assert row["last_stable_offset"] == partition.last_stable_offset == 2
    facts: list[Any] = []
    locations: list[Any] = []
    for producer_id, first in ((7, 1), (9, 2)):
        marker, location = scribe.append(key)
        facts.append(scribe.closes(marker, producer_id, Closing(first, 6, is_commit=True)))
        locations.append(location)
        facts.append(Put(key.of(producer_id), ProducerState(0)))
    await ledger.commit([*facts, *scribe.changed()], locations)
    assert [
        row["partition_index"] for row in await durable_ledgers.look("SELECT * FROM blocked_partitions")
    ] == [1]
    await ledger.close()


async def test_offsets_are_seen(durable_ledgers: Any, scribe: Any) -> None:
    ledger = await _busy(durable_ledgers, scribe)
    assert await durable_ledgers.look("SELECT * FROM committed_offsets ORDER BY topic DESC") == [
        {
            "group_id": "g",
            "topic": "orders",
            "partition_index": 0,
            "committed_offset": 1,
            "metadata": "m",
            "committed_ms": 40,
            "high_watermark": 3,
            "behind": 2,
        },
        {
            "group_id": "g",
            "topic": "gone",
            "partition_index": 0,
            "committed_offset": 5,
            "metadata": "",
            "committed_ms": 0,
            "high_watermark": None,
            "behind": None,
        },
    ]
    rows = await durable_ledgers.look("SELECT * FROM pending ORDER BY producer_id")
    assert rows[0] == {
        "group_id": "g",
        "topic": "orders",
        "partition_index": 1,
        "committed_offset": 2,
        "committed_ms": 70,
        "is_superseded": 0,
        "producer_id": 8,
        "transactional_id": "eight",
    }
    assert (rows[1]["is_superseded"], rows[1]["transactional_id"]) == (1, None)
    await ledger.close()
