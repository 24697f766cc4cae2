"""Writing to a topic: one record, several lines, a file, as a transaction or not; and sending records again.

The `kind` of a form is `one` or `lines`. A file is sent as the body of a request, with the rest of the form
in the address, so that no byte of the file is changed on the way.
"""

from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from semel.client import Client
from semel.console import forms
from semel.console.access import changes
from semel.console.forms import FormError
from semel.console.messages import rows as rows_of
from semel.console.messages.decoding import Decoding
from semel.console.messages.limits import PRODUCED_BYTES_MAX, RECORDS_PRODUCED_MAX, REPLAYED_MAX
from semel.console.messages.producing import (
    NewRecord,
    Outcome,
    ProduceError,
    RecordPosition,
    copies,
    in_use,
    new_transactional_id,
    of_lines,
    parse_headers,
    parse_places,
    read_places,
    write,
)
from semel.console.messages.reading import MarkedRecord
from semel.console.pages.messages import registry_of
from semel.console.rendering import now_iso, page, segment
from semel.record_lines import InputFormat, LineError, read_line

SHOWN_MAX: Final = 50
KINDS: Final = ("one", "lines")
TEXTS: Final = (
    "kind",
    "key",
    "value",
    "lines",
    "headers",
    "format",
    "separator",
    "outcome",
    "transactional_id",
)


async def form(request: Request) -> Response:
    """Show the form."""
    topic = request.path_params["topic"]
    count = await request.app.state.workers.run(request, _partitions, topic)
    data = {
        "topic": topic,
        "partitions": count,
        "transactional_id": new_transactional_id(),
        "formats": [each.value for each in InputFormat],
        "records_max": RECORDS_PRODUCED_MAX,
        "bytes_max": PRODUCED_BYTES_MAX,
    }
    return page(request, "produce.html", data)


def _partitions(client: Client, topic: str) -> int:
    return len(client.topic(topic, anew=True).partitions)


async def produce(request: Request) -> Response:
    """Write the records of a form, or of a JSON object, whose texts are written exactly as they are.

    In JSON a `value` of null is a tombstone, and an empty `key` is an empty key.
    """
    fields = await forms.read(request)
    if forms.has_json(request):
        _check_texts(await forms.values(request), fields)
    else:
        fields = _of_form(fields)
    try:
        records = _records(fields)
    except ProduceError as error:
        raise FormError(str(error)) from None
    return await _write(request, request.path_params["topic"], records, fields)


def _check_texts(given: Mapping[str, Any], fields: Mapping[str, str]) -> None:
    """Raise FormError if a text is another JSON value: written as JSON, it may not be what was meant."""
    for name in TEXTS:
        if given.get(name) is not None and not isinstance(given[name], str):
            raise FormError(f"{name} must be a text or null; send other JSON values as text")
    if _is_one(fields) and "value" not in given and not forms.flag(fields, "tombstone"):
        raise FormError("value is missing; for a tombstone it must be null")


def _of_form(fields: Mapping[str, str]) -> dict[str, str]:
    """Return what the user means: an empty key is no key, and line ends are not the CR LF of browsers."""
    found = {**fields, "value": fields.get("value", "").replace("\r\n", "\n")}
    if not found.get("key"):
        found.pop("key", None)
    return found


async def produce_file(request: Request) -> Response:
    """Write the records of a file, which is the body of the request."""
    fields = dict(request.query_params)
    data = await request.body()
    try:
        records = _lines(data, fields)
    except ProduceError as error:
        raise FormError(str(error)) from None
    return await _write(request, request.path_params["topic"], records, fields)


def _is_one(fields: Mapping[str, str]) -> bool:
    kind = fields.get("kind") or "one"
    if kind not in KINDS:
        raise FormError(f"kind must be one of {', '.join(KINDS)}, not {kind[:50]!r}")
    return kind == "one"


def _records(fields: Mapping[str, str]) -> list[NewRecord]:
    """Read the records. A missing key is null, and a missing value makes a tombstone."""
    if not _is_one(fields):
        return _lines(fields.get("lines", "").encode(), fields)
    form = _of_keys(_format(fields))
    key, value = fields.get("key"), fields.get("value")
    if forms.flag(fields, "tombstone"):
        value = None
    try:
        return [
            NewRecord(
                None if key is None else read_line(key.encode(), form, None).value,
                None if value is None else read_line(value.encode(), form, None).value,
                tuple(parse_headers(fields.get("headers", ""))),
                _partition(fields),
            )
        ]
    except LineError as error:
        raise ProduceError(f"the record cannot be written: {error}") from None


def _of_keys(form: InputFormat) -> InputFormat:
    """Return the format of one key or value. The form has separate fields for them, so JSON is plain text."""
    return InputFormat.text if form is InputFormat.json else form


