"""Reading: from a range of offsets to bytes that can be sent.

How a fetch goes. First a *look*: for each partition the newest committed value gives the bound (high watermark, or last
stable offset for READ_COMMITTED), and the batches below it are found, in the memory of the tail or as rows of the
ledger. A look knows sizes but has read no bytes. If it found enough, the bytes are read; if not, the fetch waits
(``waiting``) and looks again when it may have gained enough. So a fetch that waits holds no batches.

What must stay true:

- Nothing above what was committed and published is served: all bounds of a partition come from one value.
- Whole batches only, from the one that holds the offset. At least one in the whole answer, however large.
- Bytes may be given back while they are read, but only after the log start that freed them was published. So after a
  read the log start is compared again; a batch that was overtaken is looked for again, and is then out of range.

Bytes in chunks are not stamped. They are stamped here, in buffers of the fetch's own.

Next: ``views``, ``tail``, ``waiting``, ``offset_search``; above, ``handlers/fetch.py``.
"""

import asyncio
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from semel.broker.offset_search import ListedOffset, OffsetSearch
from semel.broker.tail import LEADER_EPOCH, Tail
from semel.broker.views import Isolation, Views, last_fetchable_offset
from semel.broker.waiting import Waiting, gained
from semel.config import Settings
from semel.core.facts import BatchAppended
from semel.core.types import Buffer, ErrorCode, Partition, PartitionKey
from semel.store.interface import Place, Store, StoredBatch
from semel.wire.records import stamp

__all__ = ["FetchRange", "FetchResult", "Isolation", "ListedOffset", "Reads"]

BATCHES_MAX: Final = 4_096
"""Rows of one query: small batches fill an answer with many."""
LOOKS_MAX: Final = 3
"""How often batches are looked for that were given back under the reader."""

_LENGTH: Final = struct.Struct(">i")
_LENGTH_AT: Final = 8
_LENGTH_EXCLUDES: Final = 12


class FetchRange(NamedTuple):
    """What a reader wants of one partition."""

    partition: PartitionKey
    offset: int
    max_bytes: int
    isolation: Isolation = Isolation.READ_UNCOMMITTED


class FetchResult(NamedTuple):
    """What a reader gets of one partition: whole batches, to be sent one after another."""

    error: ErrorCode
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    buffers: Sequence[Buffer] = ()
    aborted: Sequence[tuple[int, int]] | None = None
    """Producer id and first offset of each aborted transaction; None for READ_UNCOMMITTED."""


class _Look:
    """What was found of one range, before any byte is read."""

    __slots__ = (
        "batches",
        "buffers",
        "error",
        "is_full",
        "is_gone",
        "limit_bytes",
        "partition",
        "size_bytes",
        "wanted",
    )

    def __init__(
        self, wanted: FetchRange, limit_bytes: int, error: ErrorCode, partition: Partition | None
    ) -> None:
        self.wanted = wanted
        self.limit_bytes = limit_bytes
        self.error = error
        self.partition = partition
        self.buffers: Sequence[Buffer] = ()
        self.batches: Sequence[StoredBatch] = ()
        self.size_bytes = 0
        self.is_full = False
        """There is more below the bound than fits: waiting gains nothing."""
        self.is_gone = False
        """There should be batches, and there are no rows."""


