"""The catalog: a bounded cache of topics.

Handlers look topics up by name or by id. The hot path uses ``cached``, which never waits; the other methods
load missing topics from the ledger. A commit that changes a topic is published here before it is answered, so
a client finds its new topic at once. A publication during a load wins over the loaded value.

`TopicLimits` has the parsed configs and the partition keys of a topic, as the hot path needs them.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from semel.broker.slices import SLICE_ITEMS, Slices
from semel.core.configs import words
from semel.core.data import Data
from semel.core.facts import TopicChanged, TopicCreated, TopicDeleted
from semel.core.topic_configs import value_of
from semel.core.types import Fact, PartitionKey, Topic, TopicKey
from semel.store.contract import Ledger


class TopicLimits(Data):
    """The configs of a topic that the broker uses. Parsed once, used for every batch."""

    max_message_bytes: int
    content_max_bytes: int
    """The largest decompressed size of a batch."""
    validates: bool
    """Whether the records of uncompressed batches are validated when they are produced."""
    validates_compressed: bool
    log_append_time: bool
    before_max_ms: int
    after_max_ms: int
    retention_ms: int
    retention_bytes: int
    deletes: bool
    """Whether old records are deleted; a topic that is only compacted keeps them."""
    compacts: bool
    """Whether only the newest record of each key is kept; then every record needs a key."""
    delete_retention_ms: int
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    min_cleanable_dirty_ratio: float
    is_journal: bool
    """Whether a transaction's records get their offsets when it commits."""
    block_max_ms: int
    """How long a transaction that writes here may be open; -1 is no limit."""
    partitions: tuple[PartitionKey, ...]
    """The keys of its partitions."""

    @classmethod
    def of(cls, topic: Topic, settings: Mapping[str, object]) -> "TopicLimits":
        """Parse the configs of a topic; ``settings`` are the broker's, by dotted name."""

        def value(name: str) -> str:
            return value_of(name, topic.configs, settings)

        compacts = "compact" in words(value("cleanup.policy"))
        validated = value("semel.validate.records")
        max_message_bytes = int(value("max.message.bytes"))
        content_max_bytes = settings.get("semel.batch.content.max.bytes", max_message_bytes)
        return cls(
            max_message_bytes=max_message_bytes,
            content_max_bytes=max(int(str(content_max_bytes)), max_message_bytes),
            validates=compacts or validated != "none",
            validates_compressed=compacts or validated == "all",
            log_append_time=value("message.timestamp.type") == "LogAppendTime",
            before_max_ms=int(value("message.timestamp.before.max.ms")),
            after_max_ms=int(value("message.timestamp.after.max.ms")),
            retention_ms=int(value("retention.ms")),
            retention_bytes=int(value("retention.bytes")),
            deletes="delete" in words(value("cleanup.policy")),
            compacts=compacts,
            delete_retention_ms=int(value("delete.retention.ms")),
            min_compaction_lag_ms=int(value("min.compaction.lag.ms")),
            max_compaction_lag_ms=int(value("max.compaction.lag.ms")),
            min_cleanable_dirty_ratio=float(value("min.cleanable.dirty.ratio")),
            is_journal=value("semel.visibility") == "journal",
            block_max_ms=int(value("semel.transaction.block.max.ms")),
            partitions=tuple(PartitionKey(topic.topic_id, index) for index in range(topic.partitions)),
        )


ASKED_AT_ONCE: Final = 1_000
"""Topics per query: a query occupies one of the ledger's readers, and other queries need their turn."""


class Catalog:
    """Maps names and ids to topics."""

    def __init__(
        self,
        ledger: Ledger,
        topics_max: int,
        settings: Mapping[str, object],
        slices: Slices | None = None,
    ) -> None:
        self._ledger = ledger
        self._slices = slices or Slices()
        self._found = 0
        self._settings = settings
        self._limits: dict[bytes, tuple[Topic, TopicLimits]] = {}
        self._topics_max = topics_max
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self._published = 0

    @property
    def changes(self) -> int:
        """How often a topic was created, changed or deleted."""
        return self._published

    def cached(self, name: str) -> Topic | None:
        """The topic, if it is in memory."""
        return self._by_name.get(name)

    def cached_by_id(self, topic_id: bytes) -> Topic | None:
        """The topic, if it is in memory."""
        return self._by_id.get(topic_id)

    async def topic(self, name: str) -> Topic | None:
        """The topic with this name."""
        await self._let_others_work()
        return self._by_name.get(name) or (await self.topics((name,)))[name]

    async def _let_others_work(self) -> None:
        """Take a turn every ``SLICE_ITEMS`` calls: a request may look up thousands of cached topics."""
        self._found += 1
        if self._found % SLICE_ITEMS == 0:
            await self._slices.turn()

    async def topics(self, names: Collection[str]) -> dict[str, Topic | None]:
        """The topics with these names; those that are not in memory are loaded together."""
        found = {name: self._by_name.get(name) for name in names}
        unknown = [name for name, topic in found.items() if topic is None]
        for start in range(0, len(unknown), ASKED_AT_ONCE):
            some = unknown[start : start + ASKED_AT_ONCE]
            before = self._published
            loaded = await self._ledger.load([TopicKey(name) for name in some])
            if before != self._published:
                loaded = [await self.topic(name) for name in some]
            for name, topic in zip(some, loaded, strict=True):
                found[name] = self._keep(topic)
        return found

    async def topic_by_id(self, topic_id: bytes) -> Topic | None:
        """The topic with this id."""
        await self._let_others_work()
        known = self._by_id.get(topic_id)
        if known is not None:
            return known
        before = self._published
        found = await self._ledger.topic_by_id(topic_id)
        if before != self._published:
            return await self.topic_by_id(topic_id)
        return self._keep(found)

    def limits(self, topic: Topic) -> TopicLimits:
        """The topic's configs as numbers."""
        known = self._limits.get(topic.topic_id)
        if known is None or known[0] is not topic:
            if len(self._limits) >= self._topics_max:
                self._limits.clear()
            known = self._limits[topic.topic_id] = (topic, TopicLimits.of(topic, self._settings))
        return known[1]

    def configure(self, settings: Mapping[str, object]) -> None:
        """Use other broker settings as defaults of topic configs."""
        self._settings = settings
        self._limits.clear()

    async def all(self) -> list[Topic]:
        """Every topic, in the order of names."""
        topics: list[Topic] = []
        while page := await self._ledger.topics(after=topics[-1].name if topics else ""):
            topics.extend(page)
        return topics

    def publish(self, facts: Sequence[Fact]) -> None:
        """Apply the facts of a commit."""
        for fact in facts:
            match fact:
                case TopicCreated(topic) | TopicChanged(topic):
                    self._published += 1
                    self._keep(topic)
                case TopicDeleted(topic):
                    self.forget(topic)

    def forget(self, topic: Topic) -> None:
        """Remove a topic that was deleted, or that another broker has changed; it is loaded when needed."""
        self._published += 1
        self._by_name.pop(topic.name, None)
        self._by_id.pop(topic.topic_id, None)

    def clear(self) -> None:
        """Remove all topics; each is loaded again when needed."""
        self._published += 1
        self._by_name.clear()
        self._by_id.clear()

    def _keep(self, topic: Topic | None) -> Topic | None:
        if topic is not None:
            while len(self._by_name) >= self._topics_max and topic.name not in self._by_name:
                oldest = self._by_name.pop(next(iter(self._by_name)))
                self._by_id.pop(oldest.topic_id, None)
            self._by_name[topic.name] = topic
            self._by_id[topic.topic_id] = topic
        return topic
