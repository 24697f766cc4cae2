"""A disk that outlives the broker, and the store of one life of the broker on it.

A commit is written, and then flushed. Whatever was written survives the end of the process. What was not
flushed when the *power* fails is lost, or a part of its end is; then the next life begins a new term. Between
the steps time passes, so a crash finds a commit in every state: not written, written, flushed, answered.

Writes may fail: for want of room, before anything was written; or so that nobody knows the outcome.
"""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from semel.core.types import Buffer, Fact
from semel.store.interface import BatchLocation, StoreBroken, StoreFull
from simulation.faults import Faults
from simulation.ledger import SimulatedLedger
from simulation.virtual_time import sleep


class Written(NamedTuple):
    """One commit on the disk."""

    facts: Sequence[Fact]
    locations: Sequence[BatchLocation]


class Disk:
    """What is left when a broker is gone."""

    def __init__(self) -> None:
        self.commits: list[Written] = []
        self.durable = 0
        """How many of them are flushed."""
        self.term = 1
        self.bytes: dict[int, bytes] = {}
        self._chunk = 0
        self.answered = 0
        """How many of them somebody was told of as durable. Never to be taken back."""
        self.ledger = SimulatedLedger()
        """What the first ``_folded`` of them come to. What is durable stays, so it is never folded anew."""
        self._folded = 0

    def write(self, facts: Sequence[Fact], batches: Sequence[Buffer]) -> None:
        """A commit reaches the operating system."""
        locations: list[BatchLocation] = []
        for batch in batches:
            self._chunk += 1
            self.bytes[self._chunk] = bytes(batch)
            locations.append(BatchLocation(self._chunk, 0, len(batch)))
        self.commits.append(Written(tuple(facts), tuple(locations)))

    def flush(self) -> None:
        """Everything that was written is on the disk."""
        self.durable = len(self.commits)

    def fold(self) -> None:
        """The ledger takes over everything that is durable."""
        for written in self.commits[self._folded : self.durable]:
            self.ledger.fold(written.facts, written.locations)
        self._folded = self.durable

    def lose_power(self, random: Random) -> None:
        """What was not flushed is gone, or the end of it is."""
        del self.commits[random.randint(self.durable, len(self.commits)) :]
        self.durable = len(self.commits)
        self.term += 1

    def find_after_kill(self) -> None:
        """The process is gone; the operating system has everything, and writes it in its own time."""
        self.durable = len(self.commits)


class SimulatedChunks:
    """Every batch is a chunk of its own."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    async def read(self, locations: Sequence[BatchLocation]) -> list[bytearray]:
        """The bytes at these places."""
        return [bytearray(self._disk.bytes[chunk_id]) for chunk_id, _, _ in locations]

    async def read_together(self, locations: Sequence[BatchLocation]) -> bytearray:
        """The bytes at these places, one behind another."""
        return bytearray().join(await self.read(locations))

    async def append(self, batches: Sequence[Buffer]) -> list[BatchLocation]:
        """Commits bring their batches along."""
        raise NotImplementedError

    async def release(self, locations: Sequence[BatchLocation]) -> None:
        """There is room."""

    async def delete(self, chunk_id: int) -> None:
        """There is room."""

    async def list_chunks(self) -> list[tuple[int, int]]:
        """Nobody counts."""
        return []

    async def close(self) -> None:
        """Nothing to let go of."""


class SimulatedStore:
    """The store of one life of the broker."""

    flush_seconds = 0.0
    stopped_cleanly = False
    cluster_id = "simulated"

    def __init__(self, disk: Disk, random: Random, faults: Faults) -> None:
        self._disk = disk
        self._random = random
        self._faults = faults
        self.term = disk.term
        self.chunks = SimulatedChunks(disk)
        disk.fold()
        self.ledger = disk.ledger

    @property
    def has_unsynced(self) -> bool:
        """Whether something is written and not flushed."""
        return self._disk.durable < len(self._disk.commits)

    async def make_room(self, length: int) -> None:
        """Sometimes there is none."""
        if self._faults.happens(self._random, "full"):
            raise StoreFull("simulated: no room")

    async def commit(
        self, facts: Sequence[Fact], batches: Sequence[Buffer], *, defers_sync: bool = False
    ) -> int:
        """Write, then flush unless it is early."""
        disk = self._disk
        if self._faults.happens(self._random, "full"):
            raise StoreFull("simulated: no room")
        await sleep(self._random.uniform(0, 0.001))
        if self._faults.happens(self._random, "broken write"):
            if self._random.random() < 0.5:
                disk.write(facts, batches)
            raise StoreBroken("simulated: a write failed")
        if facts:
            disk.write(facts, batches)
        if defers_sync:
            return len(disk.commits)
        target = len(disk.commits)
        await sleep(self._random.uniform(0, self._faults.flush_seconds_max))
        if self._faults.happens(self._random, "broken flush"):
            # Nobody knows what the disk has; the next start must not think that it has all.
            disk.lose_power(self._random)
            raise StoreBroken("simulated: a flush failed")
        disk.durable = max(disk.durable, target)
        disk.fold()
        disk.answered = disk.durable
        return target

    async def checkpoint(self) -> None:
        """Everything that was committed is durable."""
        self._disk.flush()
        self._disk.fold()

    async def sweep_orphans(self) -> list[int]:
        """There are none."""
        return []

    async def close(self) -> None:
        """Nothing to let go of."""
