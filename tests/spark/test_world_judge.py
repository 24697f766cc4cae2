"""The judge of `verification.world`: it finds what is wrong with an output, and knows what a refusal is."""

from collections import Counter

import pytest

from verification.world.truth import Entry, Fate, Truth
from verification.world.verdict import Broken, End, compare, result_of

READ = [("in", 0)]
REFUSAL = "batch 3 starts at offset 10 of in/0, but the pipeline has reached 17. Start with a new checkpoint"
TRACE = 'Traceback (most recent call last):\n  File "worker.py", line 98, in worker_run\n'


@pytest.fixture
def truth() -> Truth:
    """Two records that count, one that was aborted, one in an open transaction, and one behind it."""
    truth = Truth()
    truth.create("in", 1)
    fates = [Fate.COMMITTED, Fate.COMMITTED, Fate.ABORTED, Fate.OPEN, Fate.COMMITTED]
    truth.logs["in", 0] = [Entry(number, number, fate) for number, fate in enumerate(fates)]
    return truth


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        ([0, 1], ""),
        ([0, 1, 4], ""),
        ([0], "1 lost: 1"),
        ([0, 1, 1], "1 doubled: 1"),
        ([0, 1, 2], "1 never committed, but there: 2"),
        ([0, 1, 3], "1 never committed, but there: 3"),
        ([0, 1, 7], "1 never committed, but there: 7"),
        ([1, 1, 2], "1 lost: 0; 1 doubled: 1; 1 never committed, but there: 2"),
    ],
)
def test_an_output_is_compared_with_the_truth(truth: Truth, found: list[int], wrong: str) -> None:
    assert compare(truth.expected(READ, set(), set()), Counter(found)) == wrong


def test_what_a_deleted_topic_had_may_be_there_once(truth: Truth) -> None:
    truth.delete("in")
    truth.create("in", 1)
    expected = truth.expected(READ, set(), set())
    assert compare(expected, Counter([0])) == ""
    assert compare(expected, Counter([0, 0])) == "1 doubled: 0"


def test_deleted_records_are_due_where_the_pipeline_had_begun(truth: Truth) -> None:
    truth.logs["in", 0][1].is_deleted = True
    assert truth.expected(READ, set(), set()).once == {0}
    assert truth.expected(READ, set(READ), set()).once == {0, 1}
    assert truth.expected(READ, set(READ), truth.deleted(READ)).once == {0}
    assert truth.deleted(READ) == truth.deleted(truth.logs) == {1}
    assert truth.deleted([("in", 99)]) == set()


def test_records_below_offsets_that_were_set_by_hand(truth: Truth) -> None:
    assert truth.before({("in", 0): 2}) == {0, 1}
    assert truth.before({("in", 0): 0, ("in", 99): 5}) == set()


def test_a_compacted_topic_owes_only_the_last_record_of_a_key(truth: Truth) -> None:
    truth.create("table", 1, is_compacted=True)
    truth.logs["table", 0] = [
        Entry(10 + at, at, Fate.COMMITTED, key) for at, key in enumerate([b"a", b"b", b"a"])
    ]
    expected = truth.expected([("table", 0)], set(), set())
    assert expected.once == {11, 12}
    assert 10 in expected.at_most_once


@pytest.mark.parametrize(
    "text",
    [
        f"{TRACE}semel.spark.errors.PipelineMismatch: {REFUSAL}",
        f"{TRACE}semel.spark.errors.PipelineMismatch: {REFUSAL}\n\nDuring handling of it:\n\n"
        f"{TRACE}_pickle.PicklingError: Could not serialize object: PipelineMismatch: {REFUSAL}",
    ],
    ids=["as it is", "wrapped by Spark"],
)
def test_an_error_of_ours_is_a_refusal(text: str) -> None:
    assert result_of(Exception(text), fault_was_asked=False).end is End.REFUSED


@pytest.mark.parametrize(
    "text",
    [
        f"{TRACE}KeyError: ('in', 0)",
        f"{TRACE}AssertionError: what is prepared went somewhere, and that is known here",
        f"{TRACE}semel.spark.errors.PipelineError: no",
        "java.lang.NullPointerException\n\tat org.apache.spark.sql.execution.streaming",
        "Writing job failed. SQLSTATE: XXKST",
    ],
)
def test_any_other_error_is_none(text: str) -> None:
    with pytest.raises(Broken, match="failed without a refusal of ours"):
        result_of(Exception(text), fault_was_asked=False)


def test_a_fault_that_was_asked_for_is_no_failure() -> None:
    assert result_of(Exception("Writing job failed."), fault_was_asked=True).end is End.FAULT
