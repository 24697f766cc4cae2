"""Sampled values over time, bounded: the points of a chart, and when a log had reached an offset."""

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
        return [each.at for each in self._points], [each.value for each in self._points]


class Ends:
    """When the end of a partition was seen at which offset; the older, the coarser."""

    POINTS_MAX = 32

    def __init__(self) -> None:
        self._times: list[float] = []
        self._offsets: list[int] = []

    def add(self, at: float, offset: int) -> None:
        """Note the end. When the list is full, every second of the older points is dropped."""
        if self._offsets and offset <= self._offsets[-1]:
            if offset == self._offsets[-1]:
                return
            self._times.clear()  # It was truncated, or is another topic of the same name.
            self._offsets.clear()
        if len(self._times) >= self.POINTS_MAX:
            half = self.POINTS_MAX // 2
            self._times[:half] = self._times[:half:2]
            self._offsets[:half] = self._offsets[:half:2]
        self._times.append(at)
        self._offsets.append(offset)

    def passed(self, offset: int) -> float | None:
        """Return the first sampled time at which the record at `offset` existed; None if it does not yet.

        It may have existed for longer: what was before the first sample is not known.
        """
        index = bisect_right(self._offsets, offset)
        return self._times[index] if index < len(self._offsets) else None
