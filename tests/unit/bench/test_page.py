"""The page and the targets, from results that are made up."""

import re
from pathlib import Path

import pytest

from bench.__main__ import FILE, ROOT
from bench.figures import number
from bench.page import document, tables
from bench.readme import FIGURES, readme
from bench.reasons import UNKNOWN, why
from bench.results import Results, Skipped
from bench.rows import Row
from bench.side_by_side.bar import rows
from bench.side_by_side.bulk import Bulks
from bench.side_by_side.catalogue import WORKLOADS
from bench.side_by_side.growth import Growth, Slope, slopes
from bench.side_by_side.measuring import DEFAULT
from bench.side_by_side.overhead import Both, Overhead
from bench.side_by_side.transactions import Transaction, Transactions
from bench.side_by_side.visibility import Visible

MARKS = "before\n<!-- figures -->\n<!-- /figures -->\nafter\n"
CELL = Transaction("librdkafka", 1, 10, 1).label
GROUP = Transaction("librdkafka", 1, 1000, 1).label


@pytest.fixture
def results() -> Results:
    made = Results("quick", {"cores": "2"})
    # As after a run of one workload alone: the order is not that of the page.
    made.workloads = [Growth().about, Visible().about, Overhead().about, Transactions().about, Bulks().about]
    for factor in (1.0, 0.9, 1.1):
        for subject, rate in (("semel", 600.0), ("kafka", 300.0), ("mock", 700.0)):
            values = {"transactions per second": rate * factor, "p50": 1e3 / rate, "p99": 2e3 / rate}
            made.add("transactions", CELL, subject, values)
        for subject, share, rate in (("semel", 0.25, 1_000.0), ("kafka", 0.5, 500.0)):
            rates = {"with": rate * (1 - share), "without": rate}
            made.add("overhead", GROUP, subject, {"overhead": share} | rates)
        made.add("visibility", "marker topic", "semel", {"visible at once": 1.0, "p50": 0.0, "p99": 0.0})
        made.add("visibility", "marker topic", "kafka", {"visible at once": 0.0, "p50": 1.0, "p99": 2.0})
    for count in (1_000, 2_000, 4_000):
        made.add("growth", f"records: {count:,}", "semel", {"seconds": count / 1e3})
        made.add("growth", f"records: {count:,}", "kafka", {"seconds": (count / 1e3) ** 2})
    made.skipped = [Skipped("mock", "is not here"), Skipped("growth: mock", "is not here")]
    made.bars, made.bars_measured = [Row("of old", "1.00 to 1.00", 1.999, 2.0)], "long ago"
    return made


def test_targets_say_whether_they_are_reached(results: Results) -> None:
    found = {row.what: row for row in rows(results)}
    over_kafka = found[f"{CELL}: transactions per second, over kafka's"]
    assert (over_kafka.value, over_kafka.met) == (2.0, True)
    over_mock = found[f"{CELL}: transactions per second, over mock's"]
    assert over_mock.value == pytest.approx(600 / 700)
    assert over_mock.met
    slowest = found[f"{CELL}: p99, over kafka's"]
    assert (slowest.value, slowest.met) == (0.5, False)
    less = found[f"overhead of a transaction, {GROUP}: less Apache Kafka's"]
    assert (less.value, less.met) == (-0.25, True)
    assert less.measured.endswith("with 750 and 250, without 1,000 and 500 records/s")
    at_once = found["from commit to visible, marker topic: share that is visible at once, in the worst round"]
    assert (at_once.measured, at_once.value, at_once.met) == ("3 rounds", 1.0, True)


def test_an_overhead_that_is_the_clients_own_is_said_to_be_so(results: Results) -> None:
    """What the client loses with a broker that keeps nothing is told beside what it loses with Semel."""
    large = Both("librdkafka", 20, 1000, 1).label
    what = f"overhead of a transaction, {large}: share of the throughput that is lost"
    results.add("overhead", large, "semel", {"overhead": 0.5})
    results.add("overhead", large, "mock", {"overhead": 0.25})
    assert {row.what: row.measured for row in rows(results)}[what] == "one round"
    results.add("overhead", large, "semel", {"overhead": 0.6})
    results.add("overhead", large, "mock", {"overhead": 0.45})
    row = {row.what: row for row in rows(results)}[what]
    assert row.measured == "0.50 to 0.60; the client itself loses 0.35 with the mock cluster"
    assert (row.value, row.met) == (0.55, False)


