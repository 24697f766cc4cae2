"""Declares settings (fields with a reason, choices or limits), checks their values, and parses text."""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from ipaddress import ip_address
from typing import Any, Final

from semel.core.configs import BOOLEAN, DOUBLE, LIST, LONG, STRING, Config, ConfigKind, words
from semel.principals import meant_principal

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
NOT_NEGATIVE: Final = (0, INT_MAX)
COUNT: Final = (1, INT_MAX)
INTERVAL: Final = (1, INT_MAX)
"""The limits of an interval or a timeout, in milliseconds."""
_TYPES: Final[Mapping[ConfigKind, tuple[type, str]]] = {
    LONG: (int, "a whole number"),
    DOUBLE: (float, "a number"),
    BOOLEAN: (bool, "true or false"),
    STRING: (str, "text"),
    LIST: (str, "text"),
}
# Bounded, because a thousand digits are slow to parse and cannot be in range.
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}(\.[0-9]{0,19})?([eE][+-]?[0-9]{1,3})?")


ELSEWHERE: Final[Mapping[str, str]] = {
    "advertised.listeners": "the option --advertise of semel serve",
    "authorizer.class.name": "semel.authorizer",
    "broker.id": "node.id",
    "listeners": "the option --listen of semel serve",
    "log.dir": "the option --data of semel serve",
    "log.dirs": "the option --data of semel serve",
    "log.retention.hours": "log.retention.ms",
    "log.retention.minutes": "log.retention.ms",
    "ssl.keystore.certificate.chain": "ssl.certificate.location",
    "ssl.keystore.key": "ssl.key.location",
    "ssl.keystore.location": "ssl.certificate.location",
    "ssl.truststore.certificates": "ssl.ca.location",
    "ssl.truststore.location": "ssl.ca.location",
}
"""Kafka's settings that have another name in Semel. Similarly spelled settings mean something else."""


class UnknownSetting(ValueError):
    """A setting that does not exist; the message names the nearest one that does."""


def unknown(name: str, known: Iterable[str]) -> UnknownSetting:
    """Return the error for an unknown name."""
    here = ELSEWHERE.get(name)
    hint = f"; here it is {here}" if here else nearest(name, known)
    return UnknownSetting(f"there is no setting {name!r}{hint}")


def setting(
    default: Any,
    doc: str,
    limits: tuple[int, int | None] | None = None,
    *,
    choices: tuple[str, ...] = (),
    is_list: bool = False,
    fixed: str = "",
) -> Any:
    """Declare a setting. Any: the type is that of the field."""
    kind = LIST if is_list else next(kind for kind, (type_, _) in _TYPES.items() if type_ is type(default))
    low, high = limits or (None, None)
    return field(
        default=default,
        metadata={"config": Config(text_of(default), kind, doc, low, high, choices, fixed=fixed)},
    )


def text_of(value: object) -> str:
    """Return a value of a setting as text."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def check(values: Mapping[str, Any], table: Mapping[str, Config]) -> None:
    """Raise ValueError if a setting is outside its choices or limits, or cannot be parsed."""
    for name, value in values.items():
        _check_value(name, value, table[name])
    connections_by_host(values["max.connections.per.ip.overrides"])
    principals(values["super.users"])


def _check_value(name: str, value: Any, config: Config) -> None:
    choices, low, high = config.choices, config.low, config.high
    chosen = words(value) if config.kind is LIST else (value,)
    if choices and not all(word in choices for word in chosen):
        raise ValueError(f"{name} must be {one_of(choices)}, not {value!r}{nearest(value, choices)}")
    if low is not None and high is None and value < low:
        raise ValueError(f"{name} must be at least {low:,}, not {value:,}")
    if low is not None and high is not None and not low <= value <= high:
        raise ValueError(f"{name} must be from {low:,} to {high:,}, not {value:,}")


def connections_by_host(overrides: str) -> dict[str, int]:
    """Parse ``max.connections.per.ip.overrides``. ValueError if it is invalid."""
    limits: dict[str, int] = {}
    for each in filter(None, (part.strip() for part in overrides.split(","))):
        host, _, limit = each.rpartition(":")
        if not host or not limit.isdecimal():
            raise ValueError(f"max.connections.per.ip.overrides takes ADDRESS:NUMBER,…, not {each!r}")
        try:
            # As connections report addresses: without brackets, and IPv6 in its shortest form.
            address = str(ip_address(host.removeprefix("[").removesuffix("]")))
        except ValueError:
            raise ValueError(
                f"max.connections.per.ip.overrides needs an IP address, not {host!r}: names are not looked up"
            ) from None
        limits[address] = int(limit)
    return limits


def principals(super_users: str) -> frozenset[str]:
    """Parse ``super.users``. ValueError if invalid: a typo must neither add nor lose a super user."""
    found = frozenset(filter(None, (each.strip() for each in super_users.split(";"))))
    for each in found:
        meant = meant_principal(each)
        if ",User:" in each or meant in (None, "User:*"):
            raise ValueError(f"super.users takes User:NAME;User:NAME;…, not {each!r}")
        if meant != each:
            raise ValueError(f"super.users takes User:NAME;…, not {each!r}; did you mean {meant!r}?")
    return found


def one_of(choices: Iterable[str]) -> str:
    """Return the choices as text, with `empty` for the empty choice."""
    known = tuple(choices)
    return " or ".join([*filter(None, known), *(["empty"] if "" in known else [])])


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean ...?` with the nearest known word; empty if none is near."""
    near = difflib.get_close_matches(word, list(filter(None, known)), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def coerce(name: str, value: Any, config: Config) -> Any:
    """Convert a value to the type of its setting. ValueError if that is impossible."""
    kind, called = _TYPES[config.kind]
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    text = str(value).strip()
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if kind is not str and not _NUMBER.fullmatch(text):
            raise ValueError(text)
        return kind(text)
    except (ValueError, KeyError):
        raise ValueError(f"{name} must be {called}, not {value!r}") from None
