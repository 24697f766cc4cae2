"""`semel transactions`: list, describe, abort, find-hanging, and explain what blocks a partition."""

from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, Yes, confirm, connected, duration_ms
from semel.cli.output import say, show, show_json, show_pairs, show_rows
from semel.times import span_text, time_text

if TYPE_CHECKING:
    from semel.client import Client
    from semel.client.admin import blocking
    from semel.client.admin.transactions import TransactionDescription

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List, describe and abort transactions, and find out what blocks a partition.",
)

OPEN_STATE = "Ongoing"


class StateName(StrEnum):
    """The states of a transactional id. The Prepare states exist only on other brokers."""

    empty = "Empty"
    ongoing = "Ongoing"
    prepare_commit = "PrepareCommit"
    prepare_abort = "PrepareAbort"
    complete_commit = "CompleteCommit"
    complete_abort = "CompleteAbort"


OlderThan = Annotated[
    str | None,
    typer.Option("--older-than", metavar="SPAN", help="Only those open for longer, such as 90s, 5m or 2h."),
]
TransactionalId = Annotated[str, typer.Argument(metavar="ID", help="A transactional id.")]


@app.command("list")
def list_(
    state: Annotated[
        list[StateName] | None,
        typer.Option("--state", "-s", case_sensitive=False, help="Only these states; may be repeated."),
    ] = None,
    producer: Annotated[
        list[int] | None,
        typer.Option("--producer", metavar="NUMBER", help="Only these producer ids; may be repeated."),
    ] = None,
    older_than: OlderThan = None,
    pattern: Annotated[
        str | None,
        typer.Option("--pattern", metavar="REGEX", help="Only ids that match this expression as a whole."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """List transactional ids with the state of their transactions.

    A two-phase transaction never times out: only its owner ends it, or 'semel transactions abort'.

    Try:  semel transactions list --state ongoing --older-than 5m
    """
    from semel.client import Admin, ErrorCode, KafkaError
    from semel.client.admin.transactions import describe_transactions

    age_ms = duration_ms(older_than, "--older-than") if older_than is not None else -1
    with connected(bootstrap) as client:
        try:
            listed = Admin(client).transactions.all(
                [each.value for each in state or ()], producer or (), age_ms, pattern
            )
        except KafkaError as error:
            if error.code is not ErrorCode.INVALID_REGULAR_EXPRESSION:
                raise
            raise typer.BadParameter(
                f"{pattern!r} is not a regular expression that the broker accepts", param_hint="--pattern"
            ) from None
        described = describe_transactions(client, [each.transactional_id for each in listed])
    # Leave out ids that have expired between the two requests.
    rows = [_row(described[each.transactional_id]) for each in listed if each.transactional_id in described]
    if older_than is not None:
        # Brokers also list ids without an open transaction, which have no age.
        rows = [row for row in rows if row["since"] is not None]
    if as_json:
        show_json(rows)
        return
    shown = [{**_for_people(row), "partitions": len(row["partitions"])} for row in rows]
    show_rows(shown, empty="There are no such transactional ids.")


@app.command()
def describe(
    transactional_id: TransactionalId, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: Json = False
) -> None:
    """Show a transactional id: its producer, and its open transaction."""
    with connected(bootstrap) as client:
        found = _find(client, transactional_id)
    row = _row(found)
    row["ends"] = None if found.is_two_phase or row["since"] is None else time_text(_due_ms(found))
    if as_json:
        show_json(row)
    else:
        show_pairs(_for_people(row))


@app.command()
def abort(
    transactional_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The transactional id.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", help="Instead of an id: where a transaction hangs.")
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", min=0)] = None,
    start_offset: Annotated[
        int | None,
        typer.Option("--start-offset", min=0, help="Its first offset there, as find-hanging shows it."),
    ] = None,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Abort the open transaction of an id, and fence its producer.

    With --topic, --partition and --start-offset it ends a hanging transaction, one that no coordinator knows,
    in that partition. Asks for confirmation at a terminal.

    Try:  semel transactions abort payments-7
    """
    place = (topic, partition, start_offset)
    if transactional_id is not None and place == (None, None, None):
        with connected(bootstrap) as client:
            _abort_id(client, transactional_id, yes)
    elif (
        transactional_id is None and topic is not None and partition is not None and start_offset is not None
    ):
        with connected(bootstrap) as client:
            _abort_at(client, topic, partition, start_offset, yes)
    else:
        raise typer.BadParameter("give a transactional id, or all of --topic, --partition and --start-offset")


@app.command()
def find_hanging(
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Only this topic.")] = None,
    partition: Annotated[int | None, typer.Option("--partition", min=0, help="Only this partition.")] = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="SPAN", help="Only those idle for longer, such as 5m."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Find transactions that are open in a partition and unknown to every coordinator.

    They never end by themselves, and readers with read_committed wait for them. Each is listed with the
    command that aborts it. Semel has none, because it checks and writes a batch in one step; other brokers
    may have some.
    """
    from semel.client.admin import blocking

    if partition is not None and topic is None:
        raise typer.BadParameter("--partition needs --topic")
    age_ms = duration_ms(older_than, "--older-than") if older_than is not None else None
    with connected(bootstrap) as client:
        names = [topic] if topic is not None else [each.name for each in client.describe().topics]
        found = [
            each
            for name in names
            for each in blocking.hanging_in(client, name, None if partition is None else [partition])
        ]
    if age_ms is not None:
        now = blocking.now_ms()
        found = [each for each in found if now - each.producer.last_timestamp > age_ms]
    rows = [
        {
            "topic": each.topic,
            "partition": each.partition,
            "producer": each.producer.producer_id,
            "epoch": each.producer.epoch,
            "first_offset": each.first_offset,
            "last_record": time_text(each.producer.last_timestamp),
            "command": each.command,
        }
        for each in found
    ]
    if as_json:
        show_json(rows)
    else:
        show_rows(rows, empty="No transaction hangs.")


@app.command()
def explain(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0)],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Explain what blocks a partition: why its last stable offset does not advance, and what unblocks it."""
    from semel.client.admin import blocking

    with connected(bootstrap) as client:
        client.leader(topic, partition)
        found = blocking.explain(client, topic, partition)
    open_ = [_open_row(each) for each in found.open]
    if as_json:
        first = {**open_[0], "ends": _ends(found)} if open_ else None
        show_json(
            {
                "topic": topic,
                "partition": partition,
                "visibility": found.visibility,
                "last_stable_offset": found.last_stable_offset,
                "high_watermark": found.high_watermark,
                "waiting": found.waiting,
                "blocked_by": first,
                "also_open": open_[1:],
            }
        )
        return
    where = f"{topic}/{partition}"
    if found.visibility == blocking.JOURNAL:
        show(
            f"Nothing can block {where}: it has journal visibility, so no open transaction is in its log."
            " What is staged for it is shown by 'semel transactions describe'."
        )
    elif not found.open:
        show(_unblocked(where, found))
    else:
        _say_blocked(where, found, open_)


def _unblocked(where: str, found: "blocking.Blockage") -> str:
    if found.waiting:
        return f"Transactions in {where} end faster than they can be read; try again."
    return f"Nothing blocks {where}: its last stable offset is its high watermark, {found.high_watermark}."


def _say_blocked(where: str, found: "blocking.Blockage", open_: list[dict[str, Any]]) -> None:
    from semel.client.admin import blocking

    show(
        f"{where} is blocked at offset {found.last_stable_offset}, its last stable offset:"
        f" {found.waiting} {'offset waits' if found.waiting == 1 else 'offsets wait'}"
        f" up to {found.high_watermark}."
    )
    first = found.open[0]
    if first.owner is None:
        ends = "never: no coordinator knows it (it hangs)"
    elif found.ends_ms is None:
        ends = "never by itself: it is two-phase, and its owner decides"
    else:
        left_ms = found.ends_ms - blocking.now_ms()
        when = f"in {span_text(left_ms)}" if left_ms > 0 else "now"
        ends = f"{_ends(found)}, {when}: the broker aborts it then"
    shown = {name: value for name, value in _for_people(open_[0]).items() if name != "command"}
    show_pairs({**shown, "ends": ends, "end_it_now": first.command})
    if len(open_) > 1:
        show_rows([_for_people(each) for each in open_[1:]], empty="", title="Also open behind it")


def _open_row(each: "blocking.Open") -> dict[str, Any]:
    owner = each.owner
    age_ms = owner.open_for_ms() if owner else None
    return {
        "transactional_id": owner.transactional_id if owner else None,
        "producer": each.producer.producer_id,
        "epoch": each.producer.epoch,
        "since": time_text(owner.started_ms) if owner else None,
        "age_ms": age_ms,
        "first_offset": each.first_offset,
        "also_in": each.also_in,
        "command": each.command,
    }


def _for_people(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with time spans in words."""
    age_ms = row["age_ms"]
    age = None if age_ms is None else span_text(age_ms)
    return dict(("age", age) if name == "age_ms" else (name, value) for name, value in row.items())


def _ends(found: "blocking.Blockage") -> str | None:
    return None if found.ends_ms is None else time_text(found.ends_ms)


def _row(found: "TransactionDescription") -> dict[str, Any]:
    age_ms = found.open_for_ms()
    return {
        "transactional_id": found.transactional_id,
        "state": found.state,
        "producer": found.producer_id,
        "epoch": found.epoch,
        "since": time_text(found.started_ms) if age_ms is not None else None,
        "age_ms": age_ms,
        "timeout_ms": None if found.is_two_phase else found.timeout_ms,
        "two_phase": found.is_two_phase,
        "partitions": [f"{topic}/{partition}" for topic, partition in found.partitions],
    }


def _find(client: "Client", transactional_id: str) -> "TransactionDescription":
    from semel.client import Admin

    # Report at once if no broker can be reached: the search for a coordinator retries until the timeout.
    client.connection()
    return Admin(client).transactions.describe(transactional_id)


def _due_ms(found: "TransactionDescription") -> int:
    return found.started_ms + found.timeout_ms


def _abort_id(client: "Client", transactional_id: str, yes: bool) -> None:
    from semel.client import Admin
    from semel.client.admin import blocking

    client.connection()  # as in `_find`
    found = blocking.open_of(client, transactional_id)
    question = f"Abort the transaction of {transactional_id} ({_places(found.partitions)})?"
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


def _places(partitions: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{topic}/{partition}" for topic, partition in partitions) or "no partitions yet"
