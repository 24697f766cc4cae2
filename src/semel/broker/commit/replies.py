"""Replies: resolves the commands of a tick, then lets connections send their responses.

A connection sends all its responses of a tick with one write. It is called right after the commands are
resolved, not in the next turn of the event loop: responses are sent before the tick does its own cleanup.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from semel.broker.commit.pending_commands import PendingCommands
from semel.core.types import Answer, Ticket
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
