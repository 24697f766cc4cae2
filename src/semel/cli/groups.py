"""`semel groups`: list, describe, delete, and reset, which moves a group to other offsets."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel.cli.command import command
from semel.cli.options import Option, Yes, argument, confirm, group, moment_ms
from semel.cli.output import Answer, Columns, Remark, Table, partition_names, say
from semel.printable import printable

if TYPE_CHECKING:
    from semel.client import Admin, Client, GroupListing, MemberInfo, Partition

app = group("List, describe, delete and reset consumer groups.")

GroupId = Annotated[str, argument("GROUP", "The id of a group.")]
GROUPS: "Columns[GroupListing]" = Columns(
    group=lambda group: group.group_id,
    kind=lambda group: group.kind or None,
    state=lambda group: group.state or None,
)
MEMBERS: "Columns[MemberInfo]" = Columns(
    member=lambda member: member.member_id,
    client=lambda member: member.client_id,
    host=lambda member: member.client_host,
    partitions=lambda member: partition_names(member.partitions),
)


@command(app, "list")
def list_(admin: "Admin") -> Answer:
    """List groups."""
    return GROUPS.answer(admin.groups.all(), "There are no groups.")


@command(app)
def describe(group: GroupId, client: "Client") -> Answer:
    """Show the members of a group, its offsets, and how far it is behind (lag).

    The offset of a share group is the first in the partition that is not settled.
    """
    from semel.client.admin.groups import describe_group

    info = describe_group(client, group)
    offsets = _offsets(client, group, info.kind)
    readers = {partition: member.member_id for member in info.members for partition in member.partitions}
    for row in offsets:
        row["member"] = readers.get((row["topic"], row["partition"]))
    members = MEMBERS.table(info.members, "It has no members.")
    facts = {"group": group, "kind": info.kind, "state": info.state, "assignor": info.assignor or None}
    # Escape the group id on its own: it may contain newlines, which the title would keep.
    title = f"{printable(group)}  ({info.kind}, {info.state})"
    return Answer(
        {**facts, "members": members.rows, "offsets": offsets},
        Table(offsets, "It has committed no offsets.", title),
        members,
    )


def _offsets(client: "Client", group: str, kind: str) -> list[dict[str, Any]]:
    from semel.client import LATEST, Admin
    from semel.client.admin.groups import offsets_of

    admin = Admin(client)
    committed = offsets_of(client, group, kind)
    known = {topic.name: len(topic.partitions) for topic in admin.topics.all()}
    present = [key for key in committed if key[1] < known.get(key[0], 0)]
    ends = admin.topics.offsets(dict.fromkeys(present, LATEST))
    rows = []
    for (topic, partition), at in sorted(committed.items()):
        end = ends[topic, partition].offset if (topic, partition) in ends else None
        lag = None if end is None else max(0, end - at.offset)
        rows.append({"topic": topic, "partition": partition, "offset": at.offset, "latest": end, "lag": lag})
    return rows


@command(app)
def delete(
    *,
    groups: Annotated[list[str], argument("GROUP", "Ids of groups.")],
    yes: Yes = False,
    admin: "Admin",
) -> None:
    """Delete groups with their offsets. They must have no members. Asks for confirmation at a terminal."""
    confirm(f"Delete {', '.join(groups)} with all offsets?", yes)
    admin.groups.delete(*groups)
    for name in groups:
        say(f"Deleted group {printable(name)}.")


@command(app)
def reset(
    *,
    group: GroupId,
    topic: Annotated[
        list[str] | None,
        Option("Topics, or some partitions of one; default: all that it has read.", "-t", "TOPIC[:0,1]"),
    ] = None,
    to_earliest: Annotated[bool, Option("Read everything again.")] = False,
    to_latest: Annotated[bool, Option("Skip everything up to now.")] = False,
    to_offset: Annotated[int | None, Option("Go to this offset.", lowest=0)] = None,
    to_datetime: Annotated[
        str | None, Option("Go to the first record at or after this time.", "TIME")
    ] = None,
    shift_by: Annotated[int | None, Option("Move N records forward, or back if N is negative.", "N")] = None,
    dry_run: Annotated[bool, Option("Only show what would be done.")] = False,
    client: "Client",
) -> Answer:
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
    before = {key: at.offset for key, at in Admin(client).groups.offsets(group).items()}
    partitions = _chosen(client, topic or [], before)
    how: dict[str, Any] = {"to_earliest": to_earliest, "to_offset": to_offset, "shift_by": shift_by}
    after = reset_targets(client, partitions, before, time_ms=time_ms, **how)
    if not dry_run:
        Admin(client).groups.set_offsets(group, after)
    rows = [
        {"topic": key[0], "partition": key[1], "before": before.get(key), "after": offset}
        for key, offset in sorted(after.items())
    ]
    return Answer(
        {"group": group, "dry_run": dry_run, "offsets": rows},
        Table(rows, f"Group {group} has committed no offsets; name topics with --topic."),
        *([Remark("Nothing was changed (--dry-run).")] if dry_run else []),
    )


def _chosen(client: "Client", topics: list[str], before: "Mapping[Partition, int]") -> "list[Partition]":
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
