"""Fetches and offsets: from a range of offsets to bytes that can be sent.

A *fetch plan* (``fetch_planner``) lists the batches that a fetch may return, from memory or from the ledger.
It knows sizes and holds no bytes. If there is enough, the bytes are read; otherwise the fetch waits
(``waiting``) and plans again when it may have gained enough. So a waiting fetch holds no batches.

Invariants:

- Nothing is served that was not committed and published.
- Bytes may be released while they are read, but only after the log start that freed them, or the compaction
  that replaced them, was published. Both are compared again after a read; an overtaken plan is made again,
  and may then be out of range.
- Nothing is awaited between a plan and the wait, so no publication is missed.
- A READ_UNCOMMITTED reader sees every acknowledged batch. Unsynced work is not published yet
  (``unsynced_work``), so such a reader flushes it when it reaches the end of what is published.
- A response lists all aborted transactions of its range. They leave the ledger when the log start has passed
  them, or when compaction has removed their records; so both are compared again after the query, too.

Next: ``published_log`` (what readers may see), ``offset_search`` (offsets by time); above,
``handlers/fetch.py``.

`Listings` lists transactions, groups and their offsets, and producers from the ledger. Unsynced work is not
in the ledger yet, so a handler that must list acknowledged work flushes first (``Broker.flush``).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from semel.broker.cluster.commit_loop import SharedCommitLoop
from semel.broker.commit.loop import CommitLoop
from semel.broker.metrics import Metrics
from semel.broker.reads.batch_bytes import Piece, count_whole, read_batches, stamp_all, together
from semel.broker.reads.fetch_planner import FetchPlan, FetchPlanner, FetchRange
from semel.broker.reads.offset_search import LATEST, MAX_TIMESTAMP, ListedOffset, OffsetSearch
from semel.broker.reads.published_log import PublishedLog
from semel.broker.reads.published_partitions import Isolation, last_fetchable_offset
from semel.broker.reads.waiting import gained
from semel.broker.slices import SLICE_ITEMS, Slices
from semel.broker.upkeep.damage import Damage
from semel.config import Settings
from semel.core.types import (
    Buffer,
    CommittedOffset,
    ErrorCode,
    OffsetKey,
    Partition,
    PartitionKey,
    ProducerState,
    Transaction,
)
from semel.store.cluster.contract import SharedStore
from semel.store.contract import GroupSummary, Ledger, LedgerDamaged, Store, StoredBatch

PAGE: Final = 1_000
"""Rows per query."""


class Listings:
    """Reads of the ledger that no cache serves."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def catch_up(self) -> None:
        """Wait until the ledger has all earlier commits."""
        await self._ledger.load(())

    async def transactions(self) -> AsyncIterator[list[Transaction]]:
        """Every transactional id, page by page."""
        after = ""
        while page := await self._ledger.transactions(after=after, limit=PAGE):
            after = page[-1].transactional_id
            yield page

    async def groups(self) -> AsyncIterator[list[GroupSummary]]:
        """Every group, page by page."""
        after = ""
        while page := await self._ledger.groups(after=after, limit=PAGE):
            after = page[-1].group_id
            yield page

    async def group_offsets(self, group_id: str) -> list[tuple[OffsetKey, CommittedOffset]]:
        """All committed offsets of a group."""
        return await self._ledger.group_offsets(group_id)

    async def producers(self, partition: PartitionKey) -> list[tuple[int, ProducerState]]:
        """The producers that a partition remembers."""
        return await self._ledger.producers(partition)


log = logging.getLogger("semel.reads")

__all__ = ["FetchRange", "FetchResult", "Isolation", "ListedOffset", "Reads"]

LOOKS_MAX: Final = 3
"""How often a fetch is planned again if its bytes cannot be read."""


class FetchResult(NamedTuple):
    """The result for one partition: whole batches, to be sent in order."""

    error: ErrorCode
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    buffers: Sequence[Buffer] = ()
    aborted: Sequence[tuple[int, int]] | None = None
    """Producer id and first offset of each aborted transaction; None for READ_UNCOMMITTED."""


ITEM_BYTES: Final = 8_192
"""Checking this many bytes of records takes as long as answering for a partition."""


