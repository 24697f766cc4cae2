"""Keeps bounded time series of samples: the points of a chart, and when a log had reached an offset.

One thread may add while another reads, so a reader takes a consistent state first and works on that.
"""

from bisect import bisect_right
from collections import deque
from typing import NamedTuple


class Point(NamedTuple):
    """A value at a time of day in seconds."""

    at: float
    value: float | None


class Series:
    """The last points of a value."""

    def __init__(self, points_max: int) -> None:
        self._points: deque[Point] = deque(maxlen=points_max)

    def add(self, at: float, value: float | None) -> None:
        """Append a point."""
        self._points.append(Point(at, value))

    @property
    def last(self) -> float | None:
        """The newest value."""
        return self._points[-1].value if self._points else None

    def columns(self) -> tuple[list[float], list[float | None]]:
        """Return times and values, as a chart wants them."""
        points = list(self._points)  # Copied at once: a Python loop over a deque that grows would fail.
        return [each.at for each in points], [each.value for each in points]


class Ends:
    """The times at which the end of a partition was sampled at an offset. Older points are sparser."""

    POINTS_MAX = 32

    def __init__(self) -> None:
        self._seen: tuple[list[float], list[int]] = [], []
        """Times and offsets. Both lists are replaced together, and never modified."""

    def add(self, at: float, offset: int) -> None:
        """Record the end. When the list is full, every second point of its older half is dropped."""
        times, offsets = self._seen
        if offsets and offset <= offsets[-1]:
            if offset == offsets[-1]:
                return
            times, offsets = [], []  # The log was truncated, or the topic was recreated.
        if len(times) >= self.POINTS_MAX:
            half = self.POINTS_MAX // 2
            times = times[:half:2] + times[half:]
            offsets = offsets[:half:2] + offsets[half:]
        self._seen = [*times, at], [*offsets, offset]

    def passed(self, offset: int) -> float | None:
        """Return the first sampled time at which the record at `offset` existed; None if it does not yet.

        It may have existed for longer: what was before the first sample is not known.
        """
        times, offsets = self._seen
        index = bisect_right(offsets, offset)
        return times[index] if index < len(offsets) else None
