"""Measures how fast a client sends or receives, to distinguish slow clients from dead ones.

A deadline alone would close a client on a slow network in the middle of a large response. If any progress
were enough, a client that reads a byte per second could stay for ever. So a client must keep a minimum rate:
at least once per timeout, its average rate since the last success must reach the minimum. While other clients
wait for the memory that it holds, the minimum is higher and the timeout shorter.
"""

from typing import Final

SLOWEST_BYTES_PER_SECOND: Final = 16_384

SHORT_OF_MEMORY_BYTES_PER_SECOND: Final = 1_048_576
SHORT_OF_MEMORY_SECONDS: Final = 1.0


class Pace:
    """The last time at which a byte count had grown fast enough."""

    __slots__ = ("_bytes", "_since")

    def __init__(self) -> None:
        self._bytes = 0
        self._since = 0.0

    def restart(self, total_bytes: int, now: float) -> None:
        """Measure from this moment on."""
        self._bytes = total_bytes
        self._since = now

    def stalled_seconds(self, total_bytes: int, now: float, patience: float, *, is_waited_for: bool) -> float:
        """Return for how long the client was too slow, or zero if that is within its timeout.

        The timeout is ``patience``, or `SHORT_OF_MEMORY_SECONDS` while other clients wait.
        """
        slowest = SHORT_OF_MEMORY_BYTES_PER_SECOND if is_waited_for else SLOWEST_BYTES_PER_SECOND
        elapsed = now - self._since
        if total_bytes - self._bytes >= elapsed * slowest:
            self.restart(total_bytes, now)
            return 0.0
        return elapsed if elapsed > (SHORT_OF_MEMORY_SECONDS if is_waited_for else patience) else 0.0
