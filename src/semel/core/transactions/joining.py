"""Partitions and groups join a transaction: by request (version 1) or by being written to (version 2).

``join`` starts and extends transactions. ``join_by_writing`` is for batches, offsets and acknowledgements of
share groups: the partition or group is verified or added in the decision that writes, so nothing can come in
between (KIP-890 needs a guard for that; a single decision needs none).
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from semel.core.transactions.model import check_may_write, is_open
from semel.core.transactions.states import Event, becomes
from semel.core.types import ErrorCode, PartitionKey, ShareKey, Transaction, TransactionState
from semel.wire.batch import ProducerIdAndEpoch

if TYPE_CHECKING:
    from semel.core.state import BrokerState


def join(
    state: "BrokerState",
    transaction: Transaction,
    now: int,
    *,
    partitions: tuple[PartitionKey, ...] = (),
    group_id: str | None = None,
    share: ShareKey | None = None,
    version: int,
    block_max_ms: int = -1,
) -> Transaction:
    """Return the transaction with these added; the same object if all of them are in it already."""
    opened = is_open(transaction)
    present: Collection[PartitionKey] = transaction.partitions if opened else ()
    if len(partitions) > 1 and present:
        present = frozenset(present)
    joining = tuple(key for key in dict.fromkeys(partitions) if key not in present)
    groups = transaction.groups if opened else ()
    shares = transaction.shares if opened else ()
    if group_id is not None and group_id not in groups:
        groups = (*groups, group_id)
    elif share is not None and share not in shares:
        shares = (*shares, share)
    elif opened and not joining:
        return transaction
    started = transaction.started_ms if opened else now
    return transaction.but(
        state=becomes(transaction.state, Event.ADD),
        partitions=(*transaction.partitions, *joining) if opened else joining,
        groups=groups,
        shares=shares,
        started_ms=started,
        updated_ms=state.time_of_day(now),
        deadline_ms=_deadline(transaction, opened, started, block_max_ms),
        version=version,
    )


def _deadline(transaction: Transaction, opened: bool, started: int, block_max_ms: int) -> int:
    """Return the deadline. Activity does not extend it; ``semel.transaction.block.max.ms`` may shorten it."""
    if transaction.is_two_phase:
        return -1
    deadline = transaction.deadline_ms if opened else started + transaction.timeout_ms
    return min(deadline, started + block_max_ms) if block_max_ms >= 0 else deadline


def join_by_writing(
    state: "BrokerState",
    transaction: Transaction | None,
    producer: ProducerIdAndEpoch,
    now: int,
    *,
    must_be_in: bool,
    partition: PartitionKey | None = None,
    also: tuple[PartitionKey, ...] = (),
    group_id: str | None = None,
    share: ShareKey | None = None,
    version: int,
    block_max_ms: int = -1,
) -> tuple[ErrorCode, Transaction | None]:
    """Check that the producer may write there; return the transaction with what has joined."""
    error = check_may_write(state, transaction, producer)
    if error is not ErrorCode.NONE:
        return error, None
    assert transaction is not None
    if transaction.state is TransactionState.ONGOING:
        if (
            partition in transaction.partitions
            or group_id in transaction.groups
            or share in transaction.shares
        ):
            return ErrorCode.NONE, transaction
        if partition is not None and not also and block_max_ms < 0 and not must_be_in:
            # A shortcut for the most frequent case, which needs no further checks.
            partitions = (*transaction.partitions, partition)
            return ErrorCode.NONE, transaction.but(partitions=partitions, updated_ms=state.time_of_day(now))
    if must_be_in:
        return ErrorCode.TRANSACTION_ABORTABLE, None
    joined = join(
        state,
        transaction,
        now,
        partitions=() if partition is None else (partition, *also),
        group_id=group_id,
        share=share,
        version=version,
        block_max_ms=block_max_ms,
    )
    return ErrorCode.NONE, joined