def _lines(data: bytes, fields: Mapping[str, str]) -> list[NewRecord]:
    headers = parse_headers(fields.get("headers", ""))
    return of_lines(data, _format(fields), fields.get("separator", ""), headers, _partition(fields))


def _format(fields: Mapping[str, str]) -> InputFormat:
    try:
        return InputFormat(fields.get("format") or InputFormat.text)
    except ValueError:
        raise ProduceError(f"format must be one of {', '.join(InputFormat)}") from None


def _partition(fields: Mapping[str, str]) -> int | None:
    return forms.whole(fields, "partition") if fields.get("partition", "").strip() else None


def _outcome(fields: Mapping[str, str]) -> Outcome:
    try:
        return Outcome(fields.get("outcome") or Outcome.PLAIN)
    except ValueError:
        raise FormError(f"outcome must be one of {', '.join(Outcome)}") from None


async def _write(
    request: Request, topic: str, records: list[NewRecord], fields: Mapping[str, str]
) -> Response:
    outcome = _outcome(fields)
    name = fields.get("transactional_id", "").strip() or new_transactional_id()
    fence = forms.flag(fields, "fence")
    found = await request.app.state.workers.run(request, _guarded, topic, records, outcome, name, fence)
    return forms.done(request, _address(topic, found), _says(found), found)


def _guarded(
    client: Client, topic: str, records: list[NewRecord], outcome: Outcome, name: str, fence: bool
) -> dict[str, Any]:
    """Write the records. Conflict if that would fence another producer and the user has not confirmed it."""
    client.topic(topic)
    if outcome is not Outcome.PLAIN and not fence and (why := in_use(client, name)) is not None:
        raise forms.Conflict(f"{why}. Choose another id, or confirm that it is fenced (fence=true).")
    return write(client, topic, records, outcome, name)


def _address(topic: str, found: Mapping[str, Any]) -> str:
    """Return the address that shows the written records."""
    base = f"/topics/{segment(topic)}/messages"
    if found["outcome"] == Outcome.ABORT:
        return f"{base}?isolation=uncommitted"
    return base


def _says(found: Mapping[str, Any]) -> str:
    count = found["records"]
    what = f"Wrote {count:,} {'record' if count == 1 else 'records'} to {found['topic']}"
    if found["outcome"] == Outcome.PLAIN:
        first = found["written"][0]
        return (
            f"{what}: partition {first['partition']}, offset {first['offset']}." if count == 1 else f"{what}."
        )
    end = "committed" if found["outcome"] == Outcome.COMMIT else "aborted on purpose"
    return f"{what} in one transaction of {found['transactional_id']}, which is {end}."


# ---- again


async def replay_form(request: Request) -> Response:
    """Show which records would be sent again, and ask where to."""
    topic, chosen = request.path_params["topic"], request.query_params.get("records", "")
    try:
        places = parse_places(chosen)
        decoding = Decoding(registry=registry_of(request))
        found, shown = await request.app.state.workers.run(request, _chosen, topic, places, decoding)
    except ProduceError as error:
        raise FormError(str(error)) from None
    data = {
        "topic": topic,
        "records": ",".join(f"{each.partition}:{each.offset}" for each in places),
        "count": len(found),
        "bytes": sum(each.record.size_bytes for each in found),
        "messages": shown,
        "transactional_id": new_transactional_id(),
        "records_max": REPLAYED_MAX,
        "today": now_iso()[:10],
    }
    return page(request, "produce_replay.html", data)


def _chosen(
    client: Client, topic: str, places: list[RecordPosition], decoding: Decoding
) -> tuple[list[MarkedRecord], list[dict[str, Any]]]:
    """Read records, and format the first of them, which may query a schema registry."""
    found = read_places(client, topic, places)
    return found, [rows_of.row(each, decoding) for each in found[:SHOWN_MAX]]


async def replay(request: Request) -> Response:
    """Send the chosen records again."""
    fields = await forms.read(request)
    source = request.path_params["topic"]
    target = fields.get("target", "").strip() or source
    try:
        places = parse_places(forms.needed(fields, "records"))
        found = await request.app.state.workers.run(request, read_places, source, places)
        records = copies(
            found,
            keeps_partition=forms.flag(fields, "keep_partition"),
            keeps_time=forms.flag(fields, "keep_time"),
        )
    except ProduceError as error:
        raise FormError(str(error)) from None
    return await _write(request, target, records, fields)


ROUTES = [
    Route("/topics/{topic}/produce", form, methods=["GET"]),
    changes("/topics/{topic}/produce", produce),
    changes("/topics/{topic}/produce/file", produce_file),
    Route("/topics/{topic}/replay", replay_form, methods=["GET"]),
    changes("/topics/{topic}/replay", replay),
]
