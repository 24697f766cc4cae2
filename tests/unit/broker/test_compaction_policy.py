"""A topic that is not compacted any more keeps what is written to it, also while a round is under way."""

from typing import Any

from support.compacting import EAGER, compacting, keyed

from semel.core.partition import Append
from semel.core.topics import AlterTopic, CreateTopic
from semel.core.types import PartitionKey
from semel.wire.records import read_header


async def test_a_policy_that_changes_during_a_round_counts_for_what_comes_later_in_it() -> None:
    async with compacting() as table:
        # Comes behind "table" in the round.
        other = PartitionKey(b"zebra".ljust(16, b"."), 0)
        await table.broker.ask(CreateTopic("zebra", other.topic_id, 1, EAGER))
        await table.put_each(("a", "1"), ("a", "2"))
        read = table.broker.store.chunks.read
        is_first = True

        async def read_late(places: Any) -> Any:
            nonlocal is_first
            if is_first:
                is_first = False
                # The round is at "table". "zebra" becomes an ordinary log, acknowledged, and is written to.
                await table.broker.ask(AlterTopic("zebra", (("cleanup.policy", 0, "delete"),)))
                for pair in ((None, "1"), (None, "2"), ("a", "3"), ("a", "4")):
                    data = keyed(pair)
                    await table.broker.ask(Append(other, read_header(data), data))
            return await read(places)

        table.broker.store.chunks.read = read_late  # type: ignore[method-assign]
        await table.compact()
        table.key = other
        assert [value for _, _, value in await table.pairs()] == ["1", "2", "3", "4"]


async def test_who_ends_compaction_keeps_what_is_there() -> None:
    async with compacting() as table:
        await table.put_each(("a", "1"), ("a", "2"))
        read = table.broker.store.chunks.read

        async def read_late(places: Any) -> Any:
            found = await read(places)
            await table.broker.ask(AlterTopic("table", (("cleanup.policy", 0, "delete"),)))
            return found

        table.broker.store.chunks.read = read_late  # type: ignore[method-assign]
        await table.compact()
        table.broker.store.chunks.read = read  # type: ignore[method-assign]
        assert [value for _, _, value in await table.pairs()] == ["1", "2"]
