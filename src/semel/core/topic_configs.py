"""Topic configs: their names, defaults and valid values.

A config that is not in the table is refused by name, so that a typo is an error and not a silent default.
Kafka's configs that have no meaning here (segments, replication) are accepted if clients commonly set them.
They are stored and shown but have no effect; the table marks them ``inert``. Their limits are wider than
Kafka's where that is harmless (small segments).
"""

import difflib
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple


class ConfigKind(NamedTuple):
    """How a value is parsed, and the type number in DescribeConfigs."""

    wire: int
    parse: Callable[[str], object]


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.strip().lower()]


def _integer(text: str) -> int:
    # Python accepts more than Kafka does: underscores, and the digits of every script.
    if not _INTEGER.fullmatch(text.strip()):
        raise ValueError(text)
    return int(text)


def _decimal(text: str) -> float:
    if not _DECIMAL.fullmatch(text.strip()):
        raise ValueError(text)
    return float(text)


def words(text: str) -> tuple[str, ...]:
    """Split a list into its items."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


# Bounded, because a thousand digits are slow to parse and cannot be in range.
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_DECIMAL = re.compile(r"[+-]?[0-9]{1,19}(\.[0-9]{0,19})?([eE][+-]?[0-9]{1,3})?|[+-]?\.[0-9]{1,19}")

BOOLEAN = ConfigKind(1, _boolean)
STRING = ConfigKind(2, str)
INT = ConfigKind(3, _integer)
LONG = ConfigKind(5, _integer)
DOUBLE = ConfigKind(6, _decimal)
LIST = ConfigKind(7, words)


class TopicConfig(NamedTuple):
    """One row of the table."""

    default: str
    kind: ConfigKind
    doc: str
    low: int | None = None
    high: int | None = None
    choices: tuple[str, ...] = ()
    setting: str = ""
    """The broker setting that provides the default, if any."""
    synonym: str = ""
    """The name of the default in Kafka, if there is no such setting here."""
    inert: bool = False
    at_creation: bool = False
    """Set at creation and immutable after that, because it determines how the topic is stored."""


_MAX = 2**63 - 1

VALUE_LENGTH_MAX = 4_096
"""Maximum length of a value. No config needs more, and the configs of every topic are kept in memory."""

TOPIC_CONFIGS: dict[str, TopicConfig] = {
    "cleanup.policy": TopicConfig(
        "delete",
        LIST,
        "delete old records, or compact to the last record of each key; empty keeps everything",
        choices=("delete", "compact"),
        setting="log.cleanup.policy",
    ),
    "compression.type": TopicConfig(
        "producer",
        STRING,
        "batches are stored as producers compressed them",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        inert=True,
    ),
    "compression.gzip.level": TopicConfig("-1", INT, "batches are stored as sent", -1, 9, inert=True),
    "compression.lz4.level": TopicConfig("9", INT, "batches are stored as sent", 1, 17, inert=True),
    "compression.zstd.level": TopicConfig("3", INT, "batches are stored as sent", -131_072, 22, inert=True),
    "retention.ms": TopicConfig(
        "604800000",
        LONG,
        "records older than this may be deleted; -1 keeps them",
        -1,
        _MAX,
        setting="log.retention.ms",
    ),
    "retention.bytes": TopicConfig(
        "-1",
        LONG,
        "the oldest records are deleted beyond this size of a partition; negative: no limit",
        -_MAX - 1,
        _MAX,
        setting="log.retention.bytes",
    ),
    "max.message.bytes": TopicConfig(
        "1048588", INT, "largest batch", 0, 2**31 - 1, setting="message.max.bytes"
    ),
    "message.timestamp.type": TopicConfig(
        "CreateTime",
        STRING,
        "whether the producer (CreateTime) or the broker (LogAppendTime) sets timestamps",
        choices=("CreateTime", "LogAppendTime"),
        setting="log.message.timestamp.type",
    ),
    "message.timestamp.before.max.ms": TopicConfig(
        str(2**63 - 1),
        LONG,
        "how far in the past a record's timestamp can be",
        0,
        _MAX,
        setting="log.message.timestamp.before.max.ms",
    ),
    "message.timestamp.after.max.ms": TopicConfig(
        "3600000",
        LONG,
        "how far in the future a record's timestamp can be",
        0,
        _MAX,
        setting="log.message.timestamp.after.max.ms",
    ),
    "semel.validate.records": TopicConfig(
        "all",
        STRING,
        "which batches are validated when they are produced; compacted topics validate all of them",
        choices=("all", "uncompressed", "none"),
        setting="semel.validate.records",
    ),
    "semel.visibility": TopicConfig(
        "marker",
        STRING,
        "marker: as in Kafka; journal: records of a transaction get offsets at its commit; fixed at creation",
        choices=("marker", "journal"),
        at_creation=True,
    ),
    "semel.transaction.block.max.ms": TopicConfig(
        "-1",
        LONG,
        "a transaction that writes to the topic is aborted if it is open longer; -1: no limit",
        -1,
        _MAX,
    ),
    "delete.retention.ms": TopicConfig(
        "86400000",
        LONG,
        "how long a tombstone is kept after it was compacted",
        0,
        _MAX,
        setting="log.cleaner.delete.retention.ms",
    ),
    "min.compaction.lag.ms": TopicConfig(
        "0",
        LONG,
        "minimum age of a record before it is compacted",
        0,
        _MAX,
        setting="log.cleaner.min.compaction.lag.ms",
    ),
    "max.compaction.lag.ms": TopicConfig(
        str(2**63 - 1),
        LONG,
        "maximum age of a record before it is compacted",
        1,
        _MAX,
        setting="log.cleaner.max.compaction.lag.ms",
    ),
    "min.cleanable.dirty.ratio": TopicConfig(
        "0.5",
        DOUBLE,
        "compact when a larger share of the bytes is dirty",
        0,
        1,
        setting="log.cleaner.min.cleanable.ratio",
    ),
    "min.insync.replicas": TopicConfig("1", INT, "the store provides durability", 1, 2**31 - 1, inert=True),
    "unclean.leader.election.enable": TopicConfig(
        "false", BOOLEAN, "there is no leader election", inert=True
    ),
    "segment.bytes": TopicConfig(
        "1073741824",
        INT,
        "chunks have the same size for all topics",
        1,
        2**31 - 1,
        synonym="log.segment.bytes",
        inert=True,
    ),
    "segment.ms": TopicConfig(
        "604800000", LONG, "there are no segments", 1, _MAX, synonym="log.roll.ms", inert=True
    ),
    "segment.jitter.ms": TopicConfig(
        "0", LONG, "there are no segments", 0, _MAX, synonym="log.roll.jitter.ms", inert=True
    ),
    "segment.index.bytes": TopicConfig(
        "10485760",
        INT,
        "the ledger is the index",
        4,
        2**31 - 1,
        synonym="log.index.size.max.bytes",
        inert=True,
    ),
    "index.interval.bytes": TopicConfig(
        "4096", INT, "the ledger is the index", 0, 2**31 - 1, synonym="log.index.interval.bytes", inert=True
    ),
    "file.delete.delay.ms": TopicConfig(
        "60000", LONG, "the store decides", 0, _MAX, synonym="log.segment.delete.delay.ms", inert=True
    ),
    "flush.messages": TopicConfig(
        str(2**63 - 1),
        LONG,
        "every commit is flushed",
        1,
        _MAX,
        synonym="log.flush.interval.messages",
        inert=True,
    ),
    "flush.ms": TopicConfig(
        str(2**63 - 1), LONG, "every commit is flushed", 0, _MAX, synonym="log.flush.interval.ms", inert=True
    ),
    "preallocate": TopicConfig("false", BOOLEAN, "the store decides", synonym="log.preallocate", inert=True),
    "leader.replication.throttled.replicas": TopicConfig("", LIST, "there are no replicas", inert=True),
    "follower.replication.throttled.replicas": TopicConfig("", LIST, "there are no replicas", inert=True),
    "remote.storage.enable": TopicConfig("false", BOOLEAN, "there is no tiered storage", inert=True),
    "remote.log.copy.disable": TopicConfig("false", BOOLEAN, "there is no tiered storage", inert=True),
    "remote.log.delete.on.disable": TopicConfig("false", BOOLEAN, "there is no tiered storage", inert=True),
    "local.retention.ms": TopicConfig(
        "-2", LONG, "there is no tiered storage", -2, _MAX, synonym="log.local.retention.ms", inert=True
    ),
    "local.retention.bytes": TopicConfig(
        "-2", LONG, "there is no tiered storage", -2, _MAX, synonym="log.local.retention.bytes", inert=True
    ),
}


def unknown(name: str) -> str:
    """Return the message for an unknown config, which suggests the nearest known one."""
    near = difflib.get_close_matches(name[:100], TOPIC_CONFIGS, n=1, cutoff=0.5)
    return f"Unknown topic config name: {name[:100]}" + (f"; did you mean {near[0]}?" if near else "")


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
        below = config.low is not None and parsed < config.low
        above = config.high is not None and parsed > config.high
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
    return {name: value for name, value in configs.items() if TOPIC_CONFIGS[name].at_creation}


def forbidden_change(before: Mapping[str, str], after: Mapping[str, str]) -> str | None:
    """Return the message for a forbidden change of a topic's configs, or None if the change is allowed."""
    for name, row in TOPIC_CONFIGS.items():
        if row.at_creation and before.get(name, row.default) != after.get(name, row.default):
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
