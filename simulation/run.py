"""Run one history from its plan to its verdict.

A history begins with faults. Then the faults stop, and every actor must finish. Then everything is read once
more in both isolation levels. The checker verifies that no client got a false answer, and the invariants of
disk and memory are checked (``invariants``).
"""

import asyncio
import hashlib
import itertools
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

from semel.broker.cluster import member as cluster_member
from semel.check import check
from semel.check.history import Operation, Visibility
from semel.client.consume.offsets import Isolation
from semel.config import Settings
from semel.core.transactions import model
from semel.wire.errors import ErrorCode
from simulation import virtual_time
from simulation.actors import Actor, IdempotentWriter, PlainWriter, Reader, TransactionalWriter, until
from simulation.administrator import SIDE, Administrator
from simulation.cluster import ClusterWorld
from simulation.copying import Copier
from simulation.network import Caller, Refused, Unanswered
from simulation.plan import JOBS, RESULTS, Plan
from simulation.processes import ProcessLoop
from simulation.queue_member import LONG_LOCK_MS, SHORT_LOCK_MS, configure_queue, wider_limits
from simulation.reading import Polled, poll
from simulation.recording import Recording
from simulation.staleness import stale_reads
from simulation.virtual_time import VirtualLoop
from simulation.working import Worker, wrong_results
from simulation.world import World

VISIBILITIES: dict[str, Visibility] = {
    "marked": "marker",
    "staged": "journal",
    "input": "marker",
    "output": "journal",
}
PARTITIONS = 2
PATIENCE_SECONDS = 60.0
"""The virtual time in which every actor must finish once there are no faults."""
LOOK_SECONDS = 0.5
QUIET_SECONDS = 2.5
"""If a worker takes no job for so long, there is none: locks are shorter."""


@dataclass(slots=True)
class HistoryResult:
    """The result of one history."""

    plan: Plan
    problems: list[str] = field(default_factory=list)
    """The problems, in the order in which they were found. Empty if the history is correct."""
    operations: list[Operation] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    lives: int = 0

    @property
    def digest(self) -> str:
        """A hash that is equal for equal histories."""
        told = repr((self.problems, self.operations, self.faults, self.lives))
        return hashlib.sha256(told.encode()).hexdigest()


def run(plan: Plan) -> HistoryResult:
    """Run the history of a plan."""
    with _settings(plan), wider_limits(), _ids_drawn_from(Random(f"ids {plan.seed}")):
        loop = VirtualLoop() if plan.brokers == 1 else ProcessLoop()
        history = _History(plan, loop)
        try:
            return virtual_time.run(loop, history.happen())
        except virtual_time.Standstill as still:
            return HistoryResult(plan, [*history.errors(), str(still)])


@contextmanager
def _settings(plan: Plan) -> Iterator[None]:
    """Exhaust epochs early, and have brokers look for open transactions often."""
    before = model.EPOCH_MAX, cluster_member.LOOK_SECONDS
    shared = cluster_member.LOOK_SHARE
    model.EPOCH_MAX, cluster_member.LOOK_SECONDS = plan.epoch_max, LOOK_SECONDS  # type: ignore[misc]
    cluster_member.LOOK_SHARE = 1  # type: ignore[misc]
    try:
        yield
    finally:
        model.EPOCH_MAX, cluster_member.LOOK_SECONDS = before  # type: ignore[misc]
        cluster_member.LOOK_SHARE = shared  # type: ignore[misc]


@contextmanager
def _ids_drawn_from(random: Random) -> Iterator[None]:
    """Make generated ids, such as those of topics, reproducible too."""
    before, uuid.uuid4 = uuid.uuid4, lambda: uuid.UUID(int=random.getrandbits(128), version=4)
    try:
        yield
    finally:
        uuid.uuid4 = before


