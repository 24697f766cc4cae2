"""Moving a group to other offsets: a preview of what changes, and the change itself.

The form of the preview sends the offsets that it showed, so exactly these are applied.
"""

import time
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from semel.client import Admin, Client, Partition
from semel.client.admin.group_offsets import reset_targets
from semel.client.admin.groups import SHARE, describe_group, offsets_of, set_share_offsets
from semel.console import forms
from semel.console.access import changes
from semel.console.messages.asking import AskingError, moment
from semel.console.pages.groups import address
from semel.console.rendering import page

#: Partitions that a message names.
NAMED_MAX = 5
WAYS = {
    "earliest": "to the start of the log: read everything again",
    "latest": "to the end of the log: skip everything up to now",
    "time": "to the first record at or after a time",
    "offset": "to one offset",
    "shift": "by a number of records, back if it is negative",
}


async def preview(request: Request) -> Response:
    """Show what a reset would change. Nothing is changed yet."""
    group_id: str = request.path_params["group"]
    query = dict(request.query_params)
    way = query.get("to", "")
    if way and way not in WAYS:
        raise forms.FormError(f"to must be one of {', '.join(WAYS)}, not {way!r}")
    topic = query.get("topic", "").strip()
    how = _how(way, query.get("value", "").strip()) if way else None
    data = await request.app.state.workers.run(request, _preview, group_id, topic, how)
    data |= {"to": way, "value": query.get("value", ""), "topic": topic, "ways": WAYS}
    return page(request, "reset.html", data)


def _how(way: str, value: str) -> dict[str, Any]:
    """Return the arguments of `reset_targets`."""
    if way == "earliest":
        return {"to_earliest": True}
    if way == "latest":
        return {}
    if way == "offset":
        return {"to_offset": forms.whole({"offset": value}, "offset")}
    if way == "shift":
        try:
            return {"shift_by": int(value)}
        except ValueError:
            raise forms.FormError(f"the shift must be a whole number such as -100, not {value!r}") from None
    if value.isdecimal():
        return {"time_ms": forms.whole({"time": value}, "time")}
    try:
        return {"time_ms": moment(value, int(time.time() * 1000))}
    except AskingError as error:
        raise forms.FormError(f"{error}; milliseconds since 1970 are a time, too") from None


def _preview(client: Client, group_id: str, topic: str, how: dict[str, Any] | None) -> dict[str, Any]:
    client.connection()
    info = describe_group(client, group_id, "")
    offsets = {key: at.offset for key, at in offsets_of(client, group_id, info.kind).items()}
    known = {
        found.name: [(found.name, each.partition) for each in found.partitions]
        for found in client.describe({name for name, _ in offsets} | ({topic} if topic else set())).topics
    }
    rows: list[dict[str, Any]] = []
    if how is not None:
        if topic and topic not in known:
            raise forms.FormError(f"there is no topic {topic!r}")
        chosen = known[topic] if topic else [key for key in sorted(offsets) if key in known.get(key[0], [])]
        after = reset_targets(client, chosen, offsets, **how)
        rows = [
            {
                "topic": key[0],
                "partition": key[1],
                "before": offsets.get(key),
                "after": offset,
                "change": offset - offsets[key] if key in offsets else None,
            }
            for key, offset in sorted(after.items())
        ]
    return {
        "group": group_id,
        "kind": info.kind,
        "state": info.state,
        "members": len(info.members),
        "topics": sorted(known),
        "preview": rows if how is not None else None,
        "offsets": msgspec.json.encode(
            [[row["topic"], row["partition"], row["after"]] for row in rows]
        ).decode(),
    }


async def reset(request: Request) -> Response:
    """Move a group to the offsets of a preview: `offsets` is a JSON list of topic, partition and offset."""
    group_id: str = request.path_params["group"]
    fields = await forms.read(request)
    try:
        wanted = msgspec.json.decode(forms.needed(fields, "offsets"), type=list[tuple[str, int, int]])
    except msgspec.DecodeError as error:
        raise forms.FormError(f"offsets must be a list of [topic, partition, offset]: {error}") from None
    offsets = {(topic, partition): offset for topic, partition, offset in wanted}
    if not offsets or any(offset < 0 for offset in offsets.values()):
        raise forms.FormError("give at least one offset, and none below 0")
    if any(not 0 <= partition < 1 << 31 for _, partition in offsets):
        raise forms.FormError("partitions are numbers from 0")
    moved = await request.app.state.workers.run(request, _reset, group_id, offsets)
    await request.app.state.observers.of(request.state.session).refresh("groups")
    message = f"Moved group {group_id} in {len(offsets)} partitions."
    outside = [key for key in sorted(offsets) if moved[key] != offsets[key]]
    if outside:
        listed = ", ".join(
            f"{topic}/{number} to {moved[topic, number]}" for topic, number in outside[:NAMED_MAX]
        )
        more = f" and {len(outside) - NAMED_MAX} more" if len(outside) > NAMED_MAX else ""
        message += f" Offsets outside the log were moved to its nearest end: {listed}{more}."
    data = {
        "group": group_id,
        "moved": len(offsets),
        "outside": [
            {"topic": key[0], "partition": key[1], "asked": offsets[key], "offset": moved[key]}
            for key in outside
        ],
    }
    return forms.done(request, address(group_id), message, data)


def _reset(client: Client, group_id: str, offsets: dict[Partition, int]) -> dict[Partition, int]:
    """Move the group to the offsets, limited to the log as it is now; return its new offsets."""
    kind = describe_group(client, group_id, "").kind
    moved = reset_targets(client, offsets, offsets, shift_by=0)
    if kind == SHARE:
        set_share_offsets(client, group_id, moved)
    else:
        Admin(client).groups.set_offsets(group_id, moved)
    return moved


ROUTES = [
    Route("/groups/{group:path}/reset", preview, methods=["GET"]),
    changes("/groups/{group:path}/reset", reset),
]
