"""Pending commands: submitted together and not yet answered, and the queue in which they wait for a tick.

The properties that a tick needs are determined once, when the commands are submitted: how much room they may
need, whether they have more keys after the first are loaded, and what is measured.

The queue keeps the order of each client's requests, and takes clients in turn. A tick takes one request of
each client, then the next of each, until it has enough bytes or commands. So every tick serves a client with
hundreds of requests in flight, and also one with a single request: a flood fills ticks, but delays no other
client by more than one of them. Commands may be held until something is ready for them; later commands of the
same client wait behind them, and those of other clients do not.

``CLIENT`` identifies the client: the connection sets it before it starts a request, and a task that is
created for the request inherits it. Commands of the broker itself have number 0.

A promise is a result that is available later. The commit loop resolves promises in the turn in which a commit
is durable. A callback runs in that same turn and needs no task, which the hot path relies on. A coroutine can
await a promise like a future.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, Generic, TypeAlias, TypeVar

from semel.core.groups.commands import ConsumerHeartbeat, JoinGroup, SyncGroup
from semel.core.log.compaction import ReplaceBatches
from semel.core.log.partition import Append
from semel.core.shares.commands import (
    Acknowledge,
    AcknowledgeInTransaction,
    Acquire,
    FindAcquirable,
    ReleaseMember,
    StartShare,
)
from semel.core.transactions.attempts import CommitTransactions
from semel.core.transactions.commands import AbortOpen, EndTransaction, InitProducer, WriteMarker
from semel.core.types import Answer, AnyCommand, Buffer, GroupKey, Key, TransactionKey
from semel.store.contract import StoreRefused

T = TypeVar("T")
R = TypeVar("R")

_PENDING: Final[Any] = object()  # Any: it stands for a result
Work: TypeAlias = Coroutine[Any, Any, T]
"""A coroutine. Any: what it exchanges with the event loop."""


class Promise(Generic[T]):
    """Resolved once, on the event loop, with a result or an exception."""

    __slots__ = ("_callback", "_result", "first")

    def __init__(self, first: Work[None] | None = None) -> None:
        self.first = first
        """Work that has to be awaited before this can be resolved. Later requests must not overtake it."""
        self._callback: Callable[[T | Exception], None] | None = None
        self._result: T | Exception = _PENDING

    def resolve(self, result: T | Exception) -> None:
        """Pass the result to the callback, or keep it until there is one."""
        self._result = result
        if self._callback is not None:
            self._callback(result)

    def then(self, callback: Callable[[T | Exception], None]) -> None:
        """Call this with the result, at once if it is known. There is at most one callback."""
        self._callback = callback
        if self._result is not _PENDING:
            callback(self._result)

    def map(self, respond: Callable[[T | Exception], R]) -> "Promise[R]":
        """A promise of ``respond(result)``. If ``respond`` raises an exception, that is the result."""
        mapped: Promise[R] = Promise()
        self.then(partial(_resolve, mapped, respond))
        return mapped

    def __await__(self) -> Generator[Any, None, T]:
        if self.first is not None:
            yield from self.first.__await__()
        if self._result is _PENDING:
            resolved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            # If the wait was cancelled, its future is done; the result stays valid without it.
            self.then(lambda result: None if resolved.done() else resolved.set_result(None))
            yield from resolved.__await__()
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


def resolved(result: T) -> Promise[T]:
    """A promise whose result is known."""
    promise: Promise[T] = Promise()
    promise.resolve(result)
    return promise


def _resolve(mapped: Promise[R], respond: Callable[[T | Exception], R], result: T | Exception) -> None:
    try:
        response: R | Exception = respond(result)
    except Exception as error:  # noqa: BLE001  the commit loop must not fail for one client's response
        response = error
    mapped.resolve(response)


CLIENT: Final[ContextVar[int]] = ContextVar("client", default=0)
"""The id of the connection whose request is being handled."""

COMMANDS_MAX: Final = 100
"""Commands in one tick. They take some milliseconds of the event loop, for which all clients wait; and shared
by so many, a flush costs each next to nothing. A command with many partitions counts as several."""

Answers = list[Answer] | Exception
"""One answer for each command, or ``StoreRefused``."""

ENDING_BYTES: Final = 4_096
"""Room for the markers that end a transaction, about fifty. On a full disk an end is refused before it is
decided, like an append."""

ENTRIES_PER_COMMAND: Final = 10
"""Partitions or offsets of one command that weigh as much as another command."""

ENDING: Final[frozenset[type]] = frozenset(
    {InitProducer, EndTransaction, AbortOpen, WriteMarker, CommitTransactions}
)
"""Commands that may end a transaction."""


class PendingCommands(Promise[list[Answer]]):
    """Commands that were submitted together, their answers so far, and the promise of all answers."""

    __slots__ = (
        "answers",
        "client",
        "commands",
        "coordinated",
        "has_more_keys",
        "is_flush",
        "is_held",
        "is_transactional",
        "parked",
        "refused",
        "room_bytes",
        "submitted_at",
        "uploaded",
        "weight",
        "when_parked",
    )

    def __init__(
        self,
        commands: Sequence[AnyCommand],
        *,
        is_flush: bool = False,
        when_parked: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self.commands = commands
        self.client = CLIENT.get()
        self.is_held = False
        """Whether these commands cannot be decided yet (``FairQueue.release``)."""
        self.uploaded: Sequence[Buffer] = ()
        """Batches that were written ahead of the commit."""
        self.refused: StoreRefused | None = None
        """Why their batches could not be written ahead of the commit."""
        self.answers: list[Answer] = []
        self.parked = 0
        self.when_parked = when_parked
        """Called when an answer has to wait for other clients."""
        self.room_bytes = 0
        """Bytes that the chunks should have room for."""
        self.is_flush = is_flush
        """Whether this is only a request to flush all earlier work."""
        self.has_more_keys = False
        self.coordinated: tuple[Key, ...] = ()
        """Entities that only their owner may decide about."""
        self.is_transactional = False
        """Whether it appends batches of a transaction."""
        self.weight = len(commands)
        """The time to decide them, in ordinary commands."""
        self.submitted_at = 0.0
        """When a producer's request to end a transaction was submitted, else 0."""
        for command in commands:
            if isinstance(command, Append):
                self.room_bytes += command.header.length
                if command.transaction_context is not None:
                    self.is_transactional = True
            else:
                self._look_at(command)

    def _look_at(self, command: AnyCommand) -> None:
        kind = type(command)
        if hasattr(kind, "more_keys"):
            self.has_more_keys = True
        self.coordinated += _coordinated(command)
        if isinstance(command, ConsumerHeartbeat):
            self.weight += _partitions_of(command) // ENTRIES_PER_COMMAND
        entries = getattr(command, "partitions", ()) or getattr(command, "offsets", ())
        self.weight += (entries if isinstance(entries, int) else len(entries)) // ENTRIES_PER_COMMAND
        if isinstance(command, ReplaceBatches):
            self.room_bytes += sum(map(len, command.records))
        if kind in ENDING:
            ends = len(command.transactions) if isinstance(command, CommitTransactions) else 1
            self.room_bytes += ENDING_BYTES * ends
            if kind is EndTransaction or kind is CommitTransactions:
                self.submitted_at = time.perf_counter()


