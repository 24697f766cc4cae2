"""`semel transactions`: list, describe, abort, find-hanging, and explain what blocks a partition."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from semel.cli.command import command
from semel.cli.options import Option, Yes, argument, confirm, duration_ms, group
from semel.cli.output import Answer, Columns, Pairs, Table, partition_names, say
from semel.times import span_text, time_text

if TYPE_CHECKING:
    from semel.client import Client
    from semel.client.admin.blocking import Blockage, Open
    from semel.client.admin.transactions import TransactionDescription

app = group("List, describe and abort transactions, and find out what blocks a partition.")


class StateName(StrEnum):
    """The states of a transactional id. The Prepare states exist only on other brokers."""

    empty = "Empty"
    ongoing = "Ongoing"
    prepare_commit = "PrepareCommit"
    prepare_abort = "PrepareAbort"
    complete_commit = "CompleteCommit"
    complete_abort = "CompleteAbort"


TRANSACTIONS: "Columns[TransactionDescription]" = Columns(
    cells={"age_ms": span_text},
    transactional_id=lambda found: found.transactional_id,
    state=lambda found: found.state,
    producer=lambda found: found.producer_id,
    epoch=lambda found: found.epoch,
    since=lambda found: time_text(found.started_ms) if found.open_for_ms() is not None else None,
    age_ms=lambda found: found.open_for_ms(),
    timeout_ms=lambda found: None if found.is_two_phase else found.timeout_ms,
    two_phase=lambda found: found.is_two_phase,
    partitions=lambda found: partition_names(found.partitions),
)
HANGING: "Columns[Open]" = Columns(
    topic=lambda hanging: hanging.topic,
    partition=lambda hanging: hanging.partition,
    producer=lambda hanging: hanging.producer.producer_id,
    epoch=lambda hanging: hanging.producer.epoch,
    first_offset=lambda hanging: hanging.first_offset,
    last_record=lambda hanging: time_text(hanging.producer.last_timestamp),
    command=lambda hanging: hanging.command,
)
BLOCKING: "Columns[Open]" = Columns(
    cells={"age_ms": span_text},
    transactional_id=lambda found: found.owner.transactional_id if found.owner else None,
    producer=lambda found: found.producer.producer_id,
    epoch=lambda found: found.producer.epoch,
    since=lambda found: time_text(found.owner.started_ms) if found.owner else None,
    age_ms=lambda found: found.owner.open_for_ms() if found.owner else None,
    first_offset=lambda found: found.first_offset,
    also_in=lambda found: found.also_in,
    command=lambda found: found.command,
)


@command(app, "list")
def list_(
    *,
    state: Annotated[
        list[StateName] | None,
        typer.Option("--state", "-s", case_sensitive=False, help="Only these states; may be repeated."),
    ] = None,
    producer: Annotated[
        list[int] | None, Option("Only these producer ids; may be repeated.", "NUMBER")
    ] = None,
    older_than: Annotated[
        str | None, Option("Only those open for longer, such as 90s, 5m or 2h.", "SPAN")
    ] = None,
    pattern: Annotated[str | None, Option("Only ids that match this expression as a whole.", "REGEX")] = None,
    client: "Client",
) -> Answer:
    """List transactional ids with the state of their transactions.

    A two-phase transaction never times out: only its owner ends it, or 'semel transactions abort'.

    Try:  semel transactions list --state ongoing --older-than 5m
    """
    from semel.client import Admin, ErrorCode, KafkaError
    from semel.client.admin.transactions import describe_transactions

    age_ms = duration_ms(older_than, "--older-than") if older_than is not None else -1
    try:
        listed = Admin(client).transactions.all(
            [name.value for name in state or ()], producer or (), age_ms, pattern
        )
    except KafkaError as error:
        if error.code is not ErrorCode.INVALID_REGULAR_EXPRESSION:
            raise
        raise typer.BadParameter(
            f"{pattern!r} is not a regular expression that the broker accepts", param_hint="--pattern"
        ) from None
    described = describe_transactions(client, [each.transactional_id for each in listed])
    # Leave out ids that have expired between the two requests.
    rows = TRANSACTIONS.rows(
        described[each.transactional_id] for each in listed if each.transactional_id in described
    )
    if older_than is not None:
        # Brokers also list ids without an open transaction, which have no age.
        rows = [row for row in rows if row["since"] is not None]
    cells = {**TRANSACTIONS.cells, "partitions": len}
    return Answer(rows, Table(rows, "There are no such transactional ids.", cells=cells))


@command(app)
def describe(
    transactional_id: Annotated[str, argument("ID", "A transactional id.")], client: "Client"
) -> Answer:
    """Show a transactional id: its producer, and its open transaction."""
    from semel.client import Admin

    # Report at once if no broker can be reached: the search for a coordinator retries until the timeout.
    client.connection()
    found = Admin(client).transactions.describe(transactional_id)
    row = TRANSACTIONS.row(found)
    is_ending = not found.is_two_phase and row["since"] is not None
    row["ends"] = time_text(found.started_ms + found.timeout_ms) if is_ending else None
    return Answer(row, Pairs(row, TRANSACTIONS.cells))


@command(app)
def abort(
    *,
    transactional_id: Annotated[str | None, argument("[ID]", "The transactional id.")] = None,
    topic: Annotated[str | None, Option("Instead of an id: where a transaction hangs.", "-t")] = None,
    partition: Annotated[int | None, typer.Option("--partition", min=0)] = None,
    start_offset: Annotated[
        int | None, Option("Its first offset there, as find-hanging shows it.", lowest=0)
    ] = None,
    yes: Yes = False,
    client: "Client",
) -> None:
    """Abort the open transaction of an id, and fence its producer.

    With --topic, --partition and --start-offset it ends a hanging transaction, one that no coordinator knows,
    in that partition. Asks for confirmation at a terminal.

    Try:  semel transactions abort payments-7
    """
    if transactional_id is not None and topic is None and partition is None and start_offset is None:
        _abort_id(client, transactional_id, yes)
    elif (
        transactional_id is None and topic is not None and partition is not None and start_offset is not None
    ):
        _abort_at(client, topic, partition, start_offset, yes)
    else:
        raise typer.BadParameter("give a transactional id, or all of --topic, --partition and --start-offset")


@command(app)
def find_hanging(
    *,
    topic: Annotated[str | None, Option("Only this topic.", "-t")] = None,
    partition: Annotated[int | None, Option("Only this partition.", lowest=0)] = None,
    older_than: Annotated[str | None, Option("Only those idle for longer, such as 5m.", "SPAN")] = None,
    client: "Client",
) -> Answer:
    """Find transactions that are open in a partition and unknown to every coordinator.

    They never end by themselves, and readers with read_committed wait for them. Each is listed with the
    command that aborts it. Semel has none, because it checks and writes a batch in one step; other brokers
    may have some.
    """
    from semel.client.admin import blocking

    if partition is not None and topic is None:
        raise typer.BadParameter("--partition needs --topic")
    age_ms = duration_ms(older_than, "--older-than") if older_than is not None else None
    names = [topic] if topic is not None else [each.name for each in client.describe().topics]
    partitions = None if partition is None else [partition]
    found = [hanging for name in names for hanging in blocking.hanging_in(client, name, partitions)]
    if age_ms is not None:
        now = blocking.now_ms()
        found = [hanging for hanging in found if now - hanging.producer.last_timestamp > age_ms]
    return HANGING.answer(found, "No transaction hangs.")


@command(app)
def explain(
    topic: Annotated[str, argument("TOPIC")],
    partition: Annotated[int, argument("PARTITION", lowest=0)],
    client: "Client",
) -> Answer:
    """Explain what blocks a partition: why its last stable offset does not advance, and what unblocks it."""
    from semel.client.admin import blocking

    client.leader(topic, partition)
    found = blocking.explain(client, topic, partition)
    rows = BLOCKING.rows(found.open)
    data = {
        "topic": topic,
        "partition": partition,
        "visibility": found.visibility,
        "last_stable_offset": found.last_stable_offset,
        "high_watermark": found.high_watermark,
        "waiting": found.waiting,
        "blocked_by": {**rows[0], "ends": _ends(found)} if rows else None,
        "also_open": rows[1:],
    }
    return Answer(data, *_explained(f"{topic}/{partition}", found))


def _explained(where: str, found: "Blockage") -> list[str | Pairs | Table]:
    from semel.client.admin import blocking

    if found.visibility == blocking.JOURNAL:
        return [
            f"Nothing can block {where}: it has journal visibility, so no open transaction is in its log."
            " What is staged for it is shown by 'semel transactions describe'."
        ]
    if not found.open:
        if found.waiting:
            return [f"Transactions in {where} end faster than they can be read; try again."]
        end = found.high_watermark
        return [f"Nothing blocks {where}: its last stable offset is its high watermark, {end}."]
    first, *others = found.open
    if first.owner is None:
        ends = "never: no coordinator knows it (it hangs)"
    elif found.ends_ms is None:
        ends = "never by itself: it is two-phase, and its owner decides"
    else:
        remaining_ms = found.ends_ms - blocking.now_ms()
        when = f"in {span_text(remaining_ms)}" if remaining_ms > 0 else "now"
        ends = f"{_ends(found)}, {when}: the broker aborts it then"
    row = BLOCKING.row(first)
    end_it_now = row.pop("command")
    shown: list[str | Pairs | Table] = [
        f"{where} is blocked at offset {found.last_stable_offset}, its last stable offset:"
        f" {found.waiting} {'offset waits' if found.waiting == 1 else 'offsets wait'}"
        f" up to {found.high_watermark}.",
        Pairs({**row, "ends": ends, "end_it_now": end_it_now}, BLOCKING.cells),
    ]
    if others:
        shown.append(BLOCKING.table(others, "", "Also open behind it"))
    return shown


def _ends(found: "Blockage") -> str | None:
    return None if found.ends_ms is None else time_text(found.ends_ms)


def _abort_id(client: "Client", transactional_id: str, yes: bool) -> None:
    from semel.client import Admin
    from semel.client.admin import blocking

    client.connection()  # as in `describe`
    found = blocking.open_of(client, transactional_id)
    partitions = ", ".join(partition_names(found.partitions)) or "no partitions yet"
    question = f"Abort the transaction of {transactional_id} ({partitions})?"
    if found.is_two_phase:
        question = f"It is two-phase: a decision to commit it would be lost. {question}"
    confirm(question, yes)
    fenced = Admin(client).transactions.fence(transactional_id)
    say(f"Aborted the transaction of {transactional_id}. Epochs before {fenced.epoch} are refused.")


def _abort_at(client: "Client", topic: str, partition: int, start_offset: int, yes: bool) -> None:
    from semel.client.admin import blocking

    where = f"{topic}/{partition}"
    hanging = blocking.hanging_at(client, topic, partition, start_offset)
    producer_id = hanging.producer.producer_id
    confirm(f"Abort the transaction of producer {producer_id} in {where} at offset {start_offset}?", yes)
    blocking.end_hanging(client, hanging)
    say(f"Aborted the transaction of producer {producer_id} in {where}.")
