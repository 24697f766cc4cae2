"""The harness by itself, and one tiny workload through it: an embedded Semel, and the mock cluster."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from subprocess import CalledProcessError
from types import SimpleNamespace
from typing import ClassVar, Self

import pytest

import semel
from bench.results import Metric, Results
from bench.side_by_side import overhead
from bench.side_by_side.clients import Load
from bench.side_by_side.measuring import DEFAULT, Cell, Size, Workload, measure, started
from bench.side_by_side.overhead import OVERHEAD, WITH, WITHOUT, Both, Overhead
from bench.side_by_side.places import places, topics_of
from bench.side_by_side.transactions import P50, P99, RATE, Transaction, Transactions
from bench.side_by_side.warming import is_steady
from bench.subjects import Mock, Subject
from peers.programs import CannotBuild

TINY = Size("tiny", 2, 1, 0.05, 0.05, 0.05, 100, 100, (), 1)


class Embedded(Subject):
    """A Semel in this process, which is what a test can have in no time."""

    name, title = "semel", "Semel"

    @property
    def pid(self) -> int:
        return os.getpid()

    @contextmanager
    def running(self) -> Iterator["Embedded"]:
        with semel.embedded() as broker:
            self.bootstrap = broker.bootstrap_servers
            yield self


class Tiny(Transactions):
    """One cell of the real workload, and one that has no meaning on the mock cluster."""

    def cells(self, size: Size) -> list[Transaction]:
        return [Transaction("librdkafka", 5, 10, 1), Transaction("semel.client", 1, 2, 1)]


class TinyOverhead(Overhead):
    """One cell that all have, and one with too many producers for most."""

    def cells(self, size: Size) -> list[Both]:
        return [Both("librdkafka", 5, 10, 1), Both("librdkafka", 1, 1, 2)]


def test_names_are_new_also_for_a_workload_that_is_done_again() -> None:
    """A profile does each of them again and again, on one broker."""
    names = [Tiny().fresh("topic") for _ in range(3)]
    assert len(set(names)) == 3


class One(Cell):
    """A cell with nothing to it."""

    @property
    def label(self) -> str:
        return "one"


class Rehearsed(Workload[One]):
    """Says in which order it was asked, and fails where it is told to."""

    name = "transactions"
    title = "Rehearsed"
    text = "No work."
    metrics: ClassVar = (Metric("figure", "1/s"),)

    def __init__(self, failing: str = "", cells: int = 1) -> None:
        self.asked: list[str] = []
        self.failing = failing
        self.count = cells

    def cells(self, size: Size) -> list[One]:
        return [One()] * self.count

    def measure(self, subject: Subject, cell: One, size: Size) -> dict[str, float]:
        self.asked.append(subject.name)
        if subject.name == self.failing:
            raise RuntimeError("does not work here")
        return {"figure": 1.0}


def subject(name: str) -> Subject:
    made = Subject(Path())
    made.name = name  # type: ignore[misc]
    made.bootstrap = ""
    return made


def test_subjects_take_turns_and_begin_in_turn() -> None:
    workload, results = Rehearsed(), Results("tiny", {})
    measure(workload, [subject("a"), subject("b")], TINY, results, lambda _: None)
    assert workload.asked == ["a", "b", "b", "a"]
    assert [series.values for series in results.series] == [[1.0, 1.0], [1.0, 1.0]]


def test_the_first_of_a_round_is_another_for_the_next_cell() -> None:
    workload = Rehearsed(cells=2)
    measure(workload, [subject("a"), subject("b")], TINY, Results("tiny", {}), lambda _: None)
    assert workload.asked == ["a", "b", "b", "a", "b", "a", "a", "b"]


def test_a_workload_that_cannot_be_held_is_noted_and_the_run_goes_on() -> None:
    class Unheld(Rehearsed):
        def __enter__(self) -> Self:
            raise RuntimeError("no Java\nat all")

    results = Results("tiny", {})
    measure(Unheld(), [subject("a")], TINY, results, lambda _: None)
    assert [(each.what, each.why) for each in results.failed] == [
        ("transactions", "RuntimeError: no Java at all")
    ]


def test_what_fails_is_noted_once_and_the_rest_goes_on() -> None:
    workload, results = Rehearsed(failing="a"), Results("tiny", {})
    measure(workload, [subject("a"), subject("b")], TINY, results, lambda _: None)
    assert workload.asked == ["a", "b", "b"]
    assert [(each.what, each.why) for each in results.failed] == [
        ("transactions: one: a", "RuntimeError: does not work here")
    ]


def test_a_subject_that_cannot_be_had_is_skipped_by_name() -> None:
    class Missing(Subject):
        name, title = "missing", "Missing"

        def __init__(self, directory: Path) -> None:
            raise CannotBuild("java is not installed")

    results = Results("tiny", {})
    with started([Missing], results) as subjects:
        assert subjects == []
    assert [(each.what, each.why) for each in results.skipped] == [("missing", "java is not installed")]


def test_a_subject_that_does_not_come_up_is_killed_and_skipped() -> None:
    class Stillborn(Subject):
        name, title = "stillborn", "Stillborn"
        killed = 0

        def start(self) -> None:
            raise CalledProcessError(1, "format")

        def kill(self) -> None:
            Stillborn.killed += 1
            raise AssertionError

    results = Results("tiny", {})
    with started([Stillborn], results) as subjects:
        assert subjects == []
    assert Stillborn.killed == 1
    assert [each.what for each in results.skipped] == ["stillborn"]
    assert results.skipped[0].why.startswith("CalledProcessError: ")


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([], False),
        ([100.0, 100.0], False),
        ([100.0, 105.0, 105.0], True),
        ([100.0, 90.0, 120.0], False),
        ([100.0, 200.0, 200.0], False),
        ([100.0, 200.0, 200.0, 210.0], True),
    ],
)
def test_a_subject_is_warm_after_two_windows_that_are_no_faster(rates: list[float], expected: bool) -> None:
    assert is_steady(rates) is expected


@pytest.mark.parametrize(("partitions", "topics"), [(1, 1), (4, 1), (5, 2), (100, 25)])
def test_places_are_in_topics_of_four(partitions: int, topics: int) -> None:
    assert len(topics_of("name", partitions)) == topics


def test_a_tiny_workload_through_the_harness() -> None:
    results = Results("tiny", {})
    with Embedded(Path()).running() as ours, started([Mock], results) as others:
        assert len(set(places(ours, "places", 6))) == 6
        measure(Tiny(), [ours, *others], TINY, results, lambda _: None)
    assert results.failed == []
    assert [each.what for each in results.skipped] == [
        "transactions: semel.client, 1 partition × 2 records, 1 producer: mock"
    ]
    seen = {(series.subject, series.metric) for series in results.series}
    assert seen == {(name, metric) for name in ("semel", "mock") for metric in (RATE, P50, P99)}
    assert all(value > 0 for series in results.series for value in series.values)


def test_the_overhead_is_what_is_lost_of_the_rate_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(load: Load, *, plain: bool) -> SimpleNamespace:
        return SimpleNamespace(rate=4.0 if plain else 3.0)

    monkeypatch.setattr(overhead, "librdkafka", run)
    monkeypatch.setattr(overhead, "places", lambda *_: [])
    results = Results("tiny", {})
    measure(TinyOverhead(), [subject("semel"), subject("mock")], TINY, results, lambda _: None)
    assert results.failed == []
    assert [each.what for each in results.skipped] == [
        "overhead: librdkafka, 1 partition × 1 record, 2 producers: mock"
    ]
    for name in ("semel", "mock"):
        found = [
            results.find("overhead", Both("librdkafka", 5, 10, 1).label, name, metric)
            for metric in (OVERHEAD, WITH, WITHOUT)
        ]
        assert [each and set(each.values) for each in found] == [{0.25}, {150.0}, {200.0}]


def test_the_grid_is_whole_and_the_overhead_is_measured_on_all_of_it() -> None:
    """Partitions {1, 5, 20} × records {1, 10, 1000} × producers {1, 8, 32}, by librdkafka and in Java."""
    grid = set(product(("librdkafka", "java"), (1, 5, 20), (1, 10, 1000), (1, 8, 32)))
    assert len(grid) == 54
    assert grid <= {_key(cell) for cell in Transactions().cells(DEFAULT)}
    assert grid == {_key(cell) for cell in Overhead().cells(DEFAULT)}
    for workload in (Transactions(), Overhead()):
        assert all(cell.rounds(DEFAULT) > 0 for cell in workload.cells(DEFAULT))


def test_large_transactions_get_the_rounds_and_the_time_of_the_bar() -> None:
    """A half second holds two or three of them for each producer, and one round has no spread."""
    large = [cell for cell in Overhead().cells(DEFAULT) if cell.records == 1000]
    assert len(large) == 18
    assert {cell.rounds(DEFAULT) for cell in large} == {DEFAULT.rounds}
    assert {cell.seconds(DEFAULT) for cell in large} == {DEFAULT.seconds}


def _key(cell: Transaction) -> tuple[str, int, int, int]:
    return cell.client, cell.partitions, cell.records, cell.producers


def test_a_client_that_cannot_be_built_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def fetched(version: str) -> str:
        tried.append(version)
        raise CannotBuild("mvn is not installed")

    monkeypatch.setattr("bench.side_by_side.clients.fetch_kafka", fetched)
    workload = Transactions()
    for _ in range(2):
        with pytest.raises(CannotBuild):
            workload.java_client(subject("a"), TINY)
    assert len(tried) == 1
