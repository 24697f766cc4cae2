"""Whether the leases of other brokers are over, by the own monotonic clock.

A broker serves for one lease after it has sent a renewal. If another broker has seen a renewal in the ledger,
and finds no later one when it looks again a whole lease afterwards, the lease is over: the renewal was sent
before it was seen. So it does not matter if the clock of PostgreSQL is set.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from semel.store.sharing import lease_clock

LEASE_RUNS: Final = "lease_until > clock_timestamp() AND lease_until <= clock_timestamp() + lease"
"""Whether the lease of a row of ``brokers`` runs, for who looks once and decides nothing by it.

By the clock of PostgreSQL. If it was set back, a lease that ends later than a whole lease from now was not
renewed since. So a broker may be taken for dead until its next renewal, or for live for a lease.
"""


class _Renewal(NamedTuple):
    """The newest renewal of a broker that was seen."""

    epoch: int
    number: int
    over_at: float


class Leases:
    """What one broker knows about the leases of others."""

    def __init__(self, clock: Callable[[], float] = lease_clock) -> None:
        self.clock = clock
        self._renewals: dict[int, _Renewal] = {}

    def saw(self, broker_id: int, epoch: int, number: int, lease_seconds: float) -> None:
        """The ledger has just told that this was the last renewal."""
        known = self._renewals.get(broker_id)
        if known is None or known[:2] != (epoch, number):
            self._renewals[broker_id] = _Renewal(epoch, number, self.clock() + lease_seconds)

    def over(self, broker_id: int, epoch: int, asked_at: float) -> int | None:
        """The number of the renewal after which the lease is over, if the ledger tells no later one.

        ``asked_at`` is before the ledger is asked: an answer may be older than it seems, because this process
        was paused. None if the broker may still serve.
        """
        known = self._renewals.get(broker_id)
        is_over = known is not None and known.epoch == epoch and known.over_at <= asked_at
        return known.number if known is not None and is_over else None
