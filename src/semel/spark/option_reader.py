"""Reads options by name, ignoring case, with a message for invalid ones.

Spark passes options in lower case. An unknown option is refused by name, because an ignored option would be
noticed too late; an option that is not supported here is refused with the reason. Only settings that tune a
Java client are ignored, with a warning. Programs bring them from Spark's Kafka source and sink, which pass
`kafka.*` to a Java consumer or producer (names of Kafka 4.4). A setting that only tunes such a client is
accepted with a warning. A setting that determines what is read or written, or who is allowed to, is refused:
the program relies on it.
"""

import difflib
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from semel.client import Partition, Security
from semel.client.net.security import NAMES as SECURITY
from semel.client.net.security import REFUSED as REFUSED_SECURITY
from semel.spark.errors import OptionError
from semel.spark.partition_offsets import PartitionOffsets, parse_vector
from semel.wire.addresses import parse_addresses

PREFIX = "kafka."

_BYTES = "keys and values are bytes here; cast them in the query"
_PIPELINE = "the position of a pipeline is stored under pipeline.id, and committed with the output"
_JAVA = "it names Java classes, and this client is written in Python"
_PARTITION = "a key decides as in every Kafka client; to choose differently, give the rows a column partition"
_TLS = "TLS is that of Python here, which has no such setting"
_SASL = (
    "the supported mechanisms are PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER, without this setting"
)

_REFUSED = {
    "key.deserializer": _BYTES,
    "value.deserializer": _BYTES,
    "key.serializer": _BYTES,
    "value.serializer": _BYTES,
    "auto.offset.reset": "choose where a query starts with startingOffsets",
    "enable.auto.commit": _PIPELINE,
    "auto.commit.interval.ms": _PIPELINE,
    "exclude.internal.topics": "subscribePattern always excludes internal topics; name them in subscribe",
    "interceptor.classes": _JAVA,
    "config.providers": _JAVA,
    "security.providers": _JAVA,
    "ssl.engine.factory.class": _JAVA,
    "transactional.id": "transactions are named after pipeline.id",
    "transaction.timeout.ms": "give the sink's own option transaction.timeout.ms, without kafka.",
    "transaction.two.phase.commit.enable": "the sink has a two-phase commit of its own",
    "enable.idempotence": "writes are always idempotent",
    "acks": "writes always wait for all replicas",
    "partitioner.class": _PARTITION,
    "partitioner.ignore.keys": _PARTITION,
    "share.acknowledgement.mode": "the source is not a share consumer",
    "ssl.keystore.certificate.chain": "give a PEM file as ssl.certificate.location",
    "ssl.keystore.key": "give a PEM file as ssl.key.location",
    "ssl.truststore.certificates": "give a PEM file as ssl.ca.location",
    **dict.fromkeys(
        (
            "ssl.cipher.suites",
            "ssl.enabled.protocols",
            "ssl.keymanager.algorithm",
            "ssl.protocol",
            "ssl.provider",
            "ssl.secure.random.implementation",
            "ssl.trustmanager.algorithm",
        ),
        _TLS,
    ),
    **dict.fromkeys(
        (
            "sasl.client.callback.handler.class",
            "sasl.kerberos.kinit.cmd",
            "sasl.kerberos.min.time.before.relogin",
            "sasl.kerberos.ticket.renew.jitter",
            "sasl.kerberos.ticket.renew.window.factor",
            "sasl.login.class",
            "sasl.login.connect.timeout.ms",
            "sasl.login.read.timeout.ms",
            "sasl.login.refresh.buffer.seconds",
            "sasl.login.refresh.min.period.seconds",
            "sasl.login.refresh.window.factor",
            "sasl.login.refresh.window.jitter",
            "sasl.login.retry.backoff.max.ms",
            "sasl.login.retry.backoff.ms",
            "sasl.oauthbearer.clock.skew.seconds",
            "sasl.oauthbearer.expected.audience",
            "sasl.oauthbearer.expected.issuer",
            "sasl.oauthbearer.header.urlencode",
            "sasl.oauthbearer.jwks.endpoint.url",
            "sasl.oauthbearer.scope.claim.name",
            "sasl.oauthbearer.sub.claim.name",
        ),
        _SASL,
    ),
    **REFUSED_SECURITY,
}

