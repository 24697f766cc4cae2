"""Messages of a topic: a page of records, a search with progress, and a live tail.

The page itself is a short scan, so that it appears quickly. An event stream continues the scan, with
progress, until a limit or the user stops it.
"""

import threading
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from semel.client import Client
from semel.console.clients import StoppableClient
from semel.console.events import EventStream
from semel.console.forms import FormError
from semel.console.messages import rows as rows_of
from semel.console.messages.asking import LEFT_CHARS_MAX, Ask, Asked, AskingError, is_number, resolve
from semel.console.messages.decoding import Decoding, View
from semel.console.messages.filters import NOTHING, Filter, parse_json
from semel.console.messages.limits import PAGE, SEARCH, ScanLimits
from semel.console.messages.query import QueryError
from semel.console.messages.reading import MarkedRecord, Reader
from semel.console.messages.registry import Registry, SchemaProblem
from semel.console.messages.scanning import Order, Reason, Scan, Stop
from semel.console.messages.tailing import tail
from semel.console.rendering import is_json, now_iso, page, segment
from semel.console.workers import SCAN

FIRST_SECONDS: Final = 0.5
"""How long a page searches before it is shown; an event stream searches the rest."""
PROGRESS_SECONDS: Final = 0.2
AGES: Final = {"15 min": "-15m", "1 h": "-1h", "24 h": "-1d"}
STOPPED: Final = {
    Reason.END: "Everything in the range was looked at.",
    Reason.MATCHES: "Stopped after {matched:,} matches.",
    Reason.RECORDS: "Stopped after {records:,} records, which is the limit of one search.",
    Reason.BYTES: "Stopped after reading {mib:,.0f} MiB, which is the limit of one search.",
    Reason.TIME: "Stopped after {seconds:.0f} s, which is the limit of one search.",
    Reason.STOPPED: "Stopped.",
}


def registry_of(request: Request) -> Registry | None:
    """Return the schema registry of the settings. All requests share its cache."""
    state = request.app.state
    if not hasattr(state, "registry"):
        url = state.settings.registry
        state.registry = Registry(url) if url else None
    found: Registry | None = state.registry
    return found


def asked_of(request: Request) -> Ask:
    """Read the state from the address. FormError if it cannot be understood."""
    try:
        return Ask.of(request.query_params)
    except AskingError as error:
        raise FormError(str(error)) from None


def parser_of(registry: Registry | None) -> Callable[[MarkedRecord], Any]:
    """Return how values are parsed for JSON paths: with their schema if there is one."""
    if registry is None:
        return parse_json
    decoding = Decoding(View.AUTO, registry)

    def parse(marked: MarkedRecord) -> Any:
        try:
            decoded = decoding.decode(marked.record.value) if marked.record.value else None
        except SchemaProblem:
            return NOTHING
        return parse_json(marked) if decoded is None else decoded.value

    return parse


def filter_of(request: Request, ask: Ask) -> Filter:
    """Compile the search. FormError if it cannot be understood."""
    try:
        return Filter(ask.q, parser_of(registry_of(request)))
    except QueryError as error:
        raise FormError(str(error)) from None


# ---- the page


async def messages(request: Request) -> Response:
    """Show records. The query of the address is described in `messages.asking`."""
    topic = request.path_params["topic"]
    ask = asked_of(request)
    registry = registry_of(request)
    seconds = PAGE.seconds if is_json(request) else FIRST_SECONDS
    limits = replace(PAGE, matches=ask.limit, seconds=seconds)
    try:
        wanted, problem = Filter(ask.q, parser_of(registry)), None
    except QueryError as error:
        wanted, problem = Filter(), str(error)
        limits = replace(limits, matches=0)  # Nothing is searched.
    found = await request.app.state.workers.run(request, _page, topic, ask, wanted, limits, registry)
    data = {
        "topic": topic,
        **found,
        "problem": problem,
        "live": request.query_params.get("live", "") == "1" and is_open_ended(ask),
        "registry": registry is not None,
    }
    return page(request, "messages.html", data, 400 if problem and is_json(request) else 200)


