"""Time, read in one place. There are two times, because no single clock can serve both purposes.

- ``now`` counts steadily: timeouts, sessions and deadlines. It starts at the time of day and then follows the
  monotonic clock, so it neither leaps nor goes back when somebody sets the clock of the machine, and it
  stands still while the machine sleeps.
- ``time_of_day`` is what the machine calls the time at this moment: timestamps in records, limits on the
  timestamps of producers, retention, and whatever is kept for days. It leaps when the clock is set, in either
  direction, as it must: the clients' clocks do the same.
"""

import time
from collections.abc import Callable


class Clock:
    """Both times, in milliseconds since 1970."""

    def __init__(
        self,
        time_of_day: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._time_of_day = time_of_day
        self._steady = steady
        self._anchor_ms = time_of_day() * 1000 - steady() * 1000

    def now(self) -> int:
        """This moment, for what must not leap."""
        return int(self._anchor_ms + self._steady() * 1000)

    def time_of_day(self) -> int:
        """This moment, for what people and other machines see."""
        return int(self._time_of_day() * 1000)

    def not_before(self, moment_ms: int) -> None:
        """Let ``now`` go on from a moment that an earlier life of the broker has seen.

        If the clock of the machine was set back since, deadlines of that life would lie too far ahead.
        """
        self._anchor_ms += max(0, moment_ms - self.now())
