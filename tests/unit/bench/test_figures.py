"""The arithmetic of measurements."""

import math

import pytest

from bench.figures import exponent, median_of, quantile, ratio_of


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([3.0], 0.99, 3.0), ([1.0, 2.0, 3.0], 0.5, 2.0), ([2.0, 1.0], 0.5, 1.5), ([1.0, 2.0], 1.0, 2.0)],
)
def test_a_quantile_lies_between_its_neighbours(values: list[float], share: float, expected: float) -> None:
    assert quantile(values, share) == expected


def test_of_nothing_there_is_no_quantile_and_no_median() -> None:
    with pytest.raises(ValueError, match="nothing"):
        quantile([], 0.5)
    with pytest.raises(ValueError, match="nothing"):
        median_of([])


def test_the_interval_holds_the_median_and_stays_within_the_rounds() -> None:
    found = median_of([1.0, 5.0, 2.0, 4.0, 3.0])
    assert found.value == 3.0
    assert 1.0 <= found.low < 3.0 < found.high <= 5.0


def test_rounds_that_agree_leave_no_doubt() -> None:
    found = median_of([2.0] * 5)
    assert (found.low, found.value, found.high) == (2.0, 2.0, 2.0)


def test_the_same_rounds_give_the_same_interval() -> None:
    assert median_of([1.0, 2.0, 4.0]) == median_of([1.0, 2.0, 4.0])


def test_a_ratio_compares_round_with_round() -> None:
    """The machine was twice as slow in the second round, for both: the ratio does not see it."""
    found = ratio_of([100.0, 50.0, 100.0], [50.0, 25.0, 50.0])
    assert (found.low, found.value, found.high) == (2.0, 2.0, 2.0)


def test_a_ratio_to_nothing_is_without_bound_and_nothing_to_nothing_is_equal() -> None:
    assert ratio_of([1.0], [0.0]).value == math.inf
    assert ratio_of([0.0], [0.0]).value == 1.0


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_the_exponent_is_that_of_the_growth(power: float) -> None:
    work = [1.0, 2.0, 4.0, 8.0]
    assert exponent(work, [3 * each**power for each in work]) == pytest.approx(power)


def test_one_point_has_no_slope() -> None:
    with pytest.raises(ValueError, match="two points"):
        exponent([1.0, 2.0], [1.0, 0.0])
