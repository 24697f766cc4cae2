"""Groups: the list with lag, one group with its members and positions, and deleting one.

The page of a group shows the timestamps of its first unread records. For most batches, the header suffices. A
batch is opened, within bounds, only if its header does not determine the timestamp of the record at the
position.
"""

import time
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from semel.client import Admin, Client, FetchLimits, Isolation, Partition, ProtocolError
from semel.client.admin.groups import describe_group, offsets_of
from semel.client.consume.fetch import fetch_batches
from semel.console import forms
from semel.console.access import changes
from semel.console.observing import Observer
from semel.console.rendering import now_iso, page, segment
from semel.console.sampling import GroupSample, ends_of
from semel.spark.pipeline.status import MARKS
from semel.wire.records import BatchHeader, iter_batches, iter_records
from semel.wire.schema import Buffer

#: Bounds for one page: partitions, bytes fetched for each partition, and bytes fetched for all.
PARTITIONS_MAX = 100
PARTITION_BYTES = 16 << 10
RESPONSE_BYTES = 2 << 20
#: The largest decompressed size of a batch, and how long batches are opened for one page.
UNPACKED_BYTES = 1 << 20
OPENING_SECONDS = 1.0


def first_timestamps(client: Client, positions: Mapping[Partition, int]) -> dict[Partition, int]:
    """Return the time of the first record at or after each position, in ms.

    Partitions without an answer are left out. If a batch cannot be opened within the bounds, the result is
    its maximum timestamp: the record is at least that old.
    """
    wanted = dict(list(positions.items())[:PARTITIONS_MAX])
    if not wanted:
        return {}
    limits = FetchLimits(
        max_wait_ms=0, min_bytes=0, max_bytes=RESPONSE_BYTES, partition_max_bytes=PARTITION_BYTES
    )
    found: dict[Partition, int] = {}
    answers = fetch_batches(client, wanted, Isolation.READ_UNCOMMITTED, limits)
    deadline = time.monotonic() + OPENING_SECONDS
    for key, data in answers:
        if data.error_code or not data.records:
            continue
        for at, header in iter_batches(data.records):
            if header.last_offset < wanted[key] or header.is_control:
                continue
            timestamp = _told(header, wanted[key])
            if timestamp is None:
                may_open = time.monotonic() < deadline
                timestamp = _read(data.records, at, header, wanted[key]) if may_open else header.max_timestamp
            if timestamp is not None:
                found[key] = max(0, timestamp)
                break
    return found


def _told(header: BatchHeader, position: int) -> int | None:
    """Return the timestamp of the first record at or after the position, if the header determines it."""
    if header.is_log_append_time:
        return header.max_timestamp
    # Compaction may have removed the first record, or replaced the base timestamp by the delete horizon.
    is_whole = header.record_count == header.last_offset_delta + 1 and header.delete_horizon is None
    return header.base_timestamp if is_whole and position <= header.base_offset else None


def _read(data: Buffer, at: int, header: BatchHeader, position: int) -> int | None:
    """Return that timestamp from the records; None if there is no such record."""
    try:
        records = iter_records(data, at, limit_bytes=UNPACKED_BYTES)
        return next((each.timestamp for each in records if each.offset >= position), None)
    except ProtocolError:  # It decompresses to more than the limit, or is damaged.
        return header.max_timestamp


ORDERS = {"name": "by name", "lag": "furthest behind first", "age": "longest behind first"}


async def groups(request: Request) -> Response:
    """List groups. `q` filters by id or topic, `kind` by protocol, `order` sorts."""
    query = request.query_params
    wanted, kind = query.get("q", "").strip(), query.get("kind", "")
    order = query.get("order", "name")
    if order not in ORDERS:
        raise forms.FormError(f"order must be one of {', '.join(ORDERS)}, not {order!r}")
    observer: Observer = request.app.state.observers.of(request.state.session)
    sample = await observer.groups.get()
    rows = [
        row
        for row in (_row(sample, each.group_id, each.kind, each.state) for each in sample.listed)
        if (not kind or row["kind"] == kind)
        and (
            wanted.lower() in row["group"].lower()
            or any(wanted.lower() in topic.lower() for topic in row["topics"])
        )
    ]
    if order == "lag":
        rows.sort(key=lambda row: -(row["lag"] or 0))
    elif order == "age":
        rows.sort(key=lambda row: -(row["age_seconds"] or 0))
    size = request.app.state.settings.page_size
    shown, where = forms.paged(rows, forms.page_number(request), size)
    kinds = sorted({each.kind for each in sample.listed if each.kind})
    data = {"groups": shown, **where, "q": wanted, "order": order, "orders": ORDERS, "kind": kind}
    return page(request, "groups.html", {**data, "kinds": kinds})


