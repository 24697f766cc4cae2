"""`semel pipeline`: plans, runs, lists, describes and verifies pipelines, and retries their dead letters.

The progress of a run is a live table at a terminal, else one line per batch.
"""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from semel.cli.command import client_settings, command, connected
from semel.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Json,
    Option,
    address_of,
    argument,
    duration_ms,
    group,
)
from semel.cli.output import (
    Answer,
    Cells,
    Columns,
    Pairs,
    Table,
    discard_output,
    partition_names,
    say,
    say_error,
)
from semel.cli.spark import FAILED, SparkOptions, running_spark, spark_errors
from semel.printable import as_json, printable, printable_lines
from semel.times import span_text, time_text

if TYPE_CHECKING:
    from rich.table import Table as RichTable

    from semel.client import Client
    from semel.spark.pipeline.dead import Changed, Found, Retried
    from semel.spark.pipeline.planned import Finding, PipelinePlan, SinkPlan, SourcePlan, StatePlan
    from semel.spark.pipeline.running import Progress, Restarted, Run
    from semel.spark.pipeline.status import Lag, LastBatch, OpenTransaction, Status
    from semel.spark.pipeline.totals import RunTotals
    from semel.spark.pipeline.verify import Answer as Comparison

BAR_WIDTH = 16
COLUMNS = (
    "batch", "rows", "rows/s", "lag", "written", "dead", "late", "state", "restarts", "took", "age"
)  # fmt: skip
ADDRESS_TAKEN = 69
CELL_WIDTH = 60
TEXT_MAX = 200


def _text(data: bytes | None) -> str | None:
    """Return the beginning of a key or a value."""
    return None if data is None else data[:TEXT_MAX].decode("utf-8", "backslashreplace")


def _short(text: str | None) -> str | None:
    return text if text is None or len(text) <= CELL_WIDTH else f"{text[: CELL_WIDTH - 1]}…"


def view(totals: "RunTotals", *, with_json: bool) -> "Lines | Screen":
    """Return the view for what standard output is, or for programs."""
    if not with_json and sys.stdout.isatty():
        return Screen(totals)
    return Lines(totals, as_json=with_json)


class Lines:
    """One line for every batch that had rows, on standard output."""

    def __init__(self, totals: "RunTotals", *, as_json: bool) -> None:
        self._totals = totals
        self._as_json = as_json
        self.is_closed = False  # whether the reader of the output has closed it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdout.flush()

    def show(self, event: "Progress | Restarted | None") -> None:
        """Print the event."""
        from semel.spark.pipeline.running import Progress

        if event is None or (isinstance(event, Progress) and not event.has_rows):
            return
        if self._as_json:
            kind = "batch" if isinstance(event, Progress) else "restart"
            text = as_json({"event": kind, **asdict(event), "restarts": self._totals.restarts})
        else:
            text = (
                _line(event) if isinstance(event, Progress) else f"{event.pipeline}  restarted: {event.why}"
            )
        try:
            sys.stdout.write(printable_lines(text) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            self.is_closed = True
            discard_output()


def _line(event: "Progress") -> str:
    text = (
        f"{event.pipeline}  batch {event.batch}: {event.rows:,} rows in {span_text(event.duration_ms)}, "
        f"{event.rows_per_second:,.0f} rows/s, {event.lag:,} behind"
    )
    text += f", {event.all_dead:,} dead" if event.all_dead else ""
    text += f", {event.late:,} late" if event.late else ""
    text += f", {event.state_rows:,} rows of state" if event.state_rows else ""
    return text


class Screen:
    """A table on the terminal with the last batch, and the totals of the run."""

    is_closed = False

    def __init__(self, totals: "RunTotals") -> None:
        from rich.console import Console
        from rich.live import Live

        self._totals = totals
        self._seen_at = 0.0
        self._live = Live(console=Console(), get_renderable=self.table, refresh_per_second=4)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, event: "Progress | Restarted | None") -> None:
        """Keep the time of a batch for the next drawing of the table; report a restart at once."""
        from semel.spark.pipeline.running import Progress

        if isinstance(event, Progress):
            self._seen_at = self._seen_at if event.is_idle else time.monotonic()
        elif event is not None:
            say(f"{event.pipeline} was restarted: {event.why}")

    def table(self) -> "RichTable":
        """Return the current table."""
        from rich import box
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        # As a Text, so that rich finds no markup in it.
        title, totals = Text(printable(self._totals.pipeline)), self._totals
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for name in COLUMNS:
            table.add_column(name, justify="right")
        table.add_column("read", width=BAR_WIDTH)
        if (last := totals.last) is None:
            table.add_row(*"-" * len(COLUMNS), "starting")
            return table
        age_ms = int((time.monotonic() - self._seen_at) * 1000)
        bar = ProgressBar(total=max(1, totals.rows + last.lag), completed=max(totals.rows, 1 - last.lag))
        table.add_row(
            str(last.batch),
            f"{totals.rows:,}",
            f"{last.rows_per_second:,.0f}",
            f"{last.lag:,}",
            f"{sum(totals.written.values()):,}",
            f"{sum(totals.dead.values()) + sum(totals.dead_by_sink.values()):,}",
            f"{totals.late:,}",
            f"{last.state_rows:,}",
            str(totals.restarts),
            span_text(last.duration_ms),
            span_text(age_ms),
            bar,
        )
        return table