class Reads:
    """Everything that readers ask for. Lives on the event loop's thread."""

    def __init__(self, store: Store, settings: Settings, metrics: Any = None) -> None:
        self._store = store
        self._settings = settings
        self._metrics = metrics
        self._views = Views(store.ledger, settings.semel_entities_max)
        self._tail = Tail()
        self._waiting = Waiting()
        self._search = OffsetSearch(store, self._views)

    @property
    def parked(self) -> int:
        """How many fetches wait for records."""
        return self._waiting.parked

    @property
    def tail_bytes(self) -> int:
        """How much memory the newest batches take."""
        return self._tail.size_bytes

    def publish(
        self, partitions: dict[PartitionKey, Partition], appended: Iterable[tuple[BatchAppended, Buffer]]
    ) -> None:
        """Show readers what a commit made true: the new values of all partitions it touched, and its batches."""
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
            looks = await self._look_at_all(ranges, max_bytes)
            missing = min_bytes - sum(look.size_bytes for look in looks)
            timeout = deadline - clock()
            if missing <= 0 or timeout <= 0 or not looks or any(_must_answer(look) for look in looks):
                return await self._read(looks)
            # From here to the wait nothing is awaited: what was published since the look is counted now, what is
            # published later wakes.
            missing -= self._gained_since(looks)
            if missing > 0:
                self._follow(looks)
                await self._wait(looks, missing, timeout)

    def _gained_since(self, looks: Sequence[_Look]) -> int:
        total = 0
        for look in looks:
            after = self._views.get(look.wanted.partition)
            if after is not None:
                total += gained(look.partition, after, look.wanted.isolation)
        return total

    async def _wait(self, looks: Sequence[_Look], missing: int, timeout: float) -> None:
        metrics = self._metrics
        interests = {look.wanted.partition: look.wanted.isolation for look in looks}
        if metrics is not None:
            metrics.parked_fetches += 1
        try:
            await self._waiting.wait(interests, missing, timeout)
        finally:
            if metrics is not None:
                metrics.parked_fetches -= 1

    def _follow(self, looks: Sequence[_Look]) -> None:
        """Have the tail keep what comes next in the partitions that are read to their end."""
        for look in looks:
            key = look.wanted.partition
            if look.error or look.is_full:
                continue
            newest = self._views.get(key)
            if newest is not None:
                self._tail.follow(key, newest.high_watermark)

    async def _look_at_all(self, ranges: Sequence[FetchRange], max_bytes: int) -> list[_Look]:
        get = self._views.get
        loaded: dict[PartitionKey, Partition | None] = {}
        if any(get(each.partition) is None for each in ranges):
            loaded = await self._views.load(each.partition for each in ranges)
        left = max_bytes
        is_first = True
        looks: list[_Look] = []
        for wanted in ranges:
            partition = get(wanted.partition) or loaded.get(wanted.partition)
            limit = max(0, min(wanted.max_bytes, left))
            look = self._look_in_memory(wanted, partition, limit, is_first)
            if look is None:
                assert partition is not None
                look = await self._look_in_ledger(wanted, partition, limit, is_first)
            looks.append(look)
            if look.size_bytes:
                is_first = False
                left -= look.size_bytes
        return looks

    def _look_in_memory(
        self, wanted: FetchRange, partition: Partition | None, limit: int, at_least_one: bool
    ) -> _Look | None:
        """What can be said without waiting; None if the ledger must be asked."""
        if partition is None:
            return _Look(wanted, limit, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None)
        offset = wanted.offset
        if not partition.log_start_offset <= offset <= partition.high_watermark:
            return _Look(wanted, limit, ErrorCode.OFFSET_OUT_OF_RANGE, partition)
        look = _Look(wanted, limit, ErrorCode.NONE, partition)
        bound = last_fetchable_offset(partition, wanted.isolation)
        if offset >= bound:
            return look
        if limit == 0 and not at_least_one:
            look.is_full = True
            return look
        found = self._tail.find(
            wanted.partition, offset, before=bound, bytes_max=limit, at_least_one=at_least_one
        )
        if found is None:
            return None
        look.buffers, look.size_bytes = found.buffers, found.size_bytes
        look.is_full = found.next_offset < bound
        return look

    async def _look_in_ledger(
        self, wanted: FetchRange, partition: Partition, limit: int, at_least_one: bool
    ) -> _Look:
        look = _Look(wanted, limit, ErrorCode.NONE, partition)
        bound = last_fetchable_offset(partition, wanted.isolation)
        rows = await self._store.ledger.find_batches(
            wanted.partition, wanted.offset, before=bound, bytes_max=limit, batches_max=BATCHES_MAX
        )
        batches: list[StoredBatch] = []
        size = 0
        for row in rows:
            # The ledger may know more than was published, and a batch is served whole or not at all.
            if row.last_offset >= bound:
                break
            if size + row.place.length > limit and (batches or not at_least_one):
                break
            batches.append(row)
            size += row.place.length
        look.batches, look.size_bytes = batches, size
        look.is_gone = not rows
        look.is_full = bool(rows) and (not batches or batches[-1].last_offset + 1 < bound)
        return look

    async def _read(self, looks: Sequence[_Look]) -> list[FetchResult]:
        """Read the bytes of what was found, all at once, and check that they were not given back meanwhile."""
        runs = [adjacent(look.batches) for look in looks]
        places = [place for run in runs for place in run]
        buffers: list[bytearray] | None = []
        if places:
            try:
                buffers = await self._store.chunks.read(places)
            except LookupError:
                # Which one is gone is found out partition by partition.
                buffers = None
        results: list[FetchResult] = []
        at = 0
        for look, run in zip(looks, runs, strict=True):
            if look.batches or look.is_gone:
                mine = None if buffers is None else buffers[at : at + len(run)]
                at += len(run)
                results.append(await self._settle(look, mine))
            else:
                results.append(self._result(look))
        self._follow(looks)
        return results

    async def _settle(self, look: _Look, buffers: list[bytearray] | None) -> FetchResult:
        """The result of a look that was read, or of another look if this one was overtaken."""
        wanted = look.wanted
        for _ in range(LOOKS_MAX):
            newest = await self.partition(wanted.partition)
            if newest is None:
                return FetchResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if newest.log_start_offset > wanted.offset:
                return FetchResult(ErrorCode.OFFSET_OUT_OF_RANGE)
            if buffers is not None and not look.is_gone and stamp_all(look.batches, buffers):
                look.buffers = buffers
                return self._result(look)
            look = await self._look_in_ledger(
                wanted, newest, look.limit_bytes, at_least_one=bool(look.size_bytes)
            )
            try:
                buffers = await self._store.chunks.read(adjacent(look.batches))
            except LookupError:
                buffers = None
        # Rows and bytes disagree although nothing was deleted. The client asks again; an operator sees why.
        return FetchResult(ErrorCode.KAFKA_STORAGE_ERROR)

    def _result(self, look: _Look) -> FetchResult:
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


