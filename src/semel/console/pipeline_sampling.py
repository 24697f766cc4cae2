"""Samples the decisions of Spark pipelines from the cluster, without Spark.

The cluster has the newest decision of a pipeline, but not its time. So the console records when it first saw
a decision, and how many offsets its batch has read.
"""

import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from semel.client import Client
from semel.spark.errors import PipelineError
from semel.spark.pipeline.status import Status, status

if TYPE_CHECKING:
    from semel.console.observing import Observer

PIPELINES_MAX = 200
DECISIONS_MAX = 300


@dataclass(frozen=True, slots=True)
class SeenDecision:
    """A decision, and when it was first seen."""

    at: float
    number: int
    batch_id: int
    rows: int
    behind: int


@dataclass(slots=True)
class PipelineSample:
    """The status of a pipeline, or why it cannot be read, and the decisions seen so far."""

    status: Status | None = None
    problem: str | None = None
    decisions: deque[SeenDecision] = field(default_factory=lambda: deque(maxlen=DECISIONS_MAX))


async def sample_pipelines(observer: "Observer") -> dict[str, PipelineSample]:
    """Read the status of every pipeline, one after the other."""
    groups = await observer.groups.get()
    if observer.groups.error is not None:
        # The pipelines are found in the list of groups.
        raise observer.groups.error.with_traceback(None)
    before = observer.pipelines.value or {}
    found: dict[str, PipelineSample] = {}
    for name in sorted(groups.pipelines)[:PIPELINES_MAX]:
        sample = found[name] = before.get(name) or PipelineSample()
        sample.status, sample.problem = await observer.ask(_status, name)
        if sample.status is not None:
            _note(sample, sample.status)
    return found


def _status(client: Client, name: str) -> tuple[Status | None, str | None]:
    try:
        return status(client, name), None
    except PipelineError as error:
        return None, str(error)


def _note(sample: PipelineSample, found: Status) -> None:
    decision = found.decision
    if decision is None or (sample.decisions and sample.decisions[-1].number == decision.number):
        return
    sample.decisions.append(
        SeenDecision(time.time(), decision.number, decision.batch_id, rows_of(found), found.behind)
    )


def rows_of(found: Status) -> int:
    """How many offsets the last batch has read."""
    return sum(each.end - each.start for each in found.decision.spans.values()) if found.decision else 0