def _row(sample: GroupSample, group_id: str, kind: str, state: str) -> dict[str, Any]:
    lag = sample.lags.get(group_id)
    return {
        "group": group_id,
        "kind": kind,
        "state": state,
        "lag": None if lag is None else lag.lag,
        "age_seconds": None if lag is None or lag.age_seconds is None else round(lag.age_seconds, 1),
        "topics": [] if lag is None else sorted(lag.topics),
    }


async def group(request: Request) -> Response:
    """Show the members of a group, what each reads, and how far it is behind."""
    group_id: str = request.path_params["group"]
    observer: Observer = request.app.state.observers.of(request.state.session)
    sample = observer.groups.value
    kinds = {each.group_id: each.kind for each in sample.listed} if sample is not None else {}
    data = await request.app.state.workers.run(request, _describe, group_id, kinds.get(group_id, ""))
    times, lags = _columns(sample, group_id, "lag_series")
    _, ages = _columns(sample, group_id, "age_series")
    data["series"] = {"times": times, "lag": lags, "age_seconds": ages}
    return page(request, "group.html", data)


def _columns(sample: GroupSample | None, group_id: str, name: str) -> tuple[list[float], list[Any]]:
    series = getattr(sample, name).get(group_id) if sample is not None else None
    if series is None:
        return [], []
    times, values = series.columns()
    return [round(at, 1) for at in times], [None if each is None else round(each, 1) for each in values]


def _describe(client: Client, group_id: str, kind: str) -> dict[str, Any]:
    client.connection()
    info = describe_group(client, group_id, kind)
    offsets = offsets_of(client, group_id, info.kind)
    known = {topic.name for topic in client.describe({name for name, _ in offsets}).topics}
    high, stable = ends_of(client, [key for key in offsets if key[0] in known])
    behind = {key: at.offset for key, at in offsets.items() if key in high and high[key] > at.offset}
    oldest = first_timestamps(client, behind)
    readers = {key: member.member_id for member in info.members for key in member.partitions}
    now_ms = int(time.time() * 1000)
    rows: list[dict[str, Any]] = []
    for key in sorted(offsets.keys() | readers.keys()):
        at = offsets.get(key)
        end = high.get(key)
        is_waiting = at is not None and end is not None and stable[key] <= at.offset < end
        rows.append(
            {
                "topic": key[0],
                "partition": key[1],
                "offset": None if at is None else at.offset,
                "last_stable_offset": stable.get(key),
                "high_watermark": end,
                "lag": None if at is None or end is None else max(0, end - at.offset),
                "age_ms": max(0, now_ms - oldest[key]) if key in oldest else 0 if key not in behind else None,
                "member": readers.get(key),
                "is_waiting": is_waiting,
            }
        )
    ages = [row["age_ms"] for row in rows if row["age_ms"]]
    return {
        "at": now_iso(),
        "group": group_id,
        "kind": info.kind,
        "state": info.state,
        "assignor": info.assignor or None,
        "members": [
            {
                "member_id": each.member_id,
                "instance_id": each.instance_id,
                "client_id": each.client_id,
                "host": each.client_host,
                "partitions": [{"topic": key[0], "partition": key[1]} for key in sorted(each.partitions)],
            }
            for each in info.members
        ],
        "offsets": rows,
        "lag": sum(row["lag"] or 0 for row in rows),
        "age_ms": max(ages, default=0),
        "waiting": sum(1 for row in rows if row["is_waiting"]),
        "is_pipeline": any(at.metadata.startswith(MARKS) for at in offsets.values()),
    }


async def delete(request: Request) -> Response:
    """Delete a group without members, with its offsets."""
    group_id: str = request.path_params["group"]
    await request.app.state.workers.run(request, _delete, group_id)
    await request.app.state.observers.of(request.state.session).refresh("groups")
    return forms.done(request, "/groups", f"Deleted group {group_id}.", {"group": group_id})


def _delete(client: Client, group_id: str) -> None:
    Admin(client).groups.delete(group_id)


def address(group_id: str) -> str:
    """Return the address of a group's page."""
    return f"/groups/{segment(group_id)}"


class _OneSegment(Route):
    """A route for an id that was sent as one segment, such as `a%2Freset`, which does not reset `a`."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope.get("raw_path", b"").count(b"/") != self.path.count("/"):
            return Match.NONE, {}
        return super().matches(scope)


ROUTES = [Route("/groups", groups), _OneSegment("/groups/{group:path}", group, methods=["GET"])]
DETAIL_ROUTES = [
    changes("/groups/{group:path}/delete", delete),
    Route("/groups/{group:path}", group),
]
