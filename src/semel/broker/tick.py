"""One tick of the commit loop: its decisions and their outcome."""

import time
from collections.abc import Sequence
from typing import Any

from semel.broker.pending_commands import PendingCommands
from semel.core.facts import GroupChanged, GroupDeleted, TransactionChanged
from semel.core.types import Buffer, Fact, Ticket


class Tick:
    """The decisions on the commands of one tick."""

    __slots__ = (
        "batches",
        "commands",
        "committed_at",
        "decided_at",
        "durable",
        "facts",
        "has_transactions",
        "is_synced",
        "is_unsynced",
        "may_defer_sync",
        "pending",
        "replies",
        "started_at",
    )

    def __init__(self, pending: Sequence[PendingCommands]) -> None:
        self.pending = pending
        self.commands = 0
        """The number of commands, counted before parked ones are dropped."""
        self.has_transactions = False
        """Whether producers write in transactions or end them."""
        for each in pending:
            self.commands += len(each.commands)
            if each.is_transactional or each.submitted_at:
                self.has_transactions = True
        self.facts: list[Fact] = []
        self.durable: list[Fact] = []
        """The facts that are written to the store."""
        self.batches: list[Buffer] = []
        self.replies: list[tuple[Ticket, Any]] = []
        self.may_defer_sync = False
        """Whether there are durable facts, and all are work inside open transactions."""
        self.is_synced = False
        """Whether the commit, with all unsynced work before it, was flushed."""
        self.is_unsynced = False
        """Whether the commit was written and not flushed."""
        self.started_at = self.decided_at = self.committed_at = time.perf_counter()

    @property
    def must_flush(self) -> bool:
        """Whether a flush was requested."""
        return any(each.is_flush for each in self.pending)


def newest_only(facts: list[Fact]) -> list[Fact]:
    """Drop facts that a later one of the same tick replaces: transactions and groups are written as a whole.

    A transaction grows with each partition it writes to, and many members may join a group in one tick.
    """
    kinds = set(map(type, facts))
    whole = {TransactionChanged, GroupChanged} & kinds
    if GroupDeleted in kinds:
        # A fact before a deletion is not replaced by one after it.
        whole.discard(GroupChanged)
    if not whole:
        return facts
    newest = {_key(fact): fact for fact in facts if type(fact) in whole}
    return [fact for fact in facts if type(fact) not in whole or newest[_key(fact)] is fact]


def _key(fact: Any) -> tuple[type, str]:
    if type(fact) is TransactionChanged:
        return TransactionChanged, fact.transaction.transactional_id
    return GroupChanged, fact.group.group_id
