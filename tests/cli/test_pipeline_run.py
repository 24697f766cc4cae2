"""`semel pipeline run` and `semel spark-submit`, in processes of their own, as their users have them."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from support.spark.jobs import committed, create, fill, values

import semel
from semel.cli import pipeline as cli_pipeline
from semel.cli.pipeline import Lines, Screen
from semel.pipeline import Pipeline
from semel.spark.pipeline import running
from semel.spark.pipeline.running import Progress, Restarted

FILE = """
from semel.pipeline import Topic, pipeline

@pipeline("copy", source=Topic("in"), sink=Topic("out"))
def copy(rows):
    return rows.select("key", "value")
"""


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
            return iter(())

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


BATCH = Progress("shop", 7, "2026-11-15T12:00:00Z", 1200, 3870.5, 310, 50)
BAD = Progress("shop", 8, "2026-11-15T12:00:00Z", 10, 100.0, 100, 0, late=3, dead={"orders": 2})


def test_what_a_terminal_shows() -> None:
    screen = Screen("shop")
    screen.show(BATCH)
    screen.show(BATCH)
    file = io.StringIO()
    console = Console(file=file, width=120)
    console.print(screen.table())
    *_, batch = [line.split() for line in file.getvalue().splitlines() if line.strip()]
    assert batch[:8] == ["7", "2,400", "3,870", "50", "0", "0", "310", "ms"]


def test_what_a_terminal_shows_before_the_first_batch() -> None:
    file = io.StringIO()
    Console(file=file, width=120).print(Screen("shop").table())
    assert file.getvalue().split()[-1] == "starting"


def test_what_a_file_gets(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(as_json=False)
    for event in (BATCH, None, BAD, Restarted("shop", "no broker answers")):
        lines.show(event)
    assert capsys.readouterr().out.splitlines() == [
        "shop  batch 7: 1,200 rows in 310 ms, 3,870 rows/s, 50 behind",
        "shop  batch 8: 10 rows in 100 ms, 100 rows/s, 0 behind, 2 dead, 3 late",
        "shop  restarted: no broker answers",
    ]
