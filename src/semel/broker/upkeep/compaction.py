"""Compaction: decides when a partition is due, and runs passes over it.

``core.compaction`` decides which records stay. A partition is compacted up to its last stable offset, without
batches younger than ``min.compaction.lag.ms``. It is due when the bytes that no pass has seen (*dirty*) are
more than ``min.cleanable.dirty.ratio`` of that, or when the oldest of them exceeds ``max.compaction.lag.ms``.

A pass first notes the keys of the dirty part, then goes through the log from its start. Both are done in
steps: a step reads a bounded number of bytes and decodes them on a thread, one batch at a time. Its result is
one command, so one commit: old batches are swapped for new ones together, or not at all. Every swap records
how far the pass has come (``cleaned_offset``): gaps between batches are legitimate below, and the next pass
notes keys from there. A step that was overtaken, because the log start moved, is repeated.

A broker of a cluster compacts the partitions that it leads.

Readers may hold a partition (``Holds``). A pass over it does not begin, or ends at its next swap.

Memory: a pass that has noted ``semel.compaction.keys.max`` keys ends there, and another pass does the rest.

**Holds.** A reader that wants a log as it was at one moment cannot have it while compaction removes records.
It holds the partition: until the hold ends, compaction starts no swap of batches there. The reader renews the
hold for as long as it reads.

No client can stop compaction, because holds are bounded:

- A hold ends after ``semel.compaction.hold.ms`` unless it is renewed.
- A pass that is due waits for holds no longer than ``semel.compaction.hold.max.ms``. From then on holds of
  the partition have no effect until a pass over it is complete.
- At most ``HELD_MAX`` partitions are held.

Holds are kept in memory only. A reader compares ``Partition.compactions``, which is durable, before and after
it reads. So if a hold was lost or ignored, the reader reads again; its result is never wrong.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from semel.broker.catalog import TopicLimits
from semel.broker.upkeep.damage import gaps_in
from semel.core.log.compaction import Batch, Newest, Pass, ReplaceBatches
from semel.core.types import Partition, PartitionKey, Topic
from semel.store.contract import StoreRefused

if TYPE_CHECKING:
    from semel.broker.broker import Broker

HELD_MAX: Final = 10_000
"""Partitions that are held at the same time; each costs about 300 bytes."""


class _Hold:
    __slots__ = ("until", "waiting_since")

    def __init__(self) -> None:
        self.until = 0
        self.waiting_since: int | None = None
        """When compaction first found the partition held; None if no pass waits."""


class Holds:
    """The partitions that readers hold. Times are milliseconds of the broker's clock."""

    def __init__(self, hold_ms: int, wait_max_ms: int, held_max: int = HELD_MAX) -> None:
        self._hold_ms = hold_ms
        self._wait_max_ms = wait_max_ms
        self._held_max = held_max
        self._held: dict[PartitionKey, _Hold] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, key: PartitionKey, now: int) -> int:
        """Hold a partition, or renew its hold. Returns for how many milliseconds; 0 if it is not held."""
        held = self._held.get(key)
        if held is None:
            if len(self._held) >= self._held_max:
                self._forget_ended(now)
            if len(self._held) >= self._held_max:
                return 0
            held = self._held[key] = _Hold()
        held.until = now + self._hold_ms
        return max(0, min(self._hold_ms, self._left_ms(held, now)))

    def must_wait(self, key: PartitionKey, now: int) -> bool:
        """Whether a pass that is due has to wait."""
        held = self._held.get(key)
        if held is None or held.until <= now:
            return False
        if held.waiting_since is None:
            held.waiting_since = now
            log.info("compaction of %s waits for a reader that holds it", key)
        return self._left_ms(held, now) > 0

    def passed(self, key: PartitionKey, now: int) -> None:
        """Note that a pass is complete: readers may make the next one wait for the full time again."""
        held = self._held.get(key)
        if held is not None:
            held.waiting_since = None
            if held.until <= now:
                del self._held[key]

    def _left_ms(self, held: _Hold, now: int) -> int:
        """For how much longer a pass may be made to wait."""
        return self._wait_max_ms - (0 if held.waiting_since is None else now - held.waiting_since)

    def _forget_ended(self, now: int) -> None:
        # An ended hold is kept for the longest wait of a pass, so that a lapse does not restart that wait.
        for key in [key for key, held in self._held.items() if held.until + self._wait_max_ms <= now]:
            del self._held[key]