_IGNORED = (
    # Of both clients.
    "auto.include.jmx.reporter",
    "bootstrap.resolve.timeout.ms",
    "client.dns.lookup",
    "connections.max.idle.ms",
    "enable.metrics.push",
    "metadata.cluster.check.enable",
    "metadata.max.age.ms",
    "metadata.recovery.rebootstrap.trigger.ms",
    "metadata.recovery.strategy",
    "metric.reporters",
    "metrics.num.samples",
    "metrics.recording.level",
    "metrics.sample.window.ms",
    "receive.buffer.bytes",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
    "send.buffer.bytes",
    "socket.connection.setup.timeout.max.ms",
    "socket.connection.setup.timeout.ms",
    # Of consumers. The source uses no group, checks every batch, and creates no topics.
    "allow.auto.create.topics",
    "check.crcs",
    "client.rack",
    "fetch.max.bytes",
    "fetch.max.wait.ms",
    "fetch.min.bytes",
    "group.id",
    "group.instance.id",
    "group.protocol",
    "group.remote.assignor",
    "heartbeat.interval.ms",
    "isolation.level",
    "max.partition.fetch.bytes",
    "max.poll.interval.ms",
    "max.poll.records",
    "partition.assignment.strategy",
    "session.timeout.ms",
    # Of producers. The sink builds its own batches and retries requests until request.timeout.ms.
    "batch.size",
    "buffer.memory",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "delivery.timeout.ms",
    "linger.ms",
    "max.block.ms",
    "max.in.flight.requests.per.connection",
    "max.request.size",
    "metadata.max.idle.ms",
    "partitioner.adaptive.partitioning.enable",
    "partitioner.availability.timeout.ms",
    "retries",
)

#: Options that Spark's Kafka source and sink forbid too, or that would change the meaning, and why.
REFUSED = {PREFIX + name: reason for name, reason in _REFUSED.items()}
#: Options that are accepted with a warning, unless they are options of ours.
IGNORED = frozenset(PREFIX + name for name in _IGNORED)


COMMON = (
    "kafka.bootstrap.servers",
    "kafka.client.id",
    "kafka.request.timeout.ms",
    "kafka.default.api.timeout.ms",
    "pipeline.id",
    *(PREFIX + name for name in SECURITY),
)
CLIENT_ID = "semel-spark"
REQUEST_TIMEOUT_MS = 30_000
#: Long enough for a broker that is restarted.
DEFAULT_API_TIMEOUT_MS = 120_000

#: The largest number of an option: what a version of Delta, an offset or a time in milliseconds can be.
NUMBER_MAX = (1 << 63) - 1

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_SPAN = re.compile(r"(\d{1,15})\s*(us|ms|s|m|min|h|d)?")
_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}


class Where(Enum):
    """Offsets by name."""

    EARLIEST = "earliest"
    LATEST = "latest"
    COMMITTED = "committed"


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first offsets at or after a time in milliseconds: one time for all partitions, or one for each."""

    at_ms: int | PartitionOffsets
    or_latest: bool  # if there is no such record; otherwise that is an error


@dataclass(frozen=True, slots=True)
class Address:
    """How to reach the cluster."""

    bootstrap_servers: str
    client_id: str = CLIENT_ID
    timeout_s: float = REQUEST_TIMEOUT_MS / 1000
    patience_s: float = DEFAULT_API_TIMEOUT_MS / 1000
    security: Security | None = None


@dataclass(frozen=True, slots=True)
class Topics:
    """Which partitions are read: exactly one of the three is set."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[Partition, ...] = ()


