"""Helpers for tests of the read side's handlers: a broker with a catalog and reads, and nothing else."""

from collections.abc import Callable
from typing import Any

from semel.broker.ownership import Alone, Endpoint, Ownership
from semel.broker.policies import Policies
from semel.config import Settings
from semel.core.types import Topic
from support.brokers.in_memory import LISTENER, send
from support.stores.slow import TOPIC_ID, Reading

TOPIC = Topic("t", TOPIC_ID, 2, {})
UNKNOWN_ID = bytes(15) + b"u"


class OneTopic:
    """A catalog with one topic."""

    def __init__(self) -> None:
        self.topics = [TOPIC]
        self.is_cached = True

    def cached(self, name: str) -> Topic | None:
        return next((each for each in self.topics if self.is_cached and each.name == name), None)

    def cached_by_id(self, topic_id: bytes) -> Topic | None:
        return next((each for each in self.topics if self.is_cached and each.topic_id == topic_id), None)

    async def topic(self, name: str) -> Topic | None:
        return next((each for each in self.topics if each.name == name), None)

    async def topic_by_id(self, topic_id: bytes) -> Topic | None:
        return next((each for each in self.topics if each.topic_id == topic_id), None)


class Served:
    """A broker with partitions ZERO and ONE of the topic ``t``."""

    def __init__(self) -> None:
        self.reading = Reading()
        self.reads = self.reading.reads
        self.settings = Settings()
        self.catalog = OneTopic()
        self.ownership: Ownership = Alone(1, {LISTENER: Endpoint("broker.example", 9092)})
        self.policies = Policies(self.reading.shelf.ledger, self.settings)  # type: ignore[arg-type]
        self.time = 1_000_000
        self._kept: dict[Callable[[Any], Any], Any] = {}

    def kept(self, make: Callable[[Any], Any]) -> Any:
        if make not in self._kept:
            self._kept[make] = make(self)
        return self._kept[make]

    def now(self) -> int:
        return self.time

    async def ask(self, request: Any, version: int) -> Any:
        """Send through the codec in both directions, so that only fields of this version arrive."""
        return await send(self, request.api_key, request, version)  # type: ignore[arg-type]