log = logging.getLogger("semel.housekeeping")

STEP_BYTES: Final = 4 * 1024 * 1024
"""Bytes that one step reads, and the most that its commit writes: other commands wait for it."""
STEP_BATCHES: Final = 1_000
_NEVER: Final = 2**63 - 1


class Compaction:
    """The housekeeping round that compacts partitions that are due."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    async def compact(self) -> None:
        """Compact every partition that is due and led here. StoreRefused if there was no room for one."""
        full: StoreRefused | None = None
        for topic in await self._broker.catalog.all():
            for key in self._broker.catalog.limits(topic).partitions:
                if not self._broker.ownership.leads(key):
                    continue
                try:
                    await self._compact_if_due(key)
                except StoreRefused as error:
                    # Other partitions may need less room, and may free what is missing here.
                    full = error
        if full is not None:
            raise full

    async def _topic(self, key: PartitionKey) -> Topic | None:
        """The current value of the topic, if it is compacted. Its policy may change during a long round."""
        topic = await self._broker.catalog.topic_by_id(key.topic_id)
        return topic if topic is not None and self._broker.catalog.limits(topic).compacts else None

    async def _compact_if_due(self, key: PartitionKey) -> None:
        topic = await self._topic(key)
        if topic is None:
            return
        limits = self._broker.catalog.limits(topic)
        partition = await self._broker.reads.partition(key)
        if partition is None:
            return
        first = _first_dirty(partition)
        end = await self._end(limits, key, partition)
        if first >= end or not await self._is_due(limits, key, first, end):
            return
        if self._broker.holds.must_wait(key, self._broker.now()):
            return
        while first < end:
            reached = await self._pass(limits, key, end)
            if reached is None:
                return
            first = reached

    async def _end(self, limits: TopicLimits, key: PartitionKey, partition: Partition) -> int:
        """One past the last offset that may be compacted now."""
        end = partition.last_stable_offset
        if limits.min_compaction_lag_ms:
            youngest = self._broker.time_of_day() - limits.min_compaction_lag_ms
            too_young = await self._broker.store.ledger.first_batch_since(key, youngest + 1)
            end = min(end, too_young.base_offset) if too_young is not None else end
        return end

    async def _is_due(self, limits: TopicLimits, key: PartitionKey, first: int, end: int) -> bool:
        ledger = self._broker.store.ledger
        _, clean_bytes = await ledger.size_below(key, first)
        _, all_bytes = await ledger.size_below(key, end)
        if all_bytes - clean_bytes > limits.min_cleanable_dirty_ratio * all_bytes:
            return True
        if limits.max_compaction_lag_ms == _NEVER:
            return False
        oldest = await ledger.find_batches(key, first, before=end, bytes_max=0, batches_max=1)
        latest_due = self._broker.time_of_day() - limits.max_compaction_lag_ms
        return bool(oldest) and oldest[0].max_timestamp < latest_due

    async def _pass(self, limits: TopicLimits, key: PartitionKey, end: int) -> int | None:
        """Compact up to an offset, or as far as the keys fit; returns how far. None if it was overtaken."""
        broker = self._broker
        partition = await broker.reads.partition(key)
        if partition is None:
            return None
        newest = Newest(broker.settings.semel_compaction_keys_max)
        end_offset = await self._note(key, newest, _first_dirty(partition), end)
        if end_offset <= _first_dirty(partition):
            return None
        going = Pass(
            newest,
            cleaned_offset=partition.cleaned_offset,
            end_offset=end_offset,
            now=broker.time_of_day(),
            delete_retention_ms=limits.delete_retention_ms,
        )
        offset = partition.log_start_offset
        while offset < end_offset:
            reached = await self._step(key, going, offset, end_offset)
            if reached is None:
                return None
            offset = reached
        broker.holds.passed(key, broker.now())
        return end_offset

    async def _step(self, key: PartitionKey, going: Pass, offset: int, end_offset: int) -> int | None:
        """Compact the next batches; returns how far. None if the pass must end.

        A pass ends if the partition is deleted, unreadable or led by another broker, is no longer compacted,
        or is held by a reader.
        """
        broker = self._broker
        topic = await self._topic(key)
        seen = await broker.reads.partition(key)
        if topic is None or seen is None:
            return None
        if seen.log_start_offset >= end_offset:
            return end_offset
        step = await self._read(key, max(offset, seen.log_start_offset), end_offset)
        if not step:
            return None
        reached = step[-1].last_offset + 1
        aborted = await broker.store.ledger.aborted(key, step[0].base_offset, reached)
        replaced = await asyncio.to_thread(going.compact, step, aborted)
        if replaced.unreadable:
            log.warning("compaction leaves damaged batches of %s: %s", key, replaced.unreadable)
        if not replaced.rewritten and not replaced.removed and reached < end_offset:
            return reached
        # Nothing is awaited between this check and the submission. So a hold is either seen here, or taken
        # after the submission; then the number of swaps that its reader gets includes this one.
        if broker.holds.must_wait(key, broker.now()) or not broker.ownership.leads(key):
            return None
        is_done = await broker.ask(
            ReplaceBatches(
                key,
                seen.log_start_offset,
                seen.compactions,
                *(replaced.rewritten, replaced.records, replaced.removed, replaced.freed_bytes),
                min(reached, end_offset),
                topic.name,
                broker.settings.log_cleanup_policy,
            )
        )
        if not is_done:
            # The log start has moved: repeat the step with the remaining batches.
            going.undo()
            return offset
        broker.metrics.compactions += 1
        broker.metrics.compacted_bytes += max(0, replaced.freed_bytes - sum(map(len, replaced.records)))
        return reached

    async def _note(self, key: PartitionKey, newest: Newest, first: int, end: int) -> int:
        """Note the keys between two offsets, as long as they fit; returns how far."""
        while first < end and not newest.is_full:
            step = await self._read(key, first, end)
            if not step:
                break
            behind = step[-1].last_offset + 1
            aborted = await self._broker.store.ledger.aborted(key, step[0].base_offset, behind)
            first = await asyncio.to_thread(newest.note, step, aborted)
        return first

    async def _read(self, key: PartitionKey, offset: int, end: int) -> list[Batch]:
        """The next batches below an offset. Empty if there are none, or if they cannot be read."""
        store = self._broker.store
        rows = await store.ledger.find_batches(
            key, offset, before=end, bytes_max=STEP_BYTES, batches_max=STEP_BATCHES
        )
        partition = await self._broker.reads.partition(key)
        gap = next(gaps_in(rows, offset, partition.cleaned_offset), None) if partition is not None else None
        if gap is not None and await self._broker.damage.is_missing(key, gap):
            # If compaction went on, the lost batches would look like a gap that compaction has left.
            return []
        try:
            data = await store.chunks.read([row.location for row in rows])
        except (LookupError, OSError) as error:
            log.warning("compaction of %s stops at offset %d: %s", key, offset, error)
            return []
        return [
            Batch(row.base_offset, row.last_offset, row.max_timestamp, piece)
            for row, piece in zip(rows, data, strict=True)
        ]


def _first_dirty(partition: Partition) -> int:
    return max(partition.cleaned_offset, partition.log_start_offset)
