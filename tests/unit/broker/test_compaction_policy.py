"""Configs that change while a round of compaction or of retention is under way count at once."""

from typing import Any

from support.stores.compacting import EAGER, before_first, compacting, keyed

from semel.core.log.partition import Append
from semel.core.topics import AlterTopic, CreateTopic
from semel.core.types import PartitionKey
from semel.wire.records import read_header


async def test_a_policy_that_changes_during_a_round_counts_for_what_comes_later_in_it() -> None:
    async with compacting() as table:
        # Comes behind "table" in the round.
        other = PartitionKey(b"zebra".ljust(16, b"."), 0)
        await table.broker.ask(CreateTopic("zebra", other.topic_id, 1, EAGER))
        await table.put_each(("a", "1"), ("a", "2"))

        async def change() -> None:
            # The round is at "table". "zebra" becomes an ordinary log, acknowledged, and is written to.
            await table.broker.ask(AlterTopic("zebra", (("cleanup.policy", 0, "delete"),)))
            for pair in ((None, "1"), (None, "2"), ("a", "3"), ("a", "4")):
                data = keyed(pair)
                await table.broker.ask(Append(other, read_header(data), data))

        chunks = table.broker.store.chunks
        chunks.read = before_first(chunks.read, change)  # type: ignore[method-assign]
        await table.compact()
        table.key = other
        assert [value for _, _, value in await table.pairs()] == ["1", "2", "3", "4"]


async def test_who_ends_compaction_keeps_what_is_there() -> None:
    async with compacting() as table:
        await table.put_each(("a", "1"), ("a", "2"))
        read = table.broker.store.chunks.read

        async def read_late(locations: Any) -> Any:
            found = await read(locations)
            await table.broker.ask(AlterTopic("table", (("cleanup.policy", 0, "delete"),)))
            return found

        table.broker.store.chunks.read = read_late  # type: ignore[method-assign]
        await table.compact()
        table.broker.store.chunks.read = read  # type: ignore[method-assign]
        assert [value for _, _, value in await table.pairs()] == ["1", "2"]


async def test_retention_that_ends_during_a_round_counts_for_what_comes_later_in_it() -> None:
    async with compacting(configs={"cleanup.policy": "delete", "retention.ms": "1"}) as table:
        other = PartitionKey(b"zebra".ljust(16, b"."), 0)
        await table.broker.ask(CreateTopic("zebra", other.topic_id, 1, {"retention.ms": "1"}))
        data = keyed(("a", "1"))
        await table.broker.ask(Append(other, read_header(data), data))
        await table.put(("a", "1"))
        delete = table.broker.delete_records

        async def delete_late(key: PartitionKey, offset: int) -> Any:
            await table.broker.ask(AlterTopic("zebra", (("retention.ms", 0, "-1"),)))
            return await delete(key, offset)

        table.broker.delete_records = delete_late  # type: ignore[assignment, method-assign]  # patched
        await table.broker._housekeeping.retain()
        assert (await table.partition()).log_start_offset == 1
        table.key = other
        assert [value for _, _, value in await table.pairs()] == ["1"]
