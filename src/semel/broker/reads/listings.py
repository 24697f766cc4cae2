"""Listings of transactions, groups and their offsets, and producers, read from the ledger.

Unsynced work is not in the ledger yet, so a handler that must list acknowledged work flushes first
(``Broker.flush``).
"""

from collections.abc import AsyncIterator
from typing import Final

from semel.core.types import CommittedOffset, OffsetKey, PartitionKey, ProducerState, Transaction
from semel.store.contract import GroupSummary, Ledger

PAGE: Final = 1_000
"""Rows per query."""


class Listings:
    """Reads of the ledger that no cache serves."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def catch_up(self) -> None:
        """Wait until the ledger has all earlier commits."""
        await self._ledger.load(())

    async def transactions(self) -> AsyncIterator[list[Transaction]]:
        """Every transactional id, page by page."""
        after = ""
        while page := await self._ledger.transactions(after=after, limit=PAGE):
            after = page[-1].transactional_id
            yield page

    async def groups(self) -> AsyncIterator[list[GroupSummary]]:
        """Every group, page by page."""
        after = ""
        while page := await self._ledger.groups(after=after, limit=PAGE):
            after = page[-1].group_id
            yield page

    async def group_offsets(self, group_id: str) -> list[tuple[OffsetKey, CommittedOffset]]:
        """All committed offsets of a group."""
        return await self._ledger.group_offsets(group_id)

    async def producers(self, partition: PartitionKey) -> list[tuple[int, ProducerState]]:
        """The producers that a partition remembers."""
        return await self._ledger.producers(partition)