def _partitions_of(command: ConsumerHeartbeat) -> int:
    """Partitions that have to be assigned because a member joins or subscribes to other topics."""
    if command.topic_names is None and command.topic_regex is None:
        return 0
    return sum(shape.partitions for shape in command.topics.values() if shape is not None)


class FairQueue:
    """Pending commands by client."""

    __slots__ = ("_bytes_max", "_clients", "_waiting")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: dict[int, deque[PendingCommands]] = {}
        self._clients: deque[int] = deque()
        """Clients with pending commands that are not held, in the order of their turns."""

    def __bool__(self) -> bool:
        return bool(self._clients)

    @property
    def is_holding(self) -> bool:
        """Whether any commands wait, held or not."""
        return bool(self._waiting)

    def put(self, pending: PendingCommands) -> None:
        """Append commands to those of their client."""
        client = pending.client
        waiting = self._waiting.get(client)
        if waiting is None:
            self._waiting[client] = deque((pending,))
            if not pending.is_held:
                self._clients.append(client)
        else:
            waiting.append(pending)

    def release(self, pending: PendingCommands) -> None:
        """End the hold of commands. They are taken in the order of their client's requests."""
        pending.is_held = False
        if self._waiting[pending.client][0] is pending:
            self._clients.append(pending.client)

    def take(self) -> tuple[list[PendingCommands], int]:
        """Commands for one tick (at least one submission) and the bytes that they need room for."""
        taken: list[PendingCommands] = []
        bytes_taken = commands = 0
        clients = self._clients
        while clients:
            waiting = self._waiting[clients[0]]
            size = waiting[0].room_bytes
            if taken and (bytes_taken + size > self._bytes_max or commands >= COMMANDS_MAX):
                break
            pending = waiting.popleft()
            taken.append(pending)
            bytes_taken += size
            commands += pending.weight
            if not waiting:
                del self._waiting[clients.popleft()]
            elif waiting[0].is_held:
                clients.popleft()
            else:
                clients.rotate(-1)
        return taken, bytes_taken


def without_room(pending: list[PendingCommands], full: StoreRefused) -> list[PendingCommands]:
    """Refuse commands that need room for bytes; returns the others."""
    rest: list[PendingCommands] = []
    for each in pending:
        if each.room_bytes:
            each.resolve(full)
        else:
            rest.append(each)
    return rest


def without_refused(pending: list[PendingCommands]) -> list[PendingCommands]:
    """Refuse commands whose batches could not be written; return the others."""
    refused = [each for each in pending if each.refused is not None]
    for each in refused:
        assert each.refused is not None
        each.resolve(each.refused)
    return [each for each in pending if each.refused is None] if refused else pending


def without_moved(pending: list[PendingCommands], owns: Callable[[Key], bool]) -> list[PendingCommands]:
    """Refuse commands whose coordinator is another broker now; return the others.

    Their shard was given away while they waited for their turn. Both coordinators might confirm the same end
    of a transaction, and neither knows whether notices of the other are still in flight. And a join would
    wait here for members that join at the next coordinator.
    """
    moved = [each for each in pending if each.coordinated and not all(map(owns, each.coordinated))]
    for each in moved:
        each.resolve(StoreRefused("another broker coordinates this group or transaction now"))
    return [each for each in pending if each not in moved] if moved else pending


def _coordinated(command: AnyCommand) -> tuple[Key, ...]:
    """The entities whose owner alone may decide a command. For CommitTransactions it is the driver's id."""
    match command:
        case CommitTransactions():
            return (TransactionKey(command.driver.transactional_id),)
        case AbortOpen() if command.before_term:
            # Transactions of older terms are aborted before their shards are adopted.
            return ()
        case InitProducer() | EndTransaction() | AbortOpen():
            return (TransactionKey(command.transactional_id),)
        case JoinGroup() | SyncGroup():
            return (GroupKey(command.group_id),)
        case FindAcquirable() | StartShare() | Acknowledge() | AcknowledgeInTransaction() | ReleaseMember():
            # Only the leader knows who has acquired which records.
            return (command.key,)
        case Acquire():
            return tuple(each.key for each in command.reads)
    return ()
