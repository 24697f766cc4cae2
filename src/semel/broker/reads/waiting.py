"""Fetches that wait for records.

A fetch that found too little waits for the bytes that it lacks. A publication wakes only fetches of that
partition, and only if they may have gained enough: ``gained`` compares the two values of the partition, so a
fetch that wants a megabyte is not woken by every small batch. If only a new fetch plan can tell, it returns
``ENOUGH``.

No publication is missed, because nothing is awaited between the plan and the wait: a fetch counts what was
published since its plan and starts to wait in one step.

`ShareWaits` has the fetches of share groups. New records wake them like other fetches. But a record can also
become available because a member releases it, its lock ends, a transaction aborts, or the start offset moves
and makes room. Each of these changes the durable part of a share-partition, and publishing that wakes its
fetches. A fetch registers before it checks what is available, so it misses no change.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from semel.broker.reads.published_partitions import Isolation
from semel.core.types import Partition, PartitionKey, ShareKey


class ShareWait:
    """One waiting fetch. ``woken`` is done when it should check again."""

    __slots__ = ("_keys", "_waits", "woken")

    def __init__(self, waits: "ShareWaits", keys: Iterable[ShareKey]) -> None:
        self._waits = waits
        self._keys = tuple(keys)
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for key in self._keys:
            waits.by_share.setdefault(key, {})[self] = None
        if waits.is_ending:
            self.wake()

    def wake(self) -> None:
        """End the wait."""
        if not self.woken.done():
            self.woken.set_result(None)

    def close(self) -> None:
        """Remove the fetch from the share-partitions that it waits for."""
        for key in self._keys:
            waiting = self._waits.by_share.get(key)
            if waiting is not None:
                waiting.pop(self, None)
                if not waiting:
                    del self._waits.by_share[key]


class ShareWaits:
    """Maps share-partitions to the fetches that wait for them."""

    def __init__(self) -> None:
        self.by_share: dict[ShareKey, dict[ShareWait, None]] = {}
        self.is_ending = False

    def wait(self, keys: Iterable[ShareKey]) -> ShareWait:
        """Register a fetch. The caller must close the returned wait in any case."""
        return ShareWait(self, keys)

    def wake(self, key: ShareKey) -> None:
        """Wake the fetches that wait for this share-partition."""
        for each in list(self.by_share.get(key, ())):
            each.wake()

    def end(self) -> None:
        """Wake all, because the broker stops."""
        self.is_ending = True
        for key in list(self.by_share):
            self.wake(key)


ENOUGH: Final = 1 << 62


def gained(before: Partition | None, after: Partition, isolation: Isolation) -> int:
    """How many more bytes a reader may get now; ``ENOUGH`` if it has to plan again to find out."""
    if before is after:
        return 0
    if before is None or after.log_start_offset != before.log_start_offset:
        return ENOUGH
    if after.compactions != before.compactions:
        # The sizes no longer tell added bytes from removed ones.
        return ENOUGH
    if isolation is Isolation.READ_COMMITTED and (before.open_transactions or after.open_transactions):
        # Bytes after an open transaction do not count; the size of one that ended is not known here.
        return 0 if after.last_stable_offset == before.last_stable_offset else ENOUGH
    return after.size_bytes - before.size_bytes


class _Waiter:
    __slots__ = ("interests", "missing_bytes", "woken")

    def __init__(
        self, interests: Mapping[PartitionKey, Isolation], missing_bytes: int, woken: asyncio.Future[None]
    ) -> None:
        self.interests = interests
        self.missing_bytes = missing_bytes
        self.woken = woken

    def wake(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)


class Waiting:
    """Maps partitions to the fetches that wait for them."""

    def __init__(self, interests_max: int) -> None:
        self._interests_max = interests_max
        self._interests = 0
        # Ordered by arrival: the longest wait ends first, and a simulated history can be repeated.
        self._by_partition: dict[PartitionKey, dict[_Waiter, None]] = {}
        self.parked = 0
        """The number of waiting fetches."""

    @property
    def partitions(self) -> int:
        """The number of partitions that fetches wait for."""
        return len(self._by_partition)

    def keys(self) -> list[PartitionKey]:
        """The partitions that fetches wait for."""
        return list(self._by_partition)

    def has_room_for(self, interests: int) -> bool:
        """Whether a fetch of so many partitions may wait. It may take an eighth of the room that is left."""
        return interests <= max(1, (self._interests_max - self._interests) // 8)

    def is_awaited(self, keys: Iterable[PartitionKey], isolation: Isolation) -> bool:
        """Whether a fetch with this isolation waits for one of the partitions."""
        return self.parked > 0 and any(
            waiter.interests[key] is isolation for key in keys for waiter in self._by_partition.get(key, ())
        )

    async def wait(
        self, interests: Mapping[PartitionKey, Isolation], missing_bytes: int, timeout_seconds: float
    ) -> None:
        """Wait until these partitions may have gained that much together, or until the timeout."""
        loop = asyncio.get_running_loop()
        waiter = _Waiter(interests, missing_bytes, loop.create_future())
        for key in interests:
            self._by_partition.setdefault(key, {})[waiter] = None
        self.parked += 1
        self._interests += len(interests)
        timer = loop.call_later(timeout_seconds, waiter.wake)
        try:
            await waiter.woken
        finally:
            # Also when the client has disconnected and the task is cancelled.
            timer.cancel()
            self.parked -= 1
            self._interests -= len(interests)
            for key in interests:
                waiters = self._by_partition[key]
                waiters.pop(waiter, None)
                if not waiters:
                    del self._by_partition[key]

    def wake_all(self) -> None:
        """Wake all fetches: the broker stops, or has other shards."""
        for waiters in self._by_partition.values():
            for waiter in waiters:
                waiter.wake()

    def published(self, key: PartitionKey, before: Partition | None, after: Partition | None) -> None:
        """Wake the fetches that may have enough after a publication; ``after`` is None for a deletion."""
        for waiter in self._by_partition.get(key, ()):
            if after is None:
                waiter.wake()
                continue
            waiter.missing_bytes -= gained(before, after, waiter.interests[key])
            if waiter.missing_bytes <= 0:
                waiter.wake()