async def unlimited(size: int) -> None:
    """The default of ``reserve``: bytes may be read without waiting."""


def always() -> bool:
    """The default of ``may_wait``."""
    return True


class Reads:
    """Serves all reads of the log. Runs on the event loop's thread."""

    def __init__(
        self,
        store: Store | SharedStore,
        settings: Settings,
        metrics: Metrics,
        damage: Damage,
        slices: Slices,
        published: PublishedLog,
        loop: CommitLoop,
    ) -> None:
        self._store = store
        self.settings = settings
        self._metrics = metrics
        self._views = published.partitions
        self._tail = published.tail
        self._slices = slices
        self._planner = FetchPlanner(store.ledger, self._views, self._tail, slices)
        self._waiting = published.waiting
        self._loop = loop
        self._damage = damage
        self._is_shared = isinstance(loop, SharedCommitLoop)
        self._is_ending = False
        self._search = OffsetSearch(store, self._views)
        metrics.gauge("tail_bytes", "Memory of the newest batches.", lambda: self._tail.size_bytes)

    @property
    def parked(self) -> int:
        """The number of fetches that wait for records."""
        return self._waiting.parked

    def end_waits(self) -> None:
        """Answer all fetches without waiting from now on, because the broker stops."""
        self._is_ending = True
        self._waiting.wake_all()

    def owners_changed(self) -> None:
        """Wake all waiting fetches, so that each checks whether it may wait further (``may_wait``)."""
        self._waiting.wake_all()

    def view(self, key: PartitionKey) -> Partition | None:
        """The partition's newest committed value, if it is in memory."""
        return self._views.get(key)

    async def partition(self, key: PartitionKey) -> Partition | None:
        """The partition's newest committed value; None if it does not exist."""
        return self._views.get(key) or (await self._views.load((key,)))[key]

    async def list_offsets(
        self, key: PartitionKey, timestamp: int, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> ListedOffset:
        """The offset at a timestamp, or at one of the special ones (see ``offset_search``)."""
        needs_end = timestamp >= 0 or timestamp in (LATEST, MAX_TIMESTAMP)
        if needs_end and isolation is Isolation.READ_UNCOMMITTED and key in self._loop.unsynced.partitions:
            await self._loop.flush()
        return await self._search.find(key, timestamp, isolation)

    async def ends(
        self, keys: Sequence[PartitionKey], isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> dict[PartitionKey, int | None]:
        """The end offsets for readers, all after the same commit; None for a missing partition."""
        unsynced = self._loop.unsynced.partitions
        if isolation is Isolation.READ_UNCOMMITTED and not unsynced.isdisjoint(keys):
            await self._loop.flush()
        if self._is_shared:
            # Other brokers commit too. One query of the ledger sees all partitions after the same commit.
            found = dict(zip(keys, await self._store.ledger.load(keys), strict=True))
        else:
            found = await self._views.together(keys, self._loop.turn)
        return {
            key: None if partition is None else last_fetchable_offset(partition, isolation)
            for key, partition in found.items()
        }

    async def compactions(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, int | None]:
        """How often batches of these partitions were replaced; None for a missing partition.

        The ledger, and so a fetch, may see a commit before it is published. Because of the turn, the answer
        includes every swap that an earlier fetch may have seen, and every swap submitted before this call.
        """
        await self._loop.turn()
        found = await self._views.load(keys)
        return {key: None if each is None else each.compactions for key, each in found.items()}

    async def fetch(
        self,
        ranges: Sequence[FetchRange],
        min_bytes: int,
        max_bytes: int,
        max_wait_ms: int,
        reserve: Callable[[int], Awaitable[None]] = unlimited,
        may_wait: Callable[[], bool] = always,
    ) -> list[FetchResult]:
        """Batches of these ranges, one result for each, in the same order.

        Waits up to ``max_wait_ms`` until there are ``min_bytes`` in all, but not if there is an error to
        report, or if ``may_wait`` returns False. ``reserve`` is awaited with the number of bytes before they
        are read.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + min(max_wait_ms, self.settings.semel_fetch_wait_max_ms) / 1000
        max_bytes = max(0, min(max_bytes, self.settings.fetch_max_bytes))
        min_bytes = min(min_bytes, max_bytes)
        may_flush = has_room = True
        while True:
            plans = await self._planner.plan(ranges, max_bytes)
            if may_flush and self._is_short(plans):
                has_room = await self._loop.flush()
                may_flush = False
                continue
            missing = min_bytes - sum(plan.size_bytes for plan in plans)
            seconds_left = 0.0 if self._is_ending or not may_wait() else deadline - clock()
            if (
                missing <= 0
                or seconds_left <= 0
                or not self._waiting.has_room_for(len(plans))
                or not plans
                or any(plan.must_answer for plan in plans)
            ):
                if found := sum(plan.size_bytes for plan in plans):
                    await reserve(found)
                results = await self._read(plans)
                await self._follow(plans)
                return results
            await self._follow(plans)
            # Publications since the plan are counted here; later ones wake the fetch.
            missing -= self._gained_since(plans)
            may_flush = True
            if missing > 0 and may_wait() and not (has_room and self._is_short(plans)):
                interests = {plan.wanted.partition: plan.wanted.isolation for plan in plans}
                # A waiting fetch holds no batches.
                plans = []
                await self._wait(interests, missing, seconds_left)

    def _gained_since(self, plans: Sequence[FetchPlan]) -> int:
        total = 0
        for plan in plans:
            after = self._views.get(plan.wanted.partition)
            if after is not None:
                total += gained(plan.partition, after, plan.wanted.isolation)
        return total

    def _is_short(self, plans: Sequence[FetchPlan]) -> bool:
        """Whether a plan has reached the end of what is published, and there is unsynced work after it."""
        for plan in plans if self._loop.unsynced.partitions else ():
            if plan.wanted.partition in self._loop.unsynced.partitions:
                if plan.error is ErrorCode.OFFSET_OUT_OF_RANGE:
                    return True
                if plan.wanted.isolation is Isolation.READ_UNCOMMITTED and not plan.must_answer:
                    return True
        return False

    async def _wait(
        self, interests: Mapping[PartitionKey, Isolation], missing_bytes: int, seconds: float
    ) -> None:
        self._metrics.parked_fetches += 1
        try:
            await self._waiting.wait(interests, missing_bytes, seconds)
        finally:
            self._metrics.parked_fetches -= 1

    async def _follow(self, plans: Sequence[FetchPlan]) -> None:
        """Have the tail keep the next batches of the partitions that are read to their end."""
        for at, plan in enumerate(plans, 1):
            if at % SLICE_ITEMS == 0:
                await self._slices.turn()
            if plan.must_answer:
                continue
            key = plan.wanted.partition
            newest = self._views.get(key)
            if newest is not None:
                self._tail.follow(key, newest.high_watermark)

    async def _read(self, plans: Sequence[FetchPlan]) -> list[FetchResult]:
        """Read the bytes of all plans at once, and check that they were not released meanwhile."""
        pieces: Sequence[Sequence[Piece] | None]
        try:
            pieces = await read_batches(self._store.chunks, [plan.batches for plan in plans])
        except (LookupError, OSError):
            # The partitions are then read one by one, to find the batch that is missing or unreadable.
            pieces = [None] * len(plans)
        results: list[FetchResult] = []
        steps = self._slices.steps()
        for plan, mine in zip(plans, pieces, strict=True):
            await steps.step(1 + plan.size_bytes // ITEM_BYTES)
            result = None if plan.batches or plan.is_gone else await self._result(plan)
            results.append(await self._settle(plan, mine) if result is None else result)
        return results

    async def _settle(self, plan: FetchPlan, pieces: Sequence[Piece] | None) -> FetchResult:
        """The result of a plan that was read, or of a new plan if this one was overtaken."""
        wanted = plan.wanted
        looks_left = LOOKS_MAX
        while looks_left:
            newest = await self.partition(wanted.partition)
            if newest is None:
                return FetchResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if newest.log_start_offset > wanted.offset:
                return FetchResult(ErrorCode.OFFSET_OUT_OF_RANGE)
            if plan.error:
                return await self._failed(plan)
            is_overtaken = not _is_as_it_was(plan.partition, newest)
            is_whole = pieces is not None and self._is_whole(plan.batches, pieces)
            if pieces is not None and is_whole and not (is_overtaken or plan.is_gone):
                result = await self._served(plan, pieces)
                if result is not None:
                    return result
                is_overtaken = True
            # Compaction may overtake a reader repeatedly. That is no sign of damaged bytes.
            looks_left -= not is_overtaken
            at_least_one = plan.size_bytes > plan.limit_bytes
            plan = await self._planner.in_ledger(wanted, newest, plan.limit_bytes, at_least_one=at_least_one)
            try:
                (pieces,) = await read_batches(self._store.chunks, [plan.batches])
            except (LookupError, OSError):
                pieces = None
        return await self._good_part(plan)

    async def _good_part(self, plan: FetchPlan) -> FetchResult:
        """The result of a plan with a damaged batch: all batches before it; an error if it is the first."""
        readable = await self._damage.readable(plan.batches)
        wanted = plan.wanted
        if len(readable.batches) < len(plan.batches):
            bad = plan.batches[len(readable.batches)]
            await self._damage.found(wanted.partition, bad, readable.reason)
        if readable.batches:
            plan.batches = readable.batches
            plan.end_offset = readable.batches[-1].last_offset + 1
            newest = await self.partition(wanted.partition)
            if newest is not None and _is_as_it_was(plan.partition, newest):
                result = await self._served(plan, readable.pieces)
                if result is not None:
                    return result
        elif plan.missing is not None:
            plan.error = ErrorCode.CORRUPT_MESSAGE
            return await self._failed(plan)
        elif not plan.batches:
            log.error("there are no batches at offset %d of %s", wanted.offset, wanted.partition)
        return FetchResult(readable.error if plan.batches else ErrorCode.KAFKA_STORAGE_ERROR)

    def _is_whole(self, batches: Sequence[StoredBatch], pieces: Sequence[Piece]) -> bool:
        whole = count_whole(batches, pieces, checks_crc=self.settings.semel_fetch_check_crcs)
        if whole == len(batches):
            return True
        # Read wrongly, or repaired since: the next read must not get the same bytes from a cache.
        self._store.chunks.forget(batches[whole].location)
        return False

    async def _served(self, plan: FetchPlan, pieces: Sequence[Piece]) -> FetchResult | None:
        """The result with intact batches, stamped; None if compaction has overtaken the plan."""
        stamp_all(plan.batches, pieces)
        plan.buffers = [together(pieces)]
        return await self._result(plan)

    async def _failed(self, plan: FetchPlan) -> FetchResult:
        """The result of a plan with an error."""
        if plan.missing is not None:
            await self._damage.missing(plan.wanted.partition, plan.missing)
        return FetchResult(plan.error)

    async def _result(self, plan: FetchPlan) -> FetchResult | None:
        """The result of a plan; None if compaction has overtaken it."""
        partition = plan.partition
        if plan.error or partition is None:
            return await self._failed(plan)
        wanted = plan.wanted
        aborted: Sequence[tuple[int, int]] | None = None
        if wanted.isolation is Isolation.READ_COMMITTED:
            aborted = ()
            if plan.end_offset > wanted.offset and wanted.offset <= partition.last_aborted_offset:
                # The ledger may have transactions that ended since; they began after the planned batches.
                try:
                    aborted = await self._store.ledger.aborted(
                        wanted.partition, wanted.offset, plan.end_offset
                    )
                except LedgerDamaged:
                    # Without the list the reader would take aborted records for committed ones.
                    return FetchResult(ErrorCode.KAFKA_STORAGE_ERROR)
                newest = await self.partition(wanted.partition)
                if newest is None:
                    return FetchResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                if newest.log_start_offset > wanted.offset:
                    return FetchResult(ErrorCode.OFFSET_OUT_OF_RANGE)
                if not _is_as_it_was(partition, newest):
                    return None
        return FetchResult(
            ErrorCode.NONE,
            partition.high_watermark,
            partition.last_stable_offset,
            partition.log_start_offset,
            plan.buffers,
            aborted,
        )


def _is_as_it_was(seen: Partition | None, newest: Partition) -> bool:
    """Whether no batch was replaced since a plan was made."""
    return seen is not None and seen.compactions == newest.compactions
