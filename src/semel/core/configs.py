"""What all configs have in common: a row of a table, the kinds of values, and operations that change them.

There is a table for each scope: topics (``topic_configs``), groups (``groups.configs``) and brokers
(``semel.config``). The modules of the tables say which values are valid.
"""

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

VALUE_LENGTH_MAX: Final = 4_096
"""Maximum length of a value. No config needs more, and the values are kept in memory."""
NAME_SHOWN_MAX: Final = 100
"""How much of an unknown name an error message repeats."""


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

BOOLEAN: Final = ConfigKind(1, _boolean)
STRING: Final = ConfigKind(2, str)
INT: Final = ConfigKind(3, _integer)
LONG: Final = ConfigKind(5, _integer)
DOUBLE: Final = ConfigKind(6, _decimal)
LIST: Final = ConfigKind(7, words)


class Config(NamedTuple):
    """One row of a table."""

    default: str
    kind: ConfigKind
    doc: str
    low: int | str | None = None
    """The smallest value, or the name of the broker setting that holds it."""
    high: int | str | None = None
    choices: tuple[str, ...] = ()
    setting: str = ""
    """The broker setting that provides the default, if any."""
    synonym: str = ""
    """The name of the default in Kafka, if there is no such setting here."""
    inert: bool = False
    """Accepted and kept, but without effect."""
    fixed: str = ""
    """Why it cannot be changed; empty if it can."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean ...?` with the most similar known name; empty if none is similar."""
    near = difflib.get_close_matches(name[:NAME_SHOWN_MAX], known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


SET: Final = 0
DELETE: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3
"""The operations of IncrementalAlterConfigs, by their numbers on the wire."""

ConfigOperation = tuple[str, int, str | None]
"""A config's name, an operation, and its value."""


class InvalidOperation(ValueError):
    """An operation is unknown or impossible for a config; the message says why."""


def operate(configs: dict[str, str], operation: ConfigOperation, default: str | None) -> None:
    """Apply an operation to configs; raise `InvalidOperation` if it is unknown or impossible for the config.

    `default` is the value of a list config that is not set; None for a config that is not a list.
    """
    name, verb, value = operation
    if verb == DELETE:
        configs.pop(name, None)
        return
    if verb not in (SET, APPEND, SUBTRACT):
        raise InvalidOperation(f"Unknown operation {verb} on {name}")
    if value is None:
        raise InvalidOperation(f"{name} needs a value")
    if verb != SET:
        value = _listed(configs, name, verb, value, default)
    configs[name] = value


def _listed(configs: dict[str, str], name: str, verb: int, value: str, default: str | None) -> str:
    if default is None:
        how = "APPEND to" if verb == APPEND else "SUBTRACT from"
        raise InvalidOperation(f"Can't {how} key {name} because its type is not LIST")
    given, present = words(value), words(configs.get(name, default))
    if verb == APPEND:
        present += tuple(word for word in dict.fromkeys(given) if word not in present)
    else:
        present = tuple(word for word in present if word not in given)
    return ",".join(present)
