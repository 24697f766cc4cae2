"""Share-partitions in every ledger: written, replaced, removed, and deleted with their topic."""

from typing import Any

from semel.core.facts import GroupChanged, ShareChanged, ShareDeleted, TopicDeleted
from semel.core.groups.model import TopicShape
from semel.core.share_group import ShareGroup, ShareMember
from semel.core.share_partition import ACKNOWLEDGED, ARCHIVED, AVAILABLE, Run, SharePartition
from semel.core.types import GroupKey, ShareKey, TopicKey

RUNS = (Run(5, 9, AVAILABLE, 2), Run(10, 10, ACKNOWLEDGED), Run(11, 2**40, ARCHIVED))


async def test_share_partitions_are_written_replaced_and_removed(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    (partition,) = await scribe.create(ledger)
    keys = [ShareKey(partition.topic_id, partition.index, f"{name}\0\u20ac") for name in "aBc"]
    assert await ledger.load(keys) == [None] * 3
    await ledger.commit([ShareChanged(key, SharePartition()) for key in keys], [])
    await ledger.commit(
        [
            ShareChanged(keys[0], SharePartition(1)),
            ShareDeleted(keys[1]),
            ShareChanged(keys[0], SharePartition(5, 3, RUNS)),
        ],
        [],
    )
    # Removing what does not exist is no error.
    await ledger.commit([ShareDeleted(keys[1])], [])
    assert await ledger.load(keys) == [SharePartition(5, 3, RUNS), None, SharePartition()]
    await ledger.close()


async def test_the_share_partitions_of_a_deleted_topic_are_gone(ledgers: Any, scribe: Any) -> None:
    ledger = await ledgers.open()
    created = [scribe.created(name) for name in ("one", "two")]
    await ledger.commit(created, [])
    keys = [ShareKey(each.topic.topic_id, 0, "g") for each in created]
    await ledger.commit([ShareChanged(key, SharePartition(7)) for key in keys], [])
    (topic,) = await ledger.load([TopicKey("one")])
    await ledger.commit([TopicDeleted(topic)], [])
    assert await ledger.load(keys) == [None, SharePartition(7)]
    await ledger.close()


async def test_share_groups_come_back_as_they_were(ledgers: Any) -> None:
    ledger = await ledgers.open()
    member = ShareMember("m", "r", "c", "/h", ("t",), 3, 2, frozenset({(b"t" * 16, 1)}))
    shapes = {"t": TopicShape(b"t" * 16, 2)}
    group = ShareGroup("g", 3, 3, {"m": member}, {"m": member.assigned}, shapes, shapes, 9)
    await ledger.commit([GroupChanged(group)], [])
    assert await ledger.load([GroupKey("g")]) == [group]
    (summary,) = await ledger.groups()
    assert (summary.kind, summary.protocol_type, summary.state) == ("share", "share", "Stable")
    await ledger.close()
