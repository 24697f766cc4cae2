"""The pipeline of docs/pipelines.md with state of its own: its state and its output tell the same story."""

import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.pages import blocks
from support.spark.jobs import committed, create

from semel.client import Client, Producer
from semel.embedded import Embedded
from semel.spark import OptionError, PipelineError
from semel.spark.pipeline.file import load
from semel.spark.pipeline.running import Run, RunSettings
from semel.spark.sink import batch_commit

PAGE = Path(__file__).parents[2] / "docs/pipelines.md"
MINUTE_MS = 60_000


def click(bootstrap: str, *clicks: tuple[str, int]) -> None:
    with Client(bootstrap) as client, Producer(client) as producer:
        for user, minute in clicks:
            producer.send("clicks", b"", key=user.encode(), timestamp_ms=(1000 + minute) * MINUTE_MS)


@pytest.mark.spark
def test_state_survives_a_driver_that_fails_after_its_decision(
    spark: SparkSession, semel_broker: Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (text,) = (each for each in blocks(PAGE, "python") if "transformWithState" in each)
    (tmp_path / "visits.py").write_text(text)
    bootstrap = semel_broker.bootstrap_servers
    create(bootstrap, ("clicks", 2), ("visits", 1), **{"retention.ms": "-1"})
    run = Run(spark, load(tmp_path / "visits.py"), RunSettings(bootstrap, str(tmp_path / "state"), once=True))
    with monkeypatch.context() as patched:
        patched.delitem(sys.modules, "google.protobuf", raising=False)
        patched.setitem(sys.modules, "google", None)
        with pytest.raises(OptionError, match=r"protobuf.*semel\[state\]"):
            list(run.watch(lambda: False))
    original = batch_commit.decide

    def failing(*arguments: Any, **named: Any) -> None:
        original(*arguments, **named)
        raise RuntimeError("the driver fails, and the batch counts")

    click(bootstrap, ("ann", 0), ("ann", 5), ("bob", 1))
    with monkeypatch.context() as patched:
        patched.setattr(batch_commit, "decide", failing)
        with pytest.raises(PipelineError, match="the batch counts"):
            list(run.watch(lambda: False))
    click(bootstrap, ("ann", 10), ("cid", 200))
    list(run.watch(lambda: False))
    assert committed(bootstrap, "visits") == {b"3 clicks": 1, b"1 clicks": 1}
