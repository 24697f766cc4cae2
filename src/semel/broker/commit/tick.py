"""One tick of the commit loop: its decisions, their outcome, and the replies to its commands.

``Replies`` resolves the commands of a tick, then lets connections send their responses. A connection sends
all its responses of a tick with one write. It is called right after the commands are resolved, not in the
next turn of the event loop: responses are sent before the tick does its own cleanup.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from semel.broker.commit.pending_commands import PendingCommands
from semel.core.facts import Put
from semel.core.transactions.commands import AddOffsets, AddPartitions
from semel.core.types import Answer, AnyCommand, Buffer, Fact, Key, Ticket, TransactionKey
from semel.store.contract import StoreRefused

REPLIES_AT_ONCE: Final = 50
"""Parked commands that are answered in one turn of the event loop: some milliseconds of work."""


class Replies:
    """The answers of the commit loop, also those to commands parked in an earlier tick."""

    __slots__ = ("_behind", "_due", "_is_telling", "_parked")

    def __init__(self) -> None:
        self._parked: dict[Ticket, tuple[PendingCommands, int]] = {}
        self._due: deque[tuple[PendingCommands, int, Answer]] = deque()
        """Answers to parked commands that have not been sent yet."""
        self._behind: list[Callable[[], None]] = []
        self._is_telling = False

    def soon(self, work: Callable[[], None]) -> None:
        """Call ``work`` after the answers of this tick; outside of a tick, in the event loop's next turn."""
        if self._is_telling:
            self._behind.append(work)
        else:
            asyncio.get_running_loop().call_soon(work)

    def park(self, ticket: Ticket, pending: PendingCommands, index: int) -> None:
        """Note that this answer of these commands comes later, as a reply to the ticket.

        The commands are decided and committed, so they are dropped instead of being kept until then.
        """
        self._parked[ticket] = (pending, index)
        pending.parked += 1
        pending.commands = ()
        if pending.when_parked is not None:
            pending.when_parked()

    def tell(self, pending: Iterable[PendingCommands], replies: Iterable[tuple[Ticket, Answer]]) -> None:
        """Answer the commands of a committed tick, and parked commands that it replies to."""
        self._is_telling = True
        try:
            for each in pending:
                if not each.parked:
                    each.resolve(each.answers)
            is_replying = bool(self._due)
            for ticket, answer in replies:
                waiting = self._parked.pop(ticket, None)
                if waiting is not None:
                    self._due.append((*waiting, answer))
            if self._due and not is_replying:
                self._reply()
        finally:
            self._is_telling = False
        behind, self._behind = self._behind, []
        for work in behind:
            work()

    def _reply(self) -> None:
        """Answer some parked commands: a generation of a group may have thousands of members."""
        for _ in range(min(REPLIES_AT_ONCE, len(self._due))):
            pending, index, answer = self._due.popleft()
            pending.answers[index] = answer
            pending.parked -= 1
            if not pending.parked:
                pending.resolve(pending.answers)
        if self._due:
            asyncio.get_running_loop().call_soon(self._reply)

    def refuse(self, pending: Iterable[PendingCommands], full: StoreRefused) -> None:
        """Refuse these commands and all parked ones. Each is resolved once."""
        waiting = {id(each): each for each, _ in self._parked.values()}
        self._parked.clear()
        waiting |= {id(each): each for each in pending}
        for each in waiting.values():
            each.resolve(full)


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
