"""The judge of `verification.world`: it finds what is wrong with an output, and knows what a refusal is."""

from collections import Counter

import pytest

from verification.world.sinks import Kind, WorldSink, check_sinks, check_totals, is_bad, value_of
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


# ---- several sinks


def check(
    topic: list[int], table: list[int], dead: list[int], *, had_batch: bool = True, **of_table: object
) -> str:
    sinks = [
        WorldSink("a", Kind.TOPIC, "a"),
        WorldSink("b", Kind.TABLE, "b", **of_table),  # type: ignore[arg-type]
        WorldSink("c", Kind.DEAD, "c"),
    ]
    found = {"a": Counter(topic), "b": Counter(table), "c": Counter(dead)}
    return check_sinks(sinks, found, parses=True, excused=set(), pipeline_id="p", had_batch=had_batch)


@pytest.mark.parametrize(
    ("topic", "table", "dead", "wrong"),
    [
        ([0, 1], [0, 1], [4], ""),
        ([], [], [], ""),
        ([0, 1], [0], [4], "the table b lacks 1"),
        ([0], [0, 1], [4], "the topic a lacks 1"),
        (
            [0, 4],
            [0, 4],
            [],
            "the topic a has 4, which is not for it; the table b has 4, which is not for it",
        ),
        ([0], [0], [0], "the topic of dead letters c has 0, which is not for it"),
        ([0, 1], [0, 1, 1], [4], "the table b has 1 more than once"),
        ([0, 1], [0, 1], [4, 4], "the topic of dead letters c has 4 more than once"),
    ],
)
def test_sinks_are_compared_with_each_other(
    topic: list[int], table: list[int], dead: list[int], wrong: str
) -> None:
    assert wrong in check(topic, table, dead)
    assert bool(wrong) == bool(check(topic, table, dead))


def test_a_sink_that_was_away_lacks_what_it_has_skipped() -> None:
    assert check([0, 1, 2], [2], [], skipped={0, 1}) == ""
    assert check([0, 1, 2], [1, 2], [], skipped={0, 1}) == "the table b has 1, which is not for it"


def test_what_was_deleted_with_a_sink_must_be_noticed_by_the_next_batch() -> None:
    assert check([0, 1], [1], [], destroyed={"p": {0}}) == "the table b lacks 0"
    assert check([0, 1], [1], [], destroyed={"p": {0}}, had_batch=False) == ""
    assert check([0, 1], [1], [], destroyed={"former": {0}}) == ""


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        ({"0": "0,3", "1": "1"}, ""),
        ({"0": "0,3"}, "of key 1 None, not [1]"),
        ({"0": "0,3", "1": "1,1"}, "of key 1 [1, 1], not [1]"),
        ({"0": "3", "1": "1"}, "of key 0 [3], not [0, 3]"),
    ],
)
def test_totals_have_every_number_once(
    found: dict[str, str], wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorldSink, "values", lambda self, bootstrap: list(found.items()))
    sink = WorldSink("t", Kind.TOTALS, "t")
    assert check_totals(sink, "", {0, 1, 3}, [set()]).partition(" has ")[2] == wrong
    # The state was lost after 0 and 1: the total of key 0 is newer, that of key 1 is the old one.
    assert (check_totals(sink, "", {0, 1, 3}, [set(), {0, 1}]) == "") == (found == {"0": "3", "1": "1"})


def test_bad_records_are_no_json_objects() -> None:
    assert [is_bad(number) for number in range(5)] == [False] * 4 + [True]
    assert (value_of(3), value_of(4)) == (b'{"number": 3, "key": "0"}', b"4")
