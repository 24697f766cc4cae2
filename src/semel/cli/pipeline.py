"""`semel pipeline`: run a declared pipeline, and show the status of a cluster's pipelines.

`semel pipeline list`, `status` and `lag`: show what is stored in the cluster about its pipelines.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel.cli import pipeline_run, pipeline_verify
from semel.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Json,
    client_settings,
    connected,
    duration_ms,
    pairs,
)
from semel.cli.output import show_json, show_pairs, show_rows
from semel.cli.sparking import SparkSettings, sparking
from semel.times import span_text

if TYPE_CHECKING:
    from semel.spark.pipeline.status import Lag, OpenTransaction, Status


def show_list(bootstrap: str, as_json: bool) -> None:
    """List all pipelines."""
    with sparking(), connected(bootstrap) as client:
        from semel.spark.pipeline.status import pipelines, status

        found = [_summary(status(client, each)) for each in pipelines(client)]
    if as_json:
        show_json(found)
    else:
        show_rows([_for_people(row) for row in found], empty="There are no pipelines.")


def show_status(pipeline_id: str, bootstrap: str, as_json: bool) -> None:
    """Show one pipeline in detail."""
    with sparking(), connected(bootstrap) as client:
        from semel.spark.pipeline.status import status

        found = status(client, pipeline_id)
    summary, lags = _summary(found), [_lag(each) for each in found.lags]
    if found.decision is not None:
        summary["still_to_end"] = [each.transactional_id for each in found.decision.winners]
    open_ = [_open(each) for each in found.open]
    if as_json:
        show_json({**summary, "input": lags, "transactions": open_})
        return
    show_pairs(_for_people(summary))
    show_rows(lags, empty="It reads no topics.", title="\nInput")
    show_rows(
        [_for_people(row) for row in open_], empty="It has no open transactions.", title="\nTransactions"
    )


def show_lag(pipeline_id: str, bootstrap: str, as_json: bool) -> None:
    """Show how far a pipeline is behind, by partition."""
    with sparking(), connected(bootstrap) as client:
        from semel.spark.pipeline.status import status

        rows = [_lag(each) for each in status(client, pipeline_id).lags]
    if as_json:
        show_json(rows)
    else:
        show_rows(rows, empty="It reads no topics.")


def _summary(found: "Status") -> dict[str, Any]:
    decision = found.decision
    return {
        "pipeline": found.pipeline,
        "writes_to": found.table or found.kind.value,
        "batch": None if decision is None or decision.batch_id < 0 else decision.batch_id,
        "decision": None if decision is None else decision.number,
        "run": None if decision is None else f"{decision.run.producer_id}.{decision.run.epoch}",
        "lag": found.behind,
        "open_transactions": len(found.open),
        "batch_age_ms": found.batch_age_ms,
    }


def _lag(each: "Lag") -> dict[str, Any]:
    return {
        "topic": each.topic,
        "partition": each.partition,
        "offset": each.offset,
        "latest": each.latest,
        "lag": each.behind,
    }


def _open(each: "OpenTransaction") -> dict[str, Any]:
    return {
        "transactional_id": each.transactional_id,
        "doing": each.doing.value,
        "age_ms": each.age_ms,
        "two_phase": each.is_two_phase,
        "partitions": [f"{topic}/{partition}" for topic, partition in each.partitions],
    }


def _for_people(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with time spans in words."""
    spans = {name: value for name, value in row.items() if name.endswith("_ms")}
    return {
        name.removesuffix("_ms"): span_text(value) if name in spans and value is not None else value
        for name, value in row.items()
    }


app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Run exactly-once pipelines on Spark, and show their status.",
)

PipelineId = Annotated[
    str, typer.Argument(metavar="PIPELINE", help="The id of a pipeline; with several sinks, PIPELINE.SINK.")
]
Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="Where Spark runs. [default: this machine, local[*]]"),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; may be repeated."),
]
Log = Annotated[
    Path | None,
    typer.Option("--log", metavar="FILE", help="Where Spark's own log goes. [default: standard error]"),
]

Outputs = Annotated[
    list[str] | None,
    typer.Option(
        "--output",
        "-o",
        metavar="TOPIC",
        help="A topic that it writes to; may be repeated. Not needed if it writes to a table.",
    ),
]


