"""Topic configs: their names, defaults and valid values.

A config that is not in the table is refused by name, so that a typo is an error and not a silent default.
Kafka's configs that have no meaning here (segments, replication) are accepted if clients commonly set them.
They are stored and shown but have no effect (``inert``). Their limits are wider than
Kafka's where that is harmless (small segments).
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

from semel.core.configs import (
    BOOLEAN,
    DOUBLE,
    INT,
    LIST,
    LONG,
    NAME_SHOWN_MAX,
    STRING,
    VALUE_LENGTH_MAX,
    Config,
    suggestion,
)

_INT_MAX: Final = 2**31 - 1
_MAX: Final = 2**63 - 1
_inert = partial(Config, inert=True)

TOPIC_CONFIGS: Final[dict[str, Config]] = {
    "cleanup.policy": Config(
        "delete",
        LIST,
        "delete old records, or compact to the last record of each key; empty keeps everything",
        choices=("delete", "compact"),
        setting="log.cleanup.policy",
    ),
    "compression.type": _inert(
        "producer",
        STRING,
        "batches are stored as producers compressed them",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    ),
    "compression.gzip.level": _inert("-1", INT, "batches are stored as sent", -1, 9),
    "compression.lz4.level": _inert("9", INT, "batches are stored as sent", 1, 17),
    "compression.zstd.level": _inert("3", INT, "batches are stored as sent", -131_072, 22),
    "retention.ms": Config(
        "604800000",
        LONG,
        "records older than this may be deleted; -1 keeps them",
        -1,
        _MAX,
        setting="log.retention.ms",
    ),
    "retention.bytes": Config(
        "-1",
        LONG,
        "the oldest records are deleted beyond this size of a partition; negative: no limit",
        -_MAX - 1,
        _MAX,
        setting="log.retention.bytes",
    ),
    "max.message.bytes": Config("1048588", INT, "largest batch", 0, _INT_MAX, setting="message.max.bytes"),
    "message.timestamp.type": Config(
        "CreateTime",
        STRING,
        "whether the producer (CreateTime) or the broker (LogAppendTime) sets timestamps",
        choices=("CreateTime", "LogAppendTime"),
        setting="log.message.timestamp.type",
    ),
    "message.timestamp.before.max.ms": Config(
        str(_MAX),
        LONG,
        "how far in the past a record's timestamp can be",
        0,
        _MAX,
        setting="log.message.timestamp.before.max.ms",
    ),
    "message.timestamp.after.max.ms": Config(
        "3600000",
        LONG,
        "how far in the future a record's timestamp can be",
        0,
        _MAX,
        setting="log.message.timestamp.after.max.ms",
    ),
    "semel.validate.records": Config(
        "all",
        STRING,
        "which batches are validated when they are produced; compacted topics validate all of them",
        choices=("all", "uncompressed", "none"),
        setting="semel.validate.records",
    ),
    "semel.visibility": Config(
        "marker",
        STRING,
        "marker: as in Kafka; journal: records of a transaction get offsets at its commit; fixed at creation",
        choices=("marker", "journal"),
        fixed="it determines how the topic is stored",
    ),
    "semel.transaction.block.max.ms": Config(
        "-1",
        LONG,
        "a transaction that writes to the topic is aborted if it is open longer; -1: no limit",
        -1,
        _MAX,
    ),
    "delete.retention.ms": Config(
        "86400000",
        LONG,
        "how long a tombstone is kept after it was compacted",
        0,
        _MAX,
        setting="log.cleaner.delete.retention.ms",
    ),
    "min.compaction.lag.ms": Config(
        "0",
        LONG,
        "minimum age of a record before it is compacted",
        0,
        _MAX,
        setting="log.cleaner.min.compaction.lag.ms",
    ),
    "max.compaction.lag.ms": Config(
        str(_MAX),
        LONG,
        "maximum age of a record before it is compacted",
        1,
        _MAX,
        setting="log.cleaner.max.compaction.lag.ms",
    ),
    "min.cleanable.dirty.ratio": Config(
        "0.5",
        DOUBLE,
        "compact when a larger share of the bytes is dirty",
        0,
        1,
        setting="log.cleaner.min.cleanable.ratio",
    ),
    "min.insync.replicas": _inert("1", INT, "the store provides durability", 1, _INT_MAX),
    "unclean.leader.election.enable": _inert("false", BOOLEAN, "there is no leader election"),
    "segment.bytes": _inert(
        "1073741824",
        INT,
        "chunks have the same size for all topics",
        1,
        _INT_MAX,
        synonym="log.segment.bytes",
    ),
    "segment.ms": _inert("604800000", LONG, "there are no segments", 1, _MAX, synonym="log.roll.ms"),
    "segment.jitter.ms": _inert("0", LONG, "there are no segments", 0, _MAX, synonym="log.roll.jitter.ms"),
    "segment.index.bytes": _inert(
        "10485760", INT, "the ledger is the index", 4, _INT_MAX, synonym="log.index.size.max.bytes"
    ),
    "index.interval.bytes": _inert(
        "4096", INT, "the ledger is the index", 0, _INT_MAX, synonym="log.index.interval.bytes"
    ),
    "file.delete.delay.ms": _inert(
        "60000", LONG, "the store decides", 0, _MAX, synonym="log.segment.delete.delay.ms"
    ),
    "flush.messages": _inert(
        str(_MAX), LONG, "every commit is flushed", 1, _MAX, synonym="log.flush.interval.messages"
    ),
    "flush.ms": _inert(str(_MAX), LONG, "every commit is flushed", 0, _MAX, synonym="log.flush.interval.ms"),
    "preallocate": _inert("false", BOOLEAN, "the store decides", synonym="log.preallocate"),
    "leader.replication.throttled.replicas": _inert("", LIST, "there are no replicas"),
    "follower.replication.throttled.replicas": _inert("", LIST, "there are no replicas"),
    "remote.storage.enable": _inert("false", BOOLEAN, "there is no tiered storage"),
    "remote.log.copy.disable": _inert("false", BOOLEAN, "there is no tiered storage"),
    "remote.log.delete.on.disable": _inert("false", BOOLEAN, "there is no tiered storage"),
    "local.retention.ms": _inert(
        "-2", LONG, "there is no tiered storage", -2, _MAX, synonym="log.local.retention.ms"
    ),
    "local.retention.bytes": _inert(
        "-2", LONG, "there is no tiered storage", -2, _MAX, synonym="log.local.retention.bytes"
    ),
}


def unknown(name: str) -> str:
    """Return the message for an unknown config, which suggests the nearest known one."""
    return f"Unknown topic config name: {name[:NAME_SHOWN_MAX]}{suggestion(name, TOPIC_CONFIGS)}"


def problem(name: str, value: str | None) -> str | None:
    """Return the message for an invalid config, or None if it is valid."""
    config = TOPIC_CONFIGS.get(name)
    if config is None:
        return unknown(name)
    if value is None:
        return f"{name} needs a value"
    if len(value) > VALUE_LENGTH_MAX:
        return f"The value for configuration {name} is longer than {VALUE_LENGTH_MAX} characters"
    try:
        parsed = config.kind.parse(value)
    except (ValueError, KeyError):
        return f"Invalid value {value!r} for configuration {name}"
    if config.choices:
        chosen = parsed if isinstance(parsed, tuple) else (parsed,)
        is_blank = not chosen and not value.strip()
        if not is_blank and (not chosen or any(each not in config.choices for each in chosen)):
            allowed = ", ".join(config.choices)
            return f"Invalid value {value!r} for configuration {name}: must be one of {allowed}"
    if isinstance(parsed, int | float) and not isinstance(parsed, bool):
        below = isinstance(config.low, int) and parsed < config.low
        above = isinstance(config.high, int) and parsed > config.high
        if below or above:
            return f"Invalid value {value!r} for configuration {name}: out of range"
    return None


def conflict(configs: Mapping[str, str]) -> str | None:
    """Return the message for valid configs that contradict each other, or None if they do not."""
    low = int(configs.get("min.compaction.lag.ms", TOPIC_CONFIGS["min.compaction.lag.ms"].default))
    high = int(configs.get("max.compaction.lag.ms", TOPIC_CONFIGS["max.compaction.lag.ms"].default))
    if low > high:
        return f"Conflicting topic configs: min.compaction.lag.ms ({low}) > max.compaction.lag.ms ({high})"
    if configs.get("remote.storage.enable", "").strip().lower() == "true":
        return "Tiered storage is not available: remote.storage.enable must be false"
    return None


def kept(configs: Mapping[str, str]) -> dict[str, str]:
    """Return the configs that cannot change during the life of a topic."""
    return {name: value for name, value in configs.items() if TOPIC_CONFIGS[name].fixed}


def forbidden_change(before: Mapping[str, str], after: Mapping[str, str]) -> str | None:
    """Return the message for a forbidden change of a topic's configs, or None if the change is allowed."""
    for name, row in TOPIC_CONFIGS.items():
        if row.fixed and before.get(name, row.default) != after.get(name, row.default):
            return f"{name} can only be set when a topic is created"
    return None


def value_of(name: str, configs: Mapping[str, str], settings: Mapping[str, object]) -> str:
    """Return the effective value: the topic's config, else the broker's setting, else the default."""
    if name in configs:
        return configs[name]
    row = TOPIC_CONFIGS[name]
    if row.setting and row.setting in settings:
        return str(settings[row.setting])
    return row.default
