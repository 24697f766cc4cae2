"""Caches the encoded Metadata response for all topics, which all clients share.

Clients with patterns, and every admin tool, request all topics, many of them repeatedly. Building and
encoding fifty thousand partitions takes a good part of a second, so the encoded response is cached until a
topic is created, changed or deleted, or a node or a leader changes. Requests that arrive while it is being
built wait for it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Final
from weakref import WeakKeyDictionary

from semel.broker.broker import Broker
from semel.wire.messages.metadata import MetadataResponse
from semel.wire.schema import Encoded

ANSWERS_MAX: Final = 8
"""The most cached responses: one per version, listener and flags, so enough for a few kinds of clients."""


class MetadataCache:
    """The responses of one broker, for one state of the catalog and of ownership."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, Encoded] = {}
        self._changes = (-1, -1)
        self._building = asyncio.Lock()

    async def answer(
        self, broker: Broker, key: Hashable, version: int, build: Callable[[], Awaitable[MetadataResponse]]
    ) -> Encoded:
        """The cached response; builds it if there is none or its content has changed."""
        async with self._building:
            changes = _changes(broker)
            if changes != self._changes:
                self._answers.clear()
                self._changes = changes
            known = self._answers.get(key)
            if known is None:
                response = await build()
                parts = await broker.slices.run(response.encode_in_slices(version))
                known = Encoded(MetadataResponse, parts)
                # It may lack a change made while it was built: correct for this request, not for later ones.
                if _changes(broker) == changes:
                    while len(self._answers) >= ANSWERS_MAX:
                        del self._answers[next(iter(self._answers))]
                    self._answers[key] = known
            return known


def _changes(broker: Broker) -> tuple[int, int]:
    return broker.catalog.changes, broker.ownership.changes


_CACHES: WeakKeyDictionary[Broker, MetadataCache] = WeakKeyDictionary()


def cache_of(broker: Broker) -> MetadataCache:
    """The cache of this broker. It is dropped together with the broker."""
    cache = _CACHES.get(broker)
    if cache is None:
        cache = _CACHES[broker] = MetadataCache()
    return cache