def _page(
    client: StoppableClient,
    topic: str,
    ask: Ask,
    wanted: Filter,
    limits: ScanLimits,
    registry: Registry | None,
) -> dict[str, Any]:
    asked = resolved(client, topic, ask)
    scan = _scan(client, topic, ask, asked, wanted, limits, registry, client.stop or threading.Event())
    found = [row for made in scan.rounds() for row in made]
    return {
        "messages": found,
        "scan": state_of(scan, ask),
        "ask": described(ask),
        "links": _links(topic, ask),
        "partitions": [
            {"partition": number, "start": each.start, "last_stable_offset": each.stable, "end": each.end}
            for number, each in asked.bounds.items()
        ],
        "offline": asked.offline,
        "waiting": sum(each.end - each.stable for each in asked.bounds.values()),
        "blocked": next((n for n, each in asked.bounds.items() if each.stable < each.end), None),
        "today": now_iso()[:10],
        "tail": ends_text(asked, ask),
    }


def ends_text(asked: Asked, ask: Ask) -> str:
    """Return where a live view must begin to miss nothing; empty if that is too long for an address."""
    ends = (f"{n}:{each.stable if ask.committed else each.end}" for n, each in asked.bounds.items())
    text = ",".join(ends)
    return text if len(text) <= LEFT_CHARS_MAX else ""


def resolved(client: Client, topic: str, ask: Ask) -> Asked:
    """Look up what to scan. FormError if the address has a wrong value."""
    try:
        return resolve(client, topic, ask)
    except AskingError as error:
        raise FormError(str(error)) from None


def _scan(
    client: Client,
    topic: str,
    ask: Ask,
    asked: Asked,
    wanted: Filter,
    limits: ScanLimits,
    registry: Registry | None,
    stop: Stop,
) -> Scan[dict[str, Any]]:
    reader = Reader(
        client,
        topic,
        asked.bounds,
        committed=ask.committed,
        control=ask.control,
        may_match=wanted.may_match,
    )
    make = partial(rows_of.row, decoding=Decoding(ask.view, registry))
    return Scan(reader, asked.ranges, wanted, make, limits, ask.order, stop)


def described(ask: Ask) -> dict[str, Any]:
    """Return the state as plain data."""
    return {
        "q": ask.q,
        "partition": ask.partition,
        "from": ask.begin,
        "to": ask.end,
        "order": ask.order.value,
        "isolation": "committed" if ask.committed else "uncommitted",
        "control": ask.control,
        "view": ask.view.value,
        "limit": ask.limit,
        "query": replace(ask, left="").query(),
    }


def is_open_ended(ask: Ask) -> bool:
    """Whether new records belong to what is shown, so that the page can follow them."""
    return ask.order is Order.NEWEST and not ask.begin and not ask.end


def state_of(scan: Scan[Any], ask: Ask) -> dict[str, Any]:
    """Return how far a scan is, why it ended, and the query that continues it."""
    made = scan.progress
    is_over = not any(each.size for each in scan.left.values())
    rest = None if is_over else ask.continued(scan.left)
    says = STOPPED[scan.reason].format(
        matched=made.matched, records=made.records, mib=made.read_bytes / (1 << 20), seconds=made.seconds
    )
    if rest is None and not is_over:
        says += " Choose fewer partitions to go on from there."
    return {
        "scanned": made.scanned,
        "total": made.total,
        "records": made.records,
        "matched": made.matched,
        "hidden": made.hidden,
        "bytes": made.read_bytes,
        "seconds": round(made.seconds, 3),
        "reason": scan.reason.value,
        "says": says,
        "next": None if rest is None else rest.query(),
    }


def _links(topic: str, ask: Ask) -> dict[str, Any]:
    """Return addresses of the same page in other states."""
    base = f"/topics/{segment(topic)}/messages"
    fresh = replace(ask, left="")

    def at(**changes: Any) -> str:
        query = replace(fresh, **changes).query()
        return f"{base}?{query}" if query else base

    return {
        "base": base,
        "self": at(),
        "newest": at(begin="", end="", order=Order.NEWEST),
        "oldest": at(begin="", end="", order=Order.OLDEST),
        "committed": at(committed=True),
        "uncommitted": at(committed=False),
        "views": {view.value: at(view=view) for view in View},
        "search": f"{base}/search",
        "tail": f"{base}/tail",
        "export": f"{base}/export?{fresh.query()}",
        "ages": {name: at(begin=age, end="", order=Order.OLDEST) for name, age in AGES.items()},
    }


