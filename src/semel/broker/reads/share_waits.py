"""Fetches of share groups that wait until records become available again.

New records wake them like other fetches (``waiting``). But a record can also become available because a
member releases it, its lock ends, a transaction aborts, or the start offset moves and makes room. Each of
these changes the durable part of a share-partition, and publishing that wakes its fetches. A fetch registers
before it checks what is available, so it misses no change.
"""

import asyncio
from collections.abc import Iterable

from semel.core.types import ShareKey


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
