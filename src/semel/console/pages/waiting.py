"""Explains why a reader waits: what holds back the last stable offset, and what ends the wait."""

from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from semel.client import Client
from semel.client.admin import blocking
from semel.console import forms
from semel.console.access import changes
from semel.console.rendering import iso, now_iso, page, segment


async def chosen(request: Request) -> Response:
    """Redirect to the explanation of the partition that a form names as TOPIC/PARTITION."""
    query = request.query_params
    topic, slash, number = query.get("partition", "").strip().rpartition("/")
    if not slash or not number.isdecimal() or len(number) > 10:
        raise forms.FormError("name a partition as TOPIC/NUMBER, for example orders/0")
    return RedirectResponse(f"/topics/{segment(topic)}/why/{number}", status_code=303)


async def why(request: Request) -> Response:
    """Explain what readers of committed records wait for in a partition."""
    topic: str = request.path_params["topic"]
    partition: int = request.path_params["partition"]
    data = await request.app.state.workers.run(request, _explain, topic, partition)
    return page(request, "why.html", data)


def _explain(client: Client, topic: str, partition: int) -> dict[str, Any]:
    client.leader(topic, partition)  # An unknown partition is reported at once.
    found = blocking.explain(client, topic, partition)
    rows = [_open_row(each) for each in found.open]
    first = rows[0] if rows else None
    if first is not None:
        first["ends"] = iso(found.ends_ms)
        first["ends_in_ms"] = None if found.ends_ms is None else max(0, found.ends_ms - blocking.now_ms())
    return {
        "at": now_iso(),
        "topic": topic,
        "partition": partition,
        "visibility": found.visibility,
        "last_stable_offset": found.last_stable_offset,
        "high_watermark": found.high_watermark,
        "waiting": found.waiting,
        "blocked_by": first,
        "also_open": rows[1:],
    }


def _open_row(each: blocking.Open) -> dict[str, Any]:
    owner = each.owner
    return {
        "transactional_id": None if owner is None else owner.transactional_id,
        "hangs": owner is None,
        "two_phase": owner is not None and owner.is_two_phase,
        "producer_id": each.producer.producer_id,
        # An abort of the owner's transaction compares the epoch with that of the coordinator.
        "epoch": each.producer.epoch if owner is None else owner.epoch,
        "since": None if owner is None else iso(owner.started_ms),
        "since_ms": None if owner is None else owner.started_ms,
        "age_ms": None if owner is None else owner.open_for_ms(),
        "timeout_ms": None if owner is None or owner.is_two_phase else owner.timeout_ms,
        "first_offset": each.first_offset,
        "last_record": iso(each.producer.last_timestamp),
        "also_in": each.also_in,
        "command": each.command,
    }


async def abort(request: Request) -> Response:
    """Abort a transaction that hangs in a partition: one that no coordinator knows.

    The form sends the `start_offset`, `producer_id` and `epoch` that it showed.
    """
    topic: str = request.path_params["topic"]
    partition: int = request.path_params["partition"]
    fields = await forms.read(request)
    start_offset = forms.whole(fields, "start_offset")
    shown = forms.whole(fields, "producer_id"), forms.whole(fields, "epoch")
    producer = await request.app.state.workers.run(request, _abort, topic, partition, start_offset, shown)
    await request.app.state.observers.of(request.state.session).refresh("ends")
    message = f"Aborted the transaction of producer {producer} in {topic}/{partition}."
    return forms.done(
        request, f"/topics/{segment(topic)}/why/{partition}", message, {"producer_id": producer}
    )


def _abort(client: Client, topic: str, partition: int, start_offset: int, shown: tuple[int, int]) -> int:
    hanging = blocking.hanging_at(client, topic, partition, start_offset)
    if (hanging.producer.producer_id, hanging.producer.epoch) != shown:
        raise forms.Conflict(
            f"another transaction hangs in {topic}/{partition} from offset {start_offset} than the page "
            f"showed: that of producer {hanging.producer.producer_id} in epoch {hanging.producer.epoch}. "
            "It was not aborted: look at the page again first."
        )
    blocking.end_hanging(client, hanging)
    return hanging.producer.producer_id


ROUTES = [
    Route("/why", chosen),
    Route("/topics/{topic}/why/{partition:number}", why),
    changes("/topics/{topic}/why/{partition:number}/abort", abort),
]
