"""What the sizes of the proof came to is kept side by side, and people read the same as programs."""

import dataclasses
from pathlib import Path

import pytest

from verification import results
from verification.results import Result


def _row(name: str, value: int = 0) -> Result:
    return Result(name, value, 0, value == 0, "0–9", 1.5, "abc")


def test_each_size_keeps_its_own_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "FILE", tmp_path / "results" / "verification.json")
    monkeypatch.setattr(results, "PAGE", tmp_path / "verification.md")
    results.merge([_row("make verify: anomalies"), _row("make verify: failures")])
    results.merge([_row("make test: anomalies", 2)])
    results.merge([dataclasses.replace(_row("make verify: failures"), commit="def")])
    assert {row.name: (row.value, row.met, row.commit) for row in results.read()} == {
        "make test: anomalies": (2, False, "abc"),
        "make verify: anomalies": (0, True, "abc"),
        "make verify: failures": (0, True, "def"),
    }
    page = results.PAGE.read_text()
    assert (
        page.index("## make test")
        < page.index("| anomalies | 2 | 0 | **no** |")
        < page.index("## make verify")
    )
    assert "Measured at commit abc, def." in page


def test_the_page_is_made_of_the_results() -> None:
    assert results.PAGE.read_text() == results.page(results.read())
