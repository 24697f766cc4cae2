"""The arithmetic of measurements: quantiles, ratios with their confidence, and how fast a cost grows."""

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

RESAMPLES = 2_000
CONFIDENCE = 0.95
SEED = 6
"""The same figures give the same interval, whoever computes it."""


@dataclass(frozen=True)
class Estimate:
    """A value, and an interval around it from so many rounds.

    From six rounds on, the value is in it with 95 % confidence. With fewer the interval goes from the lowest
    to the highest, which is less sure, and one round says nothing about it.
    """

    value: float
    low: float
    high: float
    rounds: int


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share lies, between neighbours in proportion."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("a quantile of nothing")
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def median_of(values: Sequence[float]) -> Estimate:
    """The median, with an interval from rounds drawn again and again with replacement."""
    if not values:
        raise ValueError("a median of nothing")
    chance = random.Random(SEED)
    medians = [statistics.median(chance.choices(values, k=len(values))) for _ in range(RESAMPLES)]
    outside = (1 - CONFIDENCE) / 2
    low, high = quantile(medians, outside), quantile(medians, 1 - outside)
    return Estimate(statistics.median(values), low, high, len(values))


def ratio_of(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """The median of the rounds' ratios. A round of one stands beside the same round of the other."""
    pairs = list(zip(ours, theirs, strict=False))
    return median_of([_divided(mine, other) for mine, other in pairs])


def _divided(mine: float, other: float) -> float:
    """Nothing over nothing is equal: two costs that are both too small to be seen."""
    if other == 0:
        return 1.0 if mine == 0 else math.inf
    return mine / other


def number(value: float) -> str:
    """With about three digits that mean something."""
    size = abs(value)
    digits = 0 if size >= 100 or value == 0 else 1 if size >= 10 else 2 if size >= 0.1 else 4
    return f"{value:,.{digits}f}"


def exponent(work: Sequence[float], cost: Sequence[float]) -> float:
    """The slope of the line through the logarithms: 1 if cost grows as work does, 2 if with its square."""
    points = [(math.log(x), math.log(y)) for x, y in zip(work, cost, strict=True) if x > 0 and y > 0]
    if len(points) < 2:
        raise ValueError("a slope needs two points")
    return statistics.linear_regression([x for x, _ in points], [y for _, y in points]).slope
