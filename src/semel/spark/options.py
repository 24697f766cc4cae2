"""The options of the source and of the sink, checked before anything is sent.

Names are those of Spark's own Kafka source and sink, to the letter; `pipeline.id`, `delivery.guarantee` and
`transaction.timeout.ms` are ours. Spark hands options over in lower case, so case does not matter. An option
that is not known is refused by its name, because one that is silently ignored is found when it is too late.
"""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

from semel.client import Codec, FetchLimits, Isolation, Partition
from semel.client.cluster import parse_addresses
from semel.spark.errors import OptionError
from semel.spark.vectors import Vector, parse_vector

COMMON = ("kafka.bootstrap.servers", "kafka.client.id", "kafka.request.timeout.ms", "pipeline.id")
SOURCE = (
    *COMMON,
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "failOnDataLoss",
    "includeHeaders",
    "kafka.isolation.level",
    "kafka.fetch.max.bytes",
    "kafka.max.partition.fetch.bytes",
)
BATCH_SOURCE = (*SOURCE, "endingOffsets")
STREAM_SOURCE = (*SOURCE, "maxOffsetsPerTrigger")
SINK = (*COMMON, "topic", "delivery.guarantee", "transaction.timeout.ms", "kafka.compression.type")
STREAM_SINK = (*SINK, "checkpointLocation")

CLIENT_ID = "semel-spark"
REQUEST_TIMEOUT_MS = 30_000
#: As long as brokers allow by default. A transaction that is decided has to be open until a driver that died
#: is back; those that are not decided are aborted by the next start, whatever their timeout.
TRANSACTION_TIMEOUT_MS = 900_000

_PIPELINE_ID = re.compile(r"[A-Za-z0-9._-]{1,200}")


class Where(Enum):
    """Offsets by name."""

    EARLIEST = "earliest"
    LATEST = "latest"
    COMMITTED = "committed"