app = group("Run exactly-once pipelines on Spark, and show their status.")

PipelineId = Annotated[str, argument("PIPELINE", "The id of a pipeline.")]
PIPELINES: "Columns[Status]" = Columns(
    cells={"batch_age_ms": span_text},
    pipeline=lambda found: found.pipeline,
    writes_to=lambda found: found.writes_to,
    batch=lambda found: None if found.last is None else found.last.batch_id,
    decision=lambda found: None if found.last is None else found.last.number,
    run=lambda found: None if found.last is None else found.last.run,
    lag=lambda found: found.behind,
    open_transactions=lambda found: len(found.open),
    batch_age_ms=lambda found: found.batch_age_ms,
)
LAGS: "Columns[Lag]" = Columns("topic", "partition", "offset", "latest", lag=lambda lag: lag.behind)
OPEN: "Columns[OpenTransaction]" = Columns(
    cells={"age_ms": span_text},
    transactional_id=lambda found: found.transactional_id,
    doing=lambda found: found.doing.value,
    age_ms=lambda found: found.age_ms,
    two_phase=lambda found: found.is_two_phase,
    partitions=lambda found: partition_names(found.partitions),
)
PLANNED_SINKS: "Columns[SinkPlan]" = Columns(
    "sink", "writes_to", then=lambda sink: sink.then.value, details=lambda sink: sink.details or None
)
PLANNED_SOURCES: "Columns[SourcePlan]" = Columns(
    "source",
    "topic",
    then=lambda source: source.then.value,
    offsets=lambda source: [f"{partition}: {offset}" for partition, offset in source.offsets.items()],
    lag=lambda source: source.lag,
    lost=lambda source: source.lost,
)
PLANNED_STATES: "Columns[StatePlan]" = Columns(
    result=lambda state: state.result, then=lambda state: state.then.value, state_of=lambda state: state.of
)
FINDINGS: "Columns[Finding]" = Columns(
    kind=lambda finding: finding.kind.value, text=lambda finding: finding.text
)
#: The exit code of a plan whose start would go on, and lose something or write it again.
LOSS = 3

DeclaringFile = Annotated[
    Path,
    typer.Argument(metavar="FILE.py", help="A file that declares a pipeline.", exists=True, dir_okay=False),
]
Checkpoint = Annotated[
    str,
    Option("Where Spark keeps its checkpoints, one directory for every pipeline. A path or a URL.", "DIR"),
]
CHECKPOINT = "semel-checkpoints"
New = Annotated[
    bool, Option("Begin although a pipeline with another id has written the same to the same output.")
]


