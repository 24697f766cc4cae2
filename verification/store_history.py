"""Models what a store must hold after each commit, and compares recovered stores with it.

``History`` folds the facts of each commit with ``simulation.ledger``, which shares no code with SQLite. Every
commit allocates a producer id, so the next producer id of a store identifies its last commit.
"""

from typing import Final

from semel.broker.reads.batch_bytes import count_whole
from semel.core.types import Buffer, Cluster, ClusterKey, Fact, Key, PartitionKey
from semel.store.contract import BatchLocation
from semel.store.embedded.store import EmbeddedStore
from simulation.ledger import SimulatedLedger

EVERYTHING: Final = {"before": 2**62, "bytes_max": 2**40, "batches_max": 100_000}


class Torn(Exception):
    """The contents of a store match no commit."""


class History:
    """What a store must hold after each commit."""

    def __init__(self) -> None:
        self.models = [SimulatedLedger()]
        self.batches: list[bytes] = []
        """The bytes of all batches; in the model, the chunk id is the index."""
        self._by_next_id = {Cluster().next_producer_id: 0}
        self._keys: dict[Key, None] = {ClusterKey(): None}
        self.damaged: list[BatchLocation] | None = None
        """If set, locations of damaged batches are collected here instead of raising Torn."""

    def add(self, facts: list[Fact], batches: list[Buffer]) -> int:
        """Add a commit. Return the number of commits."""
        model = self.models[-1].copy()
        first = len(self.batches)
        self.batches += map(bytes, batches)
        model.fold(facts, [BatchLocation(first + at, 0, len(batch)) for at, batch in enumerate(batches)])
        self._keys.update((key, None) for _, key in model.values)
        self.models.append(model)
        self._by_next_id[model.values[ClusterKey, ClusterKey()].next_producer_id] = len(self.models) - 1
        return len(self.models) - 1

    def cut(self, count: int) -> None:
        """Drop everything after this many commits."""
        del self.models[count + 1 :]
        self._by_next_id = {next_id: at for next_id, at in self._by_next_id.items() if at <= count}

    async def check(self, store: EmbeddedStore) -> int:
        """Compare the store with the model, and return the number of its commits. Torn if they differ."""
        (cluster,) = await store.ledger.load([ClusterKey()])
        count = self._by_next_id.get((cluster or Cluster()).next_producer_id)
        if count is None:
            raise Torn(f"the store says {cluster}, which was never so")
        model = self.models[count]
        keys = list(self._keys)
        for key, value in zip(keys, await store.ledger.load(keys), strict=True):
            expected = model.values.get((type(key), key))
            if expected != value and not (key == ClusterKey() and count == 0):
                raise Torn(f"after commit {count} {key} is {value}, not {expected}")
        if await store.ledger.topics() != await model.topics():
            raise Torn(f"after commit {count} there are other topics")
        for partition in model.batches:
            await self._check_log(store, model, partition)
        return count

    async def _check_log(self, store: EmbeddedStore, model: SimulatedLedger, partition: PartitionKey) -> None:
        found = await store.ledger.find_batches(partition, 0, **EVERYTHING)
        expected = model.batches[partition]
        if [each[:3] for each in found] != [each[:3] for each in expected]:
            raise Torn(f"{partition} has the batches {found}, not {expected}")
        for row, each in zip(found, expected, strict=True):
            try:
                (batch,) = await store.chunks.read([row.location])
                what = "other" if count_whole([row], [batch]) else "damaged"
            except (LookupError, OSError):
                batch, what = bytearray(), "no"
            if _unstamped(batch) == _unstamped(self.batches[each.location.chunk_id]):
                continue
            if self.damaged is None or what == "other":
                raise Torn(f"{partition} has {what} bytes at offset {each.base_offset}")
            self.damaged.append(row.location)
        # Compare from the log start on: what is below may or may not be swept yet.
        first = model.values[PartitionKey, partition].log_start_offset
        if await store.ledger.aborted(partition, first, 2**62) != await model.aborted(
            partition, first, 2**62
        ):
            raise Torn(f"{partition} tells readers of other aborted transactions")


def _unstamped(batch: Buffer) -> bytes:
    """Return a batch without the fields that the broker stamps when it is read."""
    return bytes(batch[8:12]) + bytes(batch[16:])
