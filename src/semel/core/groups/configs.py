"""Configs of groups: names, bounds, and the effective values of a group (KIP-848, 932, 1240).

A group follows the settings of the broker for every config that it does not set. Settings are passed in by
their dotted names. A value is checked against the bounds when it is set; if a bound is changed later, the
value is clamped to the bounds when it is used.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from semel.core.configs import BOOLEAN, INT, NAME_SHOWN_MAX, STRING, Config, suggestion
from semel.core.shares.commands import DeliveryLimits

SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
SHARE_SESSION_TIMEOUT: Final = "share.session.timeout.ms"
SHARE_HEARTBEAT_INTERVAL: Final = "share.heartbeat.interval.ms"
SHARE_LOCK_DURATION: Final = "share.record.lock.duration.ms"
SHARE_DELIVERIES: Final = "share.delivery.count.limit"
SHARE_LOCKS: Final = "share.partition.max.record.locks"
SHARE_RESET: Final = "share.auto.offset.reset"
SHARE_ISOLATION: Final = "share.isolation.level"
SHARE_RENEWAL: Final = "share.renew.acknowledge.enable"
READ_COMMITTED: Final = "read_committed"


def _follow(setting: str, low: str | int, high: str | int, doc: str) -> Config:
    return Config("", INT, doc, low, high, setting=setting)


GROUP_CONFIGS: Final[dict[str, Config]] = {
    SESSION_TIMEOUT: _follow(
        "group.consumer.session.timeout.ms",
        "group.consumer.min.session.timeout.ms",
        "group.consumer.max.session.timeout.ms",
        "a member that is silent for so long is removed from a group of the consumer protocol",
    ),
    HEARTBEAT_INTERVAL: _follow(
        "group.consumer.heartbeat.interval.ms",
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
        "how often members of a group of the consumer protocol send heartbeats",
    ),
    SHARE_SESSION_TIMEOUT: _follow(
        "group.share.session.timeout.ms",
        1_000,
        1_800_000,
        "a member that is silent for so long is removed from a share group",
    ),
    SHARE_HEARTBEAT_INTERVAL: _follow(
        "group.share.heartbeat.interval.ms",
        100,
        300_000,
        "how often members of a share group send heartbeats",
    ),
    SHARE_LOCK_DURATION: _follow(
        "group.share.record.lock.duration.ms",
        1_000,
        3_600_000,
        "how long a member of a share group has for a record",
    ),
    SHARE_DELIVERIES: _follow(
        "group.share.delivery.count.limit",
        2,
        25,
        "deliveries of a record to a share group before it is given up",
    ),
    SHARE_LOCKS: _follow(
        "group.share.partition.max.record.locks",
        100,
        10_000,
        "records in flight in a partition, from the first that is not settled",
    ),
    SHARE_RESET: Config(
        "latest",
        STRING,
        "where a share group begins: at the end of the log, at its start, or so long ago",
        choices=("latest", "earliest"),
    ),
    SHARE_ISOLATION: Config(
        "read_uncommitted",
        STRING,
        "with read_committed, records of open and aborted transactions are not delivered to a share group",
        choices=("read_uncommitted", READ_COMMITTED),
    ),
    SHARE_RENEWAL: Config(
        "true",
        BOOLEAN,
        "whether members of a share group may renew the locks of records (KIP-1222)",
        choices=("true", "false"),
    ),
}
"""A number follows the setting of the broker, and may have its bounds in settings."""
SETTINGS: Final = frozenset(
    name
    for row in GROUP_CONFIGS.values()
    for name in (row.setting, row.low, row.high)
    if isinstance(name, str) and name
)
"""The settings that these rules need."""

_SESSIONS: Final = ((SESSION_TIMEOUT, HEARTBEAT_INTERVAL), (SHARE_SESSION_TIMEOUT, SHARE_HEARTBEAT_INTERVAL))
_MEANINGLESS: Final = {
    "consumer.assign": "assignments are computed at once, in the decision that needs them",
    "streams.": "there are no streams groups",
}
"""Prefixes of Kafka's configs that would have no effect here, and why."""
_DIGITS: Final = re.compile(r"[0-9]{1,10}")
# Days, hours, minutes and seconds are bounded, because a thousand digits are slow to parse.
_DURATION: Final = re.compile(
    r"by_duration:P(?:([0-9]{1,9})D)?"
    r"(?:T(?=[0-9])(?:([0-9]{1,9})H)?(?:([0-9]{1,9})M)?(?:([0-9]{1,9})(?:\.[0-9]{1,9})?S)?)?",
    re.IGNORECASE,
)

Limits = Mapping[str, int]
"""The values of `SETTINGS`."""


class GroupTimeouts(NamedTuple):
    """The effective timeouts of a group of the consumer protocol."""

    session_timeout_ms: int
    heartbeat_interval_ms: int


