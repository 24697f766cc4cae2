"""Declares settings (fields with a reason, choices or limits), checks their values, and parses text."""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import Field, field, fields
from ipaddress import ip_address
from typing import Any, Final

from semel.core.topic_configs import words
from semel.principals import meant_principal

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
COUNT: Final = (1, INT_MAX)
INTERVAL: Final = (1, INT_MAX)
"""The limits of an interval or a timeout, in milliseconds."""
_CALLED: Final = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
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
    why: str,
    name: str | None = None,
    choices: tuple[str, ...] = (),
    limits: tuple[int, int | None] | None = None,
    is_list: bool = False,
) -> Any:
    """Declare a setting."""
    metadata = {"why": why, "name": name, "choices": choices, "limits": limits, "is_list": is_list}
    return field(default=default, metadata=metadata)


def check_value(declared: Field[Any], value: Any) -> None:
    """Raise ValueError if a value is outside the choices or limits of a setting."""
    choices, limits = declared.metadata["choices"], declared.metadata["limits"]
    name = declared.name.replace("_", ".")
    chosen = words(value) if declared.metadata["is_list"] else (value,)
    if choices and not all(each in choices for each in chosen):
        raise ValueError(f"{name} must be {one_of(choices)}, not {value!r}{nearest(value, choices)}")
    if limits and limits[1] is None and value < limits[0]:
        raise ValueError(f"{name} must be at least {limits[0]:,}, not {value:,}")
    if limits and limits[1] is not None and not limits[0] <= value <= limits[1]:
        raise ValueError(f"{name} must be from {limits[0]:,} to {limits[1]:,}, not {value:,}")


def check(settings: Any) -> None:
    """Raise ValueError if a setting is outside its choices or limits, or cannot be parsed."""
    for each in fields(settings):
        check_value(each, getattr(settings, each.name))
    connections_by_host(settings.max_connections_per_ip_overrides)
    principals(settings.super_users)


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


def coerce(name: str, value: Any, kind: type) -> Any:
    """Convert a value to the type of its setting. ValueError if that is impossible."""
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
        raise ValueError(f"{name} must be {_CALLED[kind]}, not {value!r}") from None
