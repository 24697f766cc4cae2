"""`make suites`: what it makes of the reports of other programs, and of differences."""

from pathlib import Path

import psutil
import pytest
from support.waiting import until

from suites import results
from suites.catalogue import DIFFERENCES, SUITES
from suites.outcomes import FAILED, PASSED, SKIPPED, Case, Ended, of_junit, of_lines, run_within

SUITE = "Kafka Streams"


def test_lines_of_a_program_are_its_report() -> None:
    output = "noise\npassed one\nfailed two: it: is bad\nskipped three: not here\n"
    assert of_lines(Ended(output, True)) == {
        "one": Case(PASSED),
        "two": Case(FAILED, "it: is bad"),
        "three": Case(SKIPPED, "not here"),
    }


@pytest.mark.parametrize(("output", "in_time"), [("passed one\n", False), ("it crashed\n", True)])
def test_a_program_that_hangs_or_says_nothing_has_failed(output: str, in_time: bool) -> None:
    assert FAILED in {case.outcome for case in of_lines(Ended(output, in_time)).values()}


@pytest.mark.slow
def test_a_program_that_takes_too_long_is_killed_with_its_children() -> None:
    ended = run_within(["sh", "-c", "sleep 600 & echo $!; wait"], 5.0)
    assert not ended.in_time
    until(lambda: not is_running(int(ended.output)), what="the end of the child")


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_report_of_pytest(tmp_path: Path) -> None:
    path = tmp_path / "report.xml"
    path.write_text(
        '<testsuite><testcase classname="a.b" name="good"/>'
        '<testcase classname="a.b" name="bad"><error message="no&#10;fixture"/></testcase>'
        '<testcase classname="a.b" name="left"><skipped message="why"/></testcase></testsuite>'
    )
    assert of_junit(path) == {
        "b::good": Case(PASSED),
        "b::bad": Case(FAILED, "no fixture"),
        "b::left": Case(SKIPPED, "why"),
    }


def test_what_differs_without_a_reason_is_told() -> None:
    known = f"{next(iter(DIFFERENCES[SUITE]))} (KIP-1071)"
    semel = {known: Case(FAILED, "x"), "new": Case(SKIPPED), "same": Case(PASSED), "both": Case(FAILED, "y")}
    kafka = {known: Case(PASSED), "new": Case(PASSED), "same": Case(PASSED), "both": Case(FAILED)}
    row = results.row(SUITE, semel, kafka, "abc")
    assert set(row.differ) == {known, "new"}
    assert results.unexplained(row) == ["new", "both"]
    assert row.semel == {PASSED: 1, FAILED: 2, SKIPPED: 1}
    text = results.generated([row])
    assert "| Kafka Streams | 1 / 2 / 1 | 3 / 1 / 0 | 1 explained, **1 not** |" in text
    assert "| Kafka Streams | new | skipped / passed | **not explained** |" in text


def test_reasons_are_given_for_suites_that_exist() -> None:
    assert set(DIFFERENCES) <= set(SUITES)
