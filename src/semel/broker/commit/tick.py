"""One tick of the commit loop: its decisions and their outcome."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence

from semel.broker.commit.pending_commands import PendingCommands
from semel.core.facts import Put
from semel.core.transactions.commands import AddOffsets, AddPartitions
from semel.core.types import Answer, AnyCommand, Buffer, Fact, Key, Ticket, TransactionKey


class Tick:
    """The decisions on the commands of one tick."""

    __slots__ = (
        "batches",
        "commands",
        "committed_at",
        "decided_at",
        "durable",
        "is_synced",
        "is_unsynced",
        "may_defer_sync",
        "parked",
        "pending",
        "replies",
        "started_at",
        "transient",
    )

    def __init__(self, pending: Sequence[PendingCommands]) -> None:
        self.pending = pending
        self.commands = 0
        """The number of commands, counted before parked ones are dropped."""
        for each in pending:
            self.commands += len(each.commands)
        self.durable: list[Fact] = []
        """The facts that are written to the store."""
        self.transient: list[Fact] = []
        """The facts that are not written: a restart of the broker loses them."""
        self.batches: list[Buffer] = []
        self.parked: list[tuple[Ticket, PendingCommands, int]] = []
        """The answers that have to wait: their tickets and positions."""
        self.replies: list[tuple[Ticket, Answer]] = []
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


def keys_of(commands: Sequence[AnyCommand]) -> Iterator[Key]:
    """The entities that the commands of a tick read.

    AddPartitions and AddOffsets read only their transaction, unless another command of the tick names the
    same transactional id. Their other keys are needed only if the same tick ends the transaction: other
    brokers change those entities all the time, and a commit would conflict with them for nothing.
    """
    ids: Counter[str] = Counter()
    if any(isinstance(each, AddPartitions | AddOffsets) for each in commands):
        ids.update(
            key.transactional_id
            for command in commands
            for key in command.keys()  # noqa: SIM118 - not a dictionary
            if type(key) is TransactionKey
        )
    for command in commands:
        if isinstance(command, AddPartitions | AddOffsets) and ids[command.transactional_id] == 1:
            yield TransactionKey(command.transactional_id)
        else:
            yield from command.keys()


def newest_only(facts: list[Fact]) -> list[Fact]:
    """Drop values that a later one of the same tick replaces.

    Many batches may be appended to a partition in one tick, a transaction grows with each partition it writes
    to, and many members may join a group. The facts that stay keep their order: a value before a deletion is
    never moved behind it.
    """
    keys = [fact.key for fact in facts if type(fact) is Put]
    if len(set(keys)) == len(keys):
        return facts
    seen: set[Key] = set()
    newest: list[Fact] = []
    for fact in reversed(facts):
        if type(fact) is Put:
            key = fact.key
            if key in seen:
                continue
            seen.add(key)
        newest.append(fact)
    newest.reverse()
    return newest
