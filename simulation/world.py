"""Simulates one broker through its lives, and the clock of each life.

A life may end at any point: its tasks stop where they wait, no request is answered, and its connections are
closed. The disk survives (``disk``).
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from semel.broker.broker import Broker
from semel.broker.clock import Clock
from semel.broker.ownership import Endpoint
from semel.config import Settings
from semel.core.topics import CreateTopic
from semel.core.transactions.commands import ChangeFeature, ReadFeatures
from semel.handlers import HANDLERS
from semel.handlers.context import CloseConnection, RequestContext
from semel.store.contract import StoreBroken
from simulation.disk import Disk, SimulatedStore
from simulation.faults import Faults
from simulation.invariants import violations_of_one as single
from simulation.virtual_time import VirtualLoop, sleep

EPOCH_MS = 1_700_000_000_000
STEP_MS_MAX = 1_800_000


class VirtualClock(Clock):
    """The clock of one life. Each life may start with another time of day, and the clock may be set."""

    def __init__(self, loop: VirtualLoop, offset_ms: int, step: tuple[float, int] = (0.0, 0)) -> None:
        self._loop = loop
        self._step_at, self._step_ms = step
        self._day_starts_ms = EPOCH_MS + offset_ms
        super().__init__(self._seconds, loop.time)

    def _seconds(self) -> float:
        step_ms = self._step_ms if self._loop.now >= self._step_at else 0
        return (self._day_starts_ms + step_ms) / 1000 + self._loop.now


class Life:
    """One life of the broker, from its start to its end."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.is_over = self.is_cut = False
        # Ordered by their start, so that they are always cancelled in the same order.
        self.tasks: dict[asyncio.Task[Any], None] = {}

    def do(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run a task that ends with this life."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks[task] = None
        task.add_done_callback(self.tasks.pop)
        return task

    async def handle(self, request: Any, context: RequestContext) -> Any:
        """Return the broker's answer; None if it closes the connection instead."""
        try:
            return await HANDLERS[request.api_key](self.broker, request, context)
        except CloseConnection:
            return None

    def gone(self, connection: int) -> None:
        """Notice that a client has closed its connection. Only share sessions end with it."""
        if self.broker.when_gone and not self.is_over:
            self.do(self._forget(connection))

    async def _forget(self, connection: int) -> None:
        self.broker.connection_gone(connection)

    def end(self) -> None:
        """Stop every task where it is."""
        self.is_over = True
        for task in [*self.tasks, *self.broker._tasks]:
            task.cancel()


class World:
    """The broker, its disk, and their faults."""

    def __init__(
        self,
        loop: VirtualLoop,
        random: Random,
        faults: Faults,
        settings: Settings,
        topics: dict[str, dict[str, str]],
    ) -> None:
        self.loop = loop
        self.random = random
        self.faults = faults
        self.settings = settings
        self.topics = topics
        self.disk = Disk()
        self.life: Life | None = None
        self.lives = 0
        self.errors: list[BaseException] = []
        """Unexpected errors that ended a life."""
        self.at_end: list[Callable[[Life], None]] = []
        """Called at the end of every life, before the disk changes."""
        self.last_arrival = 0.0
        """When the last abandoned request arrives."""
        self._connections = 0
        self._clock_offset_ms = 0
        self._is_starting = False
        self._begun = asyncio.Event()

    @property
    def nodes(self) -> tuple[int, ...]:
        """The only broker."""
        return (0,)

    def life_at(self, node: int) -> Life | None:
        """The current life."""
        return self.life

    def next_connection(self) -> int:
        """Return the next connection number, which is unique across lives."""
        self._connections += 1
        return self._connections

    async def start(self) -> None:
        """Begin a life. If it is killed during its start, begin another one."""
        self._is_starting = True
        try:
            while self.life is None:
                await self._try_to_start()
        finally:
            self._is_starting = False

    async def _try_to_start(self) -> None:
        step = (0.0, 0)
        if self.faults.happens(self.random, "clock jump"):
            self._clock_offset_ms += self.random.randint(-5_000, 20_000)
            # No more than a topic allows producer clocks to be ahead.
            chance = Random(self._clock_offset_ms)
            step = (self.loop.now + chance.uniform(0, 20), chance.randint(-STEP_MS_MAX, STEP_MS_MAX))
        store = SimulatedStore(self.disk, self.random, self.faults)
        clock = VirtualClock(self.loop, self._clock_offset_ms, step)
        broker = Broker(self.settings, store, None, clock)  # type: ignore[arg-type]
        broker.endpoints["x"] = Endpoint("simulated", 9092)
        life = Life(broker)
        broker.fatal = lambda error: self._failed(life, error)
        self.lives += 1
        begun = life.do(broker.begin())
        if self.faults.happens(self.random, "killed while starting"):
            await sleep(self.random.uniform(0, 0.004))
            if not begun.done():
                life.end()
                await asyncio.gather(begun, return_exceptions=True)
                self._find(is_power_lost=self.random.random() < 0.3)
                return
        try:
            await begun
        except StoreBroken:
            life.end()
            self._find(is_power_lost=False)
            return
        if life.is_over:
            # Its first commits failed before it could serve requests.
            self._find(is_power_lost=False)
            return
        self.life = life
        self._begun.set()

    async def make_topics(self, transaction_version: int) -> None:
        """Create the topics, before any fault."""
        assert self.life is not None
        await self.life.broker.ask(ChangeFeature(transaction_version))
        for name, configs in self.topics.items():
            partitions = int(configs["partitions"])
            kept = {key: value for key, value in configs.items() if key != "partitions"}
            topic_id = name.encode().ljust(16, b".")
            await self.life.broker.ask(CreateTopic(name, topic_id, partitions, kept))

    def _failed(self, life: Life, error: BaseException) -> None:
        if life.is_over:
            return
        if not isinstance(error, StoreBroken):
            self.errors.append(error)
        if life is self.life:
            self.end_life(is_power_lost=False)
        else:
            life.end()

    def end_life(self, *, is_power_lost: bool) -> None:
        """End the process or the machine. Another life begins soon after."""
        life, self.life = self.life, None
        if life is None:
            return
        self._begun.clear()
        life.end()
        for tell in self.at_end:
            tell(life)
        self._find(is_power_lost=is_power_lost)
        if not self._is_starting:
            self._is_starting = True
            self.loop.create_task(self._start_again())

    async def _start_again(self) -> None:
        await sleep(self.random.uniform(0.005, 0.15))
        try:
            await self.start()
        except Exception as error:  # noqa: BLE001 - any error is reported in the history
            self.errors.append(error)

    def _find(self, *, is_power_lost: bool) -> None:
        if is_power_lost:
            self.disk.lose_power(self.random)
        else:
            self.disk.find_after_kill()

    async def trouble(self) -> None:
        """End lives at random times."""
        while not self.faults.is_over:
            await sleep(self.random.uniform(0.02, 0.2))
            if self.life is None:
                continue
            if self.faults.happens(self.random, "killed broker"):
                self.end_life(is_power_lost=False)
            elif self.faults.happens(self.random, "lost power"):
                self.end_life(is_power_lost=True)

    def unsettled(self) -> str:
        """Return what has not settled yet; empty if everything has."""
        state: Any = self.life.broker._loop.state if self.life else None
        if state is None:
            return "the broker does not run"
        return f"hanging transactions: {sorted(state.ongoing)}" if state.ongoing else ""

    async def turn(self) -> None:
        """Wait for a tick."""
        await (await self.alive()).broker.ask(ReadFeatures())

    async def violations(self) -> list[str]:
        """Return what is wrong on the disk and in memory, once everything has settled."""
        broker = (await self.alive()).broker
        return await single(self.disk, broker)

    async def alive(self) -> Life:
        """Return the current life, or wait for the next one."""
        while self.life is None:
            await self._begun.wait()
        return self.life

    async def stop(self) -> None:
        """End the history."""
        if self.life is not None:
            life, self.life = self.life, None
            with contextlib.suppress(asyncio.CancelledError):
                await life.broker.close()
            life.end()