class OptionReader:
    """Options by name, with messages for invalid ones."""

    def __init__(
        self, options: Mapping[str, str], known: Sequence[str], elsewhere: Mapping[str, str] | None = None
    ) -> None:
        """Refuse what is not `known`. `elsewhere` says where the options of a related class belong."""
        self._options = {name.lower(): value for name, value in options.items()}
        names = {name.lower(): name for name in known}
        others = {name.lower(): (name, place) for name, place in (elsewhere or {}).items()}
        ignored = sorted(self._options.keys() & IGNORED - names.keys())
        if ignored:
            # Python shows a warning once per process. Spark's Python processes write to the driver's stderr.
            warnings.warn(f"Kafka client settings without effect here: {', '.join(ignored)}", stacklevel=1)
        for name in self._options:
            if name in names or name in ignored:
                continue
            if name in REFUSED:
                raise OptionError(f"the option {name} is not supported: {REFUSED[name]}")
            if name in others:
                right, place = others[name]
                raise OptionError(f"the option {right!r} belongs to {place}")
            raise OptionError(_unknown(name, names))

    def text(self, name: str) -> str | None:
        """Return the value, or None if it is missing or empty."""
        return (self._options.get(name.lower()) or "").strip() or None

    def number(self, name: str, default: int, least: int = 1) -> int:
        """Return an integer of at least `least`."""
        text = self.text(name)
        if text is None:
            return default
        digits = text.lstrip("0") or "0"
        is_number = text.isascii() and text.isdigit()
        if is_number and (len(digits) > len(str(NUMBER_MAX)) or int(digits) > NUMBER_MAX):
            raise OptionError(f"{name} must be a whole number of 64 bits, which is {NUMBER_MAX} at most")
        if not is_number or int(digits) < least:
            bound = "above 0" if least == 1 else f"of {least} or more"
            raise OptionError(f"{name} must be a whole number {bound}, not {text!r}")
        return int(digits)

    def span_s(self, name: str, default_s: float) -> float:
        """Return a time span in Spark's notation: 500ms, 30s, 15m, 2h; a plain number is milliseconds."""
        text = self.text(name)
        if text is None:
            return default_s
        found = _SPAN.fullmatch(text.lower())
        if found is None:
            raise OptionError(f"{name} must be a time span such as 500ms, 30s or 15m, not {text!r}")
        return int(found[1]) * _UNITS_S[found[2] or "ms"]

    def choice(self, name: str, default: str, choices: Sequence[str]) -> str:
        """Return one of a few words."""
        text = (self.text(name) or default).lower()
        if text not in choices:
            raise OptionError(f"{name} must be {' or '.join(choices)}, not {text!r}")
        return text

    def flag(self, name: str, default: bool) -> bool:
        """Return an option that is true or false."""
        return self.choice(name, str(default).lower(), ("true", "false")) == "true"

    def where(self, name: str, default: Where) -> Where | PartitionOffsets:
        """Return offsets: a word, or JSON for every partition."""
        text = self.text(name)
        if text is None:
            return default
        if text.startswith("{"):
            return parse_vector(name, text)
        return Where(self.choice(name, "", tuple(each.value for each in Where)))

    def at_time(self, for_all: str, for_each: str, *, or_latest: bool) -> AtTime | None:
        """Return offsets by time: a timestamp for all partitions, or JSON for each."""
        if self.text(for_all) is not None:
            return AtTime(self.number(for_all, 0, least=0), or_latest)
        text = self.text(for_each)
        return None if text is None else AtTime(parse_vector(for_each, text, least=0), or_latest)

    def pipeline_id(self) -> str | None:
        """Return the name of the pipeline, which is a group and the prefix of transactional ids."""
        return self.name("pipeline.id")

    def name(self, option: str) -> str | None:
        """Return a name that can be part of a transactional id."""
        text = self.text(option)
        if text is not None and not _NAME.fullmatch(text):
            raise OptionError(f"{option} must be 1 to 200 letters, digits, '.', '_' or '-', not {text!r}")
        return text

    def address(self) -> Address:
        """Return how to reach the cluster."""
        servers = self.text("kafka.bootstrap.servers")
        if servers is None:
            raise OptionError("the option kafka.bootstrap.servers is missing; for example 127.0.0.1:9092")
        try:
            parse_addresses(servers)
        except ValueError as error:
            raise OptionError(f"kafka.bootstrap.servers: {error}") from None
        timeout_ms = self.number("kafka.request.timeout.ms", REQUEST_TIMEOUT_MS)
        patience_ms = self.number("kafka.default.api.timeout.ms", max(timeout_ms, DEFAULT_API_TIMEOUT_MS))
        if patience_ms < timeout_ms:
            raise OptionError(
                f"kafka.default.api.timeout.ms, {patience_ms}, limits a whole operation; it "
                f"cannot be less than kafka.request.timeout.ms, {timeout_ms}, which limits one answer"
            )
        client_id = self.text("kafka.client.id") or CLIENT_ID
        return Address(servers, client_id, timeout_ms / 1000, patience_ms / 1000, self._security())

    def _security(self) -> Security | None:
        settings = {name: self._options[PREFIX + name] for name in SECURITY if PREFIX + name in self._options}
        if not settings:
            return None
        try:
            return Security.of(settings)
        except ValueError as error:
            raise OptionError(f"the options kafka.* are invalid: {error}") from None

    def topics(self) -> Topics:
        """Return which partitions are read."""
        names, pattern, assigned = (self.text(name) for name in ("subscribe", "subscribePattern", "assign"))
        if sum(each is not None for each in (names, pattern, assigned)) != 1:
            raise OptionError("give exactly one of the options subscribe, subscribePattern and assign")
        if names is not None:
            return Topics(names=tuple(name.strip() for name in names.split(",") if name.strip()))
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                raise OptionError(
                    f"subscribePattern {pattern!r} is not a regular expression: {error}"
                ) from None
            return Topics(pattern=pattern)
        return Topics(partitions=_parse_assigned(assigned or ""))


def _unknown(name: str, names: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(name, [*names, *IGNORED], n=1)
    hint = (
        f"; did you mean {names.get(near[0], near[0])!r}?"
        if near
        else f". There are {', '.join(sorted(names.values()))}"
    )
    return f"there is no option {name!r} here{hint}"


def _parse_assigned(text: str) -> tuple[Partition, ...]:
    try:
        found: Any = json.loads(text)
        assigned = tuple((str(topic), int(number)) for topic, numbers in found.items() for number in numbers)
    except (ValueError, TypeError, AttributeError, RecursionError):
        assigned = ()
    if not assigned:
        raise OptionError(f'assign must be JSON such as {{"orders":[0,1]}}, not {text!r}')
    return assigned
