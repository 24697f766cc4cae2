"""On Spark the verdict is the same, word for word."""

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.models.anomalies import CASES
from support.models.perfect_log import correct_history
from support.models.seeded_bugs import BUGS

from semel.check import DEFINITIONS, HistoryError, Operation, SendOffsets, check, read_history, write_lines
from semel.spark.pipeline.check import check_files

FILES = 3

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(300)]


def apart(history: list[Operation], mark: str) -> list[Operation]:
    """The history with names that no other one has, so that many can be one."""
    found: list[Operation] = []
    for each in history:
        changes: dict[str, Any] = {}
        for name in ("process", "topic", "transaction", "transactional_id", "group"):
            if getattr(each, name, None) is not None:
                changes[name] = f"{mark}:{getattr(each, name)}"
        if isinstance(each, SendOffsets):
            changes["claims"] = tuple(claim._replace(topic=f"{mark}:{claim.topic}") for claim in each.claims)
        found.append(each._replace(**changes))
    return found


def write_files(history: list[Operation], directory: Path) -> list[Path]:
    """A history in several files; what one process did is in one of them."""
    paths = [directory / f"history-{number}.jsonl" for number in range(FILES)]
    for number, path in enumerate(paths):
        with path.open("w") as file:
            write_lines(
                [each for each in history if len(str(getattr(each, "process", ""))) % FILES == number], file
            )
    return paths


def test_all_anomalies_at_once(spark: SparkSession, tmp_path: Path) -> None:
    history: list[Operation] = []
    for number, (_, shows, neighbour) in enumerate(CASES):
        history += apart(shows.operations, f"case-{number}") + apart(neighbour.operations, f"near-{number}")
    for number, (_, bug) in enumerate(BUGS.values()):
        history += apart(bug(correct_history(number, 900), random.Random(1)) or [], f"bug-{number}")
    paths = write_files(history, tmp_path)
    verdict = check_files(spark, paths)
    assert set(verdict.anomalies) == set(DEFINITIONS)
    expected = check(read_history(paths))
    assert verdict._replace(examples=[]) == expected._replace(examples=[])
    assert verdict.examples == expected.examples
    assert str(verdict) == str(expected)


def test_correct_histories(spark: SparkSession, tmp_path: Path) -> None:
    history = [each for seed in range(20) for each in apart(correct_history(seed, 900), str(seed))]
    paths = write_files(history, tmp_path)
    verdict = check_files(spark, paths)
    assert verdict.is_clean, str(verdict)
    assert verdict == check(read_history(paths))


def test_a_bad_line_is_told_and_half_of_one_is_not(spark: SparkSession, tmp_path: Path) -> None:
    (path, *_) = write_files(correct_history(3), tmp_path)
    good = path.read_text()
    path.write_text(good + '{"op":"comm')
    assert check_files(spark, [path]) == check(read_history([path]))
    path.write_text('{"op":"comm"}\n' + good)
    with pytest.raises(HistoryError, match=r"history-0.jsonl, line 1: op is 'comm'"):
        check_files(spark, [path])
