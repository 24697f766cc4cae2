"""Simulates several brokers over one ledger: their starts and ends, and the faults that separate them.

A broker is a process (``processes``): it can be killed, paused, stopped, and cut off from the ledger, from
other brokers, or from clients. Each life has its own time of day, which may be wrong by an hour.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any, Final

from semel.broker.broker import Broker
from semel.broker.cluster.commit_loop import SharedCommitLoop
from semel.broker.cluster.shard_ownership import ShardOwnership
from semel.broker.ownership import Endpoint
from semel.config import Settings
from semel.core.topics import CreateTopic
from semel.core.transactions.commands import ChangeFeature, ReadFeatures
from semel.core.types import TransactionKey, TransactionState
from semel.store.contract import StoreBroken, StoreRefused
from simulation.faults import Faults
from simulation.invariants import of_copies, of_logs
from simulation.peers import SimulatedPeers
from simulation.processes import OUTSIDE, Process, ProcessLoop
from simulation.shared_ledger import LedgerServer
from simulation.shared_store import SharedSimulatedStore, Wire, open_shared
from simulation.virtual_time import sleep
from simulation.world import Life, VirtualClock

HOUR_MS: Final = 3_600_000
TRIES: Final = 3
"""How often copies are compared: a commit of a group may be in progress."""
INTERNAL: Final = "simulated"


class BrokerLife(Life):
    """One life of a broker among several."""

    def __init__(self, broker: Broker, process: Process, wire: Wire) -> None:
        super().__init__(broker)
        self.process = process
        self.wire = wire
        self.is_stopping = False

    def do(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run a task of this process."""
        return self.wire.server.loop.create_task(work, context=self.process.context.copy())

    @property
    def ownership(self) -> ShardOwnership:
        """The owners of shards, as this broker knows them."""
        ownership = self.broker.ownership
        assert isinstance(ownership, ShardOwnership)
        return ownership

    @property
    def is_announcing(self) -> bool:
        """Whether answers of this broker wait until other brokers have its notices."""
        loop = self.broker._loop
        assert isinstance(loop, SharedCommitLoop)
        return len(loop.unannounced) > 0


