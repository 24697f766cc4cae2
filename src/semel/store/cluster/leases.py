"""Decide whether the leases of other brokers are over, by this broker's monotonic clock.

A broker serves for one lease after it has sent a renewal. If another broker has seen a renewal in the ledger,
and finds no later one when it looks again a whole lease afterwards, the lease is over, because the renewal
was sent before it was seen. So setting PostgreSQL's clock does no harm.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from semel.store.cluster.contract import lease_clock

LEASE_RUNS: Final = "lease_until > clock_timestamp() AND lease_until <= clock_timestamp() + lease"
"""Whether the lease of a row of ``brokers`` runs, for a single look on which no safety depends.

Uses PostgreSQL's clock. If that was set back, a lease that ends later than a whole lease from now was not
renewed since. So a live broker may be taken for dead until its next renewal, or a dead one for live for a
lease.
"""


class _Renewal(NamedTuple):
    """The newest renewal that was seen of a broker."""

    epoch: int
    number: int
    over_at: float


class Leases:
    """What one broker knows about the leases of others."""

    def __init__(self, clock: Callable[[], float] = lease_clock) -> None:
        self.clock = clock
        self._renewals: dict[int, _Renewal] = {}

    def saw(self, broker_id: int, epoch: int, number: int, lease_seconds: float) -> None:
        """Note the last renewal of a broker, which was just read from the ledger."""
        known = self._renewals.get(broker_id)
        if known is None or known[:2] != (epoch, number):
            self._renewals[broker_id] = _Renewal(epoch, number, self.clock() + lease_seconds)

    def over(self, broker_id: int, epoch: int, asked_at: float) -> int | None:
        """Return the renewal whose lease is over, if the ledger has no later one. None if it may still run.

        ``asked_at`` must be a time before the ledger was asked: if this process was paused, the answer is
        older than it seems.
        """
        known = self._renewals.get(broker_id)
        is_over = known is not None and known.epoch == epoch and known.over_at <= asked_at
        return known.number if known is not None and is_over else None
