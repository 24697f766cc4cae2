"""Topic limits: the parsed configs and the partition keys of a topic, as the hot path needs them."""

from collections.abc import Mapping

from semel.core.configs import words
from semel.core.data import Data
from semel.core.topic_configs import value_of
from semel.core.types import PartitionKey, Topic


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
