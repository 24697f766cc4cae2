"""The broker: builds and owns the parts.

``Broker.open`` opens the store, which recovers by itself, and starts the commit loop and the housekeeping.
The parts and who owns what:

- the commit loop owns the state and is the only one that writes;
- ``reads``, ``catalog`` and ``cluster`` hold what was published after commits, for everyone who reads;
- housekeeping asks for what time brings about: expired sessions, overdue transactions, old records.

Before anyone is served, the transactions that were open are loaded. Those of an older term may have lost
work that was answered before it was flushed; they are aborted (ADR 16).

If one of the tasks dies, ``fatal`` is called: a broker that cannot go on must not pretend to. The server
ends the process, an embedded broker is stopped and says why.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeVar

from semel.broker.catalog import Catalog
from semel.broker.clock import Clock
from semel.broker.commit_loop import CommitLoop
from semel.broker.compaction_holds import Holds
from semel.broker.damage import Damage
from semel.broker.fair_queue import ASKER
from semel.broker.housekeeping import Housekeeping
from semel.broker.listings import Listings
from semel.broker.metrics import Metrics
from semel.broker.promise import Promise
from semel.broker.published_log import PublishedLog
from semel.broker.publisher import Publisher
from semel.broker.reads import Reads
from semel.broker.scrub import Scrub
from semel.broker.slices import Slices
from semel.config import Settings
from semel.core.groups.commands import DescribeGroup
from semel.core.partition import DeleteRecords, RecordsDeleted
from semel.core.transactions.commands import AbortOpen
from semel.core.types import (
    Cluster,
    ClusterKey,
    Command,
    ErrorCode,
    PartitionKey,
    TransactionKey,
)
from semel.store.embedded import EmbeddedStore
from semel.store.interface import Counts
from semel.store.opening import open_store

log = logging.getLogger("semel.broker")

T = TypeVar("T")

VALIDATION_THREADS: Final = min(4, os.cpu_count() or 1)
"""Each of them may hold one batch that is unpacked (semel.batch.content.max.bytes)."""


class Endpoint(NamedTuple):
    """Where clients of a listener are told to go."""

    host: str
    port: int


class Broker:
    """One broker. Use ``open`` and ``close``."""

    def __init__(
        self, settings: Settings, store: EmbeddedStore, directory: Path | None, clock: Clock | None = None
    ) -> None:
        self.settings = settings
        self.store = store
        self.directory = str(directory) if directory else "memory"
        self._is_on_disk = directory is not None
        self.metrics = Metrics()
        self.clock = clock or Clock()
        self.slices = Slices()
        self.catalog = Catalog(store.ledger, settings.semel_entities_max, settings.dotted(), self.slices)
        self.listings = Listings(store.ledger)
        self.damage = Damage(store, self.metrics)
        self.cluster_id = settings.cluster_id or store.cluster_id
        self.large_changes = asyncio.Lock()
        """Held while thousands of partitions are created or deleted."""
        self.node_id = settings.node_id
        self.endpoints: dict[str, Endpoint] = {}
        self.fatal: Callable[[BaseException], None] = _log_fatal
        published = PublishedLog(store.ledger, settings)
        self._publisher = Publisher(published, self.catalog)
        self._loop = CommitLoop(store, settings, self.clock, self.metrics, self._publisher)
        self.reads = Reads(store, settings, self.metrics, self.damage, self.slices, published, self._loop)
        self.holds = Holds(settings.semel_compaction_hold_ms, settings.semel_compaction_hold_max_ms)
        self._housekeeping = Housekeeping(self)
        self._tickets = count(1)
        self._tasks: list[asyncio.Task[None]] = []
        self._validators = ThreadPoolExecutor(VALIDATION_THREADS, "validation")
        gauge = self.metrics.gauge
        gauge("open_transactions", "Transactions that are open.", lambda: len(self._loop.state.ongoing))
        gauge("cached_entities", "Entities kept in memory.", lambda: self._loop.state.size)
        gauge(
            "oldest_open_transaction_seconds",
            "Age of the transaction that is open longest.",
            self._oldest_age,
        )

    @classmethod
    async def open(cls, settings: Settings, directory: Path | None, clock: Clock | None = None) -> Self:
        """A broker over a data directory, or in memory. StoreLocked if another process owns the directory."""
        store = await open_store(directory, settings)
        broker = cls(settings, store, directory, clock)
        try:
            await broker.begin()
        except BaseException:
            await store.close()
            raise
        return broker

    async def begin(self) -> None:
        """Put in order what the last life left, then start to work."""
        await self.store.sweep_orphans()
        await self._begin()
        self._start("commit loop", self._loop.run())
        self._start("housekeeping", self._housekeeping.run())
        if self.settings.semel_scrub_bytes_per_second > 0 and self._is_on_disk:
            self._start("scrub", Scrub(self).run())

    async def _begin(self) -> None:
        (cluster,) = await self.store.ledger.load([ClusterKey()])
        self._publisher.cluster = cluster or Cluster()
        await self.count()
        await self._loop.load_open_transactions()
        self.clock.not_before(max(self._started_ms(), default=0))
        await self._loop.abort_older_terms()

    def _start(self, name: str, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fatal(error)

    async def close(self) -> None:
        """Finish what was submitted and let go of the store. Equal in outcome to being killed."""
        commit_loop, *others = self._tasks
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self._loop.stop()
        await asyncio.gather(commit_loop, return_exceptions=True)
        self._validators.shutdown(wait=False, cancel_futures=True)
        await self.store.close()

    def end_waits(self) -> None:
        """Answer those who wait for something to happen: it will happen elsewhere, or after a restart."""
        self.reads.end_waits()
        self._loop.end_waits()

    async def count(self) -> None:
        """Count what clients have made."""
        self._publisher.counts = await self.store.ledger.counts()

    async def has_room_for_group(self, group_id: str) -> bool:
        """Whether there may be such a group: there is, or there are not too many."""
        if self.counts.groups < self.settings.semel_groups_max:
            return True
        return await self.ask(DescribeGroup(group_id)) is not None

    @property
    def cluster(self) -> Cluster:
        """The features in force."""
        return self._publisher.cluster

    @property
    def counts(self) -> Counts:
        """What clients have created."""
        return self._publisher.counts

    def now(self) -> int:
        """Milliseconds, steady: for timeouts."""
        return self.clock.now()

    def time_of_day(self) -> int:
        """Milliseconds as the machine calls them: for timestamps, and for whatever is kept for days."""
        return self.clock.time_of_day()

    def new_ticket(self) -> int:
        """A number for a request that may have to wait."""
        return next(self._tickets)

    def submit(
        self, commands: Sequence[Command], when_parked: Callable[[], None] | None = None
    ) -> Promise[list[Any]]:
        """Have commands decided in one tick, in this order; one answer for each when they are durable.

        ``StoreRefused`` if there is no room. A cancelled wait takes nothing back. ``when_parked`` is called
        if an answer has to wait for other clients.
        """
        return self._loop.submit(commands, when_parked)

    async def beside(self, work: Callable[[], T]) -> T:
        """Run work that takes long, and that touches nothing of the broker, on one of a few threads."""
        return await asyncio.get_running_loop().run_in_executor(self._validators, work)

    def soon(self, work: Callable[[], None]) -> None:
        """Do this when everyone whom the present tick answers was told, or as soon as possible."""
        self._loop.soon(work)

    async def ask(self, command: Command) -> Any:
        """Submit one command and await its answer."""
        return (await self.submit([command]))[0]

    async def ask_each(self, commands: Sequence[Command]) -> list[Any]:
        """The answers to independent commands. Many of them are decided in several ticks."""
        answers: list[Any] = []
        async for some in self.slices.over(commands):
            answers += await self.submit(some)
        return answers

    async def flush(self) -> bool:
        """Make durable, and show to readers, all that was answered so far. False if there is no room.

        For whoever reads from the ledger what a client may have been told already.
        """
        return await self._loop.flush()

    def connection_gone(self, connection_id: int) -> None:
        """A client left. If the settings say so, the transactions that it spoke for are aborted."""
        ids = self._loop.latest_connections.gone(connection_id)
        if ids:
            # Behind what the client asked before it left.
            ASKER.set(connection_id)
            # What finds no room is aborted by its timeout.
            self._loop.submit([AbortOpen(each, connection=connection_id) for each in ids])

    def overdue_transactions(self) -> list[str]:
        """The open transactions whose time is over."""
        now = self.now()
        return [each for each, deadline in self._loop.state.ongoing.items() if 0 <= deadline < now]

    def _oldest_age(self) -> float:
        started = min(self._started_ms(), default=None)
        return 0.0 if started is None else (self.now() - started) / 1000

    def _started_ms(self) -> list[int]:
        """When the open transactions began, by the steady clock."""
        state = self._loop.state
        known = (state.transactions.get(TransactionKey(each)) for each in state.ongoing)
        return [each.started_ms for each in known if each is not None]

    async def delete_records(self, partition: PartitionKey, offset: int) -> RecordsDeleted:
        """Move the start of a log. Retries if the log start moved meanwhile."""
        if partition in self._loop.unsynced.partitions:
            await self._loop.flush()
        newest = await self.reads.partition(partition)
        if newest is not None and offset > newest.high_watermark:
            # What is written from now on may reach the offset, and was not meant.
            return RecordsDeleted(ErrorCode.OFFSET_OUT_OF_RANGE)
        while True:
            # Before the look: if batches are replaced after this, the size that is found may be another.
            newest = await self.reads.partition(partition)
            compactions = 0 if newest is None else newest.compactions
            log_start, size_below = await self.store.ledger.size_below(partition, offset)
            answer: RecordsDeleted = await self.ask(
                DeleteRecords(partition, offset, log_start, size_below, compactions)
            )
            if answer.error is not ErrorCode.KAFKA_STORAGE_ERROR:
                return answer


def _log_fatal(error: BaseException) -> None:
    log.critical("the broker cannot go on: %r", error, exc_info=error)