# ---- live parts


async def search(request: Request) -> Response:
    """Continue a search with progress, as events: rows, progress, done."""
    ask = asked_of(request)
    wanted = filter_of(request, ask)
    settings = request.app.state.settings
    shown = request.query_params.get("shown", "")  # How many records the page has found already.
    limits = replace(
        SEARCH,
        matches=max(1, ask.limit - (int(shown) if is_number(shown) else 0)),
        seconds=min(SEARCH.seconds, settings.scan_seconds),
        read_bytes=min(SEARCH.read_bytes, settings.scan_bytes),
    )
    arguments = (request.path_params["topic"], ask, wanted, limits, registry_of(request))
    return EventStream(request.app.state.workers.stream(request, _search, *arguments, kind=SCAN))


def _search(
    client: Client,
    stop: Stop,
    topic: str,
    ask: Ask,
    wanted: Filter,
    limits: ScanLimits,
    registry: Registry | None,
) -> Generator[tuple[str, Any], None, None]:
    try:
        asked = resolved(client, topic, ask)
    except FormError as error:
        yield "failed", {"message": str(error)}
        return
    scan = _scan(client, topic, ask, asked, wanted, limits, registry, stop)
    reported_at = 0.0
    for made in scan.rounds():
        if made:
            # With the state of the scan, so that a user who stops it here can continue after these rows.
            yield "rows", {"rows": made, "state": state_of(scan, ask)}
        elif time.monotonic() - reported_at > PROGRESS_SECONDS:
            reported_at = time.monotonic()
            yield "progress", state_of(scan, ask)
    yield "done", state_of(scan, ask)


async def follow(request: Request) -> Response:
    """Follow the end of the topic, as events with rows and outcomes of transactions."""
    ask = asked_of(request)
    wanted = filter_of(request, ask)
    at = request.query_params.get("at", "")
    arguments = (request.path_params["topic"], ask, wanted, registry_of(request), at)
    return EventStream(request.app.state.workers.stream(request, _follow, *arguments))


def _follow(
    client: Client, stop: Stop, topic: str, ask: Ask, wanted: Filter, registry: Registry | None, at: str
) -> Generator[tuple[str, Any], None, None]:
    try:
        asked = resolved(client, topic, ask)
        positions = _positions(at, asked, ask)
    except FormError as error:
        yield "failed", {"message": str(error)}
        return
    reader = Reader(client, topic, asked.bounds, committed=ask.committed, control=ask.control)
    make = partial(rows_of.row, decoding=Decoding(ask.view, registry))
    yield "ready", {"partitions": len(positions)}
    for made in tail(reader, positions, wanted, make, stop):
        yield (
            "arrived",
            {
                "rows": made.rows,
                "outcomes": made.outcomes,
                "skipped": made.skipped,
                "seen": made.seen,
                "next": {str(number): offset for number, offset in made.next.items()},
            },
        )


def _positions(at: str, asked: Asked, ask: Ask) -> dict[int, int]:
    """Return where a tail begins: at the ends, or where the page ended, within the bounds of the log."""
    tops = {n: each.stable if ask.committed else each.end for n, each in asked.bounds.items()}
    for part in at.split(",") if at else ():
        number, _, offset = part.partition(":")
        if not is_number(number) or not is_number(offset):
            raise FormError(f"at is a list like 0:12,1:7, not {at[:50]!r}")
        if int(number) in tops:
            bounds = asked.bounds[int(number)]
            tops[int(number)] = min(max(int(offset), bounds.start), bounds.end)
    return tops


_BASE: Final = "/topics/{topic}/messages"
ROUTES = [
    Route(_BASE, messages, methods=["GET"]),
    Route(_BASE + "/search", search, methods=["GET"]),
    Route(_BASE + "/tail", follow, methods=["GET"]),
]
