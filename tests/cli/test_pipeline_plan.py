"""`semel pipeline plan`: what it prints, and its exit codes."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from semel.cli import pipeline as cli_pipeline
from semel.spark.pipeline import plan
from semel.spark.pipeline.planned import (
    Finding,
    Kind,
    PipelinePlan,
    SinkPlan,
    SourcePlan,
    StatePlan,
    Then,
)

FILE = """
from semel.pipeline import Topic, pipeline

@pipeline("copy", source=Topic("in"), sink=Topic("out"))
def copy(rows):
    return rows.select("key", "value")
"""
SAFE = PipelinePlan(
    "copy",
    "copy",
    "batch 3, decision 4",
    "batch 4 is next",
    (SinkPlan("copy", "out", Then.CONTINUES), SinkPlan(None, "old", Then.ORPHANED)),
    (SourcePlan("rows", "in", Then.CONTINUES, {0: 7, 1: 5}, 12),),
    (),
    (Finding(Kind.NOTE, "the start does something more"),),
)
REFUSED = replace(
    SAFE,
    pipeline="copies",
    states=(StatePlan("totals", "aggregation by key binary: count(1) bigint", Then.REFUSED),),
    findings=(Finding(Kind.REFUSED, "it has changed."), Finding(Kind.LOST, "some records")),
)
LOSS = replace(SAFE, findings=REFUSED.findings[1:])


@pytest.mark.parametrize(
    ("found", "code", "verdict"), [(SAFE, 0, "safe"), (LOSS, 3, "loss"), (REFUSED, 1, "refused")]
)
def test_a_plan(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: PipelinePlan, code: int, verdict: str
) -> None:
    (tmp_path / "copying.py").write_text(FILE)
    monkeypatch.setattr(cli_pipeline, "running_spark", lambda *_: nullcontext())
    monkeypatch.setattr(plan, "plan", lambda *_: found)
    answer = cli("pipeline", "plan", str(tmp_path / "copying.py"), "--json", code=code).json
    assert (answer["verdict"], answer["checkpoint"]) == (verdict, "batch 4 is next")
    assert answer["sources"] == [
        {
            "source": "rows",
            "topic": "in",
            "then": "continues",
            "offsets": {"0": 7, "1": 5},
            "lag": 12,
            "lost": 0,
        }
    ]
    assert [each["then"] for each in answer["sinks"]] == ["continues", "orphaned"]
    assert [each["kind"] for each in answer["findings"]] == [each.kind for each in found.findings]


def test_what_it_prints(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "copying.py").write_text(FILE)
    monkeypatch.setattr(cli_pipeline, "running_spark", lambda *_: nullcontext())
    monkeypatch.setattr(plan, "plan", lambda *_: REFUSED)
    printed = cli("pipeline", "plan", str(tmp_path / "copying.py"), code=1).out
    assert (
        printed
        == """\
pipeline      copies
position      batch 3, decision 4
checkpoint    batch 4 is next
renamed from  copy

Sinks
SINK  WRITES TO  THEN       DETAILS
copy  out        continues  -
-     old        orphaned   -

Sources
SOURCE  TOPIC  THEN       OFFSETS     LAG  LOST
rows    in     continues  0: 7, 1: 5  12   0

State
RESULT  THEN     STATE OF
totals  refused  aggregation by key binary: count(1) bigint

Refused: it has changed.
Lost: some records.
The start would be refused.
"""
    )