def _must_answer(look: _Look) -> bool:
    return bool(look.error) or look.is_full or look.is_gone


def _aborted(look: _Look) -> Sequence[tuple[int, int]] | None:
    """The aborted transactions that touch what a look found. No transaction can end yet, so there are none.

    The one place to fill in. They must come from a ledger at least as new as ``look.partition``, for offsets from
    ``look.wanted.offset`` up to the end of what was found, sorted by first offset.
    """
    if look.wanted.isolation is Isolation.READ_COMMITTED:
        return ()
    return None


def adjacent(batches: Sequence[StoredBatch]) -> list[Place]:
    """Where batches lie, with those that lie one behind another taken together."""
    places: list[Place] = []
    chunk_id = position = -1
    length = 0
    for batch in batches:
        place = batch.place
        if place.chunk_id == chunk_id and place.position == position + length:
            length += place.length
            continue
        if length:
            places.append(Place(chunk_id, position, length))
        chunk_id, position, length = place
    if length:
        places.append(Place(chunk_id, position, length))
    return places


def stamp_all(batches: Sequence[StoredBatch], buffers: Sequence[bytearray]) -> bool:
    """Stamp batches in the buffers of ``adjacent``; False if the bytes are not those batches any more."""
    index, at = 0, 0
    for batch in batches:
        if index < len(buffers) and at == len(buffers[index]):
            index, at = index + 1, 0
        length = batch.place.length
        if index == len(buffers) or at + length > len(buffers[index]):
            return False
        buffer = buffers[index]
        if _LENGTH.unpack_from(buffer, at + _LENGTH_AT)[0] + _LENGTH_EXCLUDES != length:
            return False
        stamp(buffer, at, batch.base_offset, LEADER_EPOCH)
        at += length
    return True
