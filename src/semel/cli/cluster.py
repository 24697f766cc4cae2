"""`semel cluster`: shows, drains and checks a cluster, through its ledger in PostgreSQL."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel.cli.command import command
from semel.cli.options import Chunks, Json, Option, RequiredLedger, argument, duration_ms
from semel.cli.output import Answer, Columns, Pairs, Table, say, show
from semel.times import span_text

if TYPE_CHECKING:
    from semel.store.cluster.checking.rows import Finding
    from semel.store.cluster.inspection import BrokerStatus, ClusterStatus
    from semel.store.cluster.postgres.snapshots import Snapshots

app = typer.Typer(
    no_args_is_help=True, help="Brokers that share a ledger: what they own, and how to relieve one."
)

Node = Annotated[int, argument("NODE", "The node.id of the broker.", lowest=0)]
BROKERS: "Columns[BrokerStatus]" = Columns(
    node=lambda broker: broker.broker_id,
    state=lambda broker: broker.state,
    shards=lambda broker: broker.shards,
    lease=lambda broker: span_text(broker.lease_ms) if broker.lease_ms else None,
    epoch=lambda broker: broker.epoch,
    notices=lambda broker: broker.notices,
    listeners=lambda broker: [f"{name}={_address(at)}" for name, at in broker.endpoints.items()],
    internal=lambda broker: _address(broker.internal),
    rack=lambda broker: broker.rack,
)


@command(app)
def status(
    ledger: RequiredLedger,
    tables: Annotated[bool, Option("Show the tables of the ledger, too.")] = False,
) -> Answer:
    """Show the brokers, who owns the shards, and how much is stored. Changes nothing.

    The numbers come from the ledger, so this works even if no broker runs. PostgreSQL estimates the rows of
    its tables.

    Try:  semel cluster status --ledger postgresql://semel@localhost/semel
    """
    import asyncio

    _check_packages()
    from semel.store.cluster.inspection import cluster_status

    found = asyncio.run(cluster_status(ledger, _SCHEMA))
    shown: list[Pairs | Table | str] = [
        Pairs(_overview(found)),
        "",
        BROKERS.table(found.brokers, "No broker has ever started."),
    ]
    if tables:
        shown += ["", Table([table._asdict() for table in found.tables], "There are no tables.")]
    return Answer(_plain(found), *shown)


@command(app)
def drain(
    ledger: RequiredLedger,
    node: Node,
    timeout: Annotated[str, Option("How long to wait, as in 30s or 5m.", "SPAN")] = "1m",
) -> None:
    """Make a broker give its shards to the others and take no new ones; wait until it owns none.

    The broker keeps running: clients move to the new owners within a moment. Stop it afterwards, or let it
    take shards again with 'semel cluster undrain'. A restart of the broker ends the drain, too.

    Try:  semel cluster drain 2 --ledger postgresql://semel@localhost/semel

    Exit codes: 0 it owns no shards; 1 it does not run, no other broker can take its shards, or the timeout
    was reached.
    """
    import asyncio

    _check_packages()
    from semel.store.cluster.inspection import set_draining, shards_left

    seconds = duration_ms(timeout, "--timeout") / 1000

    async def wait() -> None:
        left: int | None = None
        is_asked = False
        try:
            async with asyncio.timeout(seconds):
                await set_draining(ledger, _SCHEMA, node, True)
                is_asked = True
                async for shards in shards_left(ledger, _SCHEMA, node):
                    left = shards
        except TimeoutError:
            if is_asked:
                number = "an unknown number" if left is None else left
                say(f"Broker {node} is asked to give its shards away and still owns {number} of them.")
            else:
                say(f"PostgreSQL has not answered in time. Broker {node} may not be asked: try again.")
            raise typer.Exit(1) from None

    asyncio.run(wait())
    show(f"Broker {node} owns no shards.")


@command(app)
def undrain(ledger: RequiredLedger, node: Node) -> None:
    """End the drain of a broker. Within seconds the other brokers give it its share of the shards."""
    import asyncio

    _check_packages()
    from semel.store.cluster.inspection import set_draining

    asyncio.run(set_draining(ledger, _SCHEMA, node, False))
    show(f"Broker {node} takes shards again.")


@command(app)
def check(ledger: RequiredLedger, chunks: Chunks = None, as_json: Json = False) -> Answer:
    """Look for lost or altered rows in the ledger, and for lost objects. Changes nothing; brokers may run.

    Compares the tables with one another, checks the rows of all batches and, with --chunks, compares the
    objects with the object store. It reads no records: the bytes of batches are checked when they are read.
    Findings are printed as they are found, or at the end with --json. If the check fails, it prints what it
    has not checked.

    Try:  semel cluster check --ledger postgresql://semel@localhost/semel --chunks file:///srv/semel

    Exit codes: 0 nothing was found; 1 something was found, or the check could not be made; 2 wrong usage.
    """
    import asyncio

    _check_packages()
    from semel.store.cluster.checking.rows import not_told
    from semel.store.cluster.checking.run import check_cluster

    tell = not_told if as_json else _show_finding
    checked = asyncio.run(check_cluster(ledger, _SCHEMA, chunks, say, tell))
    shown: list[str] = []
    if checked.total > len(checked.findings):
        shown.append(f"{checked.total - len(checked.findings)} more findings are not listed.")
    if chunks is None:
        shown.append("The objects were not compared with the object store: give --chunks for that.")
    if checked.not_checked:
        missing = ", ".join(checked.not_checked)
        shown.append(f"The check has failed. Not checked, or not to the end: {missing}.")
    shown.append(
        f"Findings: {checked.total} (partitions: {checked.partitions},"
        f" rows of batches: {checked.batches}, chunks: {checked.chunks})."
    )
    data = {**checked._asdict(), "findings": [finding._asdict() for finding in checked.findings]}
    return Answer(
        data,
        *shown,
        failure=checked.failure,
        code=1 if checked.total or checked.failure is not None else 0,
    )


def _show_finding(finding: "Finding") -> None:
    show(f"{finding.kind}: {finding.what}.")
    show(f"  What to do: {finding.advice}.")
    # Flush: the reader of a pipe should see a finding at once, and it must survive the end of the process.
    sys.stdout.flush()


def cluster_status(ledger: str) -> dict[str, Any]:
    """Return the status in the ledger, for the console. RuntimeError if the ledger cannot be read."""
    import asyncio

    _check_packages()
    from semel.store.cluster.inspection import cluster_status as ask
    from semel.store.contract import StoreBroken, StoreRefused

    try:
        found = asyncio.run(ask(ledger, _SCHEMA))
    except (StoreBroken, StoreRefused) as error:
        raise RuntimeError(str(error)) from error
    rows = BROKERS.rows(found.brokers)
    return {"overview": _overview(found), "columns": list(rows[0]) if rows else [], "brokers": rows}


def _check_packages() -> None:
    from semel.store.opening import check_packages

    check_packages()


def _overview(found: "ClusterStatus") -> dict[str, Any]:
    stored = found.bytes
    waiting = f" for up to {span_text(stored.inline_since_ms)}" if stored.inline_since_ms is not None else ""
    return {
        "cluster id": found.cluster_id,
        "term": "ended by a crash of PostgreSQL" if found.term is None else found.term,
        "PostgreSQL": found.server_version + "".join(f", UNSAFE: {name} is off" for name in found.unsafe),
        "shards": f"{found.shards}, {found.unowned_shards} without an owner",
        "objects": f"{stored.objects} with {stored.object_bytes} bytes",
        "to be deleted": f"{stored.unused_objects} objects with {stored.unused_bytes} bytes",
        "in PostgreSQL": f"{stored.inline_chunks} small commits with {stored.inline_bytes} bytes{waiting}",
        "notices": sum(each.notices for each in found.brokers),
        "snapshots": _snapshots(found.snapshots),
    }


def _snapshots(found: "Snapshots") -> str:
    shown = f"oldest: {found.oldest}" if found.oldest is not None else "none of others"
    if not found.hidden:
        return shown
    return f"{shown}; {found.hidden} sessions are hidden from this user (GRANT pg_read_all_stats)"


def _address(address: Sequence[Any]) -> str:
    host, port = address
    return f"{host}:{port}" if host else "-"


def _plain(found: "ClusterStatus") -> dict[str, Any]:
    brokers = [
        {
            **each._asdict(),
            "endpoints": {name: _address(address) for name, address in each.endpoints.items()},
            "internal": _address(each.internal),
        }
        for each in found.brokers
    ]
    tables = [each._asdict() for each in found.tables]
    oldest, hidden = found.snapshots
    snapshots = {"oldest": None if oldest is None else oldest._asdict(), "hidden": hidden}
    whole = found._asdict() | {"bytes": found.bytes._asdict(), "snapshots": snapshots}
    return whole | {"brokers": brokers, "tables": tables}


_SCHEMA = "semel"
