"""Spark pipelines by their decisions: batch, rows, lag, age, open attempts, and what each is for."""

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from semel.client import ErrorCode, KafkaError
from semel.console import forms
from semel.console.observing import Observer
from semel.console.rendering import iso, now_iso, page
from semel.console.sampling import PipelineSample, SeenDecision
from semel.spark.pipeline.status import Doing, LastBatch, Status

#: What an open transaction of a pipeline is for, in a sentence.
PURPOSES = {
    Doing.WRITING: "a task writes the current batch",
    Doing.DECIDED: "it counts; it is about to be committed, by the next start if the pipeline is down",
    Doing.DECIDING: "the driver is making a decision",
    Doing.LEFT: "left over from an older run; the next batch aborts it",
    Doing.RETRYING: "dead letters are being retried",
}

#: What a batch has ended with.
ENDED = ("late", "duration_ms", "state_rows", "state_bytes")


async def pipelines(request: Request) -> Response:
    """List the pipelines that the cluster knows, running or not."""
    observer: Observer = request.app.state.observers.of(request.state.session)
    found = await observer.pipelines.get()
    wanted = request.query_params.get("q", "").strip()
    rows = [_summary(name, each) for name, each in sorted(found.items()) if wanted.lower() in name.lower()]
    shown, where = forms.paged(rows, forms.page_number(request), request.app.state.settings.page_size)
    return page(request, "pipelines.html", {"pipelines": shown, **where, "q": wanted})


def _summary(name: str, sample: PipelineSample) -> dict[str, Any]:
    found = sample.status
    row: dict[str, Any] = {"pipeline": name, "problem": sample.problem}
    if found is None:
        return row | dict.fromkeys(
            ("writes_to", "lag", "open", "batch_age_ms", "decided_ms_ago", *_batch(None))
        )
    seen = sample.decisions[-1] if len(sample.decisions) > 1 else None
    return row | {
        "writes_to": found.writes_to,
        **_batch(found.last),
        "lag": found.behind,
        "open": len(found.open),
        "batch_age_ms": found.batch_age_ms,
        # The first decision may be older than the console, so its time is unknown.
        "decided_ms_ago": None if seen is None else int((time.time() - seen.at) * 1000),
    }


def _batch(last: LastBatch | None) -> dict[str, Any]:
    """Return what the last decision says of its batch, and of the end of the batch before."""
    if last is None:
        return dict.fromkeys(("batch", "decision", "run", "rows", "written", "dead", "before"))
    return {
        "batch": last.batch_id,
        "decision": last.number,
        "run": last.run,
        "rows": last.read,
        "written": last.written,
        "dead": last.dead,
        "before": None if last.before is None else last.before._asdict(),
    }


def _seen(each: SeenDecision) -> dict[str, Any]:
    """Return a decision that was seen, with what its batch has ended with."""
    written = each.batch.written
    return {
        "number": each.batch.number,
        "batch": each.batch.batch_id,
        "rows": each.batch.read,
        "written": None if written is None else sum(written.values()),
        "dead": each.batch.dead,
        "seen": iso(int(each.at * 1000)),
        **(
            dict.fromkeys(ENDED)
            if each.ended is None
            else {name: getattr(each.ended, name) for name in ENDED}
        ),
    }


async def pipeline(request: Request) -> Response:
    """Show one pipeline: its last decision, its input, and the purpose of its open transactions."""
    name: str = request.path_params["pipeline"]
    observer: Observer = request.app.state.observers.of(request.state.session)
    found = await observer.pipelines.get()
    sample = found.get(name)
    if sample is None:
        raise KafkaError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"there is no pipeline {name!r}. A pipeline is known once it has decided its first batch.",
        )
    data = _summary(name, sample)
    data |= {
        "at": now_iso(),
        "input": _input(sample.status),
        "transactions": _open(sample.status),
        "still_to_end": _winners(sample.status),
        "decisions": [_seen(each) for each in reversed(sample.decisions)],
        "series": {
            "times": [round(each.at, 1) for each in sample.decisions],
            "rows": [_batch(each.batch)["rows"] for each in sample.decisions],
            "behind": [each.behind for each in sample.decisions],
        },
    }
    return page(request, "pipeline.html", data)


def _input(found: Status | None) -> list[dict[str, Any]]:
    return [
        {
            "topic": each.topic,
            "partition": each.partition,
            "offset": each.offset,
            "latest": each.latest,
            "lag": each.behind,
        }
        for each in (found.lags if found is not None else ())
    ]


def _open(found: Status | None) -> list[dict[str, Any]]:
    return [
        {
            "transactional_id": each.transactional_id,
            "doing": each.doing.value,
            "purpose": PURPOSES[each.doing],
            "age_ms": each.age_ms,
            "two_phase": each.is_two_phase,
            "partitions": [f"{topic}/{partition}" for topic, partition in each.partitions],
        }
        for each in (found.open if found is not None else ())
    ]


def _winners(found: Status | None) -> list[str]:
    if found is None or found.decision is None:
        return []
    return [each.transactional_id for each in found.decision.winners]


ROUTES = [Route("/pipelines", pipelines), Route("/pipelines/{pipeline:path}", pipeline)]
