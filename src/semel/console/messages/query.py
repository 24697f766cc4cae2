r"""The language of the search box: terms that must all hold, separated by spaces.

    apples                    in the key, the value or a header, in upper or lower case
    "three apples"            the same with spaces
    key:customer-7            in the key; also value:, header: (names and values), header.NAME:
    value:/total=[0-9]{3,}/   a regular expression of RE2, in linear time; /.../i ignores case
    $.order.total>100         a JSON path with = != < <= > >=, ~ for an expression, or alone if it exists
    is:aborted                also is:open, committed, plain, undecided, control, tombstone, unreadable
    producer:42               written by this producer id
    -key:test                 negates a term

This module parses; `filters` decides whether a record matches.
"""

from dataclasses import dataclass
from typing import Final

from semel.console.messages.json_path import JsonPath, PathError
from semel.console.messages.limits import QUERY_CHARS_MAX, TERMS_MAX

FIELDS: Final = ("key", "value", "header")
STATES: Final = ("plain", "committed", "open", "aborted", "undecided", "control", "tombstone", "unreadable")
OPERATORS: Final = ("!=", "<=", ">=", "=", "<", ">", "~")
_ESCAPED_QUOTE: Final = '\\"'


class QueryError(ValueError):
    """The search cannot be understood; the message says which part."""


@dataclass(frozen=True, slots=True)
class Term:
    """One condition. `field` is any, key, value, header, path, is or producer."""

    field: str
    text: str = ""
    is_pattern: bool = False
    ignores_case: bool = True
    is_negated: bool = False
    header: str | None = None
    path: JsonPath | None = None
    operator: str = ""


def parse(text: str) -> list[Term]:
    """Return the terms of a search. QueryError says what is wrong."""
    if len(text) > QUERY_CHARS_MAX:
        raise QueryError(f"the search has {len(text):,} characters; {QUERY_CHARS_MAX:,} are allowed")
    terms = [_term(each) for each in _words(text)]
    if len(terms) > TERMS_MAX:
        raise QueryError(f"the search has {len(terms)} terms; {TERMS_MAX} are allowed")
    return terms


def _words(text: str) -> list[str]:
    """Split at spaces outside quotes, expressions and brackets of a path."""
    words, at = [], 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        end = _word_end(text, at)
        words.append(text[at:end])
        at = end
    return words


def _word_end(text: str, begin: int) -> int:
    at, closing = begin, ""
    while at < len(text):
        sign = text[at]
        if closing:
            if sign == "\\" and closing != "'":
                at += 1
            elif sign == closing:
                closing = ""
        elif sign.isspace():
            return at
        elif sign == '"' or (sign == "'" and text[at - 1 : at] == "["):
            closing = sign
        elif sign == "/" and (at == begin or text[at - 1] in ":~-"):
            closing = "/"
        at += 1
    if closing:
        raise QueryError(f"{text[begin:]!r} has no closing {closing}")
    return len(text)


def _term(word: str) -> Term:
    is_negated = word.startswith("-") and len(word) > 1
    rest = word[1:] if is_negated else word
    if rest.startswith("$"):
        return _path_term(rest, is_negated)
    name, colon, wanted = rest.partition(":")
    if not colon or rest.startswith(('"', "/")):
        return _text_term("any", rest, is_negated)
    if name in FIELDS:
        return _text_term(name, wanted, is_negated)
    if name.startswith("header."):
        return _text_term("header", wanted, is_negated, header=name.removeprefix("header."))
    if name == "is":
        if wanted not in STATES:
            raise QueryError(
                f"is:{wanted} is not known; there are {', '.join('is:' + each for each in STATES)}"
            )
        return Term("is", wanted, is_negated=is_negated)
    if name == "producer":
        if not wanted.isdecimal():
            raise QueryError(f"producer:{wanted} is not a producer id, which is a number")
        return Term("producer", wanted, is_negated=is_negated)
    return _text_term("any", rest, is_negated)


def _text_term(field: str, wanted: str, is_negated: bool, header: str | None = None) -> Term:
    if wanted.startswith("/"):
        body, slash, flags = wanted[1:].rpartition("/")
        if not slash or flags not in ("", "i"):
            raise QueryError(f"{wanted!r} is not an expression: write /expression/ or /expression/i")
        return Term(field, body, True, flags == "i", is_negated, header)
    return Term(field, _unquoted(wanted), False, True, is_negated, header)


def _path_term(word: str, is_negated: bool) -> Term:
    at, operator = _operator_at(word)
    try:
        path = JsonPath(word[:at])
    except PathError as error:
        raise QueryError(str(error)) from None
    wanted = word[at + len(operator) :]
    if operator == "~":
        term = _text_term("path", wanted if wanted.startswith("/") else f"/{wanted}/", is_negated)
        return Term("path", term.text, True, term.ignores_case, is_negated, path=path, operator="~")
    return Term("path", _unquoted(wanted), is_negated=is_negated, path=path, operator=operator)


def _operator_at(word: str) -> tuple[int, str]:
    is_quoted = False
    for at, sign in enumerate(word):
        if sign in "'\"":
            is_quoted = not is_quoted
        if not is_quoted and (found := next((each for each in OPERATORS if word.startswith(each, at)), "")):
            return at, found
    return len(word), ""


def _unquoted(text: str) -> str:
    if len(text) >= 2 and text.startswith('"') and text.endswith('"'):
        return text[1:-1].replace(_ESCAPED_QUOTE, '"').replace("\\\\", "\\")
    return text
