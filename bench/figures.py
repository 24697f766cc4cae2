"""The arithmetic of measurements: quantiles, ratios with confidence intervals, and growth of cost."""

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

RESAMPLES = 2_000
CONFIDENCE = 0.95
SEED = 6
"""Fixed, so that the same figures always give the same interval."""


@dataclass(frozen=True)
class Estimate:
    """A value, and an interval around it, from a number of rounds.

    From six rounds on, it is a 95 % confidence interval. With fewer, the interval goes from the lowest to the
    highest value, which is less certain, and a single round has no interval.
    """

    value: float
    low: float
    high: float
    rounds: int


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share lies, interpolated linearly."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("a quantile of nothing")
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def median_of(values: Sequence[float]) -> Estimate:
    """Return the median, with an interval from bootstrap over the rounds."""
    if not values:
        raise ValueError("a median of nothing")
    chance = random.Random(SEED)
    medians = [statistics.median(chance.choices(values, k=len(values))) for _ in range(RESAMPLES)]
    outside = (1 - CONFIDENCE) / 2
    low, high = quantile(medians, outside), quantile(medians, 1 - outside)
    return Estimate(statistics.median(values), low, high, len(values))


def ratio_of(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """Return the median of the rounds' ratios. Each round is compared with the same round of the other."""
    pairs = list(zip(ours, theirs, strict=False))
    return median_of([_divided(mine, other) for mine, other in pairs])


def _divided(mine: float, other: float) -> float:
    """Divide; zero over zero is 1: both costs are too small to measure."""
    if other == 0:
        return 1.0 if mine == 0 else math.inf
    return mine / other


def number(value: float) -> str:
    """Format with about three significant digits."""
    size = abs(value)
    digits = 0 if size >= 100 or value == 0 else 1 if size >= 10 else 2 if size >= 0.1 else 4
    return f"{value:,.{digits}f}"


def exponent(work: Sequence[float], cost: Sequence[float]) -> float:
    """Return the slope in a log-log plot: 1 if cost grows with the work, 2 if with its square."""
    points = [(math.log(x), math.log(y)) for x, y in zip(work, cost, strict=True) if x > 0 and y > 0]
    if len(points) < 2:
        raise ValueError("a slope needs two points")
    return statistics.linear_regression([x for x, _ in points], [y for _, y in points]).slope
