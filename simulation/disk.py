"""A disk that outlives the broker, and the store of one life of the broker on it.

A commit is written, then flushed. Writes survive the end of the process. When the *power* fails, unflushed
writes are lost, or a suffix of them is; the next life then begins a new term. Time passes between the steps,
so a crash finds a commit in every state: not written, written, flushed, answered.

Writes may fail: for lack of room, before anything was written; or with an unknown outcome.
"""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple, Protocol

from semel.core.types import Buffer, Fact
from semel.store.contract import BatchLocation, StoreBroken, StoreFull
from simulation.faults import Faults
from simulation.ledger import SimulatedLedger
from simulation.virtual_time import sleep


class Written(NamedTuple):
    """One commit on the disk."""

    facts: Sequence[Fact]
    locations: Sequence[BatchLocation]


class Disk:
    """The state that survives a broker."""

    def __init__(self) -> None:
        self.commits: list[Written] = []
        self.durable = 0
        """The number of flushed commits."""
        self.term = 1
        self.bytes: dict[int, bytes] = {}
        self._chunk = 0
        self.answered = 0
        """The number of commits that were answered as durable. They must never be lost."""
        self.ledger = SimulatedLedger()
        """The fold of the first ``_folded`` commits. Durable commits stay, so none is folded twice."""
        self._folded = 0

    def write(self, facts: Sequence[Fact], batches: Sequence[Buffer]) -> None:
        """Hand a commit to the operating system."""
        locations: list[BatchLocation] = []
        for batch in batches:
            self._chunk += 1
            self.bytes[self._chunk] = bytes(batch)
            locations.append(BatchLocation(self._chunk, 0, len(batch)))
        self.commits.append(Written(tuple(facts), tuple(locations)))

    def flush(self) -> None:
        """Flush everything written."""
        self.durable = len(self.commits)

    def fold(self) -> None:
        """Fold everything durable into the ledger."""
        for written in self.commits[self._folded : self.durable]:
            self.ledger.fold(written.facts, written.locations)
        self._folded = self.durable

    def lose_power(self, random: Random) -> None:
        """Lose unflushed commits, or a suffix of them."""
        del self.commits[random.randint(self.durable, len(self.commits)) :]
        self.durable = len(self.commits)
        self.term += 1

    def find_after_kill(self) -> None:
        """Keep all writes after a kill: the operating system has them, and flushes them eventually."""
        self.durable = len(self.commits)


class _Bytes(Protocol):
    bytes: dict[int, bytes]


class SimulatedChunks:
    """A chunk store in which every batch is a chunk of its own."""

    def __init__(self, disk: _Bytes) -> None:
        self._disk = disk

    async def read(self, locations: Sequence[BatchLocation]) -> list[bytearray]:
        """Return the bytes at these locations."""
        return [bytearray(self._disk.bytes[chunk_id]) for chunk_id, _, _ in locations]

    async def read_together(self, locations: Sequence[BatchLocation]) -> bytearray:
        """Return the bytes at these locations in one buffer."""
        return bytearray().join(await self.read(locations))

    def forget(self, location: BatchLocation) -> None:
        """Do nothing: there are no copies."""

    async def append(self, batches: Sequence[Buffer]) -> list[BatchLocation]:
        """Not used: commits carry their batches."""
        raise NotImplementedError

    async def release(self, locations: Sequence[BatchLocation]) -> None:
        """Do nothing: space is unlimited."""

    async def delete(self, chunk_id: int) -> None:
        """Do nothing: space is unlimited."""

    async def list_chunks(self) -> list[tuple[int, int]]:
        """Return nothing: chunks are not counted."""
        return []

    async def close(self) -> None:
        """Nothing to release."""


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
        """Whether some writes are not flushed."""
        return self._disk.durable < len(self._disk.commits)

    async def make_room(self, length: int) -> None:
        """Raise StoreFull sometimes."""
        if self._faults.happens(self._random, "full"):
            raise StoreFull("simulated: no room")

    async def commit(
        self, facts: Sequence[Fact], batches: Sequence[Buffer], *, defers_sync: bool = False
    ) -> int:
        """Write, then flush unless the sync is deferred."""
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
            # The state of the disk is unknown, so the next start must not assume that it has everything.
            disk.lose_power(self._random)
            raise StoreBroken("simulated: a flush failed")
        disk.durable = max(disk.durable, target)
        disk.fold()
        disk.answered = disk.durable
        return target

    async def checkpoint(self) -> None:
        """Make everything committed durable."""
        self._disk.flush()
        self._disk.fold()

    async def sweep_orphans(self) -> list[int]:
        """Return nothing: there are no orphans."""
        return []

    async def close(self) -> None:
        """Nothing to release."""
