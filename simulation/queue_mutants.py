"""Mutants of share groups, and of acknowledgements inside transactions. Histories with workers find them."""

from simulation.mutants import Mutant, in_core

QUEUE_MUTANTS: tuple[Mutant, ...] = (
    in_core(
        "records are acknowledged in a transaction that the member does not hold",
        "shares.pending",
        "    return covers(found, first, last)",
        "    return True",
    ),
    in_core(
        "an abort settles what was acknowledged in the transaction",
        "transactions.ending",
        "                ended = end_pending(share, producer_id, is_commit=self._is_commit)",
        "                ended = end_pending(share, producer_id, is_commit=True)",
    ),
    in_core(
        "a commit settles nothing of a share group",
        "transactions.ending",
        "                ended = end_pending(share, producer_id, is_commit=self._is_commit)",
        "                ended = end_pending(share, producer_id, is_commit=False)",
    ),
    in_core(
        "a share-partition does not join the transaction",
        "transactions.joining",
        "        shares = (*shares, share)",
        "        shares = tuple(shares)",
    ),
    in_core(
        "pending records are delivered",
        "shares.partition",
        "        if each.state is AVAILABLE and each.last >= first and each.first <= last",
        "        if not each.is_settled and each.last >= first and each.first <= last",
    ),
    in_core(
        "pending records keep their lock, whose end makes them available",
        "shares.delivery",
        "            self._set_locks(unlocked(self.locks, runs))\n            self._settle()",
        "            self._settle()",
    ),
    in_core(
        "locks never end",
        "shares.delivery",
        "        if overdue:",
        "        if False:",
    ),
    in_core(
        "records of aborted transactions are delivered",
        "shares.delivery",
        "        if batch.first in read.aborted:",
        "        if False:",
    ),
    in_core(
        "the start offset passes pending records",
        "shares.partition",
        "        return self.state is ACKNOWLEDGED or self.state is ARCHIVED",
        "        return self.state is not AVAILABLE",
    ),
)
