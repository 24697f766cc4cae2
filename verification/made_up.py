"""Generate messages from their declarations: every field, every version, values of every kind."""

import random
from typing import Any, Final

from semel.wire.messages import APIS
from semel.wire.schema import Message
from semel.wire.spec import FIXED_SIZES, Field, members

UNSIGNED: Final = {"uint16", "uint32"}
TEXTS: Final = ("", "a", "orders", "ключ", "x" * 300)


def messages() -> list[tuple[type[Message], int]]:
    """Return every request and response in every version."""
    return [
        (message, version)
        for api in APIS.values()
        for message in (api.request, api.response)
        for version in range(message.min_version, message.max_version + 1)
    ]


def encoded(message: type[Message], version: int, chance: random.Random) -> bytes:
    """Return a valid encoded message."""
    return b"".join(map(bytes, _struct(message, version, chance, 0).encode_parts(version)))


def _struct(kind: type, version: int, chance: random.Random, depth: int) -> Any:
    values: dict[str, Any] = {}
    for member in members(kind):
        if version in member.field.versions and (member.field.tag is None or chance.random() < 0.5):
            values[member.name] = _value(member.field, version, chance, depth)
    return kind(**values)


def _value(field: Field, version: int, chance: random.Random, depth: int) -> Any:
    if field.nullable is not None and version in field.nullable and chance.random() < 0.2:
        return None
    if field.kind == "array":
        assert field.element is not None
        count = chance.choice((0, 1, 1, 2)) if depth < 3 else chance.choice((0, 1))
        return [_element(field.element, version, chance, depth + 1) for _ in range(count)]
    if field.kind == "nested":
        assert isinstance(field.element, type)
        return _struct(field.element, version, chance, depth + 1)
    return _plain(field.kind, chance)


def _element(element: str | type, version: int, chance: random.Random, depth: int) -> Any:
    return _plain(element, chance) if isinstance(element, str) else _struct(element, version, chance, depth)


def _plain(kind: str, chance: random.Random) -> Any:
    if kind == "boolean":
        return chance.random() < 0.5
    if kind == "float64":
        return chance.choice((0.0, -1.5, 1e300))
    if kind == "uuid":
        return chance.choice((bytes(16), chance.randbytes(16)))
    if kind == "string":
        return chance.choice(TEXTS)
    if kind in ("bytes", "records"):
        return chance.randbytes(chance.choice((0, 1, 70)))
    bits = 8 * FIXED_SIZES[kind]
    low, high = (0, 2**bits - 1) if kind in UNSIGNED else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return chance.choice((0, 1, low, high, chance.randint(low, high)))
