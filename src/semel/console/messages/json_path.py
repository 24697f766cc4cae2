"""JSON paths: a small part of RFC 9535, enough to point at values inside a record.

    $.order.items[0].sku     members and elements; [-1] is the last
    $['odd name'].x          a name that is not an identifier
    $.items[*].sku           every element, or every member of an object
    $..id                    every member of this name, at any depth

Filters and slices are not supported. `select` returns at most `PATH_VALUES_MAX` results and visits a bounded
number of values, so that `$..*` over a deep value terminates.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from semel.console.messages.limits import PATH_VALUES_MAX

VISITED_MAX: Final = 200_000
_STEP: Final = re.compile(
    r"""(\.\.|\.)?(?:([^\W\d][\w-]*)|(\*)|\[(?:(-?[0-9]{1,9})|(\*)|'([^']*)'|"([^"]*)")\])"""
)


class PathError(ValueError):
    """The text is not a path; the message says where it stops being one."""


class JsonPath:
    """A compiled path."""

    def __init__(self, text: str) -> None:
        if not text.startswith("$"):
            raise PathError(f"a JSON path starts with $, as in $.order.id, not {text!r}")
        self.text = text
        self._steps: list[tuple[str, Any]] = []
        at = 1
        while at < len(text):
            found = _STEP.match(text, at)
            dots, name, star, index, star_too, single, double = found.groups() if found else (None,) * 7
            is_bracket = name is None and star is None
            if found is None or (dots is None and not is_bracket) or (dots == "." and is_bracket):
                raise PathError(
                    f"{text!r} is not a JSON path: {text[at:]!r} is not .name, [0], [*] or ['name']"
                )
            if dots == "..":
                self._steps.append(("descend", None))
            if star or star_too:
                self._steps.append(("every", None))
            elif index is not None:
                self._steps.append(("index", int(index)))
            else:
                self._steps.append(("name", next(x for x in (name, single, double) if x is not None)))
            at = found.end()
        self._is_single = all(kind in ("name", "index") for kind, _ in self._steps)

    def _select_one(self, value: Any) -> list[Any]:
        """Select by a path of names and indexes only, as most are: it selects at most one value."""
        for kind, argument in self._steps:
            if (kind == "name" and isinstance(value, dict) and argument in value) or (
                kind == "index" and isinstance(value, list) and -len(value) <= argument < len(value)
            ):
                value = value[argument]
            else:
                return []
        return [value]

    def select(self, value: Any) -> list[Any]:
        """Return the selected values, at most `PATH_VALUES_MAX`."""
        if self._is_single:
            return self._select_one(value)
        budget = [VISITED_MAX]
        found: list[Any] = []
        for each in _walk(value, self._steps, 0, budget):
            found.append(each)
            if len(found) >= PATH_VALUES_MAX:
                break
        return found


def _walk(value: Any, steps: list[tuple[str, Any]], at: int, budget: list[int]) -> Iterator[Any]:
    budget[0] -= 1
    if budget[0] < 0:
        return
    if at == len(steps):
        yield value
        return
    kind, argument = steps[at]
    if kind == "name":
        if isinstance(value, dict) and argument in value:
            yield from _walk(value[argument], steps, at + 1, budget)
    elif kind == "index":
        if isinstance(value, list) and -len(value) <= argument < len(value):
            yield from _walk(value[argument], steps, at + 1, budget)
    elif kind == "every":
        for each in _children(value):
            yield from _walk(each, steps, at + 1, budget)
    else:
        for each in _descendants(value, budget):
            yield from _walk(each, steps, at + 1, budget)


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list) else []


def _descendants(value: Any, budget: list[int]) -> Iterator[Any]:
    """Yield the value and everything inside it, without recursion: a value can be deep."""
    to_come = [value]
    while to_come and budget[0] > 0:
        budget[0] -= 1
        each = to_come.pop()
        yield each
        to_come.extend(reversed(_children(each)))