@app.command()
def run(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.py", help="A file that declares a pipeline.", exists=True, dir_okay=False
        ),
    ],
    checkpoint: Annotated[
        str,
        typer.Option(
            "--checkpoint",
            metavar="DIR",
            help="Where Spark keeps its checkpoints, one directory for every sink. A path or a URL.",
        ),
    ] = "semel-checkpoints",
    once: Annotated[bool, typer.Option("--once", help="Read what is there now, and stop.")] = False,
    new: Annotated[
        bool,
        typer.Option(
            "--new", help="Begin although a pipeline with another id has written the same to the same output."
        ),
    ] = False,
    trigger: Annotated[
        str, typer.Option("--trigger", metavar="SPAN", help="How often a batch starts, as a Spark interval.")
    ] = "1 second",
    master: Master = None,
    conf: Conf = None,
    log: Log = None,
    patience: Annotated[
        str,
        typer.Option(
            "--patience", metavar="SPAN", help="How long the broker may be unavailable before this fails."
        ),
    ] = "5m",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Run the pipeline that a file declares, until it is stopped.

    Stop it with Ctrl-C or SIGTERM: batches in progress finish first. It can also be killed: after a restart
    it continues where it was, and every record still counts exactly once. At a terminal it shows a live
    table, otherwise one line for every batch; with --json the lines are JSON.

    Try:  semel pipeline run billing.py --checkpoint /var/lib/billing

    Exit codes: 0 stopped, or everything was read with --once; 1 a query failed; 2 wrong usage, or the file
    declares no pipeline.
    """
    settings = pipeline_run.Settings(
        file=file,
        bootstrap=bootstrap,
        checkpoint=checkpoint,
        once=once,
        trigger=trigger,
        spark=SparkSettings(master, pairs(conf or (), "--conf"), log),
        patience_seconds=duration_ms(patience, "--patience") / 1000,
        as_json=as_json,
        is_new=new,
    )
    pipeline_run.run(settings)


@app.command("list")
def list_(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: Json = False) -> None:
    """List the pipelines that the cluster knows, running or not, with their positions."""
    show_list(bootstrap, as_json)


@app.command()
def status(pipeline: PipelineId, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: Json = False) -> None:
    """Show a pipeline: its last decision, its lag, and its open transactions.

    A batch is committed by a decision, and decisions are numbered. The batch age is how long the current
    batch has been writing.
    """
    show_status(pipeline, bootstrap, as_json)


@app.command()
def lag(pipeline: PipelineId, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: Json = False) -> None:
    """Show how far a pipeline is behind, by partition of its input."""
    show_lag(pipeline, bootstrap, as_json)


@app.command()
def verify(
    pipeline: PipelineId,
    output: Outputs = None,
    identity: Annotated[
        str, typer.Option("--identity", metavar="SQL", help="The identity of a record, on both sides.")
    ] = "key",
    input_identity: Annotated[
        str | None, typer.Option("--input-identity", metavar="SQL", help="The identity of input records.")
    ] = None,
    output_identity: Annotated[
        str | None, typer.Option("--output-identity", metavar="SQL", help="The identity of output records.")
    ] = None,
    expect: Annotated[
        str, typer.Option("--expect", metavar="SQL", help="How many outputs an input record produces.")
    ] = "1",
    start: Annotated[
        str,
        typer.Option("--from", metavar="OFFSETS", help="Where it started: 'earliest', or JSON by partition."),
    ] = "earliest",
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint", metavar="DIR", help="The checkpoint of the query, to find torn batches."
        ),
    ] = None,
    master: Master = None,
    conf: Conf = None,
    log: Log = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Compare input and output of a pipeline record by record, as a Spark job.

    An identity is a SQL expression over the columns of a record (key, value, headers, ...), or of a row if
    the pipeline writes to a table. By default it is the key: then a key must have as many outputs as inputs.
    The pipeline may run meanwhile.

    Try:  semel pipeline verify billing --output invoices --identity "CAST(value AS STRING)"

    Exit codes: 0 no differences; 1 records are lost, duplicated or foreign, or it could not be determined; 2
    wrong usage.
    """
    settings = SparkSettings(master, pairs(conf or (), "--conf"), log)
    question = {
        "bootstrap_servers": bootstrap,
        "pipeline_id": pipeline,
        "outputs": tuple(output or ()),
        "input_identity": input_identity or identity,
        "output_identity": output_identity or identity,
        "expect": expect,
        "start": start,
        "checkpoint": checkpoint,
        "client": client_settings(),
    }
    pipeline_verify.verify(settings, question, as_json)
