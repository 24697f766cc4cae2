"""Tests that fail by chance are told from those that fail."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import os
from pathlib import Path

import pytest

def test_right(): pass

def test_wrong(): assert "wrong" in os.environ.get("PASSES", "")

@pytest.mark.parametrize("number", range(4))
def test_chance(number):
    met = Path(f"met-{number}")
    if number < int(os.environ["CHANCES"]) and not met.exists():
        met.touch()
        raise AssertionError(os.environ["SEMEL_SEED"])

@pytest.fixture
def untidy():
    yield
    if "UNTIDY" in os.environ and not Path("tidied").exists():
        Path("tidied").touch()
        raise AssertionError

def test_untidy(untidy): pass

@pytest.mark.skip(reason="nothing is installed: make everything")
def test_skipped(): pass
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def suite(directory: Path, *arguments: str, module: str = "tools.suite", **variables: str) -> tuple[int, str]:
    given = {"PYTHONPATH": str(ROOT), "SEMEL_SEED": "7", "CHANCES": "0", **variables}
    command = [sys.executable, "-m", module, "-p", "no:semel", *arguments]
    done = subprocess.run(
        command, cwd=directory, env=os.environ | given, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout


def test_what_fails_twice_fails_the_run(directory: Path) -> None:
    code, output = suite(directory, CHANCES="1")
    assert code == 1
    assert "FAILED test_some.py::test_wrong 7" in output
    assert "FLAKY test_some.py::test_chance[0] 7" in output


def test_what_passes_alone_is_flaky_and_fails_nothing(directory: Path) -> None:
    code, output = suite(directory, CHANCES="2", PASSES="wrong")
    assert code == 0
    assert output.count("\nFLAKY ") == 2
    assert output.splitlines()[-1] == "1 skipped: 1 because nothing is installed: make everything"


def test_a_fixture_may_fail_by_chance_too(directory: Path) -> None:
    code, output = suite(directory, "-n", "0", PASSES="wrong", UNTIDY="1")
    assert code == 0
    assert "FLAKY test_some.py::test_untidy 7" in output


def test_many_failures_are_not_chance(directory: Path) -> None:
    code, output = suite(directory, "-n", "0", CHANCES="4", PASSES="wrong")
    assert code == 1
    assert "\nFLAKY " not in output
    assert output.count("\nFAILED test_some.py::test_chance") >= 4


def test_the_options_hold_for_the_second_time(directory: Path) -> None:
    code, output = suite(directory, "-n", "0", "-k", "chance", CHANCES="1")
    assert code == 0
    assert "FLAKY test_some.py::test_chance[0] 7" in output


def test_tests_that_cannot_be_collected_fail_the_run(directory: Path) -> None:
    (directory / "test_broken.py").write_text("import nothing_of_this_name\n")
    code, _ = suite(directory, "-n", "0", PASSES="wrong")
    assert code not in (0, 5)


def test_a_series_counts_what_was_flaky(directory: Path) -> None:
    (directory / "results").mkdir()
    options = ("--runs", "2", "--busy", "1", "-n", "0", "-k", "chance")
    code, output = suite(directory, *options, module="tools.suite.steady", CHANCES="1")
    assert code == 0
    assert "| test_some.py::test_chance[0] | 1 of 2 | 0 of 2 |" in output
    found = json.loads((directory / "results" / "steady.json").read_text())
    assert found["flaky"]["test_some.py::test_chance[0]"] == {"times": 1, "seeds": [7]}
