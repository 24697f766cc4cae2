"""The list of topics: filtered, ordered and paged on the server; and creating one."""

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
    NewTopic,
    TopicInfo,
    UnsupportedRequest,
)
from semel.client.admin.topics import partition_sizes
from semel.client.consume.offsets import list_offsets
from semel.console import forms
from semel.console.access import changes
from semel.console.observing import Observer
from semel.console.rendering import page, segment
from semel.console.sampling import PartitionEnds, ends_of

ORDERS = ("name", "partitions", "rate", "records")


async def topics(request: Request) -> Response:
    """List topics. `q` filters by name, `order` sorts, `internal=1` shows internal topics."""
    query = request.query_params
    wanted = query.get("q", "").strip()
    order = query.get("order", "name")
    if order not in ORDERS:
        raise forms.FormError(f"order must be one of {', '.join(ORDERS)}, not {order!r}")
    observer: Observer = request.app.state.observers.of(request.state.session)
    catalogue = await observer.catalogue.get()
    ends = observer.ends.value
    shows_internal = query.get("internal", "") == "1"
    found = [
        each
        for each in catalogue.topics
        if wanted.lower() in each.name.lower() and (shows_internal or not each.is_internal)
    ]
    _sort(found, order, ends)
    shown, where = forms.paged(found, forms.page_number(request), request.app.state.settings.page_size)
    rows = await request.app.state.workers.run(request, _rows, shown)
    for row in rows:
        row["records_per_second"] = None if ends is None else round(ends.rates.get(row["topic"], 0.0), 1)
    hidden = sum(1 for each in catalogue.topics if each.is_internal) if not shows_internal else 0
    data = {
        "topics": rows,
        **where,
        "q": wanted,
        "order": order,
        "internal": shows_internal,
        "hidden": hidden,
    }
    return page(request, "topics.html", data)


def _sort(found: list[TopicInfo], order: str, ends: PartitionEnds | None) -> None:
    if order == "partitions":
        found.sort(key=lambda each: -len(each.partitions))
    elif order == "rate" and ends is not None:
        found.sort(key=lambda each: -ends.rates.get(each.name, 0.0))
    elif order == "records" and ends is not None:
        found.sort(key=lambda each: -_offsets(each, ends))


def _offsets(topic: TopicInfo, ends: PartitionEnds) -> int:
    """Return the number of offsets between the starts and the ends of a topic's partitions."""
    keys = [(topic.name, each.partition) for each in topic.partitions]
    return sum(ends.high[key] - ends.first[key] for key in keys if key in ends.high)


def _rows(client: Client, shown: list[TopicInfo]) -> list[dict[str, Any]]:
    """Return the topics of one page with their offsets and sizes, in a few requests for all."""
    keys = [(topic.name, each.partition) for topic in shown for each in topic.partitions]
    high, stable = ends_of(client, keys)
    first = list_offsets(client, dict.fromkeys(high, EARLIEST)) if high else {}
    sizes = sizes_of(client, [topic.name for topic in shown if any(key[0] == topic.name for key in high)])
    rows = []
    for topic in shown:
        own = [(topic.name, each.partition) for each in topic.partitions]
        rows.append(
            {
                "topic": topic.name,
                "is_internal": topic.is_internal,
                "partitions": len(topic.partitions),
                "replicas": len(topic.partitions[0].replicas) if topic.partitions else 0,
                "offline": sum(1 for each in topic.partitions if each.leader < 0),
                "offsets": sum(high[key] - first[key].offset for key in own if key in high),
                "waiting": sum(high[key] - stable[key] for key in own if key in high),
                "bytes": _bytes(sizes, [key for key in own if key in high]),
            }
        )
    return rows


def _bytes(sizes: dict[tuple[str, int], int] | None, keys: list[tuple[str, int]]) -> int | None:
    """Return the bytes of partitions; None if those of any are unknown, because a broker does not answer."""
    if sizes is None or any(key not in sizes for key in keys):
        return None
    return sum(sizes[key] for key in keys)


def sizes_of(client: Client, names: list[str]) -> dict[tuple[str, int], int] | None:
    """Return the bytes of partitions; None if that is unsupported or not authorized."""
    try:
        return partition_sizes(client, names)
    except UnsupportedRequest:
        return None
    except KafkaError as error:
        if error.code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise
        return None


async def create(request: Request) -> Response:
    """Create a topic."""
    fields = await forms.read(request)
    name = forms.needed(fields, "name")
    configs = {
        key: fields[key].strip()
        for key in ("cleanup.policy", "retention.ms", "semel.visibility")
        if fields.get(key, "").strip()
    }
    partitions = forms.whole(fields, "partitions", -1, least=-1)
    made = await request.app.state.workers.run(request, _create, NewTopic(name, partitions, configs=configs))
    await request.app.state.observers.of(request.state.session).refresh("catalogue")
    return forms.done(request, f"/topics/{segment(name)}", f"Created topic {name}.", made)


def _create(client: Client, topic: NewTopic) -> dict[str, Any]:
    (made,) = Admin(client).topics.create(topic)
    return {"topic": made.name, "partitions": made.partitions}


ROUTES = [Route("/topics", topics, methods=["GET"]), changes("/topics", create)]
