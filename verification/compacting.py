"""Runs one compaction pass over a partition of a store, in one step, for workloads without a broker."""

from semel.core.log.compaction import Batch, Newest, Pass, ReplaceBatches
from semel.core.types import Partition, PartitionKey
from semel.store.embedded.store import EmbeddedStore

KEYS_MAX = 100


async def compaction_of(
    store: EmbeddedStore,
    topic: str,
    key: PartitionKey,
    partition: Partition,
    now: int,
    delete_retention_ms: int,
) -> ReplaceBatches | None:
    """Return the command that a broker would submit; None if nothing is stable yet."""
    end = partition.last_stable_offset
    rows = await store.ledger.find_batches(key, 0, before=end, bytes_max=2**40, batches_max=100_000)
    if not rows:
        return None
    data = await store.chunks.read([row.location for row in rows])
    batches = [Batch(*row[:3], each) for row, each in zip(rows, data, strict=True)]
    aborted = await store.ledger.aborted(key, rows[0].base_offset, end)
    newest = Newest(KEYS_MAX)
    newest.note(batches, aborted)
    going = Pass(
        newest,
        cleaned_offset=partition.cleaned_offset,
        end_offset=end,
        now=now,
        delete_retention_ms=delete_retention_ms,
    )
    replaced = going.compact(batches, aborted)
    assert not replaced.unreadable, "nothing here is damaged"
    return ReplaceBatches(
        key,
        partition.log_start_offset,
        partition.compactions,
        replaced.rewritten,
        replaced.records,
        replaced.removed,
        replaced.freed_bytes,
        cleaned_offset=end,
        topic=topic,
    )
