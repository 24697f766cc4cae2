"""Renders a page: HTML from a template, or the same plain data as JSON.

Templates get only plain data, and everything in them is escaped. Unprintable characters are shown as escapes,
so that a name can neither change the direction of a line nor be invisible.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from typing import Any
from urllib.parse import quote

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from semel.printable import printable
from semel.times import span_text, time_text

DONE_MAX = 300
#: The section that each list shows, by its path. These lists report when sampling fails.
SAMPLED = {
    "/transactions": "transactions",
    "/groups": "groups",
    "/pipelines": "pipelines",
    "/topics": "catalogue",
}
NAVIGATION = (
    ("overview", "/", "Overview", "o"),
    ("topics", "/topics", "Topics", "t"),
    ("groups", "/groups", "Groups", "g"),
    ("transactions", "/transactions", "Transactions", "x"),
    ("pipelines", "/pipelines", "Pipelines", "p"),
    ("cluster", "/cluster", "Cluster", "c"),
    ("security", "/security", "Security", "s"),
    ("checks", "/checks", "Checks", "k"),
)


def is_json(request: Request) -> bool:
    """Whether the request is for the JSON twin of a page."""
    return bool(getattr(request.state, "is_json", False))


def page(request: Request, template: str, data: Mapping[str, Any], status: int = 200) -> Response:
    """Render a template, or return the data as JSON if the address ends in `.json`."""
    session = getattr(request.state, "session", None)
    sampled = _sampled(request) if status < 400 and session is not None else {}
    if is_json(request):
        return as_json({**data, **sampled}, status)
    settings = request.app.state.settings
    context = {
        **data,
        "console": {
            "bootstrap": settings.bootstrap,
            "read_only": settings.read_only,
            "needs_login": settings.needs_login,
            "has_acls": settings.needs_login or bool(settings.client),
            "principal": session.principal if session is not None else None,
            "version": version("semel"),
            "navigation": NAVIGATION,
            "section": _section(request.scope["path"]),
            "path": request.scope["path"],
            "twin": _twin(request),
            "done": _done(request),
            "sampled": sampled,
        },
    }
    return HTMLResponse(templates().get_template(template).render(context), status_code=status)


def as_json(data: Any, status: int = 200) -> Response:
    """Return plain data as a JSON response."""
    return Response(msgspec.json.encode(data), status_code=status, media_type="application/json")


def failure(request: Request, status: int, title: str, message: str, code: str | None = None) -> Response:
    """A page, or JSON, that says what went wrong and what to do.

    A sentence of the console begins with a capital letter. A message of a broker, which has a `code`, is not
    changed: it may begin with the name of a topic.
    """
    is_sentence = code is None and message.partition(" ")[0].isalpha()
    text = message[:1].upper() + message[1:] if is_sentence else message
    data = {"error": code or title, "message": text, "status": int(status)}
    if is_json(request) or "app" not in request.scope:
        return as_json(data, status)
    return page(request, "error.html", {**data, "title": title}, status)


@cache
def templates() -> Environment:
    """Return the environment of all templates."""
    made = Environment(
        loader=PackageLoader("semel.console"),
        autoescape=True,
        undefined=StrictUndefined,
    )
    made.filters.update(
        number=number, span=span, bytes=byte_size, segment=segment, plain=plain, time=short_time, count=count
    )
    return made


def iso(timestamp_ms: int | None) -> str | None:
    """A time as ISO 8601 in UTC; None if there is none."""
    return None if timestamp_ms is None else time_text(timestamp_ms)


def now_iso() -> str:
    """The time of day as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def number(value: float | None) -> str:
    """A number with separators; a dash for none."""
    if value is None:
        return "–"
    return f"{value:,.1f}" if value < 100 and value % 1 else f"{value:,.0f}"


def count(value: int, one: str, many: str | None = None) -> str:
    """A number with its noun: `1 topic`, `2 topics`."""
    return f"{value:,} {one if value == 1 else many or one + 's'}"


def span(value_ms: int | None) -> str:
    """A time span in words."""
    return "–" if value_ms is None else span_text(max(0, int(value_ms)))


def byte_size(value: float | None) -> str:
    """A size in bytes with a binary unit."""
    if value is None:
        return "–"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} TiB"


def segment(value: str) -> str:
    """A name as one segment of an address. The dot of `.json` in a name is written `%2E`."""
    quoted = quote(value, safe="")
    if quoted.endswith(".json"):
        return quoted[: -len(".json")] + "%2Ejson"
    return quoted.replace(".", "%2E") if set(quoted) == {"."} else quoted


def plain(value: object) -> str:
    """Text with everything unprintable shown as an escape."""
    return printable(str(value))


def short_time(value: str | None) -> str:
    """The time of an ISO text, without the date if it is today."""
    if value is None:
        return "–"
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    day, _, rest = value.partition("T")
    clock = rest.partition(".")[0].rstrip("Z")
    return clock if day == today else f"{day} {clock}"


def _done(request: Request) -> str:
    """Return the message of a completed change; empty on requests from other sites, which could forge it."""
    is_own = request.headers.get("sec-fetch-site", "same-origin") == "same-origin"
    return request.query_params.get("done", "")[:DONE_MAX] if is_own else ""


def _sampled(request: Request) -> dict[str, str | None]:
    """Return when the list at this address was sampled, and the last error; {} for other pages."""
    name = SAMPLED.get(request.scope["path"])
    if name is None:
        return {}
    section = request.app.state.observers.of(request.state.session).sections[name]
    at = None if section.at is None else iso(int(section.at * 1000))
    return {"sampled_at": at, "error": section.problem}


def _section(path: str) -> str:
    first = path.strip("/").partition("/")[0]
    return first or "overview"


def _twin(request: Request) -> str:
    """The address of the JSON twin."""
    # The path as the browser sent it: the id of a group may contain an escaped slash.
    raw = request.scope.get("raw_path")
    path = quote(request.scope["path"]) if raw is None else raw.decode("latin-1")
    path = "/overview" if path == "/" else path
    query = f"?{request.url.query}" if request.url.query else ""
    return f"{path}.json{query}"
