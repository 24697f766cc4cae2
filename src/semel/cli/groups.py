"""`semel groups`: list, describe, delete, and reset, which moves a group to other offsets."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, Yes, confirm, connected, moment_ms
from semel.cli.output import say, show_json, show_rows
from semel.printable import printable

if TYPE_CHECKING:
    from semel.client import Client, Partition

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List, describe, delete and reset consumer groups."
)

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The id of a group.")]


@app.command("list")
def list_(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: Json = False) -> None:
    """List groups."""
    from semel.client import Admin

    with connected(bootstrap) as client:
        found = Admin(client).groups.all()
    rows = [
        {"group": each.group_id, "kind": each.kind or None, "state": each.state or None} for each in found
    ]
    if as_json:
        show_json(rows)
    else:
        show_rows(rows, empty="There are no groups.")


@app.command()
def describe(group: Group, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: Json = False) -> None:
    """Show the members of a group, its offsets, and how far it is behind (lag).

    The offset of a share group is the first in the partition that is not settled.
    """
    from semel.client.admin.groups import describe_group

    with connected(bootstrap) as client:
        info = describe_group(client, group)
        offsets = _offsets(client, group, info.kind)
    readers = {partition: member.member_id for member in info.members for partition in member.partitions}
    for row in offsets:
        row["member"] = readers.get((row["topic"], row["partition"]))
    members = [
        {
            "member": member.member_id,
            "client": member.client_id,
            "host": member.client_host,
            "partitions": [f"{topic}/{partition}" for topic, partition in member.partitions],
        }
        for member in info.members
    ]
    if as_json:
        facts = {"group": group, "kind": info.kind, "state": info.state, "assignor": info.assignor or None}
        show_json({**facts, "members": members, "offsets": offsets})
        return
    # Escape the group id on its own: it may contain newlines, which the title would keep.
    title = f"{printable(group)}  ({info.kind}, {info.state})"
    show_rows(offsets, empty="It has committed no offsets.", title=title)
    show_rows(members, empty="It has no members.")


def _offsets(client: "Client", group: str, kind: str) -> list[dict[str, Any]]:
    from semel.client import LATEST, Admin
    from semel.client.admin.groups import offsets_of

    admin = Admin(client)
    committed = offsets_of(client, group, kind)
    known = {topic.name: len(topic.partitions) for topic in admin.topics.all()}
    present = [key for key in committed if key[1] < known.get(key[0], 0)]
    ends = admin.topics.offsets(dict.fromkeys(present, LATEST))
    rows = []
    for key, at in sorted(committed.items()):
        end = ends[key].offset if key in ends else None
        rows.append(
            {
                "topic": key[0],
                "partition": key[1],
                "offset": at.offset,
                "latest": end,
                "lag": None if end is None else max(0, end - at.offset),
            }
        )
    return rows


@app.command()
def delete(
    groups: Annotated[list[str], typer.Argument(metavar="GROUP", help="Ids of groups.")],
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete groups with their offsets. They must have no members. Asks for confirmation at a terminal."""
    from semel.client import Admin

    confirm(f"Delete {', '.join(groups)} with all offsets?", yes)
    with connected(bootstrap) as client:
        Admin(client).groups.delete(*groups)
    for group in groups:
        say(f"Deleted group {printable(group)}.")


@app.command()
def reset(
    group: Group,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:0,1]",
            help="Topics, or some partitions of one; default: all that it has read.",
        ),
    ] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="Read everything again.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Skip everything up to now.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", min=0, help="Go to this offset.")] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option("--to-datetime", metavar="TIME", help="Go to the first record at or after this time."),
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option("--shift-by", metavar="N", help="Move N records forward, or back if N is negative."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Move a group to other offsets. It must have no members.

    Offsets outside the log are moved to its nearest end.

    Try:  semel groups reset billing --to-datetime 2026-01-31T18:00 --dry-run
    """
    from semel.client import Admin
    from semel.client.admin.group_offsets import reset_targets

    ways = [to_earliest, to_latest, to_offset is not None, to_datetime is not None, shift_by is not None]
    if sum(ways) != 1:
        names = "--to-earliest, --to-latest, --to-offset, --to-datetime, --shift-by"
        raise typer.BadParameter(f"give exactly one of {names}")
    time_ms = moment_ms(to_datetime, "--to-datetime") if to_datetime is not None else None
    with connected(bootstrap) as client:
        before = {key: at.offset for key, at in Admin(client).groups.offsets(group).items()}
        partitions = _chosen(client, topic or (), before)
        how: dict[str, Any] = {"to_earliest": to_earliest, "to_offset": to_offset, "shift_by": shift_by}
        after = reset_targets(client, partitions, before, time_ms=time_ms, **how)
        if not dry_run:
            Admin(client).groups.set_offsets(group, after)
    rows: list[dict[str, Any]] = [
        {"topic": key[0], "partition": key[1], "before": before.get(key), "after": offset}
        for key, offset in sorted(after.items())
    ]
    if as_json:
        show_json({"group": group, "dry_run": dry_run, "offsets": rows})
        return
    show_rows(rows, empty=f"Group {group} has committed no offsets; name topics with --topic.")
    if dry_run:
        say("Nothing was changed (--dry-run).")


def _chosen(
    client: "Client", topics: "list[str] | tuple[()]", before: "Mapping[Partition, int]"
) -> "list[Partition]":
    if not topics:
        return sorted(before)
    chosen: list[Partition] = []
    for text in topics:
        name, colon, numbers = text.partition(":")
        count = len(client.topic(name).partitions)
        if not colon:
            chosen += [(name, number) for number in range(count)]
            continue
        for number in numbers.split(","):
            if not number.isdigit() or int(number) >= count:
                raise typer.BadParameter(
                    f"{name} has no partition {number!r}, only 0 to {count - 1}", param_hint="--topic"
                )
            chosen.append((name, int(number)))
    return chosen
