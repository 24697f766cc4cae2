"""The broker: builds, starts and stops its components.

``Broker.open`` opens the store, which runs recovery, and starts the commit loop and the housekeeping. The
components and what they own:

- the commit loop owns the state and is the only writer;
- ``reads``, ``catalog`` and ``cluster`` hold what was published after commits, for all readers;
- housekeeping submits the commands that are due by time: expired sessions, overdue transactions, old records.

Before clients are served, open transactions are loaded. Those of an older term may have lost unsynced work;
they are aborted (ADR 16).

If one of the tasks fails, ``fatal`` is called, because a broker without one of its tasks must not serve. The
server ends the process; an embedded broker stops and reports the error.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, Final, Self, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

from semel.broker.catalog import Catalog
from semel.broker.clock import Clock
from semel.broker.cluster.announcing import NoPeers, NoticeSender, Peers
from semel.broker.cluster.commit_loop import SharedCommitLoop
from semel.broker.cluster.member import ClusterMember, register
from semel.broker.cluster.shard_ownership import ShardOwnership
from semel.broker.commit.loop import CommitLoop
from semel.broker.commit.pending_commands import CLIENT, Promise, Work
from semel.broker.metrics import Metrics
from semel.broker.ownership import Alone, Endpoint, Ownership
from semel.broker.policies import Policies, migration_of
from semel.broker.reads.listings import Listings
from semel.broker.reads.published_log import PublishedLog, Publisher
from semel.broker.reads.reads import Reads
from semel.broker.slices import Slices
from semel.broker.upkeep.compaction import Holds
from semel.broker.upkeep.damage import Damage, Scrub
from semel.broker.upkeep.housekeeping import Housekeeping
from semel.config import Settings
from semel.core.groups.commands import DescribeGroup
from semel.core.log.partition import DeleteRecords, RecordsDeleted
from semel.core.transactions.commands import AbortOpen
from semel.core.types import Cluster, ClusterKey, Command, ErrorCode, PartitionKey, ShareKey, TransactionKey
from semel.store.cluster.contract import SharedStore, lease_clock
from semel.store.contract import Counts, Store
from semel.store.opening import Remote, open_remote, open_store

log = logging.getLogger("semel.broker")

T = TypeVar("T")

NOWHERE: Final = ("", 0)
"""The address of a broker that does not listen."""
VALIDATION_THREADS: Final = min(4, os.cpu_count() or 1)
"""Each thread may hold one decompressed batch (semel.batch.content.max.bytes)."""


class Broker:
    """One broker. Use ``open`` and ``close``."""

    def __init__(
        self,
        settings: Settings,
        store: Store | SharedStore,
        place: Path | Remote | None,
        clock: Clock | None = None,
        connect: Callable[[bytes], Peers] = lambda secret: NoPeers(),
        lease_clock: Callable[[], float] = lease_clock,
    ) -> None:
        self.settings = settings
        """The settings in force: those of the start, with what administrators have changed since."""
        self.store = store
        self.directory = _directory(place)
        self._is_on_disk = place is not None
        self.metrics = Metrics()
        self.clock = clock or Clock()
        self.slices = Slices()
        self.catalog = Catalog(store.ledger, settings.semel_entities_max, settings.dotted(), self.slices)
        self.listings = Listings(store.ledger)
        self.policies = Policies(store.ledger, settings)
        self.policies.configs.changed = self._configure
        self.damage = Damage(store, self.metrics)
        self.cluster_id = settings.cluster_id or store.cluster_id
        self.large_changes = asyncio.Lock()
        """Held while thousands of partitions are created or deleted."""
        self.node_id = settings.node_id
        self.endpoints: dict[str, Endpoint] = {}
        self.listeners = ""
        """The addresses that are bound, as Kafka writes them; for DescribeConfigs."""
        self.fatal: Callable[[BaseException], None] = _log_fatal
        published = PublishedLog(store.ledger, settings)
        self._publisher = Publisher(published, self.catalog, self.policies)
        self.ownership: Ownership = Alone(self.node_id, self.endpoints)
        self.member: ClusterMember | None = None
        """Set if other brokers share the store."""
        self._loop = self._make_loop(store, connect, lease_clock)
        self._loop.state.migration = migration_of(settings)
        self.soon = self._loop.soon
        """Calls a function after the answers of the current tick; outside of a tick, as soon as possible."""
        self.reads = Reads(store, settings, self.metrics, self.damage, self.slices, published, self._loop)
        self.holds = Holds(settings.semel_compaction_hold_ms, settings.semel_compaction_hold_max_ms)
        self.share_waits = self._publisher.share_waits
        self.when_gone: list[Callable[[int], None]] = []
        """Functions that are called with the id of each closed connection."""
        self._kept: dict[Callable[[Broker], Any], Any] = {}  # Any: what each of these makes
        self._housekeeping = Housekeeping(self)
        self._has_left = False
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

    def kept(self, make: Callable[["Broker"], T]) -> T:
        """What a handler keeps for this broker, as made by the first request that needs it."""
        found: T | None = self._kept.get(make)
        if found is None:
            found = self._kept[make] = make(self)
        return found

    def _make_loop(
        self,
        store: Store | SharedStore,
        connect: Callable[[bytes], Peers],
        lease_clock: Callable[[], float],
    ) -> CommitLoop:
        settings, clock, metrics, publisher = self.settings, self.clock, self.metrics, self._publisher
        if not isinstance(store, SharedStore):
            return CommitLoop(store, settings, clock, metrics, publisher)
        ownership = ShardOwnership(self.node_id, lease_clock)
        sender = NoticeSender(store.membership, ownership, connect(store.membership.secret))
        loop = SharedCommitLoop(store, settings, clock, metrics, publisher, ownership, sender)
        loop.unannounced.fatal = lambda error: self.fatal(error)
        ownership.changed = lambda: self.reads.owners_changed()
        self.ownership = ownership
        self.member = ClusterMember(
            store.membership, ownership, sender, loop, self.catalog, self.policies, clock
        )
        register(metrics, ownership, sender, loop, self.member, store)
        return loop

    @classmethod
    async def open(
        cls,
        settings: Settings,
        place: Path | Remote | None,
        clock: Clock | None = None,
        connect: Callable[[bytes], Peers] = lambda secret: NoPeers(),
        *,
        joins: bool = True,
    ) -> Self:
        """Open a broker over a data directory, a remote store, or memory. Raises StoreLocked or StoreBroken.

        A broker over a remote store joins its cluster at once. With ``joins=False`` the caller must call
        ``join`` when the addresses are known.
        """
        store: Store | SharedStore = await (
            open_remote(place, settings) if isinstance(place, Remote) else open_store(place, settings)
        )
        broker = cls(settings, store, place, clock, connect)
        try:
            await broker.begin()
            if joins:
                await broker.join(NOWHERE)
        except BaseException:
            await store.close()
            raise
        return broker

    async def begin(self) -> None:
        """Clean up after the previous run, then start the tasks."""
        if self.ownership.is_janitor():
            await self.store.sweep_orphans()
        await self._begin()
        self._start("commit loop", self._loop.run())
        self._housekeeping_task = self._start("housekeeping", self._housekeeping.run())
        if isinstance(self.store, SharedStore):
            for name, work in self.store.upkeep(self.ownership.is_janitor).items():
                self._start(name, work)
        if self.settings.semel_scrub_bytes_per_second > 0 and self._is_on_disk:
            self._start("scrub", Scrub(self).run())

    async def _begin(self) -> None:
        (cluster,) = await self.store.ledger.load([ClusterKey()])
        self._publisher.cluster = cluster or Cluster()
        await self.policies.load()
        await self.count()
        await self._loop.load_open_transactions()
        self.clock.not_before(max(self._started_ms(), default=0))
        await self._loop.abort_older_terms()

    async def join(self, internal: tuple[str, int]) -> None:
        """Join the cluster and begin to serve. Other brokers reach this one at the address ``internal``."""
        if self.member is None:
            return
        endpoints = {name: (each.host, each.port) for name, each in self.endpoints.items()}
        await self.member.join(endpoints or {"": NOWHERE}, internal, self.settings.broker_rack or None)
        self._start("cluster member", self.member.run())

    async def leave(self) -> None:
        """Give all shards of this broker to other brokers, because it stops."""
        if self.member is not None and not self._has_left:
            self._has_left = True
            # Commands of the housekeeping would be refused from now on. The next owners do its work.
            self._housekeeping_task.cancel()
            await self.member.leave()

    def _start(self, name: str, work: Work[None]) -> "asyncio.Task[None]":
        task: asyncio.Task[None] = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fatal(error)

    async def close(self) -> None:
        """Finish submitted commands and close the store. A kill leaves the same data."""
        commit_loop, *others = self._tasks
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if not commit_loop.done():
            await self.leave()
        self._loop.stop()
        await asyncio.gather(commit_loop, return_exceptions=True)
        if self.member is not None:
            await self.member.stop()
        self._validators.shutdown(wait=False, cancel_futures=True)
        await self.store.close()

    def end_waits(self) -> None:
        """Answer waiting fetches and parked requests now, because the broker stops. Clients retry."""
        self.reads.end_waits()
        self.share_waits.end()
        self._loop.end_waits()

    async def count(self) -> None:
        """Update ``counts`` from the ledger."""
        self._publisher.counts = await self.store.ledger.counts()

    async def has_room_for_group(self, group_id: str) -> bool:
        """Whether the group exists, or may be created within ``semel.groups.max``."""
        if self.counts.groups < self.settings.semel_groups_max:
            return True
        return await self.ask(DescribeGroup(group_id)) is not None

    def _configure(self, settings: Settings) -> None:
        """Apply changed settings."""
        self.settings = settings
        self.catalog.configure(settings.dotted())
        self.reads.settings = settings
        self._loop.state.migration = migration_of(settings)
        self._housekeeping.reschedule()

    @property
    def cluster(self) -> Cluster:
        """The entity of the cluster. Only its features are kept up to date."""
        return self._publisher.cluster

    @property
    def may_act_as_broker(self) -> bool:
        """Whether clients may send inter-broker requests. If ACLs are enabled, the ACLs decide instead."""
        return self.policies.has_authorizer or self.settings.semel_cluster_action_enable

    @property
    def is_serving(self) -> bool:
        """Whether clients are served: in a cluster, only while the lease runs."""
        return self.member is None or self.member.is_serving

    @property
    def counts(self) -> Counts:
        """The numbers of entities that clients have created."""
        return self._publisher.counts

    def now(self) -> int:
        """Milliseconds of the monotonic clock: for timeouts."""
        return self.clock.now()

    def time_of_day(self) -> int:
        """Milliseconds of the system clock: for timestamps, and for retention over days."""
        return self.clock.time_of_day()

    async def advance(self, ms: int) -> None:
        """Move the clock ahead, then run all rounds of the housekeeping. Raises StoreRefused."""
        # Begin the sessions that are due since a start first, so that the time that passes here counts.
        await self._housekeeping.begin_sessions()
        self.clock.advance(ms)
        await self._housekeeping.catch_up()

    def new_ticket(self) -> int:
        """A ticket for a command that may be parked."""
        return next(self._tickets)

    def submit(
        self, commands: Sequence[Command[T]], when_parked: Callable[[], None] | None = None
    ) -> Promise[list[T]]:
        """Submit commands, which one tick decides in this order. Returns their answers when all are durable.

        Raises ``StoreRefused`` if they are refused, for example for lack of room. Cancelling the wait does
        not cancel the commands. ``when_parked`` is called if an answer has to wait for other clients.
        """
        return self._loop.submit(commands, when_parked)

    async def beside(self, work: Callable[[], T]) -> T:
        """Run long work on a validation thread. It must not touch the broker's state."""
        return await asyncio.get_running_loop().run_in_executor(self._validators, work)

    async def ask(self, command: Command[T]) -> T:
        """Submit one command and await its answer."""
        return (await self.submit([command]))[0]

    async def ask_each(self, commands: Sequence[Command[T]]) -> list[T]:
        """Submit independent commands and return their answers. A long list is divided into several ticks."""
        answers: list[T] = []
        async for some in self.slices.over(commands):
            answers += await self.submit(some)
        return answers

    async def flush(self) -> bool:
        """Make all answered work durable and visible to readers. Returns False if the store refuses.

        Call it before reading from the ledger what may already have been acknowledged to a client.
        """
        return await self._loop.flush()

    @property
    def share_locks(self) -> Collection[ShareKey]:
        """The share-partitions of which members have acquired records."""
        return self._loop.state.share_locks.keys()

    def connection_gone(self, connection_id: int) -> None:
        """Abort the transactions of a closed connection, if transaction.abort.on.disconnect is set."""
        # What follows is queued after the client's own requests.
        CLIENT.set(connection_id)
        for each in self.when_gone:
            each(connection_id)
        ids = self._loop.latest_connections.gone(connection_id)
        if ids:
            # If there is no room, the timeout aborts them later.
            self._loop.submit([AbortOpen(each, connection=connection_id) for each in ids])

    def overdue_transactions(self) -> list[str]:
        """The open transactions whose deadline has passed."""
        now = self.now()
        return [each for each, deadline in self._loop.state.ongoing.items() if 0 <= deadline < now]

    def _oldest_age(self) -> float:
        started = min(self._started_ms(), default=None)
        return 0.0 if started is None else (self.now() - started) / 1000

    def _started_ms(self) -> list[int]:
        """When the open transactions began, by the monotonic clock."""
        state = self._loop.state
        known = (state.transactions.get(TransactionKey(each)) for each in state.ongoing)
        return [each.started_ms for each in known if each is not None]

    async def delete_records(self, partition: PartitionKey, offset: int) -> RecordsDeleted:
        """Advance the log start offset. Retries if it moved meanwhile."""
        if partition in self._loop.unsynced.partitions:
            await self._loop.flush()
        newest = await self.reads.partition(partition)
        if newest is not None and offset > newest.high_watermark:
            # Refused here, because later appends may reach the offset before the command is decided.
            return RecordsDeleted(ErrorCode.OFFSET_OUT_OF_RANGE)
        while True:
            # Read before the size: the size is wrong if batches are replaced after this.
            newest = await self.reads.partition(partition)
            compactions = 0 if newest is None else newest.compactions
            log_start, size_below = await self.store.ledger.size_below(partition, offset)
            answer: RecordsDeleted = await self.ask(
                DeleteRecords(partition, offset, log_start, size_below, compactions)
            )
            if answer.error is not ErrorCode.KAFKA_STORAGE_ERROR:
                return answer


def _directory(place: Path | Remote | None) -> str:
    """The location of the data as clients see it: an absolute path if it is a directory."""
    if place is None:
        return "memory"
    if isinstance(place, Path):
        return str(place.absolute())
    address = urlsplit(place.chunks)
    if address.scheme == "file":
        return unquote(address.path)
    # Hide the password and the options of an address from clients.
    return urlunsplit((address.scheme, address.netloc.rpartition("@")[2], address.path, "", ""))


def _log_fatal(error: BaseException) -> None:
    log.critical("the broker stops after an error: %r", error, exc_info=error)
