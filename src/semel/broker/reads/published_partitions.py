"""The partitions as readers see them: committed, published values, and nothing newer.

The commit loop publishes every partition that a commit touched before it replies. Other partitions are loaded
from the ledger. If a commit overtakes a load, the published value wins, even if it is a deletion, so a value
never goes back in time.

Values are immutable. A reader takes one value and derives all its bounds from it, because a high watermark
that is read twice may show a reader what it must not see.

A reader of several partitions may want them as of one commit (``together``). Published values satisfy that. A
load may see a commit a moment before it is published, so a loaded value counts as settled only after the
commit loop has turned once more.

Next: ``waiting`` (fetches that a publication wakes), ``reads``.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import IntEnum
from typing import Final

from semel.core.types import Partition, PartitionKey
from semel.store.contract import Ledger, LedgerDamaged

TRIES_MAX: Final = 5


async def damaged_among(
    keys: Iterable[PartitionKey], load: Callable[[Sequence[PartitionKey]], Awaitable[object]]
) -> set[PartitionKey]:
    """The partitions that cannot be loaded, because the ledger is damaged there. Loads each by itself."""
    damaged: set[PartitionKey] = set()
    for key in keys:
        try:
            await load((key,))
        except LedgerDamaged:
            damaged.add(key)
    return damaged


class Isolation(IntEnum):
    """How far a reader may see. The numbers are those of the wire."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


def last_fetchable_offset(partition: Partition, isolation: Isolation) -> int:
    """One past the last offset that a reader with this isolation may have."""
    if isolation is Isolation.READ_COMMITTED:
        return partition.last_stable_offset
    return partition.high_watermark


class _Load:
    """A load in progress, and the values published for its partitions meanwhile (None: deleted)."""

    __slots__ = ("keys", "outdated", "overtaken")

    def __init__(self, keys: dict[PartitionKey, None]) -> None:
        self.keys = keys
        self.overtaken: dict[PartitionKey, Partition | None] = {}
        self.outdated: set[PartitionKey] = set()
        """Partitions that were dropped during the load, and have to be loaded again."""


class PublishedPartitions:
    """Maps partitions to their newest committed values, for at most ``views_max`` partitions."""

    def __init__(self, ledger: Ledger, views_max: int) -> None:
        self._ledger = ledger
        self._views_max = views_max
        self._views: dict[PartitionKey, Partition] = {}
        self._loads: list[_Load] = []
        self._loads_ended = 0
        self._unsettled: dict[PartitionKey, int] = {}
        """Partitions from a load that may have been ahead of publications, and the number of that load."""

    def __len__(self) -> int:
        return len(self._views)

    def get(self, key: PartitionKey) -> Partition | None:
        """The value, if it is in memory."""
        return self._views.get(key)

    def publish(self, key: PartitionKey, partition: Partition) -> Partition | None:
        """Set a committed value; returns the previous one, if it was in memory."""
        before = self._views.pop(key, None)
        if before is None:
            self._make_room()
        self._views[key] = partition
        if self._unsettled:
            self._unsettled.pop(key, None)
        for load in self._loads:
            if key in load.keys:
                load.overtaken[key] = partition
        return before

    def forget(self, key: PartitionKey) -> None:
        """Remove a deleted partition. Topic ids are never reused, so it stays deleted."""
        self._views.pop(key, None)
        self._unsettled.pop(key, None)
        for load in self._loads:
            if key in load.keys:
                load.overtaken[key] = None

    def drop(self, key: PartitionKey) -> None:
        """Drop a partition that another broker has changed, so that it is loaded again."""
        self._views.pop(key, None)
        self._unsettled.pop(key, None)
        for load in self._loads:
            if key in load.keys:
                load.outdated.add(key)

    def keys(self) -> list[PartitionKey]:
        """The partitions in memory, and those that are being loaded."""
        return [*self._views, *(key for load in self._loads for key in load.keys)]

    async def load(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, Partition | None]:
        """The values of all these partitions, None for those that do not exist."""
        found: dict[PartitionKey, Partition | None] = {key: self._views.get(key) for key in keys}
        missing = [key for key, value in found.items() if value is None]
        if not missing:
            return found
        load = _Load(dict.fromkeys(missing))
        self._loads.append(load)
        try:
            values = await self._ledger.load(missing)
        finally:
            self._loads.remove(load)
        self._loads_ended += 1
        for key, value in zip(missing, values, strict=True):
            if key in load.outdated:
                found |= await self.load((key,))
                continue
            if key in load.overtaken:
                found[key] = load.overtaken[key]
                continue
            found[key] = value
            # If another load of the same partition has ended before, its value is as new.
            if value is not None and key not in self._views:
                self._make_room()
                self._views[key] = value
                self._unsettled[key] = self._loads_ended
        return found

    async def load_sound(
        self, keys: Iterable[PartitionKey]
    ) -> tuple[dict[PartitionKey, Partition | None], set[PartitionKey]]:
        """The values of these partitions, and those that cannot be loaded: the ledger is damaged there."""
        wanted = list(keys)
        try:
            return await self.load(wanted), set()
        except LedgerDamaged:
            damaged = await damaged_among(wanted, self.load)
        return await self.load(each for each in wanted if each not in damaged), damaged

    async def together(
        self, keys: Sequence[PartitionKey], turn: Callable[[], Awaitable[None]]
    ) -> dict[PartitionKey, Partition | None]:
        """The values of all these partitions after one and the same commit.

        ``turn`` waits until everything that is durable now is published. If there are more partitions than
        fit in memory, each value is the newest, but not of the same commit.
        """
        found: dict[PartitionKey, Partition | None] = {}
        gone: set[PartitionKey] = set()
        for _ in range(TRIES_MAX):
            # Nothing is awaited from here to the return, so nothing is published.
            found = {key: self._views.get(key) for key in keys}
            missing = [key for key, value in found.items() if value is None and key not in gone]
            if not missing and self._unsettled.keys().isdisjoint(found):
                return found
            if missing:
                found |= await self.load(missing)
                gone.update(key for key in missing if found[key] is None)
            ended = self._loads_ended
            await turn()
            for key in [key for key in found if self._unsettled.get(key, ended + 1) <= ended]:
                del self._unsettled[key]
        return found

    def _make_room(self) -> None:
        while len(self._views) >= self._views_max:
            oldest = next(iter(self._views))
            del self._views[oldest]
            self._unsettled.pop(oldest, None)
