"""Reads the values of forms, JSON bodies and queries, and says which one is wrong."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote

import msgspec
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from semel.console.rendering import as_json, is_json

FORM_TYPE = "application/x-www-form-urlencoded"
JSON_TYPE = "application/json"
FIELDS_MAX = 10_000
PAGES_MAX = 1_000_000
_YES, _NO = frozenset({"1", "true", "on", "yes"}), frozenset({"", "0", "false", "off", "no"})


class _Number(Convertor[int]):
    """A number in a path. Starlette's converter fails on thousands of digits; this one does not match."""

    regex = "[0-9]{1,18}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("number", _Number())


class FormError(ValueError):
    """A value is missing or wrong; the text says which, and what it should be."""


class Conflict(FormError):
    """What the user saw is out of date, or the change would harm other users; nothing was changed."""


async def read(request: Request) -> dict[str, str]:
    """Return the fields of a form, or of a JSON object, as text. A member that is null is left out.

    Forms are `application/x-www-form-urlencoded`. A page that sends a file sends its bytes as the body.
    """
    return {name: _text(value) for name, value in (await values(request)).items() if value is not None}


def has_json(request: Request) -> bool:
    """Whether the body is JSON, which preserves what a form loses: null, empty text, and line ends."""
    return _kind(request) == JSON_TYPE


def _kind(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def values(request: Request) -> dict[str, Any]:
    """Return the fields of a form as text, or the members of a JSON object as they are."""
    kind = _kind(request)
    body = await request.body()
    if kind == JSON_TYPE:
        try:
            found = msgspec.json.decode(body)
        except msgspec.DecodeError as error:
            raise FormError(f"the body is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise FormError("the body must be a JSON object")
        return found
    if body and kind != FORM_TYPE:
        raise FormError(f"send {FORM_TYPE} or application/json, not {kind or 'a body without a type'}")
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX))
    except ValueError as error:
        raise FormError(f"the form cannot be read: {error}") from None


def done(request: Request, address: str, message: str, data: Mapping[str, Any] | None = None) -> Response:
    """Answer a change: show the page again with a message, or JSON for programs."""
    if is_json(request):
        return as_json({"done": message, **(data or {})})
    mark = "&" if "?" in address else "?"
    return RedirectResponse(f"{address}{mark}done={quote(message, safe='')}", status_code=303)


def needed(fields: Mapping[str, str], name: str) -> str:
    """Return a required field. FormError if it is missing or empty."""
    value = fields.get(name, "").strip()
    if not value:
        raise FormError(f"{name.replace('_', ' ')} is missing")
    return value


def whole(fields: Mapping[str, str], name: str, default: int | None = None, *, least: int = 0) -> int:
    """Return a field that is a whole number."""
    text = fields.get(name, "").strip()
    if not text and default is not None:
        return default
    try:
        value = int(text)
    except ValueError:
        raise FormError(f"{name.replace('_', ' ')} must be a whole number, not {text!r}") from None
    if not least <= value < 1 << 63:
        raise FormError(f"{name.replace('_', ' ')} must be {least} or more, not {value}")
    return value


def flag(fields: Mapping[str, str], name: str) -> bool:
    """Return a field that is yes or no: a box of a form, or true and false."""
    text = fields.get(name, "").strip().lower()
    if text not in _YES | _NO:
        raise FormError(f"{name.replace('_', ' ')} must be true or false, not {text[:50]!r}")
    return text in _YES


def page_number(request: Request) -> int:
    """Return the number of the page of a list, from 1."""
    return min(whole(request.query_params, "page", 1, least=1), PAGES_MAX)


def paged(rows: list[Any], number: int, size: int) -> tuple[list[Any], dict[str, int]]:
    """Return one page of a list, and its position in the list."""
    pages = max(1, -(-len(rows) // size))
    number = min(number, pages)
    first = (number - 1) * size
    return rows[first : first + size], {
        "page": number,
        "pages": pages,
        "total": len(rows),
        "first": first + 1 if rows else 0,
        "last": min(first + size, len(rows)),
    }


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
