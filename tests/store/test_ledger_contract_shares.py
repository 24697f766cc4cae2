"""Share-partitions in every ledger: written, replaced, removed, deleted with their topic, in transactions."""

from typing import Any

from semel.core.facts import Put, TopicDeleted
from semel.core.groups.model import TopicShape
from semel.core.shares.group import ShareGroup, ShareMember
from semel.core.shares.partition import (
    ACKNOWLEDGED,
    ARCHIVED,
    AVAILABLE,
    PENDING,
    PendingAcknowledgement,
    Run,
    SharePartition,
)
from semel.core.types import GroupKey, ShareKey, TopicKey, Transaction, TransactionKey, TransactionState

RUNS = (
    Run(5, 9, AVAILABLE, 2),
    Run(10, 10, ACKNOWLEDGED),
    Run(11, 2**40, ARCHIVED),
    Run(2**40 + 1, 2**41, PENDING, 3, PendingAcknowledgement(2**50, True, False, "m")),
)


async def test_share_partitions_are_written_replaced_and_removed(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    (partition,) = await scribe.create(ledger)
    keys = [ShareKey(partition.topic_id, partition.index, f"{name}\0\u20ac") for name in "aBc"]
    assert await ledger.load(keys) == [None] * 3
    await ledger.commit([Put(key, SharePartition()) for key in keys], [])
    await ledger.commit(
        [
            Put(keys[0], SharePartition(1)),
            Put(keys[1], None),
            Put(keys[0], SharePartition(5, 3, RUNS)),
        ],
        [],
    )
    # Removing what does not exist is no error.
    await ledger.commit([Put(keys[1], None)], [])
    assert await ledger.load(keys) == [SharePartition(5, 3, RUNS), None, SharePartition()]
    await ledger.close()


async def test_the_share_partitions_of_a_deleted_topic_are_gone(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    created = [scribe.created(name) for name in ("one", "two")]
    await ledger.commit(created, [])
    keys = [ShareKey(each.topic.topic_id, 0, "g") for each in created]
    await ledger.commit([Put(key, SharePartition(7)) for key in keys], [])
    (topic,) = await ledger.load([TopicKey("one")])
    await ledger.commit([TopicDeleted(topic)], [])
    assert await ledger.load(keys) == [None, SharePartition(7)]
    await ledger.close()


async def test_transactions_know_their_share_partitions(ledgers: Any, scribe: Any) -> None:
    """Written together with the records that are pending, in one commit, as the end of the transaction is."""
    ledger = await ledgers.open()
    (partition,) = await scribe.create(ledger)
    keys = tuple(ShareKey(partition.topic_id, index, f"{index}\0\u20ac") for index in (0, 1, 70_000))
    ongoing = Transaction("x\0", 7, 1, 60_000, TransactionState.ONGOING, (partition,), ("g",), shares=keys)
    share = SharePartition(5, 3, RUNS)
    await ledger.commit([Put.of(ongoing), *(Put(key, share) for key in keys)], [])
    assert await ledger.load([TransactionKey("x\0"), *keys]) == [ongoing, share, share, share]
    assert await ledger.open_transactions(limit=9) == [ongoing]
    assert await ledger.transactions(limit=9) == [ongoing]
    ended = ongoing.but(state=TransactionState.COMPLETE_COMMIT, partitions=(), groups=(), shares=())
    settled = SharePartition(2**41 + 1, 3)
    await ledger.commit([*(Put(key, settled) for key in keys), Put.of(ended)], [])
    assert await ledger.load([TransactionKey("x\0"), *keys]) == [ended, settled, settled, settled]
    await ledger.close()


async def test_share_groups_come_back_as_they_were(ledgers: Any) -> None:
    ledger = await ledgers.open()
    member = ShareMember("m", "r", "c", "/h", ("t",), 3, 2, frozenset({(b"t" * 16, 1)}))
    shapes = {"t": TopicShape(b"t" * 16, 2)}
    group = ShareGroup("g", 3, 3, {"m": member}, {"m": member.assigned}, shapes, shapes, 9)
    await ledger.commit([Put.of(group)], [])
    assert await ledger.load([GroupKey("g")]) == [group]
    (summary,) = await ledger.groups()
    assert (summary.kind, summary.protocol_type, summary.state) == ("share", "share", "Stable")
    await ledger.close()
