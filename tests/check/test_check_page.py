"""docs/checker.md, word for word: its session and its example run, and its tables say what there is."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.pages import blocks, sessions

from semel.check import DEFINITIONS
from semel.check.history import KINDS

PAGE = Path(__file__).parents[2] / "docs/checker.md"
COMMON = {"process", "started", "ended", "outcome"}


def run(*arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=directory, capture_output=True, text=True, timeout=100
    )


def test_session(tmp_path: Path) -> None:
    (history,) = blocks(PAGE, "json")
    (tmp_path / "history.jsonl").write_text(history)
    ((command, printed),) = sessions(PAGE)[0]
    assert command == "semel check history.jsonl"
    ran = run("-m", *command.split(), directory=tmp_path)
    assert ran.stdout.strip() == printed
    assert ran.returncode == 1


@pytest.mark.parametrize("example", blocks(PAGE, "python"))
def test_example(example: str, tmp_path: Path) -> None:
    ran = run("-c", example, directory=tmp_path)
    assert ran.returncode == 0, ran.stderr


def test_every_anomaly_is_in_the_table_with_its_definition() -> None:
    rows = dict(re.findall(r"^\| `([\w-]+)` \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE))
    assert {name: rows.get(name) for name in DEFINITIONS} == DEFINITIONS


def test_every_operation_is_in_the_table_with_its_fields() -> None:
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)?) \| (`[^|]+) \| [^|]+ \|$", PAGE.read_text(), re.MULTILINE)
    told: dict[str, tuple[set[str], set[str]]] = {}
    for names, fields in rows:
        needed, _, optional = fields.partition("[")
        for name in re.findall(r"`(\w+)`", names):
            told[name] = (set(re.findall(r"`(\w+)`", needed)), set(re.findall(r"`(\w+)`", optional)))
    expected = {
        name: (
            {each for each in kind._fields if each not in kind._field_defaults} - COMMON,
            set(kind._field_defaults),
        )
        for name, kind in KINDS.items()
    }
    assert {name: told.get(name) for name in expected} == expected
