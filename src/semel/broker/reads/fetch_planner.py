"""Fetch plans: which batches a fetch may return, found without reading their bytes.

The newest published value of a partition gives the bound: the high watermark, or the last stable offset for
READ_COMMITTED. Batches below it are found in the tail, else in the ledger. Everything in a plan comes from
one value of the partition, because a high watermark that is read twice may show a reader what it must not
see.

The ledger may be ahead of what was published, and records may be deleted meanwhile. So rows above the bound
are left out, and if there are no rows at all, ``is_gone`` is set.

A plan ends at a gap between rows, and the next one begins there. Only deletion and compaction leave gaps. If
the newest value of the partition knows of neither there, the ledger has lost a row (``missing``).

Byte budgets follow KIP-74: whole batches, within the limit of each partition and of the response; the first
partition that has any data returns at least one batch.

Index read-ahead: ledger rows for the next fetches of a sequential reader.

A sequential reader queries the index once per fetch, on a thread, which takes as long as copying the data. A
fetch that continues where another one ended is taken for sequential. The index is then queried for several
fetches at once, and the remaining rows are kept for the offset at which the next fetch starts.

A row is valid until compaction replaces its batch or the log start passes it. So rows are kept with the
number of compactions of the partition, and are not used with another number. Readers compare the log start
before and after reading, as they do for fresh rows, and apply their own bound, because the rows may have been
read for a reader that sees further.

Rows are used once. A reader whose bytes were released plans again from the ledger.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from semel.broker.reads.published_partitions import Isolation, PublishedPartitions, last_fetchable_offset
from semel.broker.reads.tail import Tail
from semel.broker.slices import SLICE_ITEMS, Slices
from semel.broker.upkeep.damage import Gap, is_lost
from semel.core.types import Buffer, ErrorCode, Partition, PartitionKey
from semel.store.contract import Ledger, LedgerDamaged, StoredBatch

PIECES: Final = 8
"""Fetches of a sequential reader that one query of the index serves."""
READERS_MAX: Final = 1_024
ROWS_MAX: Final = 65_536
"""Of all readers: some 16 MiB. The oldest entries are evicted first."""


class Rows(NamedTuple):
    """The rows from one offset on; empty if a fetch ended there and no rows were read ahead."""

    rows: Sequence[StoredBatch]
    size_bytes: int
    compactions: int


class IndexReadAhead:
    """Maps a partition and an offset to the rows from there on."""

    def __init__(self, readers_max: int = READERS_MAX, rows_max: int = ROWS_MAX) -> None:
        self._readers_max = readers_max
        self._rows_max = rows_max
        self._kept: OrderedDict[tuple[PartitionKey, int], Rows] = OrderedDict()
        self.size = 0
        """Rows that are kept."""

    def take(self, partition: PartitionKey, offset: int) -> Rows | None:
        """The rows from this offset on; None if no fetch has ended there."""
        kept = self._kept.pop((partition, offset), None)
        if kept is not None:
            self.size -= len(kept.rows)
        return kept

    def keep(
        self, partition: PartitionKey, offset: int, rows: Sequence[StoredBatch], compactions: int
    ) -> None:
        """Note that a fetch ended at this offset, and keep the rows that follow."""
        before = self.take(partition, offset)
        kept = Rows(rows, sum(row.location.length for row in rows), compactions)
        if before is not None and before.compactions == compactions and len(before.rows) > len(rows):
            # They belong to another reader at the same offset.
            kept = before
        self._kept[partition, offset] = kept
        self.size += len(kept.rows)
        while len(self._kept) > self._readers_max or self.size > self._rows_max:
            _, oldest = self._kept.popitem(last=False)
            self.size -= len(oldest.rows)


BATCHES_MAX: Final = 4_096
"""Batches of one partition in a response: small ones cost more than their bytes."""
BATCHES_OF_ALL_MAX: Final = 8_192
"""Batches of one response. More would block the event loop for too long."""


class FetchRange(NamedTuple):
    """The part of one partition that a reader requests."""

    partition: PartitionKey
    offset: int
    max_bytes: int
    isolation: Isolation = Isolation.READ_UNCOMMITTED


class FetchPlan:
    """The batches found for one range."""

    __slots__ = (
        "batches",
        "buffers",
        "end_offset",
        "error",
        "is_full",
        "is_gone",
        "limit_bytes",
        "missing",
        "partition",
        "size_bytes",
        "wanted",
    )

    def __init__(self, wanted: FetchRange, partition: Partition | None, limit_bytes: int) -> None:
        self.wanted = wanted
        self.partition = partition
        self.limit_bytes = limit_bytes
        self.error = ErrorCode.NONE
        self.buffers: Sequence[Buffer] = ()
        """Batches from memory, ready to be sent."""
        self.batches: Sequence[StoredBatch] = ()
        self.size_bytes = 0
        self.end_offset = wanted.offset
        """One past the last offset of the plan."""
        self.is_full = False
        """There is more below the bound than fits: waiting gains nothing."""
        self.is_gone = False
        """There should be batches, but the ledger has no rows."""
        self.missing: Gap | None = None
        """The gap at the start of the range, if the ledger has lost its batches."""

    @property
    def must_answer(self) -> bool:
        """Whether the fetch must be answered now, however few bytes it has."""
        return self.is_full or self.is_gone or self.error is not ErrorCode.NONE

    @property
    def may_have_aborted(self) -> bool:
        """Whether aborted transactions may have records in the plan."""
        offset, partition = self.wanted.offset, self.partition
        return offset < self.end_offset and partition is not None and offset <= partition.last_aborted_offset


class FetchPlanner:
    """Plans fetches over the published partitions."""

    def __init__(self, ledger: Ledger, views: PublishedPartitions, tail: Tail, slices: Slices) -> None:
        self._ledger = ledger
        self._views = views
        self._tail = tail
        self._slices = slices
        self._ahead = IndexReadAhead()

    async def plan(self, ranges: Sequence[FetchRange], max_bytes: int) -> list[FetchPlan]:
        """Plan all ranges, in order, within one byte budget."""
        get = self._views.get
        loaded: dict[PartitionKey, Partition | None] = {}
        damaged: set[PartitionKey] = set()
        async for some in self._slices.over(ranges):
            if any(get(each.partition) is None for each in some):
                found, bad = await self._views.load_sound(each.partition for each in some)
                loaded |= found
                damaged |= bad
        left = max_bytes
        batches_left = BATCHES_OF_ALL_MAX
        is_first = True
        plans: list[FetchPlan] = []
        for at, wanted in enumerate(ranges, 1):
            if at % SLICE_ITEMS == 0:
                await self._slices.turn()
            partition = get(wanted.partition) or loaded.get(wanted.partition)
            limit = max(0, min(wanted.max_bytes, left)) if batches_left > 0 else 0
            plan = self._in_memory(wanted, partition, limit, is_first)
            if plan is not None and partition is None and wanted.partition in damaged:
                plan.error = ErrorCode.KAFKA_STORAGE_ERROR
            if plan is None:
                assert partition is not None
                plan = await self.in_ledger(wanted, partition, limit, at_least_one=is_first)
            plans.append(plan)
            if plan.size_bytes:
                is_first = False
                left -= plan.size_bytes
                batches_left -= len(plan.batches) or len(plan.buffers)
        return plans

    def _in_memory(
        self, wanted: FetchRange, partition: Partition | None, limit: int, at_least_one: bool
    ) -> FetchPlan | None:
        """A plan from memory; None if the ledger must be queried."""
        plan = FetchPlan(wanted, partition, limit)
        if partition is None:
            plan.error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return plan
        offset = wanted.offset
        if not partition.log_start_offset <= offset <= partition.high_watermark:
            plan.error = ErrorCode.OFFSET_OUT_OF_RANGE
            return plan
        bound = last_fetchable_offset(partition, wanted.isolation)
        if offset >= bound:
            return plan
        if limit == 0 and not at_least_one:
            plan.is_full = True
            return plan
        found = self._tail.find(
            wanted.partition, offset, before=bound, bytes_max=limit, at_least_one=at_least_one
        )
        if found is None:
            return None
        plan.buffers, plan.size_bytes, plan.end_offset = found
        plan.is_full = plan.end_offset < bound
        return plan

    async def in_ledger(
        self, wanted: FetchRange, partition: Partition, limit: int, *, at_least_one: bool
    ) -> FetchPlan:
        """A plan from the ledger, for a range that begins below the bound."""
        plan = FetchPlan(wanted, partition, limit)
        bound = last_fetchable_offset(partition, wanted.isolation)
        rows: Sequence[StoredBatch]
        kept = self._ahead.take(wanted.partition, wanted.offset)
        if kept is not None and kept.compactions == partition.compactions and kept.size_bytes > limit:
            rows = kept.rows
        else:
            try:
                rows = await self._ledger.find_batches(
                    wanted.partition,
                    wanted.offset,
                    before=bound,
                    bytes_max=limit if kept is None else limit * PIECES,
                    batches_max=BATCHES_MAX,
                )
                if not rows or rows[0].base_offset > wanted.offset:
                    await self._explain_gap(plan, rows)
            except LedgerDamaged:
                plan.error = ErrorCode.KAFKA_STORAGE_ERROR
                return plan
            if plan.must_answer:
                return plan
        batches: list[StoredBatch] = []
        follows, size = wanted.offset, 0
        for row in rows:
            if row.last_offset >= bound:
                break
            if _is_suspicious(row, follows, partition) and batches:
                # The next plan begins at the gap and finds out why it is there.
                plan.is_full = True
                break
            size += row.location.length
            if size > limit and (batches or not at_least_one):
                size -= row.location.length
                plan.is_full = True
                break
            batches.append(row)
            follows = row.last_offset + 1
        plan.batches, plan.size_bytes, plan.end_offset = batches, size, follows
        if batches:
            plan.is_full = plan.is_full or follows < bound
        if plan.is_full:
            rest = rows[len(batches) :]
            if rest and _is_suspicious(rest[0], follows, partition):
                rest = ()
            self._ahead.keep(wanted.partition, follows, rest, partition.compactions)
        return plan

    async def _explain_gap(self, plan: FetchPlan, rows: Sequence[StoredBatch]) -> None:
        """Find out why no row starts at the offset: a commit not yet published may have deleted it."""
        wanted = plan.wanted
        (newest,) = await self._ledger.load([wanted.partition])
        if newest is None:
            plan.error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif newest.log_start_offset > wanted.offset:
            plan.error = ErrorCode.OFFSET_OUT_OF_RANGE
        elif not rows:
            plan.is_gone = True
            end_offset = min(newest.high_watermark, last_fetchable_offset(newest, wanted.isolation))
            if end_offset > wanted.offset:
                plan.missing = Gap(wanted.offset, end_offset - 1)
        else:
            gap = Gap(wanted.offset, rows[0].base_offset - 1)
            if is_lost(newest, gap):
                plan.missing = gap
                plan.error = ErrorCode.CORRUPT_MESSAGE


def _is_suspicious(row: StoredBatch, follows: int, partition: Partition) -> bool:
    """Whether there is a gap before the row, above the offset up to which compaction explains it."""
    return row.base_offset > max(follows, partition.cleaned_offset)
