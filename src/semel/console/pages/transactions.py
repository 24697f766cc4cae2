"""Transactions: the timeline of open ones, those that ended, one in detail, and aborting one."""

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from semel.client import Admin, Client, ErrorCode, KafkaError, TransactionDescription
from semel.client.admin import blocking
from semel.console import forms
from semel.console.access import changes
from semel.console.observing import Observer
from semel.console.rendering import iso, now_iso, page, segment
from semel.console.sampling import ends_of
from semel.console.transaction_rows import (
    GroupFinder,
    blocked_by,
    data_partitions,
    finished_row,
    open_row,
    placed,
)

FINISHED_SHOWN = 50
VIEWS = ("open", "finished")
ORDERS = {"age": "oldest first", "blocking": "most waiting first", "name": "by id"}


async def transactions(request: Request) -> Response:
    """List open transactions on a timeline, or those that ended. `q` filters by id or topic."""
    query = request.query_params
    wanted = query.get("q", "").strip()
    view = query.get("view", "open")
    order = query.get("order", "age")
    if view not in VIEWS or order not in ORDERS:
        raise forms.FormError(f"view must be one of {', '.join(VIEWS)}, and order one of {', '.join(ORDERS)}")
    observer: Observer = request.app.state.observers.of(request.state.session)
    sample = await observer.transactions.get()
    size = request.app.state.settings.page_size
    number = forms.page_number(request)
    # While sampling fails, these transactions may have ended, so their age must not grow.
    now_ms = observer.transactions.as_of_ms
    waiting = blocked_by(sample.open, observer.ends.value)
    common = {
        "at": now_iso(),
        "view": view,
        "q": wanted,
        "order": order,
        "orders": ORDERS,
        "open_total": len(sample.open),
        "finished_total": len(sample.finished),
        "states": dict(sample.states),
        "blocking": len(waiting),
    }
    if view == "finished":
        ended = [each for each in sample.finished if _matches(wanted, each.transactional_id, each.partitions)]
        shown, where = forms.paged(ended, number, size)
        rows = {"finished": [finished_row(each) for each in shown]}
        return page(request, "transactions.html", {**common, **rows, **where})
    found = [
        each for each in sample.open.values() if _matches(wanted, each.transactional_id, each.partitions)
    ]
    found.sort(key=_key(order, waiting))
    shown, where = forms.paged(found, number, size)
    finder = GroupFinder(observer.groups.value, observer.catalogue.value)
    listed = [open_row(each, finder, now_ms) for each in shown]
    for row in listed:
        row["waiting"] = waiting.get(row["transactional_id"], 0)
    axis = placed(listed, now_ms)
    return page(request, "transactions.html", {**common, "transactions": listed, "axis": axis, **where})


def _matches(wanted: str, transactional_id: str, partitions: Any) -> bool:
    wanted = wanted.lower()
    return (
        not wanted
        or wanted in transactional_id.lower()
        or any(wanted in f"{topic}/{number}".lower() for topic, number in partitions)
    )


def _key(order: str, waiting: dict[str, int]) -> Any:
    if order == "blocking":
        return lambda each: (-waiting.get(each.transactional_id, 0), each.started_ms)
    if order == "name":
        return lambda each: each.transactional_id
    return lambda each: (each.started_ms, each.transactional_id)


async def transaction(request: Request) -> Response:
    """Show one transactional id, and the partitions in which its open transaction blocks readers."""
    transactional_id: str = request.path_params["transactional_id"]
    observer: Observer = request.app.state.observers.of(request.state.session)
    found, places = await request.app.state.workers.run(request, _describe, transactional_id)
    now_ms = int(time.time() * 1000)
    finder = GroupFinder(observer.groups.value, observer.catalogue.value)
    row = open_row(found, finder, now_ms)
    is_open = found.state == blocking.OPEN_STATE
    sample = observer.transactions.value
    ended = [each for each in sample.finished if each.transactional_id == transactional_id] if sample else []
    pipeline, slash, task = transactional_id.partition("/")
    groups = observer.groups.value
    is_pipeline = bool(slash) and groups is not None and pipeline in groups.pipelines
    data = {
        **row,
        "is_open": is_open,
        "places": places,
        "waiting": sum(each["waiting"] for each in places if each["is_first"]),
        "finished": [finished_row(each) for each in ended[:FINISHED_SHOWN]],
        "pipeline": {"id": pipeline, "task": task} if is_pipeline else None,
    }
    return page(request, "transaction.html", data)


def _describe(client: Client, transactional_id: str) -> tuple[TransactionDescription, list[dict[str, Any]]]:
    client.connection()  # Report an unreachable broker at once; the search for a coordinator takes a while.
    found = Admin(client).transactions.describe(transactional_id)
    keys = data_partitions(found)
    if found.state != blocking.OPEN_STATE or not keys:
        return found, []
    high, stable = ends_of(client, keys)
    begins: dict[tuple[str, int], int] = {}
    for topic in {name for name, _ in high}:
        numbers = [number for name, number in high if name == topic]
        try:
            producers = Admin(client).transactions.producers(topic, numbers)
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                raise
            continue
        for number, known in producers.items():
            for each in known:
                if each.producer_id == found.producer_id and each.transaction_start_offset >= 0:
                    begins[topic, number] = each.transaction_start_offset
    return found, [
        {
            "topic": key[0],
            "partition": key[1],
            "first_offset": begins.get(key),
            "last_stable_offset": stable.get(key),
            "high_watermark": high.get(key),
            "waiting": high[key] - stable[key] if key in high else 0,
            "is_first": key in begins and begins[key] == stable.get(key),
        }
        for key in keys
    ]


async def abort(request: Request) -> Response:
    """Abort the open transaction of an id, and fence its producer.

    The form sends the `producer_id`, `epoch` and `since_ms` that it showed. The next transaction of the id
    may be open by now, and the user has not asked to abort that one.
    """
    transactional_id: str = request.path_params["transactional_id"]
    fields = await forms.read(request)
    shown = (
        forms.whole(fields, "producer_id"),
        forms.whole(fields, "epoch"),
        forms.whole(fields, "since_ms"),
    )
    began_ms, epoch = await request.app.state.workers.run(request, _abort, transactional_id, shown)
    observer: Observer = request.app.state.observers.of(request.state.session)
    observer.aborted.append((transactional_id, began_ms))
    await observer.refresh("transactions", "ends")
    message = f"Aborted the transaction of {transactional_id}. Its producer is fenced."
    return forms.done(request, f"/transactions/{segment(transactional_id)}", message, {"epoch": epoch})


def _abort(client: Client, transactional_id: str, shown: tuple[int, int, int]) -> tuple[int, int]:
    client.connection()
    found = blocking.open_of(client, transactional_id)
    if (found.producer_id, found.epoch, found.started_ms) != shown:
        raise forms.Conflict(
            f"the transaction of {transactional_id} that the page showed is over. Another one is open, "
            f"since {iso(found.started_ms)}, by producer {found.producer_id} in epoch {found.epoch}. "
            "It was not aborted: look at the page again first."
        )
    return found.started_ms, Admin(client).transactions.fence(transactional_id).epoch


ROUTES = [
    Route("/transactions", transactions),
    changes("/transactions/{transactional_id:path}/abort", abort),
    Route("/transactions/{transactional_id:path}", transaction),
]