def test_a_target_that_no_broker_can_reach_is_said_to_be_one(results: Results) -> None:
    """The client's floor is what it reaches with the mock cluster: 700 a second, and a median of 1.43 ms."""
    found = {row.what: row for row in rows(results)}
    # Half as fast again as Kafka's 300 is possible, a quarter of its p99 of 6.7 ms is so too.
    assert "floor" not in found[f"{CELL}: transactions per second, over kafka's"].measured
    assert "floor" not in found[f"{CELL}: p99, over kafka's"].measured
    for metric, value in (("transactions per second", 500.0), ("p99", 5.0)):
        series = results.find("transactions", CELL, "kafka", metric)
        assert series is not None
        series.values = [value] * 3
    found = {row.what: row for row in rows(results)}
    rate, p99 = found[f"{CELL}: transactions per second, over kafka's"], found[f"{CELL}: p99, over kafka's"]
    assert rate.measured.endswith("; the target, 750, is beyond the client's floor of 700")
    assert p99.measured.endswith("; the target, 1.25, is beyond the client's floor of 1.429")


def test_one_commit_that_was_not_visible_at_once_is_seen(results: Results) -> None:
    results.add("visibility", "marker topic", "semel", {"visible at once": 0.999})
    assert [row.met for row in rows(results) if row.what.startswith("from commit to visible")] == [False]


def test_what_was_not_measured_is_no_target(results: Results) -> None:
    assert not [row for row in rows(results) if "java" in row.what or row.what.startswith("bulk")]


def test_cost_that_grows_faster_than_work_is_flagged(results: Results) -> None:
    assert slopes(results) == [
        Slope("records", "semel", "seconds", pytest.approx(1.0)),  # type: ignore[arg-type]  # equals a float
        Slope("records", "kafka", "seconds", pytest.approx(2.0)),  # type: ignore[arg-type]  # equals a float
    ]
    assert [each.is_faster_than_work for each in slopes(results)] == [False, True]


def test_results_are_read_as_they_were_written(results: Results, tmp_path: Path) -> None:
    results.write(tmp_path / "results.json")
    assert Results.read(tmp_path / "results.json") == results


def test_a_run_of_one_workload_replaces_it_and_keeps_the_rest(results: Results) -> None:
    anew = Results("default", {"cores": "4"}, workloads=[Visible().about])
    anew.add("visibility", "marker topic", "semel", {"visible at once": 0.5})
    results.replace(anew)
    assert len(results.of("visibility")) == 1
    assert results.find("transactions", CELL, "semel", "p50") is not None
    assert [row.what for row in results.bars] == ["of old"]
    assert [each.name for each in results.workloads].count("visibility") == 1


def everything() -> Results:
    """As if each workload had been measured whole, and all were the same."""
    made = Results("default", {})
    for workload in WORKLOADS:
        about = workload().about
        made.workloads.append(about)
        for cell in workload().cells(DEFAULT):
            for subject in ("semel", "kafka", "mock"):
                made.add(about.name, cell.label, subject, {each.name: 0.5 for each in about.metrics})
    return made


def test_every_target_that_may_not_be_reached_has_a_reason() -> None:
    made = everything()
    assert len(rows(made)) > 100
    assert [row.what for row in rows(made) if why(row.what) == UNKNOWN] == []


def test_what_is_not_reached_in_the_results_has_a_reason() -> None:
    kept = Results.read(FILE)
    unmet = [row.what for row in (*kept.bars, *rows(kept)) if not row.met]
    assert [what for what in unmet if why(what) == UNKNOWN] == []


def test_the_readme_has_the_figures_of_the_run(results: Results) -> None:
    text = readme(MARKS, results)
    assert f"| transactions, {CELL}: per second | 600 | 300 | 2.00 |\n" in text
    assert text.startswith("before\n<!-- figures -->\n")
    assert text.endswith("<!-- /figures -->\nafter\n")
    assert readme(text, results) == text
    assert readme(MARKS, everything()).count("\n| ") == len(FIGURES) + 2
    with pytest.raises(ValueError, match="no place"):
        readme("nothing", results)


def test_the_readme_has_the_figures_of_the_newest_results() -> None:
    text = (ROOT / "README.md").read_text()
    assert readme(text, Results.read(FILE)) == text


def test_the_short_page_says_what_is_not_met_and_links_the_tables(results: Results) -> None:
    page = document(results)
    unmet = [row.what for row in (*results.bars, *rows(results)) if not row.met]
    assert unmet
    assert all(what in page for what in unmet)
    titles = [line for line in tables(results).splitlines() if line.startswith("## ")]
    links = re.findall(r"benchmark-tables\.md#([\w-]+)", page)
    assert set(links) <= {re.sub(r"[^\w -]", "", title[3:].lower()).replace(" ", "-") for title in titles}


def test_one_round_has_no_interval() -> None:
    made = Results("quick", {}, workloads=[Transactions().about])
    for subject, rate in (("semel", 600.0), ("kafka", 300.0)):
        made.add("transactions", CELL, subject, {"transactions per second": rate})
    assert f"| {CELL} | 600 | 300 | 2.00 |" in tables(made)
    assert [row.measured for row in rows(made)] == ["one round; 600 and 300"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (1234.5, "1,234"), (12.34, "12.3"), (1.234, "1.23"), (0.01234, "0.0123"), (-0.5, "-0.50")],
)
def test_numbers_have_the_digits_that_mean_something(value: float, text: str) -> None:
    assert number(value) == text
