"""Acknowledgements of share groups inside transactions. Kafka has none (ADR 0048).

The records that a member acknowledges lose their lock, and are *pending* until the transaction ends: a commit
settles them, an abort makes them available again (``semel.core.shares.partition.end_pending``). Until then
they count as in flight, and no member gets them.

The rule is stricter than outside a transaction: the member must hold every record. A record below the start
offset may have been settled by another member in another transaction, and its results would count twice. A
repeated request is accepted, because it finds its records pending for the same producer and member. Records
that are pending for another member are refused: one transaction would contain the results of both.
"""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING

from semel.core.facts import Put
from semel.core.shares.commands import AcknowledgeInTransaction, AcknowledgeType
from semel.core.shares.delivery import ShareTurn, all_ranges, turn_of
from semel.core.shares.partition import UNSTARTED, Lock, Run, covers, within
from semel.core.transactions.joining import join_by_writing
from semel.core.transactions.model import is_open
from semel.core.types import Decision, ErrorCode, Fact, TransactionKey
from semel.wire.batch import ProducerIdAndEpoch

if TYPE_CHECKING:
    from semel.core.state import BrokerState


def decide_in_transaction(state: "BrokerState", command: AcknowledgeInTransaction, now: int) -> Decision:
    """Make acquired records pending, all or none of them; the share-partition joins the transaction."""
    transaction = state.transactions[TransactionKey(command.transactional_id)]
    error, joined = join_by_writing(
        state,
        transaction,
        ProducerIdAndEpoch(command.producer_id, command.epoch),
        now,
        must_be_in=False,
        share=command.key,
        version=2,
    )
    if error is not ErrorCode.NONE:
        return Decision(error)
    assert transaction is not None
    assert joined is not None
    if is_open(transaction) and transaction.version != 2:
        # In version 1 the epoch outlives the transaction, so a delayed request could acknowledge records in
        # the next one.
        return Decision(ErrorCode.INVALID_TXN_STATE)
    turn = turn_of(state, command.key, now)
    if turn is None or turn.share.start_offset == UNSTARTED:
        return Decision(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    turn.delivery_limit = command.limits.delivery_limit
    suspended: list[Run] = []
    for first, last, kind in all_ranges(command.runs):
        is_accepted = kind == AcknowledgeType.ACCEPT
        mine = [each for each in within(turn.locks, first, last) if each.member_id == command.member_id]
        repeated = (command.producer_id, is_accepted, command.member_id)
        if not _are_all(turn, mine, repeated, first, last):
            return Decision(ErrorCode.INVALID_RECORD_STATE)
        suspended += (turn.suspended(each, command.producer_id, is_accepted=is_accepted) for each in mine)
    turn.change(suspended)
    facts: tuple[Fact, ...] = () if joined is transaction else (Put.of(joined),)
    return Decision(ErrorCode.NONE, (*facts, *turn.facts()), defers_sync=not joined.is_two_phase)


def _are_all(
    turn: ShareTurn, mine: Iterable[Lock], repeated: tuple[int, bool, str], first: int, last: int
) -> bool:
    """Whether the member holds each of these offsets, or has acknowledged it so in this transaction."""
    found = [(each.first, each.last) for each in mine]
    runs = turn.share.runs
    for run in islice(runs, bisect_left(runs, first, key=attrgetter("last")), None):
        if run.first > last:
            break
        pending = run.pending
        if pending is not None and (pending.producer_id, pending.is_accepted, pending.member_id) == repeated:
            found.append((max(run.first, first), min(run.last, last)))
    return covers(found, first, last)
