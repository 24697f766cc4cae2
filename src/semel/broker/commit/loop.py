"""The commit loop: the single task that decides and writes.

Commands are queued with ``submit``. A tick takes pending commands from all clients in turn (``FairQueue``),
loads the entities that are not in memory, decides the commands one after another (each sees the facts of
those before it), commits all facts and batches to the store, publishes them, and replies. Commands that
arrive during a commit wait for the next tick, so a busy broker commits many requests with one flush: group
commit without a timer.

A tick that only does work inside open transactions may defer its sync: the store writes it without a flush,
and the next commit that syncs makes it durable (``unsynced_work``). So a transaction costs one flush, that of
its end. Readers that must see unsynced work ask for a ``flush``.

Invariants:

- No reply is sent before the commit that holds the facts behind it. This includes commands without facts:
  they may have read what an earlier command of the same tick made true.
- The loop never awaits between a decision and applying it.
- Readers see only what was published after a commit that was flushed.
- A failed commit has an unknown outcome. The loop stops without replying, and the process with it.
- Records for which there is no room are refused before anything is decided. So a full disk does not affect
  groups, deletions and other commands that need no room.
- If the store turns out to be full during a commit, it has written nothing. The tick is answered with
  ``StoreFull`` and the loop drops all state in memory, as a restart does. Unsynced work before that tick was
  answered and stays: the store writes it with the next commit.

The transactional ids that each connection has used, to abort their transactions when it closes.

The core maps each id to its latest connection; this is the reverse map. It may list too many ids, because an
id stays here when another connection takes it over: the command that aborts checks again. It is bounded; the
transaction of an id that was dropped here is aborted later, by its timeout.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from semel.broker.clock import Clock
from semel.broker.commit.pending_commands import FairQueue, PendingCommands, Promise, Work, without_room
from semel.broker.commit.tick import Replies, Tick, newest_only
from semel.broker.commit.unsynced_work import FLUSH_AFTER_SECONDS, UnsyncedWork
from semel.broker.metrics import Metrics
from semel.broker.reads.published_log import Publisher
from semel.config import Settings
from semel.core.facts import DURABLE, BatchAppended, LatestConnectionChanged
from semel.core.state import BrokerState
from semel.core.transactions.commands import AbortOpen
from semel.core.types import PARKED, Answer, Command, Fact, Key, TransactionKey
from semel.store.contract import LedgerDamaged, Store, StoreRefused


class LatestConnections:
    """Maps a connection to the ids that it used."""

    def __init__(self, ids_max: int) -> None:
        self._ids_max = ids_max
        self._ids: dict[int, dict[str, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def learn(self, facts: Iterable[Fact]) -> None:
        """Note the new latest connections among the facts."""
        for fact in facts:
            if type(fact) is LatestConnectionChanged and not fact.for_offsets:
                ids = self._ids.setdefault(fact.connection, {})
                if fact.transactional_id not in ids:
                    ids[fact.transactional_id] = None
                    self._count += 1
                    while self._count > self._ids_max:
                        self.gone(next(iter(self._ids)))

    def gone(self, connection: int) -> list[str]:
        """Remove a connection; returns its ids."""
        ids = self._ids.pop(connection, {})
        self._count -= len(ids)
        return list(ids)


T = TypeVar("T")

_DURABLE = frozenset(DURABLE)
_PAGE = 1_000
"""Open transactions that are loaded or aborted at once."""


class CommitLoop:
    """Owns the state. All other components submit commands."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        clock: Clock,
        metrics: Metrics,
        publisher: Publisher,
    ) -> None:
        self.state = BrokerState(store.term)
        self.unsynced = UnsyncedWork()
        self.latest_connections = LatestConnections(settings.semel_entities_max)
        self._store = store
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._publisher = publisher
        self._aborts_on_disconnect = settings.transaction_abort_on_disconnect
        self._defers_sync = settings.semel_durability != "always"
        self._queue = FairQueue(settings.semel_tick_bytes_max)
        self._replies = Replies()
        self.soon = self._replies.soon
        self._sleep: asyncio.Future[None] | None = None
        self._flush_timer: asyncio.TimerHandle | None = None
        self._errands: deque[tuple[Callable[[], Work[Any]], asyncio.Future[Any]]] = deque()
        self._stopping = self._must_recall = False

    async def load_open_transactions(self) -> None:
        """Load every open transaction into the state, where their deadlines are checked."""
        after = ""
        while page := await self._store.ledger.open_transactions(after=after, limit=_PAGE):
            for transaction in page:
                self.state.put(TransactionKey(transaction.transactional_id), transaction)
            after = page[-1].transactional_id
            if len(page) < _PAGE:
                break

    async def abort_older_terms(self) -> None:
        """Abort transactions of older terms, whose unsynced work may be lost. Called before ``run``.

        If there is no room, their timeouts abort them later; until then they can neither grow nor commit.
        """
        term = self._store.term
        known = (self.state.transactions.get(TransactionKey(each)) for each in self.state.ongoing)
        older = [each.transactional_id for each in known if each is not None and each.term < term]
        for start in range(0, len(older), _PAGE):
            # One submission for each, so that a transaction with damaged rows is refused alone.
            page = older[start : start + _PAGE]
            await self._tick([PendingCommands([AbortOpen(each, before_term=term)]) for each in page])

    def submit(
        self, commands: Sequence[Command[T]], when_parked: Callable[[], None] | None = None
    ) -> Promise[list[T]]:
        """Submit commands, which one tick decides. Returns their answers when all are durable.

        Raises StoreRefused. ``when_parked`` is called if a command is decided and its answer has to wait for
        other clients.
        """
        pending = PendingCommands(commands, when_parked=when_parked)
        self._put(pending)
        return pending

    def _put(self, pending: PendingCommands) -> None:
        self._queue.put(pending)
        self._wake()

    async def flush(self) -> bool:
        """Make all answered work durable and visible to readers. Returns False if the store refuses."""
        try:
            if self.unsynced:
                await self._submit_flush()
        except StoreRefused:
            return False
        return True

    async def between_ticks(self, work: Callable[[], Work[T]]) -> T:
        """Do work on the state while no tick is decided or committed. It must not submit commands."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._errands.append((work, done))
        self._wake()
        return await done

    async def turn(self) -> None:
        """Wait until everything that is durable now is published."""
        await self.submit(())

    def stop(self) -> None:
        """Finish the submitted commands, then return from ``run``."""
        self._stopping = True
        self._wake()

    def end_waits(self) -> None:
        """Answer parked requests, such as joins, with a retriable error. Their decisions stay in force."""
        self._replies.refuse((), StoreRefused("the broker stops"))

    async def run(self) -> None:
        """Run ticks until stopped. Any exception is fatal to the process: see the module's invariants."""
        try:
            while True:
                while self._errands:
                    await self._run_errand(*self._errands.popleft())
                pending, room_bytes = self._queue.take()
                if room_bytes:
                    pending = await self._with_room(pending, room_bytes)
                if pending:
                    await self._tick(pending)
                if self._queue or self._errands:
                    # A commit may end without waiting: let the event loop read requests of other clients.
                    await asyncio.sleep(0)
                elif not self._stopping or self._queue.is_holding:
                    self._sleep = asyncio.get_running_loop().create_future()
                    await self._sleep
                else:
                    if self.unsynced:
                        await self._tick([PendingCommands((), is_flush=True)])
                    return
        finally:
            self._stop_timer()

    async def _run_errand(self, work: Callable[[], Work[T]], done: "asyncio.Future[T]") -> None:
        try:
            result = await work()
        except StoreRefused as refused:
            if not done.done():
                done.set_exception(refused)
            return
        if not done.done():
            done.set_result(result)

    def _wake(self) -> None:
        sleep, self._sleep = self._sleep, None
        if sleep is not None and not sleep.done():
            sleep.set_result(None)

    async def _with_room(self, pending: list[PendingCommands], room_bytes: int) -> list[PendingCommands]:
        """Make room for the bytes of these commands. If there is none, refuse those that need some."""
        try:
            await self._store.make_room(room_bytes)
        except StoreRefused as full:
            return without_room(pending, full)
        return pending

    async def _tick(self, pending: list[PendingCommands]) -> None:
        """Load, decide, commit, publish, reply."""
        try:
            if self._must_recall:
                await self._recall()
            await self._load(pending)
        except StoreRefused as full:
            if isinstance(full, LedgerDamaged) and len(pending) > 1:
                # Refuse only the commands that need the damaged page.
                for each in pending:
                    await self._tick([each])
                return
            # The ledger has no room for the latest commits, so entities cannot be loaded from it.
            for each in pending:
                each.resolve(full)
            return
        tick = self._decide(pending)
        try:
            tick = await self._commit(tick)
        except StoreRefused as full:
            await self._refuse(tick, full)
            return
        if tick.is_unsynced:
            self._keep_unsynced(tick)
        elif tick.is_synced:
            self._publish_all(tick)
        for parked in tick.parked:
            self._replies.park(*parked)
        self._answer(tick)
        if not self.unsynced.facts:
            # Unsynced work is not in the ledger, so entities that it changed must stay in memory.
            self.state.evict(self._settings.semel_entities_max)
        self._metrics.observe_tick(tick, self._store.flush_seconds)

    async def _commit(self, tick: Tick) -> Tick:
        """Write the decisions to the store. Returns the tick as it was committed. StoreRefused."""
        if tick.may_defer_sync and self._may_stay_unsynced(tick):
            await self._write(tick, defers_sync=True)
            # The store may have flushed all the same.
            tick.is_unsynced = self._store.has_unsynced
            tick.is_synced = not tick.is_unsynced
        elif tick.durable or (self.unsynced.facts and tick.must_flush):
            await self._write(tick, defers_sync=False)
            tick.is_synced = True
        tick.committed_at = time.perf_counter()
        return tick

    def _write(self, tick: Tick, *, defers_sync: bool) -> Awaitable[int]:
        return self._store.commit(tick.durable, tick.batches, defers_sync=defers_sync)

    def _answer(self, tick: Tick) -> None:
        self._replies.tell(tick.pending, tick.replies)

    async def _load(self, pending: list[PendingCommands]) -> None:
        missing: dict[Key, None] = {}
        tables = self.state.tables
        has_more_keys = False
        for each in pending:
            has_more_keys |= each.has_more_keys
            for command in each.commands:
                for key in command.keys():  # noqa: SIM118 - not a dictionary
                    if key not in tables[type(key)]:
                        missing[key] = None
        if missing:
            await self._load_all(list(missing))
        if has_more_keys:
            more: dict[Key, None] = {}
            for command in (command for each in pending if each.has_more_keys for command in each.commands):
                if hasattr(command, "more_keys"):
                    more.update(dict.fromkeys(self.state.missing(command.more_keys(self.state))))
            if more:
                await self._load_all(list(more))

    async def _load_all(self, keys: list[Key]) -> None:
        for key, value in zip(keys, await self._store.ledger.load(keys), strict=True):
            self.state.put(key, value)

    def _decide(self, pending: list[PendingCommands]) -> Tick:
        state = self.state
        now = self._clock.now()
        state.clock_lag_ms = self._clock.time_of_day() - now
        tick = Tick(pending)
        batches, replies, defers_sync = tick.batches, tick.replies, True
        facts: list[Fact] = []
        for each in pending:
            for command in each.commands:
                decision = state.decide(command, now)
                state.apply(*decision.facts)
                if defers_sync and not decision.defers_sync:
                    defers_sync = _DURABLE.isdisjoint(map(type, decision.facts))
                facts.extend(decision.facts)
                batches.extend(decision.batches)
                replies.extend(decision.replies)
                if decision.answer is PARKED:
                    # Only commands that carry a ticket are ever parked.
                    tick.parked.append((command.ticket, each, len(each.answers)))  # type: ignore[attr-defined]
                each.answers.append(decision.answer)
        if not _DURABLE.issuperset(map(type, facts)):
            tick.transient = [fact for fact in facts if type(fact) not in _DURABLE]
            facts = [fact for fact in facts if type(fact) in _DURABLE]
            if self._aborts_on_disconnect:
                self.latest_connections.learn(tick.transient)
        tick.durable = newest_only(facts)
        tick.may_defer_sync = defers_sync and bool(facts)
        tick.decided_at = time.perf_counter()
        return tick

    # -- unsynced work ---------------------------------------------------------------------------------------

    def _may_stay_unsynced(self, tick: Tick) -> bool:
        """Whether a tick of work inside transactions may be answered before it is flushed."""
        if not self._defers_sync or (self.unsynced.facts and tick.must_flush):
            return False
        if not self.unsynced.has_room_for(tick.durable, sum(map(len, tick.batches))):
            return False
        if self._is_awaited_now(tick.durable):
            return False
        # Nothing is evicted while there is unsynced work.
        entities_max = self._settings.semel_entities_max * 5 // 4
        return max(map(len, self.state.tables.values())) <= entities_max

    def _is_awaited_now(self, facts: Iterable[Fact]) -> bool:
        """Whether a READ_UNCOMMITTED reader waits for one of these batches."""
        return self._publisher.is_awaited(fact.partition for fact in facts if type(fact) is BatchAppended)

    def _keep_unsynced(self, tick: Tick) -> None:
        loop = asyncio.get_running_loop()
        self.unsynced.add(tick.durable, tick.batches, loop.time())
        if self._is_awaited_now(tick.durable):
            # A reader began to wait during the write.
            self._submit_flush()
        elif self._flush_timer is None:
            self._flush_timer = loop.call_later(FLUSH_AFTER_SECONDS, self._flush_if_due)

    def _flush_if_due(self) -> None:
        """Flush work that is unsynced for too long. One timer serves many transactions: most end earlier."""
        self._flush_timer = None
        if not self.unsynced:
            return
        loop = asyncio.get_running_loop()
        left = self.unsynced.since + FLUSH_AFTER_SECONDS - loop.time()
        if left <= 0:
            self._submit_flush()
            # Try again later if there is no room.
            left = FLUSH_AFTER_SECONDS
        self._flush_timer = loop.call_later(left, self._flush_if_due)

    def _submit_flush(self) -> Promise[list[Answer]]:
        flush = PendingCommands((), is_flush=True)
        self._put(flush)
        return flush

    def _stop_timer(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None

    # -- after the commit ------------------------------------------------------------------------------------

    def _publish_all(self, tick: Tick) -> None:
        """Publish what this commit made durable: earlier unsynced work first."""
        if self.unsynced.facts:
            facts, batches = self.unsynced.take()
            self._publisher.publish([*facts, *tick.durable], [*batches, *tick.batches])
        else:
            self._publisher.publish(tick.durable, tick.batches)

    async def _refuse(self, tick: Tick, full: StoreRefused) -> None:
        """Undo a tick that was not written: drop all state, refuse its commands and all parked ones."""
        if not tick.durable:
            # A flush found no room. The state is valid, and the unsynced work is still there.
            self._replies.tell([each for each in tick.pending if not each.is_flush], tick.replies)
            for each in tick.pending:
                if each.is_flush:
                    each.resolve(full)
            return
        before, self.state = self.state, BrokerState(self._store.term, self.state.migration)
        # The latest connections are valid whatever the outcome.
        self.state.latest_connections.update(before.latest_connections)
        self.state.latest_offset_connections.update(before.latest_offset_connections)
        self._replies.refuse(tick.pending, full)
        self._must_recall = True
        with contextlib.suppress(StoreRefused):
            await self._recall()

    async def _recall(self) -> None:
        """Load open transactions and unsynced work into a new state; all else is loaded on demand."""
        await self.load_open_transactions()
        self.state.apply(*self.unsynced.facts)
        self._must_recall = False
