"""One turn of the commit loop: what it came to, before it is written."""

from typing import Any

from semel.broker.transaction_metrics import Watch
from semel.core.facts import GroupChanged, GroupDeleted, TransactionChanged
from semel.core.types import Buffer, Fact, Ticket


class Tick:
    """What one turn came to."""

    __slots__ = ("batches", "defers_sync", "durable", "facts", "replies", "watch")

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.durable: list[Fact] = []
        self.batches: list[Buffer] = []
        self.replies: list[tuple[Ticket, Any]] = []
        self.defers_sync = False
        """Whether there are durable facts, and all are of work inside open transactions."""
        self.watch: Watch | None = None


def newest_groups_only(facts: list[Fact]) -> list[Fact]:
    """Without what a group was in between: it is written as a whole, and many may join it in one tick."""
    if any(type(fact) is GroupDeleted for fact in facts):
        # What comes before a deletion is not what comes after it.
        return facts
    newest = {fact.group.group_id: fact for fact in facts if type(fact) is GroupChanged}
    return [fact for fact in facts if type(fact) is not GroupChanged or newest[fact.group.group_id] is fact]


def newest_only(facts: list[Fact]) -> list[Fact]:
    """Without what a transaction was in between: who writes to five partitions grows it five times."""
    newest = {fact.transaction.transactional_id: fact for fact in facts if type(fact) is TransactionChanged}
    if not newest:
        return facts
    return [
        fact
        for fact in facts
        if type(fact) is not TransactionChanged or newest[fact.transaction.transactional_id] is fact
    ]
