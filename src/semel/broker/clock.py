"""Time, read in one place.

Timeouts need a clock that never jumps; records need the time of day. One number serves both: the time of day
at which the process started, plus what the steady clock has counted since.
"""

import time


class Clock:
    """Milliseconds since 1970 that never go back and never leap."""

    def __init__(self) -> None:
        self._anchor_ms = time.time() * 1000 - time.monotonic() * 1000

    def now(self) -> int:
        """This moment."""
        return int(self._anchor_ms + time.monotonic() * 1000)
