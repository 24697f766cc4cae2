"""`semel pipeline run` and `semel spark-submit`, in processes of their own, as their users have them."""

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from support.spark.jobs import committed, create, fill, values

import semel
from semel.cli import pipeline as cli_pipeline
from semel.cli.pipeline import Lines, Screen
from semel.pipeline import Json, Pipeline, Topic
from semel.spark.pipeline import running
from semel.spark.pipeline.running import Progress, Restarted
from semel.spark.pipeline.totals import RunTotals

FILE = """
from semel.pipeline import Topic, pipeline

@pipeline("copy", source=Topic("in"), sink=Topic("out"))
def copy(rows):
    return rows.select("key", "value")
"""


SHOUTING = """
from pyspark.sql.functions import udf
from semel.pipeline import Topic, pipeline

@pipeline("shouting-END", source=Topic("words-END"), sink=Topic("loud-END"))
def shout(rows):
    return rows.select("key", udf(str.upper)(rows.value.cast("string")).alias("value"))
"""
STOPPED = """
import sys
from pyspark.sql import SparkSession
from semel.spark.driver import java
java.prepare()
builder = SparkSession.builder.master("local[2]").config("spark.log.level", "OFF")
spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
cluster = {"kafka.bootstrap.servers": sys.argv[1], "pipeline.id": "stopped"}
rows = spark.readStream.format("semel").options(**cluster).option("subscribe", "begun").load()
sink = rows.select("value").writeStream.format("semel").options(**cluster).option("topic", "ended")
query = sink.option("checkpointLocation", sys.argv[2]).start()
query.processAllAvailable()
query.stop()
spark.stop()
print("stopped")
"""
#: What Java and Spark say when they start.
JAVA_STARTS = re.compile(
    r" WARN |^WARNING: Using incubator|log4j|^To adjust logging|^Setting (Spark|default)|^Picked up"
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "copying.py"
    path.write_text(FILE)
    return path


def started(broker: semel.Embedded, *arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "semel", *arguments],
        env={**os.environ, "SEMEL_BOOTSTRAP": broker.bootstrap_servers},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def limited() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that do not outlive the test, nor wait for ever to be read from."""
    processes: list[subprocess.Popen[str]] = []

    def kill() -> None:
        for each in processes:
            each.kill()

    timer = threading.Timer(500, kill)
    timer.start()
    yield processes
    timer.cancel()
    for each in processes:
        each.kill()
        each.communicate()


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_stop_is_clean_and_a_start_goes_on(
    broker: semel.Embedded, file: Path, limited: list[subprocess.Popen[str]]
) -> None:
    create(broker.bootstrap_servers, ("in", 2), ("out", 1))
    fill(broker.bootstrap_servers, "in", range(40))
    run = ("pipeline", "run", str(file), "--master", "local[2]", "--checkpoint", "kept")
    first = started(broker, *run, "--json", "--log", "logs/spark.log", cwd=file.parent)
    limited.append(first)
    assert first.stdout is not None
    line = first.stdout.readline()
    assert line, first.communicate()
    event = json.loads(line)
    assert (event["event"], event["pipeline"], event["batch"], event["rows"]) == ("batch", "copy", 0, 40)
    first.send_signal(signal.SIGTERM)
    _, said = first.communicate()
    assert (first.returncode, said) == (
        0,
        "pipeline 'copy' has stopped. After a restart it continues where it was.\n",
    )
    assert (file.parent / "logs/spark.log").stat().st_size > 0, "what Java says went there"
    fill(broker.bootstrap_servers, "in", range(40, 60))
    second = started(broker, *run, "--once", cwd=file.parent)
    limited.append(second)
    printed, said = second.communicate()
    assert second.returncode == 0, said
    assert printed.startswith("copy  batch 1: 20 rows in ")
    assert committed(broker.bootstrap_servers, "out") == values(range(60))


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_query_that_fails_ends_with_a_sentence(
    broker: semel.Embedded, tmp_path: Path, limited: list[subprocess.Popen[str]]
) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(FILE.replace('"in"', '"gone"'))
    ran = started(broker, "pipeline", "run", str(path), "--once", "--master", "local[1]", cwd=tmp_path)
    limited.append(ran)
    _, said = ran.communicate()
    assert ran.returncode == 1
    assert said.splitlines()[-1] == (
        "Error: Pipeline 'copy' has stopped: there is no topic gone. Check the name, or create it with "
        "'semel topics create'."
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "declares no pipeline. Put @pipeline(...) of semel.pipeline before the function."),
        ("import no_such_thing", "line 1: ModuleNotFoundError: No module named 'no_such_thing'."),
        (
            FILE.replace("rows):", "rows, more):"),
            "so its function must have one parameter, not 'rows', 'more'.",
        ),
    ],
)
def test_a_file_that_is_wrong(cli: Any, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(text)
    ran = cli("pipeline", "run", str(path), code=2)
    assert ran.err.startswith(f"Error: {path}")
    assert ran.err.strip().endswith(message)


@pytest.mark.parametrize("flags", [(), ("--new",)])
def test_the_flag_new_gets_to_the_query(
    cli: Any, file: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    starts: list[bool] = []

    class Run:
        def __init__(
            self, spark: object, pipeline: Pipeline, settings: running.RunSettings, patience: float
        ) -> None:
            starts.append(settings.is_new)

        def watch(self, is_stopping: object) -> Iterator[None]:
            yield from ()

    monkeypatch.setattr(running, "Run", Run)
    monkeypatch.setattr(cli_pipeline, "running_spark", lambda *_: nullcontext())
    monkeypatch.setattr(cli_pipeline, "_Stop", lambda: SimpleNamespace(is_asked=False))
    cli("pipeline", "run", str(file), *flags)
    assert starts == [bool(flags)]


def test_a_file_that_is_not_there(cli: Any, tmp_path: Path) -> None:
    assert "does not exist" in cli("pipeline", "run", str(tmp_path / "gone.py"), code=2).err


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("end", ["reader", "stop", "once"])
def test_nothing_but_our_own_words_is_on_standard_error(
    broker: semel.Embedded, tmp_path: Path, limited: list[subprocess.Popen[str]], end: str
) -> None:
    """Workers of the pipeline and of a Python function, which end when Spark closes their connections."""
    path = tmp_path / "shouting.py"
    create(broker.bootstrap_servers, (f"words-{end}", 2), (f"loud-{end}", 1))
    fill(broker.bootstrap_servers, f"words-{end}", range(20))
    path.write_text(SHOUTING.replace("END", end))
    # Java itself says things when it starts.
    run = ("pipeline", "run", str(path), "--master", "local[2]", "--metrics", "127.0.0.1:0")
    ran = started(broker, *run, *(["--once"] if end == "once" else []), cwd=tmp_path)
    limited.append(ran)
    assert ran.stdout is not None
    assert ran.stderr is not None
    assert ran.stdout.readline().startswith(f"shouting-{end}  batch 0: 20 rows"), ran.stderr.read()
    if end == "reader":
        ran.stdout.close()
        fill(broker.bootstrap_servers, f"words-{end}", range(20))
    elif end == "stop":
        ran.send_signal(signal.SIGTERM)
    said = ran.stderr.read().splitlines()
    assert ran.wait() == 0
    address, *rest = (line for line in said if not JAVA_STARTS.search(line))
    assert re.fullmatch(r"Metrics are served on http://127\.0\.0\.1:\d+/metrics", address)
    goes_on = "After a restart it continues where it was."
    assert (
        rest
        == {
            "once": [],
            "stop": [f"pipeline 'shouting-{end}' has stopped. {goes_on}"],
            "reader": [
                f"pipeline 'shouting-{end}' has stopped, because the reader of its output is gone. {goes_on}"
            ],
        }[end]
    )


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_query_that_is_stopped_says_nothing(
    broker: semel.Embedded, tmp_path: Path, limited: list[subprocess.Popen[str]]
) -> None:
    """Also in a session of Spark's own, where this package does not choose the daemon of the workers."""
    create(broker.bootstrap_servers, ("begun", 2), ("ended", 1))
    fill(broker.bootstrap_servers, "begun", range(5))
    job = tmp_path / "job.py"
    job.write_text(STOPPED)
    ran = subprocess.Popen(
        [sys.executable, str(job), broker.bootstrap_servers, str(tmp_path / "checkpoint")],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    limited.append(ran)
    printed, said = ran.communicate()
    assert (ran.returncode, printed) == (0, "stopped\n"), said
    assert [line for line in said.splitlines() if not JAVA_STARTS.search(line)] == []
    assert committed(broker.bootstrap_servers, "ended") == values(range(5))


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
def test_spark_submit_has_the_package(
    broker: semel.Embedded, tmp_path: Path, limited: list[subprocess.Popen[str]]
) -> None:
    create(broker.bootstrap_servers, ("numbers", 1))
    fill(broker.bootstrap_servers, "numbers", range(5))
    job = tmp_path / "job.py"
    job.write_text(
        "import sys\nimport semel.spark\n"
        "spark = semel.spark.session('job').getOrCreate()\n"
        "table = spark.read.format('semel').option('kafka.bootstrap.servers', sys.argv[1])\n"
        "print(spark.sparkContext.master, table.option('subscribe', 'numbers').load().count())\n"
    )
    ran = started(
        broker, "spark-submit", "--master", "local[1]", str(job), broker.bootstrap_servers, cwd=tmp_path
    )
    limited.append(ran)
    printed, said = ran.communicate()
    assert printed.splitlines()[-1:] == ["local[1] 5"], said


SHOP = Pipeline(
    "shop",
    lambda orders: orders,
    Topic("orders", parse=Json("id BIGINT"), bad="skip"),
    {"large": Topic("large")},
)
BATCH = Progress("shop", 7, "2026-11-15T12:00:00Z", 1200, 3870.5, 310, 50, written={"large": 7})
BAD = Progress("shop", 8, "2026-11-15T12:00:00Z", 10, 100.0, 100, 0, 3, 20, 4096, {"large": 1}, {"orders": 2})
IDLE = Progress("shop", 9, "2026-11-15T12:01:00Z", 0, 0.0, 3, 6, is_idle=True)
RESTARTED = Restarted("shop", "no broker answers")


def totals(*events: Progress | Restarted) -> RunTotals:
    found = RunTotals.of(SHOP)
    for each in events:
        found.add(each)
    return found


def drawn(screen: Screen) -> list[list[str]]:
    file = io.StringIO()
    Console(file=file, width=140).print(screen.table())
    return [line.split() for line in file.getvalue().splitlines() if line.strip()]


def test_what_a_terminal_shows() -> None:
    screen = Screen(totals(BATCH, BATCH, RESTARTED, BAD, IDLE))
    screen.show(BAD)
    *_, names, _, batch = drawn(screen)
    shown = dict(zip(names, [*batch[:9], " ".join(batch[9:11])], strict=False))
    assert shown == {
        "batch": "8",
        "rows": "2,410",
        "rows/s": "100",
        "lag": "6",
        "written": "15",
        "dead": "2",
        "late": "3",
        "state": "20",
        "restarts": "1",
        "took": "100 ms",
    }


def test_what_a_terminal_shows_before_the_first_batch() -> None:
    assert drawn(Screen(totals()))[-1][-1] == "starting"


def test_what_a_file_gets(capsys: pytest.CaptureFixture[str]) -> None:
    for event in (BATCH, None, BAD, IDLE, RESTARTED):
        Lines(totals(), as_json=False).show(event)
    Lines(totals(RESTARTED), as_json=True).show(BAD)
    *lines, data = capsys.readouterr().out.splitlines()
    assert lines == [
        "shop  batch 7: 1,200 rows in 310 ms, 3,870 rows/s, 50 behind",
        "shop  batch 8: 10 rows in 100 ms, 100 rows/s, 0 behind, 2 dead, 3 late, 20 rows of state",
        "shop  restarted: no broker answers",
    ]
    found = json.loads(data)
    assert found["event"] == "batch"
    assert (found["written"], found["dead"], found["late"]) == ({"large": 1}, {"orders": 2}, 3)
    assert (found["state_rows"], found["state_bytes"], found["restarts"]) == (20, 4096, 1)


def samples(page: bytes) -> dict[str, float]:
    return {
        sample.name + "".join(f"[{each}]" for name, each in sample.labels.items() if name != "pipeline"): (
            sample.value
        )
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
        if sample.labels["pipeline"] == "shop"
    }


def test_metrics() -> None:
    assert samples(totals().page())["semel_pipeline_written_rows_total[large]"] == 0
    found = samples(totals(BATCH, RESTARTED, BAD, IDLE).page())
    assert found["semel_pipeline_read_rows_total"] == 1210
    assert found["semel_pipeline_written_rows_total[large]"] == 8
    assert found["semel_pipeline_dead_records_total[orders]"] == 2
    assert found["semel_pipeline_late_rows_total"] == 3
    assert found["semel_pipeline_restarts_total"] == 1
    assert found["semel_pipeline_batch_seconds_count"] == 2
    assert found["semel_pipeline_batch_seconds_bucket[0.1]"] == 1
    assert found["semel_pipeline_lag_offsets"] == 6
    assert (found["semel_pipeline_state_rows"], found["semel_pipeline_state_bytes"]) == (20, 4096)
    at = datetime(2026, 11, 15, 12, tzinfo=UTC).timestamp() + 0.1
    assert found["semel_pipeline_last_batch_timestamp_seconds"] == at


def test_a_taken_address_is_reported_before_spark_starts(cli: Any, file: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        ran = cli("pipeline", "run", str(file), "--metrics", place, code=69)
    assert ran.err.startswith("Error: The metrics cannot be served: ")
    assert "Choose another --metrics address" in ran.err