class _History:
    def __init__(self, plan: Plan, loop: VirtualLoop) -> None:
        self._plan = plan
        self._random = Random(f"history {plan.seed}")
        settings = Settings(
            semel_entities_max=plan.entities_max,
            semel_durability="on_commit" if plan.defers_sync else "always",
            # In a cluster, larger batches are uploaded before they are decided.
            semel_inline_bytes_max=90 if plan.seed % 2 else 262_144,
            transaction_abort_timed_out_transaction_cleanup_interval_ms=50,
            group_consumer_session_timeout_ms=300,
            group_consumer_heartbeat_interval_ms=60,
            group_min_session_timeout_ms=100,
            group_initial_rebalance_delay_ms=30,
            group_share_session_timeout_ms=300,
            group_share_heartbeat_interval_ms=60,
        )
        topics = {
            name: {"partitions": str(PARTITIONS), "semel.visibility": visibility}
            for name, visibility in VISIBILITIES.items()
        }
        topics[SIDE] = {"partitions": "1"}
        self._world: World | ClusterWorld
        if isinstance(loop, ProcessLoop):
            self._world = ClusterWorld(loop, self._random, plan.faults(), settings, topics, plan.brokers)
        else:
            self._world = World(loop, self._random, plan.faults(), settings, topics)
        self._recording = Recording(
            loop, VISIBILITIES, tells_timeouts=plan.fences_for_a_reason, tells_ends=plan.brokers > 1
        )
        self._actors = [self._actor(at, kind) for at, kind in enumerate(plan.actors)]

    def _actor(self, at: int, kind: str) -> Actor:
        plan, world, history = self._plan, self._world, self._recording
        name = f"{kind.replace(' ', '-')}-{at}"
        written = [(topic, index) for topic in plan.written for index in range(PARTITIONS)]
        everything = [(topic, index) for topic in VISIBILITIES for index in range(PARTITIONS)]
        generation = 1 if "first" in kind else 2
        match kind:
            case "first" | "second" | "twin first" | "twin second":
                if any(each == "administrator" for each in plan.actors):
                    written = [*written, (SIDE, 0)]
                twin = "twins" if kind.startswith("twin") else None
                return TransactionalWriter(
                    world, history, name, written, generation, plan.timeout_ms, twin, plan.first_sequence
                )
            case "copier first" | "copier second":
                target = ("output", PARTITIONS)
                return Copier(world, history, name, "input", target, generation, plan.timeout_ms)
            case "worker":
                return self._worker(name)
            case "idempotent":
                # Few partitions, so that a late batch finds many others appended before it.
                few = self._random.sample(written, 2)
                return IdempotentWriter(world, history, name, few, plan.first_sequence)
            case "plain":
                return PlainWriter(world, history, name, written)
            case "committed reader":
                return Reader(world, history, name, everything, Isolation.READ_COMMITTED)
            case "uncommitted reader":
                return Reader(world, history, name, everything, Isolation.READ_UNCOMMITTED)
            case "administrator":
                return Administrator(world, history, name)
        raise ValueError(f"nobody is called {kind!r}")

    def _worker(self, name: str) -> Worker:
        places = (JOBS, PARTITIONS), (RESULTS, PARTITIONS)
        return Worker(self._world, self._recording, name, *places, self._plan.timeout_ms)

    def errors(self) -> list[str]:
        """Unexpected errors that ended a life."""
        return [f"a life ended by {error!r}" for error in self._world.errors]

    async def happen(self) -> HistoryResult:
        """Run the history from beginning to end."""
        outcome = HistoryResult(self._plan)
        world = self._world
        trouble, world.faults.odds = world.faults.odds, {}
        await world.start()
        await world.make_topics(self._plan.transaction_version)
        if self._plan.has_workers:
            lock_ms = LONG_LOCK_MS if self._plan.seed % 3 == 0 else SHORT_LOCK_MS
            await configure_queue(Caller(world, "the beginning"), lock_ms)
        world.faults.odds = trouble
        tasks = [asyncio.ensure_future(actor.live()) for actor in self._actors]
        chaos = asyncio.ensure_future(world.trouble())
        await virtual_time.sleep(self._plan.seconds)
        world.faults.is_over = True
        await chaos
        outcome.problems += await self._heal(tasks)
        outcome.problems += self.errors()
        if not outcome.problems and self._plan.has_workers:
            outcome.problems += await self._do_the_rest()
        if not outcome.problems:
            outcome.problems += await self._read_all()
        if not outcome.problems:
            verdict = check(self._recording.operations)
            outcome.problems += [str(each) for each in verdict.examples]
            outcome.problems += stale_reads(self._recording.operations)
        if not outcome.problems and self._plan.has_workers:
            outcome.problems += wrong_results(self._recording.operations, JOBS, RESULTS)
        if not outcome.problems:
            outcome.problems += await world.violations()
        outcome.operations = self._recording.operations
        outcome.faults, outcome.lives = world.faults.counts, world.lives
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await world.stop()
        return outcome

    async def _heal(self, tasks: Sequence["asyncio.Future[None]"]) -> list[str]:
        """Wait until every actor has finished and every transaction has ended."""
        for actor in self._actors:
            actor.is_ending = True
        done, waiting = await asyncio.wait(tasks, timeout=PATIENCE_SECONDS)
        problems = [f"{task.exception()!r} ended an actor" for task in done if task.exception()]
        names = [actor.name for actor, task in zip(self._actors, tasks, strict=True) if task in waiting]
        if waiting:
            problems.append(f"no end in sight for {', '.join(names)}")
        world = self._world
        await world.alive()
        # Late requests may still open a transaction.
        await virtual_time.sleep(max(0.0, world.last_arrival - world.loop.now) + 0.1)
        if not await until(world, lambda: not world.unsettled(), PATIENCE_SECONDS):
            problems.append(world.unsettled())
        else:
            # When this is answered, the last decision is durable and visible to readers.
            await world.turn()
        return problems

    async def _do_the_rest(self) -> list[str]:
        """Let workers do the remaining jobs, one worker after another, until there are none."""
        world, started = self._world, self._world.loop.now
        for number in itertools.count():
            worker = self._worker(f"last-worker-{number}")
            working = asyncio.ensure_future(worker.live())
            await virtual_time.sleep(QUIET_SECONDS)
            worker.is_ending = True
            await working
            if not worker.took_last:
                return []
            if world.loop.now - started > PATIENCE_SECONDS:
                return ["the jobs do not come to an end"]
        raise AssertionError("never")

    async def _read_all(self) -> list[str]:
        """Read everything with fresh readers."""
        caller = Caller(self._world, "the end")
        try:
            for topic in VISIBILITIES:
                for partition in range(PARTITIONS):
                    await self._read_to_end(caller, topic, partition, Isolation.READ_UNCOMMITTED)
                    end = await self._read_to_end(caller, topic, partition, Isolation.READ_COMMITTED)
                    self._recording.ends(topic, partition, 0, end.last_stable_offset, end.high_watermark)
        except (Unanswered, Refused):
            return ["the broker does not answer although nothing is wrong"]
        except LookupError as error:
            return [str(error)]
        return []

    async def _read_to_end(self, caller: Caller, topic: str, partition: int, isolation: Isolation) -> Polled:
        process = f"the end by {isolation.name}"
        self._recording.assigned(process, topic, partition, 0)
        position = 0
        while True:
            with self._recording.polling(process, topic, partition, isolation) as polled:
                found = await poll(caller, topic, partition, position, isolation)
                if found.error != ErrorCode.NONE:
                    raise LookupError(f"{topic}/{partition} at {position}: error {found.error}")
                polled.found = found
            is_committed = isolation is Isolation.READ_COMMITTED
            end = found.last_stable_offset if is_committed else found.high_watermark
            if found.next_offset == position or found.next_offset >= end:
                return found
            position = found.next_offset
