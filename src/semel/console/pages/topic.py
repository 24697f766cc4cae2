"""One topic: its partitions, the groups that read it, its producers; adding partitions and deleting it."""

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from semel.client import (
    EARLIEST,
    Admin,
    Client,
    ErrorCode,
    KafkaError,
    ProducerDescription,
    TransactionDescription,
    UnsupportedRequest,
)
from semel.client.consume.offsets import list_offsets
from semel.console import forms
from semel.console.access import changes
from semel.console.observing import Observer
from semel.console.pages.topics import sizes_of
from semel.console.rendering import iso, now_iso, page, segment
from semel.console.sampling import GroupSample, ends_of

#: Rows of one page. A topic may have thousands of partitions and of producers.
PARTITIONS_SHOWN = 200
PRODUCERS_SHOWN = 200


async def topic(request: Request) -> Response:
    """Show partitions with start, last stable offset, end and size; groups and their lag."""
    name: str = request.path_params["topic"]
    observer: Observer = request.app.state.observers.of(request.state.session)
    number = forms.page_number(request)
    data = await request.app.state.workers.run(request, _describe, name, number)
    ends = observer.ends.value
    data["records_per_second"] = None if ends is None else round(ends.rates.get(name, 0.0), 1)
    data["groups"] = _groups(observer.groups.value, name)
    data["open_transactions"] = _open(observer, name)
    return page(request, "topic.html", data)


def _describe(client: Client, name: str, number: int) -> dict[str, Any]:
    found = Admin(client).topics.describe(name)
    shown, where = forms.paged(list(found.partitions), number, PARTITIONS_SHOWN)
    keys = [(name, each.partition) for each in found.partitions if each.leader >= 0]
    high, stable = ends_of(client, keys)
    first = list_offsets(client, dict.fromkeys(high, EARLIEST)) if high else {}
    sizes = sizes_of(client, [name])
    rows = [
        {
            "partition": each.partition,
            "leader": each.leader if each.leader >= 0 else None,
            "replicas": list(each.replicas),
            "in_sync": list(each.in_sync),
            "start": first[key].offset if key in first else None,
            "last_stable_offset": stable.get(key),
            "high_watermark": high.get(key),
            "waiting": high[key] - stable[key] if key in high else None,
            "bytes": None if sizes is None else sizes.get(key),
        }
        for each in shown
        for key in [(name, each.partition)]
    ]
    return {
        "at": now_iso(),
        "topic": name,
        "topic_id": found.topic_id.hex(),
        "is_internal": found.is_internal,
        "partitions": rows,
        **where,
        "offsets": sum(high[key] - first[key].offset for key in high),
        "waiting": sum(high[key] - stable[key] for key in high),
        "bytes": None if sizes is None else sum(sizes.values()),
    }


def _groups(sample: GroupSample | None, name: str) -> list[dict[str, Any]]:
    if sample is None:
        return []
    states = {each.group_id: each.state for each in sample.listed}
    rows = [
        {"group": group, "state": states.get(group, ""), "lag": lag.topics[name]}
        for group, lag in sample.lags.items()
        if name in lag.topics
    ]
    return sorted(rows, key=lambda row: (-row["lag"], row["group"]))


def _open(observer: Observer, name: str) -> list[dict[str, Any]]:
    sample = observer.transactions.value
    now_ms = int(time.time() * 1000)
    found: list[TransactionDescription] = (
        [each for each in sample.open.values() if any(key[0] == name for key in each.partitions)]
        if sample is not None
        else []
    )
    return [
        {
            "transactional_id": each.transactional_id,
            "age_ms": max(0, now_ms - each.started_ms),
            "partitions": [key[1] for key in each.partitions if key[0] == name],
        }
        for each in sorted(found, key=lambda each: each.started_ms)[:PRODUCERS_SHOWN]
    ]


async def producers(request: Request) -> Response:
    """Show the producers of a topic, as the leaders of its partitions remember them."""
    name: str = request.path_params["topic"]
    data = await request.app.state.workers.run(request, _producers, name, forms.page_number(request))
    observer: Observer = request.app.state.observers.of(request.state.session)
    sample = observer.transactions.value
    owners = {(each.producer_id): each.transactional_id for each in sample.open.values()} if sample else {}
    for row in data["producers"]:
        row["transactional_id"] = owners.get(row["producer_id"])
    return page(request, "topic_producers.html", data)


def _producers(client: Client, name: str, number: int) -> dict[str, Any]:
    Admin(client).topics.describe(name)
    try:
        found = Admin(client).transactions.producers(name)
    except UnsupportedRequest:
        return {"topic": name, "producers": [], "is_supported": False, **forms.paged([], 1, 1)[1]}
    listed = [(partition, each) for partition, all_ in found.items() for each in all_]
    listed.sort(key=lambda pair: -pair[1].last_timestamp)
    shown, where = forms.paged(listed, number, PRODUCERS_SHOWN)
    rows = [_producer_row(partition, each) for partition, each in shown]
    return {"topic": name, "producers": rows, "is_supported": True, **where}


def _producer_row(partition: int, each: ProducerDescription) -> dict[str, Any]:
    return {
        "partition": partition,
        "producer_id": each.producer_id,
        "epoch": each.epoch,
        "last_sequence": each.last_sequence,
        "last_record": iso(each.last_timestamp),
        "open_since_offset": each.transaction_start_offset if each.transaction_start_offset >= 0 else None,
    }


async def add_partitions(request: Request) -> Response:
    """Increase the number of partitions."""
    name: str = request.path_params["topic"]
    total = forms.whole(await forms.read(request), "total", least=1)
    await request.app.state.workers.run(request, _add_partitions, name, total)
    await request.app.state.observers.of(request.state.session).refresh("catalogue")
    message = f"Topic {name} has {total} partitions now."
    return forms.done(request, f"/topics/{segment(name)}", message, {"partitions": total})


def _add_partitions(client: Client, name: str, total: int) -> None:
    Admin(client).topics.add_partitions(name, total)


async def delete(request: Request) -> Response:
    """Delete a topic. The user must type its name, because the records cannot be restored."""
    name: str = request.path_params["topic"]
    fields = await forms.read(request)
    if fields.get("name", "") != name:
        raise forms.FormError(f"type the name of the topic, {name}, to delete it")
    await request.app.state.workers.run(request, _delete, name)
    await request.app.state.observers.of(request.state.session).refresh("catalogue")
    return forms.done(request, "/topics", f"Deleted topic {name}.", {"topic": name})


def _delete(client: Client, name: str) -> None:
    try:
        Admin(client).topics.delete(name)
    except KafkaError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        raise forms.FormError(f"there is no topic {name!r} any more") from None


ROUTES = [
    Route("/topics/{topic}", topic),
    Route("/topics/{topic}/producers", producers),
    changes("/topics/{topic}/partitions", add_partitions),
    changes("/topics/{topic}/delete", delete),
]
