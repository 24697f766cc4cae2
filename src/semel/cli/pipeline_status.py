"""`semel pipeline list`, `status` and `lag`: show what is stored in the cluster about its pipelines."""

from typing import TYPE_CHECKING, Any

from semel.cli.options import connected
from semel.cli.output import show_json, show_pairs, show_rows
from semel.cli.sparking import sparking
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
