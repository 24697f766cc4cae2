"""An immutable mapping with cheap modified copies.

Groups and sessions are immutable values with mappings by member id, and every join, sync and heartbeat makes
new ones. Copying ten thousand entries each time would make the work of a group quadratic in its size. So a
mapping is a large shared dictionary with a small one layered over it, and only the small one is copied. When
the small one holds about the square root of all entries, the two are merged.

The order is that of a dictionary: insertion order, with a replaced entry at its old position.
"""

from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from math import isqrt
from typing import Any, Final, TypeVar

K = TypeVar("K")
V = TypeVar("V")

SMALL: Final = 32
"""The upper layer may hold this many entries however few there are in total."""

_GONE: Final[Any] = object()  # Any: it stands for a value


class Layered(Mapping[K, V]):
    """Created by ``put`` and ``drop`` from any mapping."""

    __slots__ = ("_base", "_over", "_size")

    def __init__(self, base: dict[K, V], over: dict[Any, Any], size: int) -> None:
        self._base = base
        self._over = over
        self._size = size

    def __getitem__(self, key: K) -> V:
        value: V = self._over[key] if key in self._over else self._base[key]
        if value is _GONE:
            raise KeyError(key)
        return value

    def __contains__(self, key: object) -> bool:
        return self._over[key] is not _GONE if key in self._over else key in self._base

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Layered) and other._base is self._base and other._size == self._size:
            # Usually one was made from the other, so that only the upper layers can differ.
            return all(self.get(key, _GONE) == other.get(key, _GONE) for key in {**self._over, **other._over})
        if not isinstance(other, Mapping):
            return NotImplemented
        return len(other) == self._size and self._merged() == dict(other.items())

    __hash__ = None  # type: ignore[assignment]  # as a dictionary

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[K]:
        return iter(self._merged())

    def values(self) -> ValuesView[V]:
        """The values, in the order of the keys."""
        return self._merged().values()

    def items(self) -> ItemsView[K, V]:
        """Keys and values."""
        return self._merged().items()

    def __repr__(self) -> str:
        return repr(self._merged())

    def _merged(self) -> dict[K, V]:
        if not self._over:
            return self._base
        merged = {**self._base, **self._over}
        if len(merged) != self._size:
            return {key: value for key, value in merged.items() if value is not _GONE}
        return merged

    def _changed(self, key: K, value: V, size: int) -> "Layered[K, V]":
        base, over = self._base, self._over
        if len(over) >= max(SMALL, isqrt(self._size)) or over.get(key) is _GONE:
            # In the second case a removed entry is inserted again, and must not get its old position back.
            base, over = self._merged(), {}
        return Layered(base, {**over, key: value}, size)

    def with_entry(self, key: K, value: V) -> "Layered[K, V]":
        """Return a copy with this entry."""
        return self._changed(key, value, self._size + (key not in self))

    def without(self, key: K) -> "Layered[K, V]":
        """Return a copy without this entry."""
        if key not in self:
            return self
        if key in self._base:
            return self._changed(key, _GONE, self._size - 1)
        over = {**self._over}
        del over[key]
        return Layered(self._base, over, self._size - 1)


def put(mapping: Mapping[K, V], key: K, value: V) -> Mapping[K, V]:
    """Return the mapping with this entry."""
    return _layered(mapping).with_entry(key, value)


def drop(mapping: Mapping[K, V], keys: Iterable[K]) -> Mapping[K, V]:
    """Return the mapping without these keys; itself if it has none of them."""
    gone = [key for key in keys if key in mapping]
    if not gone:
        return mapping
    if len(gone) > SMALL:
        several = set(gone)
        return {key: value for key, value in mapping.items() if key not in several}
    layered = _layered(mapping)
    for key in gone:
        layered = layered.without(key)
    return layered


def _layered(mapping: Mapping[K, V]) -> Layered[K, V]:
    if isinstance(mapping, Layered):
        return mapping
    return Layered(dict(mapping), {}, len(mapping))
