"""Fetches and offsets: from a range of offsets to bytes that can be sent.

A *fetch plan* (``fetch_planner``) lists the batches that a fetch may return, from memory or from the ledger.
It knows sizes and holds no bytes. If there is enough, the bytes are read; otherwise the fetch waits
(``waiting``) and plans again when it may have gained enough. So a waiting fetch holds no batches.

Invariants:

- Nothing is served that was not committed and published.
- Bytes and aborted transactions may be deleted while they are read, but only after the log start that passed
  them, or the compaction that replaced them, was published. So a plan is compared with the newest partition
  after everything was read, and one that compaction has overtaken is made again.
- Nothing is awaited between a plan and the wait, so no publication is missed.
- A READ_UNCOMMITTED reader sees every acknowledged batch. Unsynced work is not published yet
  (``unsynced_work``), so such a reader flushes it when it reaches the end of what is published.
- A response lists all aborted transactions of its range.

Next: ``published_log`` (what readers may see), ``offset_search`` (offsets by time); above,
``handlers/fetch.py``.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from semel.broker.cluster.commit_loop import SharedCommitLoop
from semel.broker.commit.loop import CommitLoop
from semel.broker.metrics import Metrics
from semel.broker.reads.batch_bytes import Piece, read_batches, stamp_all, together
from semel.broker.reads.fetch_planner import FetchPlan, FetchPlanner, FetchRange
from semel.broker.reads.offset_search import LATEST, MAX_TIMESTAMP, ListedOffset, OffsetSearch
from semel.broker.reads.published_log import PublishedLog
from semel.broker.reads.published_partitions import Isolation, last_fetchable_offset
from semel.broker.reads.waiting import gained
from semel.broker.slices import SLICE_ITEMS, Slices
from semel.broker.upkeep.damage import Damage, Readable
from semel.config import Settings
from semel.core.types import Buffer, ErrorCode, Partition, PartitionKey
from semel.store.cluster.contract import SharedStore
from semel.store.contract import LedgerDamaged, Store

log = logging.getLogger("semel.reads")

__all__ = ["FetchRange", "FetchResult", "Isolation", "ListedOffset", "Reads"]

LOOKS_MAX: Final = 3
"""How often a fetch is planned again if its bytes cannot be read."""
ITEM_BYTES: Final = 8_192
"""Checking this many bytes of records takes as long as answering for a partition."""
UNREAD: Final = Readable((), (), ErrorCode.KAFKA_STORAGE_ERROR, "")


class FetchResult(NamedTuple):
    """The result for one partition: whole batches, to be sent in order."""

    error: ErrorCode
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    buffers: Sequence[Buffer] = ()
    aborted: Sequence[tuple[int, int]] | None = None
    """Producer id and first offset of each aborted transaction; None for READ_UNCOMMITTED."""


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
        self._checks_crc = settings.semel_fetch_check_crcs
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
                break
            await self._follow(plans)
            # Publications since the plan are counted here; later ones wake the fetch.
            missing -= self._gained_since(plans)
            may_flush = True
            if missing > 0 and may_wait() and not (has_room and self._is_short(plans)):
                interests = {plan.wanted.partition: plan.wanted.isolation for plan in plans}
                # A waiting fetch holds no batches.
                plans = []
                await self._wait(interests, missing, seconds_left)
        if size := sum(plan.size_bytes for plan in plans):
            await reserve(size)
        results = await self._read(plans)
        await self._follow(plans)
        return results

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
        """Read the bytes of all plans at once."""
        read: Sequence[Sequence[Piece] | None]
        try:
            read = await read_batches(self._store.chunks, [plan.batches for plan in plans])
        except (LookupError, OSError):
            # The partitions are then read one by one, to find the batch that is missing or unreadable.
            read = [None] * len(plans)
        results: list[FetchResult] = []
        steps = self._slices.steps()
        for plan, pieces in zip(plans, read, strict=True):
            await steps.step(1 + plan.size_bytes // ITEM_BYTES)
            found = UNREAD
            if pieces:
                found = self._damage.intact(plan.batches, pieces, checks_crc=self._checks_crc)
            results.append(await self._result(plan, found))
        return results

    async def _result(self, plan: FetchPlan, found: Readable) -> FetchResult:
        """The result of a plan. ``found`` is what was read of its batches.

        If compaction has overtaken the plan, it is made and read again; so it is, a few times, if not all
        batches are intact.
        """
        wanted, looks_left = plan.wanted, LOOKS_MAX
        aborted: Sequence[tuple[int, int]] | None
        aborted = () if wanted.isolation is Isolation.READ_COMMITTED else None
        while not plan.error:
            if aborted is not None and plan.may_have_aborted:
                aborted = await self._aborted(plan)
            elif not plan.batches and not plan.is_gone:
                # Everything is in memory.
                break
            newest = await self.partition(wanted.partition)
            if newest is None:
                return FetchResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if newest.log_start_offset > wanted.offset:
                return FetchResult(ErrorCode.OFFSET_OUT_OF_RANGE)
            # Compaction may overtake a reader repeatedly. That is no sign of damage.
            if plan.partition is not None and plan.partition.compactions == newest.compactions:
                is_whole = len(found.batches) == len(plan.batches) and not plan.is_gone
                if plan.error or is_whole:
                    break
                if not looks_left:
                    plan.error = await self._damaged(plan, found)
                    break
                looks_left -= 1
            at_least_one = plan.size_bytes > plan.limit_bytes
            plan = await self._planner.in_ledger(wanted, newest, plan.limit_bytes, at_least_one=at_least_one)
            found = await self._damage.readable(plan.batches, checks_crc=self._checks_crc)
        partition = plan.partition
        if plan.error or partition is None:
            return await self._failed(plan)
        if found.batches:
            stamp_all(found.batches, found.pieces)
            plan.buffers = [together(found.pieces)]
        return FetchResult(
            ErrorCode.NONE,
            partition.high_watermark,
            partition.last_stable_offset,
            partition.log_start_offset,
            plan.buffers,
            aborted,
        )

    async def _aborted(self, plan: FetchPlan) -> Sequence[tuple[int, int]]:
        """The aborted transactions of a plan, and perhaps some that began after the planned batches."""
        wanted = plan.wanted
        try:
            return await self._store.ledger.aborted(wanted.partition, wanted.offset, plan.end_offset)
        except LedgerDamaged:
            # Without the list the reader would take aborted records for committed ones.
            plan.error = ErrorCode.KAFKA_STORAGE_ERROR
            return ()

    async def _damaged(self, plan: FetchPlan, found: Readable) -> ErrorCode:
        """The error of a plan whose batches are not all intact; NONE if there are some before the damage."""
        wanted = plan.wanted
        if plan.missing is not None:
            return ErrorCode.CORRUPT_MESSAGE
        if plan.is_gone:
            log.error("there are no batches at offset %d of %s", wanted.offset, wanted.partition)
            return ErrorCode.KAFKA_STORAGE_ERROR
        await self._damage.found(wanted.partition, plan.batches[len(found.batches)], found.reason)
        return ErrorCode.NONE if found.batches else found.error

    async def _failed(self, plan: FetchPlan) -> FetchResult:
        """The result of a plan with an error."""
        if plan.missing is not None:
            await self._damage.missing(plan.wanted.partition, plan.missing)
        return FetchResult(plan.error)
