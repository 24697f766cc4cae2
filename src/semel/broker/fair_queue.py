"""The queue of the commit loop: what each client asks for is decided in order, and clients take turns.

A tick takes one request of each client after another, and then the next of each, until it has enough bytes or
commands. So a client with hundreds of requests under way is in every tick, and so is one with a single
request: a flood makes ticks full, it makes nobody wait for more than one of them.

Whose request it is, is known from ``ASKER``: the connection sets it before it begins a request, and a task
that is started for the request inherits it. What the broker asks by itself has number 0.
"""

from collections import deque
from contextvars import ContextVar
from typing import Final

from semel.broker.pending_commands import PendingCommands

ASKER: Final[ContextVar[int]] = ContextVar("asker", default=0)
"""The number of the connection whose request is being worked on."""

COMMANDS_MAX: Final = 100
"""Commands in one tick, some milliseconds of the event loop's time: everyone waits for the tick under way.
One flush for so many costs next to nothing for each. A command with many partitions counts as many."""


class FairQueue:
    """Requests by the client that asked."""

    __slots__ = ("_askers", "_bytes_max", "_waiting")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: dict[int, deque[PendingCommands]] = {}
        self._askers: deque[int] = deque()
        """Those who have something in the queue, in the order in which they are served."""

    def __bool__(self) -> bool:
        return bool(self._askers)

    def put(self, pending: PendingCommands) -> None:
        """Add a request to those of its client."""
        asker = ASKER.get()
        waiting = self._waiting.get(asker)
        if waiting is None:
            self._waiting[asker] = deque((pending,))
            self._askers.append(asker)
        else:
            waiting.append(pending)

    def take(self) -> tuple[list[PendingCommands], int]:
        """Requests for one tick (one at least) and the bytes that they need room for."""
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
