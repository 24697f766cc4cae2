"""Commands that were submitted together, on their way through the commit loop.

What a tick must know of them is found out once, when they are submitted: how much room they may need,
whether they name more entities when the first are loaded, whether their decisions are watched. So a plain
Produce pays for none of it.
"""

import time
from collections.abc import Sequence
from typing import Any, Final

from semel.broker.promise import Promise
from semel.core.partition import Append
from semel.core.replacing import ReplaceBatches
from semel.core.transactions.attempts import CommitTransactions
from semel.core.transactions.commands import AbortOpen, EndTransaction, InitProducer, WriteMarker
from semel.core.types import Command
from semel.store.interface import StoreFull

Answers = list[Any] | Exception
"""One answer for each command, or ``StoreFull``."""

ENDING_BYTES: Final = 4_096
"""Room for the markers that end a transaction, about fifty. Who ends one on a full disk is refused before
anything is decided, as who appends is."""

ENDING: Final[frozenset[type]] = frozenset(
    {InitProducer, EndTransaction, AbortOpen, WriteMarker, CommitTransactions}
)
"""What may end a transaction."""


class PendingCommands(Promise[list[Any]]):
    """Commands that were submitted together, their answers so far, and the promise of all answers."""

    __slots__ = (
        "answers",
        "begun",
        "commands",
        "has_more_keys",
        "is_flush",
        "is_watched",
        "parked",
        "room_bytes",
    )

    def __init__(self, commands: Sequence[Command], *, is_flush: bool = False) -> None:
        super().__init__()
        self.commands = commands
        self.answers: list[Any] = []
        self.parked = 0
        self.room_bytes = 0
        """Bytes that the chunks should have room for."""
        self.is_flush = is_flush
        """PendingCommands for nothing but that all earlier work is durable."""
        self.has_more_keys = False
        self.is_watched = False
        """Whether transactions are in it, which are counted and timed."""
        self.begun = 0.0
        """When somebody asked for the end of a transaction; 0 if nobody did."""
        for command in commands:
            if isinstance(command, Append):
                self.room_bytes += command.header.length
                if command.transaction_context is not None:
                    self.is_watched = True
            else:
                self._look_at(command)

    def _look_at(self, command: Command) -> None:
        kind = type(command)
        if hasattr(kind, "more_keys"):
            self.has_more_keys = True
        if isinstance(command, ReplaceBatches):
            self.room_bytes += sum(map(len, command.records))
        if kind in ENDING:
            self.is_watched = True
            ends = len(command.transactions) if isinstance(command, CommitTransactions) else 1
            self.room_bytes += ENDING_BYTES * ends
            if kind is EndTransaction or kind is CommitTransactions:
                self.begun = time.perf_counter()


def without_room(pending: list[PendingCommands], full: StoreFull) -> list[PendingCommands]:
    """Refuse those who need room for bytes; the others."""
    rest: list[PendingCommands] = []
    for each in pending:
        if each.room_bytes:
            each.resolve(full)
        else:
            rest.append(each)
    return rest
