"""The store of one life of a broker over the shared ledger: requests that may get lost on their way.

A commit whose answer is lost has an unknown outcome: it may have happened, or happen later. The store begins
another session, after which the commit can no longer happen, and reads whether it has.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from random import Random
from typing import Any, Final

from semel.core.types import Buffer, EntityKey, Fact, Key, PartitionKey, V
from semel.store.cluster.contract import SnapshotAge, TermEnded, Versioned
from semel.store.contract import StoreFull, StoreRefused
from simulation.disk import SimulatedChunks
from simulation.faults import Faults
from simulation.processes import OUTSIDE
from simulation.shared_ledger import Claim, LedgerServer, Lost
from simulation.shared_membership import Places, SimulatedMembership
from simulation.virtual_time import sleep

QUERY_PATIENCE_SECONDS: Final = 0.6
LOCK_SECONDS_MAX: Final = 0.1
"""A broker that waits longer for a lock gives up all its locks, because others may wait for them."""
IDLE_SECONDS_MAX: Final = 0.3
"""The server releases the locks of a broker that is idle for so long."""


class Wire:
    """The connection of one life of a broker to the server."""

    def __init__(self, server: LedgerServer, random: Random, faults: Faults) -> None:
        self.server = server
        self.random = random
        self.faults = faults
        self.is_cut = False

    async def travel(self) -> None:
        """Wait as long as a message takes. Raises Lost if it does not arrive."""
        await sleep(self.random.uniform(0.0001, 0.001))
        if self.is_cut or self.server.is_away:
            await sleep(self.random.uniform(0.001, 0.02))
            raise Lost

    async def once(self, work: Callable[[], Any]) -> Any:
        """Run `work` at the server, at most once. Raises Lost if there is no answer."""
        await self.travel()
        crashes = self.server.crashes
        result = work()
        if asyncio.iscoroutine(result):
            result = await result
        await self.travel()
        if crashes != self.server.crashes or self.faults.happens(self.random, "lost answer"):
            raise Lost
        return result

    async def ask(self, work: Callable[[], Any], patience: float = QUERY_PATIENCE_SECONDS) -> Any:
        """Run `work` at the server, at least once. StoreRefused if there is no answer within `patience`."""
        deadline = self.server.now() + patience
        while True:
            try:
                return await self.once(work)
            except Lost as lost:
                if self.server.now() > deadline:
                    raise StoreRefused("simulated: the ledger does not answer") from lost
                await self.pause()

    async def pause(self) -> None:
        """Wait between two tries."""
        await sleep(self.random.uniform(0.005, 0.03))


class SharedLedgerReader:
    """Queries of the ledger by one life. Implements ``contract.Ledger``."""

    def __init__(self, wire: Wire, broker_id: int) -> None:
        self._wire = wire
        self._broker_id = broker_id

    def __getattr__(self, name: str) -> Any:
        wire = self._wire
        if not hasattr(wire.server.ledger, name):
            raise AttributeError(name)

        async def query(*arguments: Any, **named: Any) -> Any:
            return await wire.ask(lambda: getattr(wire.server.ledger, name)(*arguments, **named))

        return query

    async def load(self, keys: Sequence[EntityKey[V]]) -> list[V | None]:
        """Return entities. Partitions are durable before they are returned, because clients may read them."""
        server = self._wire.server
        while True:
            found, crashes = await self._wire.ask(
                lambda: (server.load(keys, self._broker_id), server.crashes)
            )
            shown = [each.version for key, each in zip(keys, found, strict=True) if type(key) is PartitionKey]
            if not server.is_durable(shown):
                await self._wire.ask(server.flush)
                if crashes != server.crashes:
                    # What was read may be lost.
                    continue
            return [each.value for each in found]


class SharedSimulatedStore:
    """Created by ``open_shared``. Implements ``cluster.contract.SharedStore``."""

    flush_seconds = 0.0
    cluster_id = "simulated"
    lost_rows = 0

    def __init__(self, wire: Wire, broker_id: int, term: int) -> None:
        server = wire.server
        row = server.rows[broker_id]
        self.wire = wire
        self.term = term
        self.ledger = SharedLedgerReader(wire, broker_id)
        self.chunks = SimulatedChunks(server)
        self.membership = SimulatedMembership(server, wire, broker_id, row.epoch)
        self._server = server
        self._broker_id = broker_id
        self._epoch, self._session = row.epoch, row.session
        self._sequence = self._durable = row.sequence
        self._locker: object | None = None
        self._locked: dict[Key, None] = {}

    @property
    def has_unsynced(self) -> bool:
        """Whether unsynced work of this life was committed and is not durable yet."""
        return self._sequence > self._durable

    async def make_room(self, length: int) -> None:
        """Raise StoreFull sometimes."""
        if self.wire.faults.happens(self.wire.random, "full"):
            raise StoreFull("simulated: no room")

    # -- entities -----------------------------------------------------------------------------------------

    async def load(self, keys: Sequence[EntityKey[V]], *, locks: bool = False) -> list[Versioned[V]]:
        """Return entities and their versions."""
        found: list[Versioned[Any]] = await self.wire.ask(
            lambda: self._load_locked(keys) if locks else self._server.load(keys, self._broker_id)
        )
        return found

    async def _load_locked(self, keys: Sequence[Key]) -> list[Versioned[Any]]:
        server = self._server
        self._locked |= dict.fromkeys(keys)
        if self._locker is None:
            locker = self._locker = object()
            server.loop.call_later(IDLE_SECONDS_MAX, server.unlock, locker, context=OUTSIDE)
            keys_now: Sequence[Key] = list(self._locked)
        else:
            locker, keys_now = self._locker, keys
        try:
            async with asyncio.timeout(LOCK_SECONDS_MAX):
                await server.lock(locker, keys_now)
        except BaseException as error:
            self._give_up()
            if isinstance(error, TimeoutError):
                raise Lost from error
            raise
        return server.load(keys, self._broker_id)

    def _give_up(self) -> None:
        locker, self._locker = self._locker, None
        if locker is not None:
            self._server.unlock(locker)

    async def check_term(self) -> None:
        """Raise TermEnded if the server has crashed."""
        if not await self.wire.ask(lambda: self._server.is_term(self.term)):
            await self._begin_term()
            raise TermEnded

    async def _begin_term(self) -> None:
        self.term = await self.wire.ask(self._server.current_term, float("inf"))
        self._durable = self._sequence

    async def put_ahead(self, batches: Sequence[Buffer]) -> None:
        """Take some time, and fail sometimes. The bytes themselves are part of the commit."""
        await self.wire.travel()
        if self.wire.faults.happens(self.wire.random, "full"):
            raise StoreRefused("simulated: the object store is away")

    def forget_ahead(self, batches: Sequence[Buffer]) -> None:
        """Do nothing: nothing is kept."""

    async def unlock(self) -> None:
        """Give up all locks."""
        self._locked.clear()
        self._give_up()

    # -- commits ------------------------------------------------------------------------------------------

    async def commit(
        self,
        facts: Sequence[Fact],
        batches: Sequence[Buffer],
        *,
        expected: Mapping[Key, int] | None = None,
        defers_sync: bool = False,
    ) -> int:
        """Commit, and determine the outcome if the answer is lost."""
        if self.wire.faults.happens(self.wire.random, "full"):
            raise StoreFull("simulated: no room")
        number, is_synced = self._sequence + 1, not defers_sync
        while True:
            claim = Claim(self._broker_id, self._epoch, self._session, number, self.term)
            owner, self._locker = self._locker or object(), None
            self._locked.clear()
            try:
                await self._try(
                    self._server.commit(claim, facts, batches, expected or {}, owner, is_synced=is_synced)
                )
                break
            except Lost:
                if await self._reached() >= number:
                    # The new session began after the commit, and its flush included the commit.
                    is_synced = True
                    break
            except TermEnded:
                await self._begin_term()
                raise
            finally:
                self._server.unlock(owner)
        self._sequence = number
        if is_synced:
            self._durable = number
            self._server.answered.add((self._broker_id, number))
        return self._server.version(claim)

    async def _try(self, work: Coroutine[Any, Any, None]) -> None:
        """Send a commit. The server continues it even if this life ends or stops waiting."""
        wire, loop = self.wire, self._server.loop
        try:
            await wire.travel()
        except BaseException:
            work.close()
            raise
        if wire.faults.happens(wire.random, "lost commit"):
            if wire.random.random() < 0.5:
                # It arrives later.
                loop.call_later(wire.random.uniform(0, 0.2), _begin, work, context=OUTSIDE)
            else:
                work.close()
            await sleep(wire.random.uniform(0, 0.05))
            raise Lost
        await asyncio.shield(_begin(work))
        await wire.travel()
        if wire.faults.happens(wire.random, "lost commit answer"):
            raise Lost

    async def _reached(self) -> int:
        """Return the number of the last commit, after which no commit of the old session can come."""

        def begin_session() -> tuple[int, int]:
            row = Places(self._server).mine(self._broker_id, self._epoch)
            row.session += 1
            return row.session, row.sequence

        sequence: int
        self._session, sequence = await self.wire.ask(
            lambda: self._server.with_rows(object(), (self._broker_id,), begin_session), float("inf")
        )
        return sequence

    @property
    def oldest_snapshot(self) -> SnapshotAge:
        """The age of no snapshot: none is held."""
        return SnapshotAge(0.0, 0)

    def upkeep(self, is_mine: Callable[[], bool]) -> Mapping[str, Coroutine[Any, Any, None]]:
        """Return nothing: bytes stay where they are."""
        return {}

    async def checkpoint(self) -> None:
        """Do nothing: what is committed is durable."""

    async def sweep_orphans(self) -> list[int]:
        """Return nothing: there are no orphans."""
        return []

    async def close(self) -> None:
        """End the lease."""
        self._give_up()
        row = self._server.rows[self._broker_id]
        if row.epoch == self._epoch and not self.wire.is_cut:
            Places(self._server).end_lease(row)

    def disconnect(self) -> None:
        """Release the locks of a life that is over: the server notices its closed connections."""
        self._give_up()


def _begin(work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    task = asyncio.get_running_loop().create_task(work, context=OUTSIDE)
    # Retrieve the exception: there may be no task left that waits for it.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


async def open_shared(wire: Wire, broker_id: int, life: int) -> SharedSimulatedStore:
    """Take over from the last life of the broker, and open the store."""
    server = wire.server
    while True:
        seconds_left = await wire.ask(
            lambda: server.with_rows(object(), (broker_id,), lambda: Places(server).take(broker_id, life)),
            float("inf"),
        )
        if not seconds_left:
            term = await wire.ask(server.current_term, float("inf"))
            return SharedSimulatedStore(wire, broker_id, term)
        await sleep(seconds_left)
