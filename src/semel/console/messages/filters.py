"""Decides whether a record matches a search.

RE2 searches texts as bytes, in time linear in the record. A text that does not occur in the bytes of a batch
occurs in none of its records, so most batches of a search are not even decoded. A value is parsed only for
JSON paths, as JSON or with its schema if a registry is named, and the result is kept for further paths.
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec
import re2  # type: ignore[import-untyped]

from semel.console.messages import limits
from semel.console.messages.json_path import JsonPath
from semel.console.messages.query import QueryError, Term, parse
from semel.console.messages.reading import MarkedRecord

Parse: TypeAlias = Callable[[MarkedRecord], Any]
Check: TypeAlias = Callable[[MarkedRecord, "_Parsed"], bool]
_AROUND: Final = ("^", "$", "\\b", "\\B", "\\A", "\\z", "\\C")
NOTHING: Final = object()
"""The result of parsing a value that cannot be parsed. No path selects anything inside it."""
_ORDERED: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": lambda left, right: bool(left < right),
    "<=": lambda left, right: bool(left <= right),
    ">": lambda left, right: bool(left > right),
    ">=": lambda left, right: bool(left >= right),
}


def parse_json(marked: MarkedRecord) -> Any:
    """Parse the value as JSON; `NOTHING` if it is not JSON, null or too large."""
    value = marked.record.value
    if value is None or len(value) > limits.PARSED_BYTES_MAX:
        return NOTHING
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return NOTHING


class Filter:
    """A compiled search; an empty one matches every record."""

    def __init__(self, text: str = "", parse_value: Parse = parse_json) -> None:
        """QueryError if the text is not a valid search."""
        self.text = text.strip()
        self._parse = parse_value
        terms = parse(self.text)
        self._checks = [(_check(term), term.is_negated) for term in terms]
        self._required = [_compiled(term) for term in terms if _is_in_the_bytes(term)]

    def may_match(self, data: bytes) -> bool:
        """Whether any record of a batch with these bytes may match."""
        return all(len(data) > most or found(data) for found, most in self._required)

    def matches(self, marked: MarkedRecord) -> bool:
        """Whether all terms hold."""
        parsed = _Parsed(marked, self._parse)
        return all(check(marked, parsed) is not is_negated for check, is_negated in self._checks)


class _Parsed:
    """The value of one record, parsed when the first path needs it."""

    __slots__ = ("_is_parsed", "_marked", "_parse", "_value")

    def __init__(self, marked: MarkedRecord, parse_value: Parse) -> None:
        self._marked, self._parse, self._value = marked, parse_value, NOTHING
        self._is_parsed = False

    def select(self, path: JsonPath) -> list[Any]:
        """Return what a path selects: nothing, not even by `$`, in a value that cannot be parsed."""
        if not self._is_parsed:
            self._value, self._is_parsed = self._parse(self._marked), True
        return [] if self._value is NOTHING else path.select(self._value)


def _check(term: Term) -> Check:
    if term.field == "is":
        return _state_check(term.text)
    if term.field == "producer":
        wanted = int(term.text)
        return lambda marked, _: marked.producer_id == wanted
    if term.field == "path":
        return _path_check(term)
    found = _pattern(term)
    if term.field == "key":
        return lambda marked, _: marked.record.key is not None and found(marked.record.key)
    if term.field == "value":
        return lambda marked, _: marked.record.value is not None and found(marked.record.value)
    if term.field == "header":
        return lambda marked, _: _in_headers(marked, term.header, found)
    return lambda marked, _: (
        (marked.record.key is not None and found(marked.record.key))
        or (marked.record.value is not None and found(marked.record.value))
        or _in_headers(marked, None, found)
    )


def _is_in_the_bytes(term: Term) -> bool:
    """Whether a match in a record is always a match in the bytes of the batch, too.

    Anchors and word boundaries depend on the bytes around. A replacement character may stand for other bytes.
    """
    if term.is_negated or term.field not in ("any", "key", "value", "header") or "\ufffd" in term.text:
        return False
    return not term.is_pattern or not any(sign in term.text for sign in _AROUND)


def _pattern(term: Term) -> Callable[[bytes], bool]:
    return _compiled(term)[0]


def _compiled(term: Term) -> tuple[Callable[[bytes], bool], int]:
    """Return a function that finds the text, and how many bytes it examines."""
    options = re2.Options()
    options.literal = not term.is_pattern
    options.case_sensitive = not term.ignores_case
    options.max_mem = limits.PATTERN_MEMORY_BYTES
    options.never_capture = True
    options.log_errors = False
    try:
        compiled = re2.compile(term.text.encode(), options)
    except re2.error as error:
        why = error.args[0].decode() if error.args and isinstance(error.args[0], bytes) else str(error)
        raise QueryError(f"/{term.text}/ is not an expression of RE2: {why}") from None
    search = compiled.search
    if not term.is_pattern:
        return (lambda data: search(data) is not None), limits.BATCH_BYTES_MAX
    if compiled.programsize > limits.PATTERN_STEPS_MAX:
        raise QueryError(f"/{term.text[:50]}/ is too complex: use fewer or smaller repetitions")
    most = limits.PATTERN_WORK_MAX // max(1, compiled.programsize)
    return (lambda data: search(data if len(data) <= most else data[:most]) is not None), most


def _in_headers(marked: MarkedRecord, name: str | None, found: Callable[[bytes], bool]) -> bool:
    for header in marked.record.headers:
        if name is not None and header.key != name:
            continue
        if name is None and found(header.key.encode()):
            return True
        if header.value is not None and found(header.value):
            return True
    return False


def _state_check(state: str) -> Check:
    if state == "tombstone":
        return lambda marked, _: marked.record.value is None and not marked.is_unreadable
    if state == "unreadable":
        return lambda marked, _: marked.is_unreadable
    return lambda marked, _: marked.mark == state


def _path_check(term: Term) -> Check:
    path, operator = term.path, term.operator
    assert path is not None
    if operator == "~":
        found = _pattern(term)
        return lambda _, parsed: any(found(_as_text(each).encode()) for each in parsed.select(path))
    if not operator:
        return lambda _, parsed: bool(parsed.select(path))
    wanted = _literal(term.text)
    if operator in ("=", "!="):
        is_equal = operator == "="
        return lambda _, parsed: any(
            _is_equal(each, wanted, term.text) is is_equal for each in parsed.select(path)
        )
    compare = _ORDERED[operator]
    return lambda _, parsed: any(_compares(compare, each, wanted, term.text) for each in parsed.select(path))


def _literal(text: str) -> Any:
    """Parse a value of a search as JSON if possible, else take it as text: 42, true, null, apples."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def _is_equal(found: Any, wanted: Any, text: str) -> bool:
    if isinstance(found, str):
        return found in (text, wanted)
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted
    return bool(found == wanted)


def _compares(compare: Callable[[Any, Any], bool], found: Any, wanted: Any, text: str) -> bool:
    if isinstance(found, str):
        return compare(found, text)
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    return is_number and isinstance(wanted, int | float) and compare(found, wanted)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
