"""The queue of the commit loop: keeps the order of each client's requests, and takes clients in turn.

A tick takes one request of each client in turn, then the next of each, until it has enough bytes or commands.
So every tick serves a client with hundreds of requests in flight, and also one with a single request: a flood
fills ticks, but delays no other client by more than one of them.

``ASKER`` identifies the client: the connection sets it before it starts a request, and a task that is created
for the request inherits it. Commands of the broker itself have number 0.
"""

from collections import deque
from contextvars import ContextVar
from typing import Final

from semel.broker.pending_commands import PendingCommands

ASKER: Final[ContextVar[int]] = ContextVar("asker", default=0)
"""The id of the connection whose request is being handled."""

COMMANDS_MAX: Final = 100
"""Commands in one tick, some milliseconds of the event loop's time, because all clients wait for a tick.
Shared by so many, a flush costs each next to nothing. A command with many partitions counts as several."""


class FairQueue:
    """Pending commands by client."""

    __slots__ = ("_askers", "_bytes_max", "_waiting")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: dict[int, deque[PendingCommands]] = {}
        self._askers: deque[int] = deque()
        """Clients with pending commands, in the order of their turns."""

    def __bool__(self) -> bool:
        return bool(self._askers)

    def put(self, pending: PendingCommands) -> None:
        """Append commands to those of their client."""
        asker = ASKER.get()
        waiting = self._waiting.get(asker)
        if waiting is None:
            self._waiting[asker] = deque((pending,))
            self._askers.append(asker)
        else:
            waiting.append(pending)

    def take(self) -> tuple[list[PendingCommands], int]:
        """Commands for one tick (at least one submission) and the bytes that they need room for."""
        taken: list[PendingCommands] = []
        bytes_taken = commands = 0
        askers = self._askers
        while askers:
            waiting = self._waiting[askers[0]]
            size = waiting[0].room_bytes
            if taken and (bytes_taken + size > self._bytes_max or commands >= COMMANDS_MAX):
                break
            pending = waiting.popleft()
            taken.append(pending)
            bytes_taken += size
            commands += pending.weight
            if waiting:
                askers.rotate(-1)
            else:
                del self._waiting[askers.popleft()]
        return taken, bytes_taken