class Guarantee(Enum):
    """How often an input record counts in the output."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


@dataclass(frozen=True, slots=True)
class Address:
    """How the cluster is reached."""

    bootstrap_servers: str
    client_id: str = CLIENT_ID
    timeout_s: float = REQUEST_TIMEOUT_MS / 1000


@dataclass(frozen=True, slots=True)
class Topics:
    """Which partitions are read: exactly one of the three is given."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[Partition, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What the source was told."""

    address: Address
    topics: Topics
    start: Where | Vector
    end: Where | Vector
    pipeline_id: str | None
    isolation: Isolation
    limits: FetchLimits
    fail_on_data_loss: bool
    has_headers: bool
    max_per_trigger: int | None

    @classmethod
    def of(cls, options: Mapping[str, str], *, is_stream: bool) -> Self:
        """Read them; OptionError says which one is wrong."""
        given = _Given(options, STREAM_SOURCE if is_stream else BATCH_SOURCE)
        pipeline_id = given.pipeline_id()
        default = Where.LATEST if is_stream else Where.EARLIEST
        start = given.where("startingOffsets", default if pipeline_id is None else Where.COMMITTED)
        if start is Where.COMMITTED and pipeline_id is None:
            raise OptionError(
                "startingOffsets=committed goes on where a pipeline stopped: give its pipeline.id"
            )
        if start is Where.LATEST and not is_stream:
            raise OptionError(
                "startingOffsets of a batch is earliest, committed or JSON: there is nothing behind latest"
            )
        end = Where.LATEST if is_stream else given.where("endingOffsets", Where.LATEST)
        if end in (Where.EARLIEST, Where.COMMITTED):
            raise OptionError("endingOffsets is latest or JSON with the offset behind the last record")
        most = given.number("maxOffsetsPerTrigger", 0) if is_stream else 0
        limits = FetchLimits()
        return cls(
            address=given.address(),
            topics=given.topics(),
            start=start,
            end=end,
            pipeline_id=pipeline_id,
            isolation=Isolation.of(
                given.choice(
                    "kafka.isolation.level", "read_committed", ("read_committed", "read_uncommitted")
                )
            ),
            limits=FetchLimits(
                max_bytes=given.number("kafka.fetch.max.bytes", limits.max_bytes),
                partition_max_bytes=given.number(
                    "kafka.max.partition.fetch.bytes", limits.partition_max_bytes
                ),
            ),
            fail_on_data_loss=given.flag("failOnDataLoss", True),
            has_headers=given.flag("includeHeaders", False),
            max_per_trigger=most or None,
        )


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What the sink was told."""

    address: Address
    topic: str | None
    guarantee: Guarantee
    pipeline_id: str | None
    transaction_timeout_ms: int
    codec: Codec
    checkpoint: str | None

    @classmethod
    def of(cls, options: Mapping[str, str], *, is_stream: bool) -> Self:
        """Read them; OptionError says which one is wrong."""
        given = _Given(options, STREAM_SINK if is_stream else SINK)
        guarantee = Guarantee(
            given.choice("delivery.guarantee", "exactly-once", tuple(each.value for each in Guarantee))
        )
        pipeline_id = given.pipeline_id()
        checkpoint = given.text("checkpointLocation") if is_stream else None
        if guarantee is Guarantee.EXACTLY_ONCE:
            if pipeline_id is None:
                raise OptionError(
                    "exactly-once needs the option pipeline.id, a name that stays the same as long as the "
                    "pipeline lives. Without one, say delivery.guarantee=at-least-once"
                )
            if is_stream and checkpoint is None:
                raise OptionError(
                    "exactly-once needs the option checkpointLocation on this query; one in the settings of "
                    "the session does not reach the sink"
                )
        codecs = tuple(codec.name.lower() for codec in Codec)
        return cls(
            address=given.address(),
            topic=given.text("topic"),
            guarantee=guarantee,
            pipeline_id=pipeline_id,
            transaction_timeout_ms=given.number("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS),
            codec=Codec[given.choice("kafka.compression.type", "none", codecs).upper()],
            checkpoint=checkpoint,
        )


def check_source_names(options: Mapping[str, str]) -> None:
    """Refuse what neither a batch nor a stream knows, while it is not clear which of them will be read."""
    _Given(options, tuple(dict.fromkeys((*BATCH_SOURCE, *STREAM_SOURCE))))


class _Given:
    """Options by name, and what to say of wrong ones."""

    def __init__(self, options: Mapping[str, str], known: Sequence[str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}
        names = {name.lower(): name for name in known}
        for name in self._options:
            if name not in names:
                raise OptionError(_unknown(name, names))

    def text(self, name: str) -> str | None:
        """The value, or None if it is not given or empty."""
        return (self._options.get(name.lower()) or "").strip() or None

    def number(self, name: str, default: int) -> int:
        """A whole number above zero."""
        text = self.text(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and int(text) > 0):
            raise OptionError(f"{name} is a whole number above 0, not {text!r}")
        return int(text)

    def choice(self, name: str, default: str, choices: Sequence[str]) -> str:
        """One of a few words."""
        text = (self.text(name) or default).lower()
        if text not in choices:
            raise OptionError(f"{name} is {' or '.join(choices)}, not {text!r}")
        return text

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        return self.choice(name, str(default).lower(), ("true", "false")) == "true"

    def where(self, name: str, default: Where) -> Where | Vector:
        """Offsets: a word, or JSON for every partition."""
        text = self.text(name)
        if text is None:
            return default
        if text.startswith("{"):
            return parse_vector(name, text)
        return Where(self.choice(name, "", tuple(each.value for each in Where)))

    def pipeline_id(self) -> str | None:
        """The name of the pipeline. It is a group and the beginning of transactional ids."""
        text = self.text("pipeline.id")
        if text is not None and not _PIPELINE_ID.fullmatch(text):
            raise OptionError(f"pipeline.id has 1 to 200 letters, digits, '.', '_' or '-', unlike {text!r}")
        return text

    def address(self) -> Address:
        """Where the cluster is."""
        servers = self.text("kafka.bootstrap.servers")
        if servers is None:
            raise OptionError("the option kafka.bootstrap.servers is missing; for example 127.0.0.1:9092")
        try:
            parse_addresses(servers)
        except ValueError as error:
            raise OptionError(f"kafka.bootstrap.servers: {error}") from None
        timeout_ms = self.number("kafka.request.timeout.ms", REQUEST_TIMEOUT_MS)
        return Address(servers, self.text("kafka.client.id") or CLIENT_ID, timeout_ms / 1000)

    def topics(self) -> Topics:
        """Which partitions are read."""
        names, pattern, assigned = (self.text(name) for name in ("subscribe", "subscribePattern", "assign"))
        if sum(each is not None for each in (names, pattern, assigned)) != 1:
            raise OptionError("give exactly one of the options subscribe, subscribePattern and assign")
        if names is not None:
            return Topics(names=tuple(name.strip() for name in names.split(",") if name.strip()))
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                raise OptionError(f"subscribePattern {pattern!r} is no regular expression: {error}") from None
            return Topics(pattern=pattern)
        return Topics(partitions=_parse_assigned(assigned or ""))


def _unknown(name: str, names: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    hint = (
        f"; did you mean {names[near[0]]!r}?" if near else f". There are {', '.join(sorted(names.values()))}"
    )
    return f"there is no option {name!r} here{hint}"


def _parse_assigned(text: str) -> tuple[Partition, ...]:
    try:
        found: Any = json.loads(text)
        assigned = tuple((str(topic), int(number)) for topic, numbers in found.items() for number in numbers)
    except (ValueError, TypeError, AttributeError):
        assigned = ()
    if not assigned:
        raise OptionError(f'assign is JSON such as {{"orders":[0,1]}}, not {text!r}')
    return assigned
