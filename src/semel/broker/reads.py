"""Reading: from a range of offsets to bytes that can be sent.

How a fetch goes. A *look* (``looks``) finds the batches that it may have, in memory or as rows; it knows
sizes and has read no bytes. If that is enough, the bytes are read; if not, the fetch waits (``waiting``)
and looks again when it may have gained enough. So a fetch that waits holds no batches.

What must stay true:

- Nothing above what was committed and published is served.
- Bytes may be given back while they are read, but only after the log start that freed them was published.
  So the log start is compared again after a read; what was overtaken is looked for again, and is then out
  of range.
- Between a look and the wait nothing is awaited, so no publication is missed.

Next: ``views`` (what is published), ``tail`` (the newest batches), ``offset_search`` (offsets by time);
above, ``handlers/fetch.py``.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from semel.broker.batch_bytes import Piece, read_batches, stamp_all, together
from semel.broker.looks import FetchRange, Look, Looks
from semel.broker.metrics import Metrics
from semel.broker.offset_search import ListedOffset, OffsetSearch
from semel.broker.tail import Tail
from semel.broker.views import Isolation, Views
from semel.broker.waiting import Waiting, gained
from semel.config import Settings
from semel.core.facts import BatchAppended
from semel.core.types import Buffer, ErrorCode, Partition, PartitionKey
from semel.store.interface import Store

log = logging.getLogger("semel.reads")

__all__ = ["FetchRange", "FetchResult", "Isolation", "ListedOffset", "Reads"]

LOOKS_MAX: Final = 3
"""How often batches are looked for that were given back under the reader."""


class FetchResult(NamedTuple):
    """What a reader gets of one partition: whole batches, to be sent one after another."""

    error: ErrorCode
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    buffers: Sequence[Buffer] = ()
    aborted: Sequence[tuple[int, int]] | None = None
    """Producer id and first offset of each aborted transaction; None for READ_UNCOMMITTED."""


class Reads:
    """Everything that readers ask for. Lives on the event loop's thread."""

    def __init__(self, store: Store, settings: Settings, metrics: Metrics) -> None:
        self._store = store
        self._settings = settings
        self._metrics = metrics
        self._views = Views(store.ledger, settings.semel_entities_max)
        self._tail = Tail()
        self._looks = Looks(store.ledger, self._views, self._tail)
        self._waiting = Waiting()
        self._is_ending = False
        self._search = OffsetSearch(store, self._views)
        metrics.gauge("tail_bytes", "Memory of the newest batches.", lambda: self._tail.size_bytes)

    @property
    def parked(self) -> int:
        """How many fetches wait for records."""
        return self._waiting.parked

    def publish(
        self, partitions: dict[PartitionKey, Partition], appended: Iterable[tuple[BatchAppended, Buffer]]
    ) -> None:
        """Show readers what a commit made true: the values of the partitions it touched, and its batches."""
        for fact, buffer in appended:
            if fact.partition in partitions:
                self._tail.append(fact, buffer)
        for key, partition in partitions.items():
            before = self._views.publish(key, partition)
            if before is None or before.log_start_offset != partition.log_start_offset:
                self._tail.trim(key, partition.log_start_offset)
            self._waiting.published(key, before, partition)

    def forget(self, keys: Iterable[PartitionKey]) -> None:
        """These partitions are deleted."""
        for key in keys:
            self._views.forget(key)
            self._tail.forget(key)
            self._waiting.published(key, None, None)

    def end_waits(self) -> None:
        """Answer fetches with what there is, from now on: the broker stops."""
        self._is_ending = True
        self._waiting.wake_all()

    def view(self, key: PartitionKey) -> Partition | None:
        """The partition's newest committed value, if it is known without asking."""
        return self._views.get(key)

    async def partition(self, key: PartitionKey) -> Partition | None:
        """The partition's newest committed value; None if there is no such partition."""
        return self._views.get(key) or (await self._views.load((key,)))[key]

    async def list_offsets(
        self, key: PartitionKey, timestamp: int, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> ListedOffset:
        """The offset at a timestamp, or at one of the special ones (see ``offset_search``)."""
        return await self._search.find(key, timestamp, isolation)

    async def fetch(
        self, ranges: Sequence[FetchRange], min_bytes: int, max_bytes: int, max_wait_ms: int
    ) -> list[FetchResult]:
        """Batches of these ranges, one result for each, in their order.

        Waits up to ``max_wait_ms`` until there are ``min_bytes`` in all, unless there is an error to report.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + max_wait_ms / 1000
        max_bytes = max(0, min(max_bytes, self._settings.fetch_max_bytes))
        min_bytes = min(min_bytes, max_bytes)
        while True:
            looks = await self._looks.look(ranges, max_bytes)
            missing = min_bytes - sum(look.size_bytes for look in looks)
            seconds_left = 0.0 if self._is_ending else deadline - clock()
            if missing <= 0 or seconds_left <= 0 or not looks or any(look.must_answer for look in looks):
                results = await self._read(looks)
                self._follow(looks)
                return results
            # What was published since the look is counted here, what is published later wakes.
            missing -= self._gained_since(looks)
            if missing > 0:
                self._follow(looks)
                interests = {look.wanted.partition: look.wanted.isolation for look in looks}
                # A fetch that waits holds no batches.
                looks = []
                await self._wait(interests, missing, seconds_left)

    def _gained_since(self, looks: Sequence[Look]) -> int:
        total = 0
        for look in looks:
            after = self._views.get(look.wanted.partition)
            if after is not None:
                total += gained(look.partition, after, look.wanted.isolation)
        return total

    async def _wait(
        self, interests: Mapping[PartitionKey, Isolation], missing_bytes: int, seconds: float
    ) -> None:
        self._metrics.parked_fetches += 1
        try:
            await self._waiting.wait(interests, missing_bytes, seconds)
        finally:
            self._metrics.parked_fetches -= 1

    def _follow(self, looks: Sequence[Look]) -> None:
        """Have the tail keep what comes next in the partitions that are read to their end."""
        for look in looks:
            if look.must_answer:
                continue
            key = look.wanted.partition
            newest = self._views.get(key)
            if newest is not None:
                self._tail.follow(key, newest.high_watermark)

    async def _read(self, looks: Sequence[Look]) -> list[FetchResult]:
        """Read what was found, all in one go, and check that it was not given back meanwhile."""
        pieces: Sequence[Sequence[Piece] | None]
        try:
            pieces = await read_batches(self._store.chunks, [look.batches for look in looks])
        except (LookupError, OSError):
            # Which one is gone or cannot be read is found out partition by partition.
            pieces = [None] * len(looks)
        results: list[FetchResult] = []
        for look, mine in zip(looks, pieces, strict=True):
            if look.batches or look.is_gone:
                results.append(await self._settle(look, mine))
            else:
                results.append(_result(look))
        return results

    async def _settle(self, look: Look, pieces: Sequence[Piece] | None) -> FetchResult:
        """The result of a look that was read, or of another look if this one was overtaken."""
        wanted = look.wanted
        reason: Exception | str = "rows and bytes disagree"
        for _ in range(LOOKS_MAX):
            newest = await self.partition(wanted.partition)
            if newest is None:
                return FetchResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if newest.log_start_offset > wanted.offset:
                return FetchResult(ErrorCode.OFFSET_OUT_OF_RANGE)
            if look.error:
                return _result(look)
            if pieces is not None and not look.is_gone and stamp_all(look.batches, pieces):
                look.buffers = [together(pieces)]
                return _result(look)
            at_least_one = look.size_bytes > look.limit_bytes
            look = await self._looks.in_ledger(wanted, newest, look.limit_bytes, at_least_one=at_least_one)
            try:
                (pieces,) = await read_batches(self._store.chunks, [look.batches])
            except (LookupError, OSError) as error:
                pieces, reason = None, error
        log.error("the bytes at offset %d of %s cannot be read: %s", wanted.offset, wanted.partition, reason)
        return FetchResult(ErrorCode.KAFKA_STORAGE_ERROR)


def _result(look: Look) -> FetchResult:
    partition = look.partition
    if look.error or partition is None:
        return FetchResult(look.error)
    return FetchResult(
        ErrorCode.NONE,
        partition.high_watermark,
        partition.last_stable_offset,
        partition.log_start_offset,
        look.buffers,
        _aborted(look),
    )


def _aborted(look: Look) -> Sequence[tuple[int, int]] | None:
    """The aborted transactions that touch what a look found. No transaction can end yet, so there are none.

    The one place to fill in. They must come from a ledger at least as new as ``look.partition``, for offsets
    from ``look.wanted.offset`` up to the end of what was found, sorted by first offset.
    """
    if look.wanted.isolation is Isolation.READ_COMMITTED:
        return ()
    return None
