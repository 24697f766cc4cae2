"""Metadata of all topics, encoded once for everyone who asks.

Clients with patterns, and every admin tool, ask for all topics, many of them again and again. To build and
encode fifty thousand partitions takes a good part of a second, so the encoded answer is kept until a topic is
made, changed or deleted. Whoever asks while it is being built waits for it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Final
from weakref import WeakKeyDictionary

from semel.broker.broker import Broker
from semel.wire.messages.metadata import MetadataResponse
from semel.wire.schema import Encoded

ANSWERS_MAX: Final = 8
"""Versions, listeners and flags that are kept: a few kinds of clients."""


class MetadataCache:
    """The answers of one broker, for the catalog as it was at one time."""

    def __init__(self, broker: Broker) -> None:
        self._catalog = broker.catalog
        self._slices = broker.slices
        self._answers: dict[Hashable, Encoded] = {}
        self._changes = -1
        self._building = asyncio.Lock()

    async def answer(
        self, key: Hashable, version: int, build: Callable[[], Awaitable[MetadataResponse]]
    ) -> Encoded:
        """What was built before, if no topic has changed since; else build it."""
        async with self._building:
            changes = self._catalog.changes
            if changes != self._changes:
                self._answers.clear()
                self._changes = changes
            known = self._answers.get(key)
            if known is None:
                response = await build()
                parts = await self._slices.run(response.encode_in_slices(version))
                known = Encoded(MetadataResponse, parts)
                # What changed meanwhile may be missing in it: good for who asked before, and nobody after.
                if self._catalog.changes == changes:
                    while len(self._answers) >= ANSWERS_MAX:
                        del self._answers[next(iter(self._answers))]
                    self._answers[key] = known
            return known


_CACHES: WeakKeyDictionary[Broker, MetadataCache] = WeakKeyDictionary()


def cache_of(broker: Broker) -> MetadataCache:
    """The one of this broker. It goes when the broker goes."""
    cache = _CACHES.get(broker)
    if cache is None:
        cache = _CACHES[broker] = MetadataCache(broker)
    return cache
