"""Holds: readers keep compaction away from partitions while they read them.

A reader that wants a log as it was at one moment cannot have it while compaction removes records. It holds
the partition: until the hold ends, compaction starts no swap of batches there. The reader renews the hold for
as long as it reads.

No client can stop compaction, because holds are bounded:

- A hold ends after ``semel.compaction.hold.ms`` unless it is renewed.
- A pass that is due waits for holds no longer than ``semel.compaction.hold.max.ms``. From then on holds of
  the partition have no effect until a pass over it is complete.
- At most ``HELD_MAX`` partitions are held.

Holds are kept in memory only. A reader compares ``Partition.compactions``, which is durable, before and after
it reads. So if a hold was lost or ignored, the reader reads again; its result is never wrong.
"""

import logging
from typing import Final

from semel.core.types import PartitionKey

log = logging.getLogger("semel.housekeeping")

HELD_MAX: Final = 10_000
"""Partitions that are held at the same time; each costs about 300 bytes."""


class _Hold:
    __slots__ = ("until", "waiting_since")

    def __init__(self) -> None:
        self.until = 0
        self.waiting_since: int | None = None
        """When compaction first found the partition held; None if no pass waits."""


class Holds:
    """The partitions that readers hold. Times are milliseconds of the broker's clock."""

    def __init__(self, hold_ms: int, wait_max_ms: int, held_max: int = HELD_MAX) -> None:
        self._hold_ms = hold_ms
        self._wait_max_ms = wait_max_ms
        self._held_max = held_max
        self._held: dict[PartitionKey, _Hold] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, key: PartitionKey, now: int) -> int:
        """Hold a partition, or renew its hold. Returns for how many milliseconds; 0 if it is not held."""
        held = self._held.get(key)
        if held is None:
            if len(self._held) >= self._held_max:
                self._forget_ended(now)
            if len(self._held) >= self._held_max:
                return 0
            held = self._held[key] = _Hold()
        held.until = now + self._hold_ms
        return max(0, min(self._hold_ms, self._left_ms(held, now)))

    def must_wait(self, key: PartitionKey, now: int) -> bool:
        """Whether a pass that is due has to wait."""
        held = self._held.get(key)
        if held is None or held.until <= now:
            return False
        if held.waiting_since is None:
            held.waiting_since = now
            log.info("compaction of %s waits for a reader that holds it", key)
        return self._left_ms(held, now) > 0

    def passed(self, key: PartitionKey, now: int) -> None:
        """Note that a pass is complete: readers may make the next one wait for the full time again."""
        held = self._held.get(key)
        if held is not None:
            held.waiting_since = None
            if held.until <= now:
                del self._held[key]

    def _left_ms(self, held: _Hold, now: int) -> int:
        """For how much longer a pass may be made to wait."""
        return self._wait_max_ms - (0 if held.waiting_since is None else now - held.waiting_since)

    def _forget_ended(self, now: int) -> None:
        # An ended hold is kept for the longest wait of a pass, so that a lapse does not restart that wait.
        for key in [key for key, held in self._held.items() if held.until + self._wait_max_ms <= now]:
            del self._held[key]
