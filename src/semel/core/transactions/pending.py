"""Offsets inside transactions: pending until the outcome is known.

The pending offsets of a group are one value, in order of arrival. They are not the group's position, and a
fetch that requires stable offsets has to wait for them. When their transaction commits they become the
position, unless the same partition was committed later: the later commit wins, in whatever order the
transactions end. So a commit marks earlier pending offsets as superseded.

Deleting a group or topic deletes its pending offsets; a later commit does not bring them back.
"""

from typing import TYPE_CHECKING

from semel.core import types
from semel.core.facts import Put
from semel.core.groups.offsets import check_commit, check_partition, keep_group
from semel.core.transactions.commands import SUPERSEDED, CommitPending
from semel.core.transactions.joining import join_by_writing
from semel.core.transactions.model import is_superseded, note_connection
from semel.wire.batch import ProducerIdAndEpoch
from semel.wire.errors import ErrorCode

if TYPE_CHECKING:
    from semel.core.state import BrokerState


def settle(state: "BrokerState", group_id: str, producer_id: int, *, is_commit: bool) -> list[types.Fact]:
    """Commit or drop the pending offsets of a producer in a group."""
    pending = state.pending[types.PendingKey(group_id)] or ()
    mine = {each.key: at for at, each in enumerate(pending) if each.producer_id == producer_id}
    if not mine:
        return []
    facts: list[types.Fact] = []
    rest: list[types.PendingOffset] = []
    for at, each in enumerate(pending):
        if each.producer_id != producer_id:
            was_before = is_commit and at < mine.get(each.key, -1)
            rest.append(each.but(is_superseded=True) if was_before else each)
        elif is_commit and not each.is_superseded:
            facts.append(Put(each.key, each.value))
    facts.append(Put(types.PendingKey(group_id), tuple(rest) or None))
    return facts


def commit_pending(state: "BrokerState", command: CommitPending, now: int) -> types.Decision:
    """Add pending offsets to the transaction."""
    transaction = state.transactions[types.TransactionKey(command.transactional_id)]
    error, joined = join_by_writing(
        state,
        transaction,
        ProducerIdAndEpoch(command.producer_id, command.epoch),
        now,
        must_be_in=command.version == 1 and command.must_be_added,
        group_id=command.group_id,
        version=command.version,
    )
    group = state.groups[types.GroupKey(command.group_id)]
    if error is ErrorCode.NONE:
        error = check_commit(
            group,
            command.committer,
            is_transactional=True,
            knows_consumer_groups=command.knows_consumer_groups,
        )
    if error is not ErrorCode.NONE:
        return types.Decision((error,) * len(command.offsets))
    assert joined is not None
    transactional_id, connection = command.transactional_id, command.connection
    if command.version == 1 and is_superseded(state, transactional_id, connection, for_offsets=True):
        return types.Decision(SUPERSEDED)
    errors: list[ErrorCode] = []
    committed_ms = state.time_of_day(now)
    added: dict[types.OffsetKey, types.PendingOffset] = {}
    for key, value in command.offsets:
        if len(value.metadata) > command.metadata_chars_max:
            errors.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
            continue
        errors.append(check_partition(group, command.committer, key))
        if errors[-1] is not ErrorCode.NONE:
            continue
        added[key] = types.PendingOffset(command.producer_id, key, value.but(committed_ms=committed_ms))
    facts: list[types.Fact] = [] if joined is transaction else [Put.of(joined)]
    facts += note_connection(state, transactional_id, connection, for_offsets=True)
    if added:
        before = state.pending[types.PendingKey(command.group_id)] or ()
        kept = tuple(
            each for each in before if each.producer_id != command.producer_id or each.key not in added
        )
        facts.append(Put(types.PendingKey(command.group_id), (*kept, *added.values())))
        facts.extend(keep_group(state, group, command.group_id, command.committer.member_id, now))
    return types.Decision(tuple(errors), tuple(facts), defers_sync=not joined.is_two_phase)