def _absolute(checkpoint: str) -> str:
    """Return the directory as Spark gets it: its working directory may be another one."""
    return checkpoint if "://" in checkpoint else str(Path(checkpoint).absolute())


@command(app)
def run(
    *,
    file: DeclaringFile,
    checkpoint: Checkpoint = CHECKPOINT,
    once: Annotated[bool, Option("Read what is there now, and stop.")] = False,
    new: New = False,
    trigger: Annotated[str, Option("How often a batch starts, as a Spark interval.", "SPAN")] = "1 second",
    spark: SparkOptions,
    patience: Annotated[
        str, Option("How long the broker may be unavailable before this fails.", "SPAN")
    ] = "5m",
    metrics: Annotated[
        str | None,
        Option("Serve Prometheus metrics over HTTP here; with port 0, on a free port.", "HOST:PORT"),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Run the pipeline that a file declares, until it is stopped.

    Stop it with Ctrl-C or SIGTERM: batches in progress finish first. It can also be killed: after a restart
    it continues where it was, and every record still counts exactly once. At a terminal it shows a live
    table, otherwise one line for every batch; with --json the lines are JSON.

    Try:  semel pipeline run billing.py --checkpoint /var/lib/billing

    Exit codes: 0 stopped, or everything was read with --once; 1 a query failed; 2 wrong usage, or the file
    declares no pipeline; 69 the address for the metrics is taken.
    """
    patience_seconds = duration_ms(patience, "--patience") / 1000
    address = None if metrics is None else address_of(metrics, "--metrics")
    with spark_errors():
        from semel.spark.pipeline import running
        from semel.spark.pipeline.file import load
        from semel.spark.pipeline.totals import RunTotals

        pipeline = load(file)
        totals = RunTotals.of(pipeline)
        # The address first: Spark takes seconds to start.
        with _metrics_served(totals, address), running_spark(pipeline.id, spark) as session:
            stop = _Stop()
            checkpoint = _absolute(checkpoint)
            settings = running.RunSettings(bootstrap, checkpoint, once, trigger, client_settings(), new)
            watched = running.Run(session, pipeline, settings, patience_seconds)
            _watch(watched, totals, stop, with_json=as_json)


def _watch(watched: "Run", totals: "RunTotals", stop: "_Stop", *, with_json: bool) -> None:
    """Show what a run reports until it has ended, or is to stop."""
    with view(totals, with_json=with_json) as shown:
        events = watched.watch(lambda: stop.is_asked or shown.is_closed)
        # Closed before Spark is stopped, however this ends: the query must not outlive its Spark.
        with closing(events):
            for event in events:
                if event is not None:
                    totals.add(event)
                shown.show(event)
    if stop.is_asked or shown.is_closed:
        why = "" if stop.is_asked else ", because the reader of its output is gone"
        say(f"{watched.pipeline} has stopped{why}. After a restart it continues where it was.")


@contextmanager
def _metrics_served(totals: "RunTotals", address: tuple[str, int] | None) -> Iterator[None]:
    """Serve the metrics of a run while the context is open, if there is an address for them."""
    if address is None:
        yield
        return
    from semel.server.metrics_page import MetricsPage, MetricsThread
    from semel.wire.addresses import write_address

    page = MetricsPage(totals.page, lambda: (True, {"pipeline": totals.pipeline}))
    try:
        served = MetricsThread(page, *address)
    except (OSError, UnicodeError) as error:
        say_error(
            f"the metrics cannot be served: {error}. Choose another --metrics address, or stop what listens "
            "there."
        )
        raise typer.Exit(ADDRESS_TAKEN) from None
    with served:
        say(f"Metrics are served on http://{write_address(address[0], served.port)}/metrics")
        yield


@command(app)
def plan(
    *,
    file: DeclaringFile,
    checkpoint: Checkpoint = CHECKPOINT,
    new: New = False,
    spark: SparkOptions,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> Answer:
    """Show what a start of a pipeline would do with a new or changed file. Nothing is changed.

    For each sink, source and result with state it shows what becomes of it: whether it continues, begins, or
    is not written or read any more. Then it says what the start would refuse, lose, or write again.

    Try:  semel pipeline plan billing.py --checkpoint /var/lib/billing

    Exit codes: 0 the start does what is shown, and nothing is lost; 1 it would be refused, or no plan could
    be made; 2 wrong usage, or the file declares no pipeline; 3 it would go on, and lose something or write it
    again.
    """
    with spark_errors():
        from semel.spark.pipeline import plan as planning
        from semel.spark.pipeline.file import load
        from semel.spark.pipeline.running import RunSettings

        pipeline = load(file)
        settings = RunSettings(bootstrap, _absolute(checkpoint), client=client_settings(), is_new=new)
        with connected(bootstrap) as client:
            # Report an unavailable cluster before Spark is started, which takes a while.
            client.describe(topics=())
            with running_spark(pipeline.id, spark) as session:
                found = planning.plan(session, client, pipeline, settings)
    return _planned(found)


def _planned(found: "PipelinePlan") -> Answer:
    summary = {"pipeline": found.pipeline, "position": found.position, "checkpoint": found.checkpoint}
    if found.pipeline_id != found.pipeline:
        summary["renamed_from"] = found.pipeline_id
    sinks = PLANNED_SINKS.table(found.sinks, "It has no sinks.", "\nSinks")
    sources = PLANNED_SOURCES.table(found.sources, "It has no sources.", "\nSources")
    states = PLANNED_STATES.table(found.states, "", "\nState")
    findings = FINDINGS.rows(found.findings)
    verdict = found.verdict.value
    data = {
        "verdict": verdict,
        **summary,
        "sinks": sinks.rows,
        "sources": [
            {**row, "offsets": dict(each.offsets)}
            for row, each in zip(sources.rows, found.sources, strict=True)
        ],
        "state": states.rows,
        "findings": findings,
    }
    ends, code = {
        "safe": ("Nothing is lost, and nothing is written again.", 0),
        "loss": ("The start would go on nevertheless.", LOSS),
        "refused": ("The start would be refused.", FAILED),
    }[verdict]
    shown = (Pairs(summary), sinks, sources, *((states,) if found.states else ()))
    said = (f"{each.kind.value.capitalize()}: {each.text.rstrip('.')}." for each in found.findings)
    return Answer(data, *shown, "", *said, ends, code=code)


class _Stop:
    """Notes a requested stop (SIGINT or SIGTERM). A second signal stops at once."""

    def __init__(self) -> None:
        self.is_asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True


@command(app, "list")
def list_(client: "Client") -> Answer:
    """List the pipelines that the cluster knows, running or not, with their positions."""
    with spark_errors():
        from semel.spark.pipeline.status import pipelines, status

        found = [status(client, pipeline) for pipeline in pipelines(client)]
    return PIPELINES.answer(found, "There are no pipelines.")


@command(app)
def status(pipeline: PipelineId, client: "Client") -> Answer:
    """Show a pipeline: its last decision, its lag, and its open transactions.

    A batch is committed by a decision, and decisions are numbered. A decision says how many offsets the batch
    has read and how many rows it has written. Duration, late rows and state are known when a batch has ended,
    so they are those of the batch before. The batch age is how long the current batch has been writing.
    """
    found = _status(client, pipeline)
    summary = {**PIPELINES.row(found), **_rows(found.last)}
    if found.decision is not None:
        summary["still_to_end"] = [winner.transactional_id for winner in found.decision.winners]
    lags = LAGS.table(found.lags, "It reads no topics.", "\nInput")
    transactions = OPEN.table(found.open, "It has no open transactions.", "\nTransactions")
    data = {**summary, "input": lags.rows, "transactions": transactions.rows}
    return Answer(data, Pairs(summary, {**PIPELINES.cells, **ROWS_CELLS}), lags, transactions)


def _rows(last: "LastBatch | None") -> dict[str, Any]:
    """Return what the last batch has done, and what Spark has reported of the one before."""
    if last is None:
        return {"read": None, "written": None, "dead": None, "batch_before": None}
    before = None if last.before is None else last.before._asdict()
    return {"read": last.read, "written": last.written, "dead": last.dead, "batch_before": before}


def _written_text(written: dict[str, int] | None) -> str | None:
    if written is None:
        return None
    return ", ".join(f"{output} {rows:,}" for output, rows in written.items()) or "nothing"


def _before_text(before: dict[str, int] | None) -> str | None:
    if before is None:
        return None
    return (
        f"{before['batch_id']}: {span_text(before['duration_ms'])}, {before['late']:,} late, "
        f"{before['state_rows']:,} rows of state"
    )


ROWS_CELLS: Cells = {"written": _written_text, "batch_before": _before_text}


@command(app)
def lag(pipeline: PipelineId, client: "Client") -> Answer:
    """Show how far a pipeline is behind, by partition of its input."""
    return LAGS.answer(_status(client, pipeline).lags, "It reads no topics.")


def _status(client: "Client", pipeline: str) -> "Status":
    with spark_errors():
        from semel.spark.pipeline.status import status

        return status(client, pipeline)


REASONS_SHOWN = 10
DEAD: "Columns[Changed]" = Columns(
    cells={"timestamp_ms": lambda ms: time_text(ms) or "-", "key": _short, "value": _short, "reason": _short},
    record=lambda each: each.letter.place,
    sink=lambda each: each.letter.sink,
    timestamp_ms=lambda each: int(each.letter.about.get("semel.timestamp", each.letter.record.timestamp)),
    reason=lambda each: each.letter.about["semel.reason"],
    key=lambda each: _text(each.key),
    value=lambda each: _text(each.value),
    letter=lambda each: (
        f"{each.letter.record.topic}/{each.letter.record.partition}/{each.letter.record.offset}"
    ),
)


@command(app)
def dead(
    *,
    pipeline: PipelineId,
    topic: Annotated[
        list[str] | None,
        Option(
            "A topic with dead letters; may be repeated. [default: those it has written to]", "-t", "TOPIC"
        ),
    ] = None,
    where: Annotated[str | None, Option("Only these letters.", "SQL")] = None,
    key: Annotated[
        str | None, Option("The key that a retry writes. [default: the key itself]", "SQL")
    ] = None,
    value: Annotated[
        str | None, Option("The value that a retry writes. [default: the value itself]", "SQL")
    ] = None,
    retry: Annotated[bool, Option("Send them through the pipeline again.")] = False,
    max_: Annotated[int, Option("How many to show.", "--max", "-n", "N", lowest=0)] = 20,
    spark: SparkOptions,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> Answer:
    """List the dead letters of a pipeline that were not retried, or retry them.

    Expressions are SQL over key, value and headers of a letter, its reason, the topic, partition, offset and
    timestamp of its record, and the sink that could not take it. Without --retry they show what it would do.

    A retry writes a record to the topic that it was read from, and a row to the topic that could not take
    it. It is a transaction, and can be repeated after any failure: no letter is retried twice.

    Try:  semel pipeline dead billing --where "reason LIKE 'amount is%'" --value "replace(value, 'n/a', '0')"
    """
    with spark_errors(), connected(bootstrap) as client, ExitStack() as stack:
        from semel.spark.pipeline import dead as letters

        change = letters.Change(where, key, value)
        topics = letters.letter_topics(client, pipeline, topic or ())
        session = stack.enter_context(running_spark(pipeline, spark)) if change.needs_spark else None
        if retry:
            return _retried(letters.retry(client, pipeline, topics, change, session))
        return _dead(letters.find(client, pipeline, topics, change, max_, session))


def _dead(found: "Found") -> Answer:
    newest = found.newest
    table = DEAD.table(newest, "", f"\nThe newest {len(newest):,}")
    reasons = found.reasons.most_common()
    counted = [{"letters": count, "reason": reason} for reason, count in reasons[:REASONS_SHOWN]]
    shown = [
        Table(counted, "There are no dead letters.", cells={"reason": _short}),
        *([table] if newest else []),
    ]
    return Answer({"dead_letters": found.count, "reasons": dict(reasons), "newest": table.rows}, *shown)


def _retried(done: "Retried") -> Answer:
    data = {"sent": dict(done.sent), "kept": dict(done.kept)}
    sent = [f"Sent {count:,} to {topic}." for topic, count in done.sent.items()]
    kept = [f"{count:,} are still dead letters: {why}." for why, count in done.kept.items()]
    return Answer(data, *(sent or ["There was nothing to send."]), *kept)


@command(app)
def verify(
    *,
    pipeline: PipelineId,
    output: Annotated[
        list[str] | None,
        Option(
            "A topic or table that it writes to; may be repeated. Not needed if there is one.", "-o", "OUTPUT"
        ),
    ] = None,
    identity: Annotated[str, Option("The identity of a record, on both sides.", "SQL")] = "key",
    input_identity: Annotated[str | None, Option("The identity of input records.", "SQL")] = None,
    output_identity: Annotated[str | None, Option("The identity of output records.", "SQL")] = None,
    expect: Annotated[str, Option("How many outputs an input record produces.", "SQL")] = "1",
    start: Annotated[
        str, Option("Where it started: 'earliest', or JSON by partition.", "--from", "OFFSETS")
    ] = "earliest",
    checkpoint: Annotated[
        str | None, Option("The checkpoint of the query, to find torn batches.", "DIR")
    ] = None,
    spark: SparkOptions,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> Answer:
    """Compare input and output of a pipeline record by record, as a Spark job.

    An identity is a SQL expression over the columns of a record (key, value, headers, ...), or of a row if
    the pipeline writes to a table. By default it is the key: then a key must have as many outputs as inputs.
    An input with a dead letter has no outputs, and a row with one is an output. The pipeline may run
    meanwhile.

    Try:  semel pipeline verify billing --output invoices --identity "CAST(value AS STRING)"

    Exit codes: 0 no differences; 1 records are lost, duplicated or foreign, or it could not be determined; 2
    wrong usage.
    """
    with spark_errors():
        from semel.spark.pipeline import verify as comparing

        question = comparing.Question(
            bootstrap,
            pipeline,
            tuple(output or ()),
            input_identity or identity,
            output_identity or identity,
            expect,
            start,
            checkpoint,
            client_settings(),
        )
        with connected(bootstrap) as client:
            # Reject invalid questions before Spark is started, which takes a while.
            comparing.check(client, question)
            with running_spark(pipeline, spark) as session:
                found = comparing.verify(session, client, question)
    data = {"is_right": found.is_right, **asdict(found)}
    return Answer(data, *_compared(found), code=0 if found.is_right else FAILED)


def _compared(found: "Comparison") -> Iterator[Pairs | str]:
    yield Pairs(
        {
            "inputs": found.inputs,
            "outputs_expected": found.expected,
            "outputs_found": found.found,
            "dead_letters": found.dead,
            "retried": found.retried,
            "lost": found.lost,
            "doubled": found.doubled,
            "foreign": found.foreign,
            "torn_batches": (
                "unknown without --checkpoint" if found.torn_batches is None else found.torn_batches
            ),
        }
    )
    for name, examples in found.examples.items():
        yield f"{name}: {', '.join(examples)}"
    if found.unended:
        yield f"Decided and not ended: {', '.join(found.unended)}. Restart the pipeline to end them."
    if found.is_right:
        yield "Every record counts as it should."
