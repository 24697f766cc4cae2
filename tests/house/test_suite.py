"""Tests that fail by chance are told from those that fail."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.programs import INSTALLED_BY, missing

from tools.suite import __main__ as main
from tools.suite import running, steady
from tools.suite.running import Outcome, Verdict, once, run

ROOT = Path(__file__).parents[2]
ODD = r"a[b]::c/d\n 'e' \"f\" é"
TESTS = rf"""
import os
import time
from pathlib import Path

import pytest

def is_first(name):
    if Path(name).exists():
        return False
    Path(name).touch()
    return True

def test_right(): pass

@pytest.mark.parametrize("odd", ["{ODD}"])
def test_odd(odd):
    assert not is_first("odd"), os.environ["SEMEL_SEED"]

@pytest.mark.timeout(60 if Path("slow").exists() else 0.1)
def test_slow():
    time.sleep(60 if is_first("slow") else 0)

@pytest.fixture
def untidy():
    yield
    assert not is_first("untidy")

def test_untidy(untidy): pass

@pytest.mark.skip(reason="nothing is installed: make everything")
def test_skipped(): pass
"""
CRASHING = """
import os
from pathlib import Path

def test_crash():
    if not Path("crashed").exists():
        Path("crashed").touch()
        os._exit(0)
"""
WHOLE_MODULE = "import pytest\npytest.importorskip('absent', reason='absent is not installed')\n"


REASON = re.compile(r"""(?:skip\(|reason=)f?["'][^"']*\b(?:installed|missing)\b""")


def test_a_missing_program_is_told_with_what_installs_it() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for remedy in INSTALLED_BY.values():
        named = re.findall(r"make ([a-z-]+)", remedy)
        assert set(named) <= set(targets), remedy
        assert named or "apt-get install" in remedy
    verdict = Verdict(7, 0, skipped={missing("chromium"): 36, missing("kcat"): 4})
    (last,) = main.report(verdict)
    assert last.startswith("40 skipped: 36 because chromium is missing: make browser; 4 because kcat ")


def test_no_test_is_skipped_for_a_program_in_other_words() -> None:
    """`support.programs` knows what installs each."""
    files = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    assert [path.name for path in files if REASON.search(path.read_text())] == []


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:semel")
    return tmp_path


class Runs:
    """In place of pytest: what each run of it is said to have found."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = list(outcomes)
        self.arguments: list[list[str]] = []

    def __call__(self, arguments: Sequence[str], outcomes: Path, seed: int) -> Outcome:
        self.arguments.append(list(arguments))
        return self.outcomes.pop(0)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Runs:
    runs = Runs()
    monkeypatch.setattr(running, "once", runs)
    return runs


def test_a_test_that_times_out_or_cannot_tidy_up_is_flaky_if_it_passes_then(directory: Path) -> None:
    (directory / "test_whole.py").write_text(WHOLE_MODULE)
    command = [sys.executable, "-m", "tools.suite", "-n", "0"]
    done = subprocess.run(
        command, env=os.environ | {"SEMEL_SEED": "7"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    flaky = [each for each in done.stdout.splitlines() if each.startswith("FLAKY ")]
    assert len(flaky) == 3
    assert flaky[0].startswith("FLAKY test_some.py::test_odd[")
    assert flaky[1:] == ["FLAKY test_some.py::test_slow 7", "FLAKY test_some.py::test_untidy 7"]
    *_, last = done.stdout.splitlines()
    assert last.startswith("2 skipped: ")
    assert "1 because nothing is installed: make everything" in last
    assert "1 because absent is not installed" in last


@pytest.mark.slow
def test_a_test_in_which_a_worker_crashes_has_failed(directory: Path) -> None:
    (directory / "test_some.py").write_text(CRASHING)
    outcome = once(["-n", "1", "--dist", "loadfile"], directory / "outcomes.json", 7)
    assert (outcome.code, outcome.failed, outcome.passed) == (1, ["test_some.py::test_crash"], [])
    assert outcome.is_whole


def test_a_run_that_does_not_tell_what_became_of_the_tests_has_failed(directory: Path) -> None:
    assert once(["--version"], directory / "outcomes.json", 7) == Outcome(3)


def test_tests_that_cannot_be_collected_fail_the_run(directory: Path) -> None:
    (directory / "test_some.py").write_text("import nothing_of_this_name\n")
    verdict = run(["-n", "0"], 7)
    assert verdict.code not in (0, 1, 5)


def test_what_fails_twice_fails_the_run(said: Runs) -> None:
    said.outcomes = [Outcome(1, ["a", "b"], ["c"], {"why": 2}), Outcome(1, ["a"], ["b"])]
    verdict = run(["-k", "some"], 7)
    assert verdict == Verdict(7, 1, ["a"], ["b"], {"why": 2})
    assert list(main.report(verdict)) == [
        "FLAKY b 7",
        "A flaky test is a bug to be fixed next: see CONTRIBUTING.md.",
        "FAILED a 7",
        "2 skipped: 2 because why",
    ]
    assert all(each[-5:-3] == ["-k", "some"] or each[-2:] == ["-k", "some"] for each in said.arguments)


def test_what_is_not_run_again_has_failed(said: Runs) -> None:
    said.outcomes = [Outcome(1, ["a", "b"]), Outcome(0, [], ["b"])]
    assert run([], 7) == Verdict(7, 1, ["a"], ["b"])
    said.outcomes = [Outcome(1, ["a"]), Outcome(3)]
    assert run([], 7) == Verdict(7, 3, ["a"], [])


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(1, ["a", "b", "c", "d"]),
        Outcome(1),
        Outcome(1, ["a"], is_whole=False),
        Outcome(2, ["a"]),
        Outcome(3, ["a"]),
        Outcome(0, is_whole=False),
        Outcome(0, ["a"]),
    ],
    ids=lambda outcome: f"{outcome.code}, {len(outcome.failed)} failed, {outcome.is_whole}",
)
def test_what_is_not_by_chance_fails_at_once(said: Runs, outcome: Outcome) -> None:
    said.outcomes = [outcome]
    assert run([], 7) == Verdict(7, outcome.code or 1, outcome.failed)
    assert len(said.arguments) == 1


def test_more_than_a_few_flaky_tests_of_two_runs_are_not_chance() -> None:
    few = Verdict(7, 0, flaky=["a", "b"])
    assert few.beside(Verdict(7, 0, flaky=["c"])).code == 0
    assert few.beside(Verdict(7, 0, flaky=["c", "d"])).code == 1


def test_the_number_of_workers_is_a_choice(said: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    said.outcomes = [Outcome(0), Outcome(0)]
    monkeypatch.delenv("SEMEL_WORKERS", raising=False)
    run([], 7)
    monkeypatch.setenv("SEMEL_WORKERS", "5")
    run([], 7)
    assert [each[:2] for each in said.arguments] == [["-n", str(running.WORKERS)], ["-n", "5"]]


def test_a_series_counts_what_was_flaky(
    said: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(steady, "RESULTS", tmp_path / "results" / "steady.json")
    monkeypatch.setattr(sys, "argv", ["steady", "--runs", "2", "--busy", "1", "-k", "chance"])
    monkeypatch.setenv("SEMEL_SEED", "7")
    said.outcomes = [Outcome(1, ["a"]), Outcome(0, [], ["a"]), Outcome(0, [], ["a"])]
    assert steady.main() == 0
    assert "| a | 1 of 2 | 0 of 2 |" in capsys.readouterr().out
    found = json.loads(steady.RESULTS.read_text())
    assert (found["runs"], found["codes"]) == (2, [0, 0])
    assert found["flaky"]["a"] == {"times": 1, "seeds": [7]}
    said.outcomes = [Outcome(1), Outcome(0)]
    assert steady.main() == 1