class ShareConfigs(NamedTuple):
    """The effective configs of a share group."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    limits: DeliveryLimits
    reset: str
    is_committed_only: bool
    may_renew: bool

    @property
    def reset_ms(self) -> int | None:
        """How far back in time the group begins; None if it begins at the start or the end of the log."""
        return _duration_ms(self.reset)


def unknown(name: str) -> str | None:
    """Return the message for a config that groups do not have, or None if they have it."""
    if name in GROUP_CONFIGS:
        return None
    for beginning, reason in _MEANINGLESS.items():
        if name.startswith(beginning):
            return f"The group config {name[:NAME_SHOWN_MAX]} is not supported: {reason}"
    return f"Unknown group config name: {name[:NAME_SHOWN_MAX]}{suggestion(name, GROUP_CONFIGS)}"


def problem(configs: Mapping[str, str], limits: Limits) -> str | None:
    """Return the message for invalid configs of a group, or None if they are valid."""
    for name, value in configs.items():
        wrong = unknown(name) or _invalid(name, value.strip(), limits)
        if wrong:
            return wrong
    for session, heartbeat in _SESSIONS:
        timeout_ms, interval_ms = (_number(name, configs, limits) for name in (session, heartbeat))
        if timeout_ms <= interval_ms and (session in configs or heartbeat in configs):
            return f"{session} ({timeout_ms}) must be greater than {heartbeat} ({interval_ms})"
    return None


def _invalid(name: str, value: str, limits: Limits) -> str | None:
    row = GROUP_CONFIGS[name]
    if row.choices:
        if value in row.choices or (name == SHARE_RESET and _duration_ms(value) is not None):
            return None
        return f"Invalid value {value[:100]!r} for configuration {name}: not {allowed(name)}"
    if not _DIGITS.fullmatch(value):
        return f"Invalid value {value[:100]!r} for configuration {name}: not a number"
    lowest, highest = _bound(row.low, limits), _bound(row.high, limits)
    if int(value) < lowest:
        return f"{name} must be at least {lowest}{_origin(row.low)}, not {value}"
    if int(value) > highest:
        return f"{name} must be at most {highest}{_origin(row.high)}, not {value}"
    return None


def allowed(name: str) -> str:
    """Return the words that are valid for a config, for an error message."""
    more = ("by_duration:PnDTnHnMnS",) if name == SHARE_RESET else ()
    return " or ".join((*GROUP_CONFIGS[name].choices, *more))


def _duration_ms(text: str) -> int | None:
    """Return the duration of ``by_duration:`` in milliseconds; None for any other text."""
    found = _DURATION.fullmatch(text)
    if found is None or not any(found.groups()):
        return None
    days, hours, minutes, seconds = (int(each or 0) for each in found.groups())
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000


def _bound(bound: str | int | None, limits: Limits) -> int:
    return limits[bound] if isinstance(bound, str) else bound or 0


def _origin(bound: str | int | None) -> str:
    return f" ({bound})" if isinstance(bound, str) else ""


def timeouts(configs: Mapping[str, str], limits: Limits) -> GroupTimeouts:
    """Return the effective timeouts of a group with these configs, which were valid when they were set."""
    return GroupTimeouts(*_session(SESSION_TIMEOUT, HEARTBEAT_INTERVAL, configs, limits))


def _session(session: str, heartbeat: str, configs: Mapping[str, str], limits: Limits) -> tuple[int, int]:
    """Return the timeout and the interval, which is reduced if it is not shorter than the timeout.

    Broker settings may contradict each other, or the configs of a group.
    """
    timeout_ms, interval_ms = _number(session, configs, limits), _number(heartbeat, configs, limits)
    return timeout_ms, interval_ms if interval_ms < timeout_ms else max(timeout_ms // 3, 1)


def share_configs(configs: Mapping[str, str], limits: Limits) -> ShareConfigs:
    """Return the effective configs of a share group, given configs that were valid when they were set."""
    return ShareConfigs(
        *_session(SHARE_SESSION_TIMEOUT, SHARE_HEARTBEAT_INTERVAL, configs, limits),
        DeliveryLimits(
            locks_max=_number(SHARE_LOCKS, configs, limits),
            delivery_limit=_number(SHARE_DELIVERIES, configs, limits),
            lock_ms=_number(SHARE_LOCK_DURATION, configs, limits),
        ),
        reset=_word(SHARE_RESET, configs),
        is_committed_only=_word(SHARE_ISOLATION, configs) == READ_COMMITTED,
        may_renew=_word(SHARE_RENEWAL, configs) == "true",
    )


def _number(name: str, configs: Mapping[str, str], limits: Limits) -> int:
    row = GROUP_CONFIGS[name]
    if name not in configs:
        return limits[row.setting]
    return max(_bound(row.low, limits), min(int(configs[name]), _bound(row.high, limits)))


def _word(name: str, configs: Mapping[str, str]) -> str:
    return configs.get(name, GROUP_CONFIGS[name].default).strip()
