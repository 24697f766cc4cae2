"""How fast a client takes or gives, so that slow can be told from dead.

A deadline alone would close a client on a bad line in the middle of a large response, and progress alone
would keep one that takes a byte a second for ever. So a client has to keep a pace: within every stretch
of its patience it must at some moment have averaged the slowest pace since it last did. While others wait
for the memory that it holds, the pace is faster and the patience shorter.
"""

from typing import Final

SLOWEST_BYTES_PER_SECOND: Final = 16_384

SHORT_OF_MEMORY_BYTES_PER_SECOND: Final = 1_048_576
SHORT_OF_MEMORY_SECONDS: Final = 1.0


class Pace:
    """The last moment at which a count of bytes had grown fast enough."""

    __slots__ = ("_bytes", "_since")

    def __init__(self) -> None:
        self._bytes = 0
        self._since = 0.0

    def restart(self, total_bytes: int, now: float) -> None:
        """From here on."""
        self._bytes = total_bytes
        self._since = now

    def stalled_seconds(self, total_bytes: int, now: float, patience: float, *, is_waited_for: bool) -> float:
        """For how long it was too slow, if that is longer than the patience; zero if all is well."""
        slowest = SHORT_OF_MEMORY_BYTES_PER_SECOND if is_waited_for else SLOWEST_BYTES_PER_SECOND
        elapsed = now - self._since
        if total_bytes - self._bytes >= elapsed * slowest:
            self.restart(total_bytes, now)
            return 0.0
        return elapsed if elapsed > (SHORT_OF_MEMORY_SECONDS if is_waited_for else patience) else 0.0
