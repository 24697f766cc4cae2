"""One record of a topic on a page of its own, its parts as downloads, and exports of many."""

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from semel.client import Client, ErrorCode, KafkaError
from semel.console.events import Download
from semel.console.forms import FormError
from semel.console.messages import rows as rows_of
from semel.console.messages.asking import Ask
from semel.console.messages.decoding import Decoding, View
from semel.console.messages.exporting import Missing, NoParquet, OrUnreadable, ndjson, parquet
from semel.console.messages.filters import Filter
from semel.console.messages.limits import EXPORT, HEADERS_COPIED_MAX, ScanLimits
from semel.console.messages.producing import ProduceError, RecordPosition, find, read_places
from semel.console.messages.reading import MarkedRecord, Reader
from semel.console.messages.scanning import Order, Reason, Scan, Stop
from semel.console.pages.messages import asked_of, filter_of, registry_of, resolved, state_of
from semel.console.rendering import page, segment
from semel.console.workers import SCAN
from semel.record_lines import bytes_as_json


async def record(request: Request) -> Response:
    """Show one record."""
    topic, place = request.path_params["topic"], _place(request)
    view = asked_of(request).view
    decoding = Decoding(view, registry_of(request))
    marked, shown = await request.app.state.workers.run(request, _shown, topic, place, decoding)
    base = rows_of.address(topic, place.partition, place.offset)
    is_hidden = marked.mark not in ("plain", "committed")
    around = Ask(
        partition=str(place.partition),
        begin=str(max(0, place.offset - 10)),
        committed=not is_hidden,
        view=view,
    )
    data = {
        "topic": topic,
        "record": shown,
        "view": view.value,
        "views": [each.value for each in View],
        "address": base,
        "commands": rows_of.commands(
            request.app.state.settings.bootstrap,
            topic,
            place.partition,
            place.offset,
            committed=not is_hidden,
        ),
        "around": f"/topics/{segment(topic)}/messages?{around.query()}",
        "replay": f"/topics/{segment(topic)}/replay?records={place.partition}:{place.offset}",
    }
    return page(request, "messages_record.html", data)


async def part(request: Request) -> Response:
    """Download the whole key or value, or all headers as JSON. The browser never shows it as a page."""
    topic, place, name = request.path_params["topic"], _place(request), request.path_params["part"]
    if name not in ("key", "value", "headers"):
        raise FormError("a record has a key, a value and headers")
    try:
        marked = await request.app.state.workers.run(request, _whole, topic, place)
    except ProduceError as error:
        raise FormError(str(error)) from None
    if name == "headers":
        data = msgspec.json.encode([[key, bytes_as_json(value)] for key, value in marked.record.headers])
    else:
        data = (marked.record.key if name == "key" else marked.record.value) or b""
    suffix = "json" if name == "headers" else "bin"
    filename = f"{topic}-{place.partition}-{place.offset}-{name}.{suffix}"
    return Response(data, media_type="application/octet-stream", headers=_attached(filename))


def _place(request: Request) -> RecordPosition:
    return RecordPosition(request.path_params["partition"], request.path_params["offset"])


def _find(client: Client, topic: str, place: RecordPosition) -> MarkedRecord:
    client.topic_with(topic, place.partition)
    marked = find(client, topic, place)
    if marked is None:
        where = f"{topic}/{place.partition} has no record at offset {place.offset}"
        raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, f"{where}: it was deleted, or is not written yet.")
    return marked


def _shown(
    client: Client, topic: str, place: RecordPosition, decoding: Decoding
) -> tuple[MarkedRecord, dict[str, Any]]:
    """Find a record, and format it, which may query a schema registry."""
    marked = _find(client, topic, place)
    return marked, rows_of.whole(marked, decoding)


def _whole(client: Client, topic: str, place: RecordPosition) -> MarkedRecord:
    _find(client, topic, place)
    (marked,) = read_places(client, topic, [place], HEADERS_COPIED_MAX)
    return marked


# ---- exports


async def export(request: Request) -> Response:
    """Download what a search finds, oldest first, as NDJSON or Parquet."""
    topic, form = request.path_params["topic"], request.query_params.get("format", "ndjson")
    makers = {"ndjson": ndjson, "parquet": parquet}
    if form not in makers:
        raise FormError(f"format must be ndjson or parquet, not {form!r}")
    ask = replace(asked_of(request), order=Order.OLDEST)
    wanted = filter_of(request, ask)
    settings = request.app.state.settings
    limits = replace(EXPORT, seconds=settings.scan_seconds, read_bytes=settings.scan_bytes)
    arguments = (topic, ask, wanted, limits, makers[form])
    source = request.app.state.workers.stream(request, _export, *arguments, kind=SCAN)
    media_type = "application/x-ndjson" if form == "ndjson" else "application/vnd.apache.parquet"
    return Download(source, media_type, _attached(f"{topic}.{form}"))


def _export(
    client: Client,
    stop: Stop,
    topic: str,
    ask: Ask,
    wanted: Filter,
    limits: ScanLimits,
    make: Callable[..., Generator[bytes, None, None]],
) -> Generator[bytes, None, None]:
    asked = resolved(client, topic, ask)
    reader = Reader(
        client,
        topic,
        asked.bounds,
        committed=ask.committed,
        # A line with a marker would be written back as a record.
        control=ask.control and make is parquet,
        headers_max=HEADERS_COPIED_MAX,
        may_match=wanted.may_match,
    )
    searched = OrUnreadable(wanted)
    scan: Scan[MarkedRecord] = Scan(
        reader, asked.ranges, searched, lambda each: each, limits, ask.order, stop
    )

    missing = Missing()

    def stopped() -> dict[str, Any] | None:
        lost = missing.says()
        if scan.reason is Reason.END and not lost:
            return None
        state = state_of(scan, ask)
        says = f"{state['says']} {lost}".strip()
        found = {"reason": state["reason"], "says": says, "next": state["next"]}
        if missing.batches:
            found |= {"unreadable_batches": missing.batches, "unreadable": missing.named}
        return found

    try:
        yield from make(missing.watch(marked for made in scan.rounds() for marked in made), stopped)
    except NoParquet as error:
        raise FormError(str(error)) from None


def _attached(filename: str) -> dict[str, str]:
    safe = "".join(sign if sign.isalnum() or sign in "._-" else "_" for sign in filename)
    return {"Content-Disposition": f'attachment; filename="{safe}"'}


_BASE: Final = "/topics/{topic}/messages"
_RECORD: Final = _BASE + "/{partition:number}/{offset:number}"
ROUTES = [
    Route(_BASE + "/export", export, methods=["GET"]),
    Route(_RECORD, record, methods=["GET"]),
    Route(_RECORD + "/{part}", part, methods=["GET"]),
]
