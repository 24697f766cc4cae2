"""The broker's clock. There are two times, because no single clock serves both purposes.

- ``now`` is monotonic: for timeouts, sessions and deadlines. It starts at the time of day and then follows
  the monotonic clock, so setting the system clock does not affect it, and it stands still while the machine
  sleeps.
- ``time_of_day`` is the system clock: for timestamps in records, limits on the timestamps of producers,
  retention, and other periods of days. It jumps in either direction when the system clock is set, as it must:
  the clients' clocks do the same.
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
        self._system = self._time_of_day = time_of_day
        self._steady = steady
        self._anchor_ms = time_of_day() * 1000 - steady() * 1000
        self._advanced_ms = 0
        self._ahead_seconds = 0.0
        self._ahead_ms = 0
        self._followed: Callable[[], float] = lambda: self._ahead_seconds + steady()

    def now(self) -> int:
        """The monotonic time."""
        return int(self._anchor_ms + self._steady() * 1000) + self._advanced_ms

    def time_of_day(self) -> int:
        """The time of the system clock."""
        return int(self._time_of_day() * 1000) + self._advanced_ms

    def ahead_ms(self) -> int:
        """How far the time of day is ahead of ``now``. It changes only if one of the clocks was set.

        Two clocks are never read at the same moment, so the difference would vary by a millisecond.
        """
        found = round(self._time_of_day() * 1000 - self._anchor_ms - self._steady() * 1000)
        if abs(found - self._ahead_ms) > 1:
            self._ahead_ms = found
        return self._ahead_ms

    def seconds_ahead(self) -> float:
        """How far the system clock is ahead of the time of day in use, which in a cluster is the ledger's."""
        return self._system() - self._time_of_day()

    @property
    def is_following(self) -> bool:
        """Whether the clock follows that of a cluster (``follow``)."""
        return self._time_of_day is self._followed

    def follow(self, time_of_day_ms: int, now_ms: int) -> None:
        """Take the time of day from the ledger of the cluster, which all brokers share.

        ``now`` starts at the first ``now_ms`` and then follows the monotonic clock, as in all other brokers.
        """
        steady, is_first = self._steady, not self.is_following
        self._ahead_seconds = time_of_day_ms / 1000 - steady()
        if is_first:
            self._time_of_day = self._followed
            self._anchor_ms = now_ms - steady() * 1000

    def advance(self, ms: int) -> None:
        """Move both times ahead, as if so much time had passed."""
        self._advanced_ms += ms

    def not_before(self, moment_ms: int) -> None:
        """Move ``now`` ahead to a moment that an earlier run of the broker has seen, if it is behind.

        Otherwise, if the system clock was set back since, the deadlines of that run would be too far ahead.
        """
        self._anchor_ms += max(0, moment_ms - self.now())
