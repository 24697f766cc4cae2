"""`semel check`: what it prints, and how it ends."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.models.histories import Steps
from support.spark.jobs import OF_PROGRAMS

from semel.check import Operation, check, read_history, write_lines

BAD = Steps().send("a", offset=0, tx="T").abort("T").poll((0, "a")).operations
GOOD = Steps().send("a", offset=0, tx="T").commit("T").poll((0, "a")).operations


def semel(*arguments: str | Path, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "semel", *map(str, arguments)]
    environment = {**os.environ, **OF_PROGRAMS}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)


def written(path: Path, operations: list[Operation]) -> Path:
    with path.open("w") as file:
        write_lines(operations, file)
    return path


def test_nothing_is_found(tmp_path: Path) -> None:
    ran = semel("check", written(tmp_path / "good.jsonl", GOOD))
    assert ran.returncode == 0, ran
    assert ran.stdout.splitlines() == [
        "3 operations: 3 ok, 0 fail, 0 info",
        "1 transaction: 1 committed, 0 aborted, 0 unknown",
        "No anomalies.",
    ]


def test_an_anomaly_is_told_to_programs(tmp_path: Path) -> None:
    ran = semel("check", "--json", written(tmp_path / "bad.jsonl", BAD))
    assert ran.returncode == 1, ran
    told = json.loads(ran.stdout)
    assert told == json.loads(json.dumps(check(BAD).as_json()))
    (found,) = told["anomalies"]
    assert (found["name"], found["count"]) == ("aborted-read", 1)
    assert [each["op"] for each in found["examples"][0]["proof"]] == ["produce", "abort", "poll"]


def test_files_are_one_history(tmp_path: Path) -> None:
    ran = semel("check", written(tmp_path / "1.jsonl", BAD[:1]), written(tmp_path / "2.jsonl", BAD[1:]))
    assert ran.returncode == 1
    assert ran.stdout == str(check(BAD)) + "\n"


def test_a_file_that_is_no_history(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    path.write_text("hello\n")
    ran = semel("check", path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"Error: {path}, line 1: this is not JSON: 'hello'\n"
    ran = semel("check", tmp_path / "none.jsonl")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "none.jsonl" in ran.stderr


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_on_spark(tmp_path: Path) -> None:
    path = written(tmp_path / "bad.jsonl", BAD)
    ran = semel("check", "--spark", "--master", "local[1]", path, timeout=250)
    assert ran.returncode == 1, ran.stderr
    assert ran.stdout == str(check(read_history([path]))) + "\n"
