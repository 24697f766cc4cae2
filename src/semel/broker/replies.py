"""Replies: who asked gets the answers of a tick, and what waits for that happens right behind it.

A connection sends once for all of its requests that a tick answers. So it is called when everyone was told,
and not in the next turn of the event loop: answers leave before the tick puts its own things in order.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from semel.broker.pending_commands import PendingCommands
from semel.core.types import Ticket
from semel.store.interface import StoreRefused

REPLIES_AT_ONCE: Final = 50
"""Of those who waited, how many are answered in one turn of the event loop: some milliseconds of work."""


class Replies:
    """The answers of the commit loop, also those that somebody waits for since an earlier tick."""

    __slots__ = ("_behind", "_due", "_is_telling", "_parked")

    def __init__(self) -> None:
        self._parked: dict[Ticket, tuple[PendingCommands, int]] = {}
        self._due: deque[tuple[PendingCommands, int, Any]] = deque()
        """Answers for those who waited that have not been given yet."""
        self._behind: list[Callable[[], None]] = []
        self._is_telling = False

    def soon(self, work: Callable[[], None]) -> None:
        """Do this when everyone of this tick was told; outside of a tick, in the event loop's next turn."""
        if self._is_telling:
            self._behind.append(work)
        else:
            asyncio.get_running_loop().call_soon(work)

    def park(self, ticket: Ticket, pending: PendingCommands) -> None:
        """The next answer of these commands comes later, as a reply to the ticket.

        The commands are decided and are not kept for as long as that takes.
        """
        self._parked[ticket] = (pending, len(pending.answers))
        pending.parked += 1
        pending.commands = ()
        if pending.when_parked is not None:
            pending.when_parked()

    def tell(self, pending: Iterable[PendingCommands], replies: Iterable[tuple[Ticket, Any]]) -> None:
        """Everything is decided and kept: say so."""
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
        """Answer some of those who waited: a generation of a group may have thousands of members."""
        for _ in range(min(REPLIES_AT_ONCE, len(self._due))):
            pending, index, answer = self._due.popleft()
            pending.answers[index] = answer
            pending.parked -= 1
            if not pending.parked:
                pending.resolve(pending.answers)
        if self._due:
            asyncio.get_running_loop().call_soon(self._reply)

    def refuse(self, pending: Iterable[PendingCommands], full: StoreRefused) -> None:
        """Tell these, and all who wait, that there is no room. Each is told once."""
        waiting = {id(each): each for each, _ in self._parked.values()}
        self._parked.clear()
        waiting |= {id(each): each for each in pending}
        for each in waiting.values():
            each.resolve(full)