class ClusterWorld:
    """The brokers, their ledger, and their faults."""

    def __init__(
        self,
        loop: ProcessLoop,
        random: Random,
        faults: Faults,
        settings: Settings,
        topics: dict[str, dict[str, str]],
        brokers: int,
    ) -> None:
        self.loop = loop
        self.random = random
        self.faults = faults
        self.settings = settings
        self.topics = topics
        self.server = LedgerServer(loop, random, faults.flush_seconds_max)
        self.nodes: Final = tuple(range(1, brokers + 1))
        self.lives = 0
        self.errors: list[BaseException] = []
        """Unexpected errors that ended a life."""
        self.last_arrival = 0.0
        self._alive: dict[int, BrokerLife] = {}
        self._starting: dict[int, Process] = {}
        self._absent = {self.nodes[-1]} if brokers > 2 and faults.odds.get("joined broker") else set()
        """Brokers that have not joined yet."""
        self._cut: set[frozenset[int]] = set()
        self._connections = count(1)
        self._changed = asyncio.Event()

    # -- for clients and peers ----------------------------------------------------------------------------

    def next_connection(self) -> int:
        """Return the next connection number."""
        return next(self._connections)

    def life_at(self, node: int) -> BrokerLife | None:
        """Return the life of a broker, if it runs."""
        return self._alive.get(node)

    def is_cut(self, one: int, other: int) -> bool:
        """Whether two brokers cannot reach each other."""
        return frozenset((one, other)) in self._cut

    # -- lives --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin the first lives. Some brokers may join later."""
        await asyncio.gather(*(self._start(node) for node in self.nodes if node not in self._absent))
        await self.settled()

    async def _start(self, node: int) -> None:
        """Begin a life. If it is killed during its start, begin another one."""
        while node not in self._alive and node not in self._starting:
            process = self._starting[node] = Process(self.loop, node)
            self.lives += 1
            begun = self.loop.create_task(self._begin(node, process, self.lives), context=process.context)
            if is_killed := self.faults.happens(self.random, "killed while starting"):
                await sleep(self.random.uniform(0, 0.02))
                self._end(node, process)
            await asyncio.wait([begun])
            del self._starting[node]
            error = None if begun.cancelled() else begun.exception()
            if begun.cancelled() or error is not None or is_killed:
                self._end(node, process)
            if error is not None and not isinstance(error, StoreBroken | StoreRefused):
                self.errors.append(error)
                return

    async def _begin(self, node: int, process: Process, number: int) -> None:
        wire = Wire(self.server, self.random, self.faults)
        store: Any = await open_shared(wire, node, number)
        clock = VirtualClock(self.loop, self.random.randint(-HOUR_MS, HOUR_MS))
        settings = replace(self.settings, node_id=node)
        broker = Broker(
            settings, store, None, clock, lambda secret: SimulatedPeers(self, node), self.loop.time
        )
        broker.endpoints["x"] = Endpoint("simulated", 9092)
        life = BrokerLife(broker, process, wire)
        broker.fatal = lambda error: self._failed(node, life, error)
        await broker.begin()
        self._alive[node] = life
        await broker.join((INTERNAL, node))
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _failed(self, node: int, life: BrokerLife, error: BaseException) -> None:
        if life.is_over:
            return
        if not isinstance(error, StoreBroken):
            self.errors.append(error)
        self._kill(node)

    def _end(self, node: int, process: Process) -> None:
        life = self._alive.get(node)
        process.kill()
        if life is not None and life.process is process:
            del self._alive[node]
            life.is_over = True
            store = life.broker.store
            if isinstance(store, SharedSimulatedStore) and self.random.random() < 0.5:
                store.disconnect()

    def _kill(self, node: int) -> None:
        """End a process. Another life begins soon after."""
        life = self._alive.get(node)
        if life is None:
            return
        is_starting = node in self._starting
        self._end(node, life.process)
        if not is_starting:
            self._later(self._start_again, node, self.random.choice((0.01, 0.1, 0.8)))

    def _later(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        self.loop.call_soon(lambda: self.loop.create_task(work(*arguments)), context=OUTSIDE)

    async def _start_again(self, node: int, seconds_max: float) -> None:
        await sleep(self.random.uniform(0, 0.0 if self.faults.is_over else seconds_max))
        await self._start(node)

    # -- trouble ------------------------------------------------------------------------------------------

    async def trouble(self) -> None:
        """Disturb the brokers until the faults are over; then start those that have not joined yet."""
        while not self.faults.is_over:
            await sleep(self.random.uniform(0.01, 0.1))
            self._disturb(self.random.choice(self.nodes))
        for node in sorted(self._absent):
            self._absent.discard(node)
            await self._start(node)

    def _disturb(self, node: int) -> None:
        life = self._alive.get(node)
        happens = self._happens
        if happens("crashed ledger"):
            self.server.crash()
            self.server.is_away = True
            self._heal_later(lambda: setattr(self.server, "is_away", False), 0.2)
        if node in self._absent:
            if happens("joined broker"):
                self._absent.discard(node)
                self._later(self._start, node)
            return
        if life is None or life.is_stopping or node in self._starting:
            return
        if happens("killed broker"):
            self._kill(node)
        elif happens("stopped broker"):
            life.is_stopping = True
            self._later(self._stop, node, life)
        elif happens("paused broker"):
            life.process.pause()
            self._heal_later(life.process.resume)
        elif happens("cut from ledger"):
            life.wire.is_cut = True
            self._heal_later(lambda: setattr(life.wire, "is_cut", False))
        elif happens("cut from clients"):
            life.is_cut = True
            self._heal_later(lambda: setattr(life, "is_cut", False))
        elif happens("cut from a broker"):
            pair = frozenset((node, self.random.choice(self.nodes)))
            self._cut.add(pair)
            self._heal_later(lambda: self._cut.discard(pair))

    def _happens(self, kind: str) -> bool:
        return self.faults.happens(self.random, kind)

    def _heal_later(self, heal: Callable[[], None], seconds_max: float = 1.2) -> None:
        self.loop.call_later(self.random.uniform(0, seconds_max), heal)

    async def _stop(self, node: int, life: BrokerLife) -> None:
        """Stop a broker cleanly. It may be killed meanwhile."""
        await asyncio.wait([life.do(life.broker.leave())])
        await sleep(self.random.uniform(0, 0.05))
        if life.is_over:
            return
        await asyncio.wait([life.do(life.broker.close())])
        if not life.is_over:
            self._end(node, life.process)
            await self._start_again(node, 0.3)

    # -- the end ------------------------------------------------------------------------------------------

    async def alive(self) -> BrokerLife:
        """Return a life, or wait for one."""
        while not self._alive:
            await self._changed.wait()
        return next(iter(self._alive.values()))

    def everybody(self) -> list[BrokerLife]:
        """Return all lives, ordered by broker."""
        return [self._alive[node] for node in sorted(self._alive)]

    def unsettled(self) -> str:
        """Return what has not settled yet; empty if everything has."""
        missing = [node for node in self.nodes if node not in self._alive and node not in self._absent]
        if missing or self._starting:
            return f"brokers do not run: {missing}, {sorted(self._starting)}"
        for life in self.everybody():
            mine = {at for at, shard in enumerate(self.server.shards) if shard.owner == life.broker.node_id}
            if life.ownership.shards() != mine or not life.ownership.is_serving():
                return f"broker {life.broker.node_id} does not serve its shards"
            if life.ownership._shards != self.server.shards or len(life.ownership.nodes()) != len(
                self._alive
            ):
                return f"broker {life.broker.node_id} does not know the others"
            best = life.ownership.best_owners(mine)
            if any(owner != life.broker.node_id for owner in best.values()):
                return f"shards of broker {life.broker.node_id} are about to move"
            if life.is_announcing:
                return f"broker {life.broker.node_id} has notices that have not arrived"
            if life.is_cut or life.wire.is_cut or life.process.is_paused:
                return f"broker {life.broker.node_id} is cut off"
        if unowned := sum(shard.owner is None for shard in self.server.shards):
            return f"{unowned} shards have no owner"
        if self.server.notices or self.server.is_away or self._cut:
            return "there are notices that nobody has carried out"
        hanging = self.open_transactions()
        return f"hanging transactions: {hanging}" if hanging else ""

    async def settled(self) -> None:
        """Wait until every broker runs and serves its shards."""
        while self.unsettled():
            await sleep(0.02)

    def open_transactions(self) -> list[str]:
        """Return the open transactions in the ledger."""
        return sorted(
            key.transactional_id
            for (kind, key), value in self.server.ledger.values.items()
            if kind is TransactionKey and value.state is TransactionState.ONGOING
        )

    async def turn(self) -> None:
        """Wait for a tick of every broker."""
        for life in self.everybody():
            await life.broker.flush()
            await life.broker.ask(ReadFeatures())

    async def violations(self) -> list[str]:
        """Return what is wrong in the ledger and in memory, once everything has settled."""
        found = self.server.lost() + of_logs(self.server.bytes, self.server.ledger)
        for life in self.everybody():
            found += await self._differences(life)
        return found

    async def _differences(self, life: BrokerLife) -> list[str]:
        """Return the copies of a broker that differ from the ledger in every try."""
        loop: Any = life.broker._loop

        async def compare() -> list[str]:
            return of_copies(life.broker, self.server.ledger)

        found: list[str] = []
        for _ in range(TRIES):
            if not (found := await loop.between_ticks(compare)):
                return []
            await sleep(0.1)
        return [f"broker {life.broker.node_id}: {each}" for each in found]

    async def make_topics(self, transaction_version: int) -> None:
        """Create the topics, before any fault."""
        broker = (await self.alive()).broker
        await broker.ask(ChangeFeature(transaction_version))
        for name, configs in self.topics.items():
            partitions = int(configs["partitions"])
            kept = {key: value for key, value in configs.items() if key != "partitions"}
            await broker.ask(CreateTopic(name, name.encode().ljust(16, b"."), partitions, kept))

    async def stop(self) -> None:
        """End the history."""
        for node, life in list(self._alive.items()):
            self._end(node, life.process)
        await sleep(0)
