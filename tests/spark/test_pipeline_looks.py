"""The judge of what a reader saw of a pipeline's output between kills: whole batches, or parts of them."""

from collections import Counter
from collections.abc import Mapping

import pytest

from verification.pipeline_kills import Look

INPUTS = {0: [b"a", b"b", b"c"], 1: [b"x", b"y"]}
FIRST, SECOND = {0: 1, 1: 1}, {0: 3, 1: 2}
"""How far the pipeline is after its first batch, and after its second."""


@pytest.mark.parametrize(
    ("before", "seen", "after"),
    [
        ({}, [], {}),
        (FIRST, [b"a", b"x"], FIRST),
        (FIRST, [b"a", b"x"], SECOND),
        (FIRST, [b"a", b"x", b"b", b"c", b"y"], SECOND),
        (SECOND, [b"y", b"a", b"x", b"b", b"c"], SECOND),
    ],
)
def test_whole_batches(before: Mapping[int, int], seen: list[bytes], after: Mapping[int, int]) -> None:
    assert Look(before, Counter(seen), after).problems(INPUTS) == []


def test_a_batch_that_counts_is_there_in_part() -> None:
    (told,) = Look(SECOND, Counter([b"a", b"x", b"b"]), SECOND).problems(INPUTS)
    assert "2 records of batches that count were not seen" in told


def test_a_part_of_a_batch_that_does_not_count_yet() -> None:
    (told,) = Look(FIRST, Counter([b"a", b"x", b"y"]), FIRST).problems(INPUTS)
    assert "1 of batches that do not were" in told


def test_a_record_that_is_there_twice() -> None:
    (told,) = Look(FIRST, Counter([b"a", b"a", b"x"]), FIRST).problems(INPUTS)
    assert "1 of batches that do not were" in told
