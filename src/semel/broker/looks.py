"""A look: which batches a fetch may have, found without reading their bytes.

For each partition the newest committed value gives the bound, which is the high watermark, or the last
stable offset for READ_COMMITTED. What lies below it is found in the memory of the tail, else as rows of the
ledger. All that a look says of a partition comes from the one value that it keeps: a high watermark that is
read twice is how a reader comes to see what it must not.

The ledger may know more than was published, and less than it did a moment ago, when old records are
deleted. So rows above the bound are left out, and rows that are missing make the look say ``is_gone``.

Budgets are Kafka's (KIP-74): whole batches, within the limit of each partition and of the answer; the first
partition that has any gives at least one.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from semel.broker.rows_ahead import PIECES, RowsAhead
from semel.broker.tail import Tail
from semel.broker.views import Isolation, Views, last_fetchable_offset
from semel.core.types import Buffer, ErrorCode, Partition, PartitionKey
from semel.store.interface import Ledger, StoredBatch

BATCHES_MAX: Final = 4_096
"""Batches of one partition in an answer: small ones cost more than their bytes."""
BATCHES_OF_ALL_MAX: Final = 8_192
"""Batches of one answer. More would hold up the event loop for everyone."""


class FetchRange(NamedTuple):
    """What a reader wants of one partition."""

    partition: PartitionKey
    offset: int
    max_bytes: int
    isolation: Isolation = Isolation.READ_UNCOMMITTED


class Look:
    """What was found of one range."""

    __slots__ = (
        "batches",
        "buffers",
        "end_offset",
        "error",
        "is_full",
        "is_gone",
        "limit_bytes",
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
        """Batches from memory, ready to be sent; also those of ``batches``, once they are read."""
        self.batches: Sequence[StoredBatch] = ()
        self.size_bytes = 0
        self.end_offset = wanted.offset
        """One past the last offset that was found."""
        self.is_full = False
        """There is more below the bound than fits: waiting gains nothing."""
        self.is_gone = False
        """There should be batches, and there are no rows."""

    @property
    def must_answer(self) -> bool:
        """Whether the fetch must not wait any longer, however little there is."""
        return self.is_full or self.is_gone or self.error is not ErrorCode.NONE


class Looks:
    """Looks at what is published."""

    def __init__(self, ledger: Ledger, views: Views, tail: Tail) -> None:
        self._ledger = ledger
        self._views = views
        self._tail = tail
        self._ahead = RowsAhead()

    async def look(self, ranges: Sequence[FetchRange], max_bytes: int) -> list[Look]:
        """Look at all ranges, in their order, within a common budget."""
        get = self._views.get
        loaded: dict[PartitionKey, Partition | None] = {}
        if any(get(each.partition) is None for each in ranges):
            loaded = await self._views.load(each.partition for each in ranges)
        left = max_bytes
        batches_left = BATCHES_OF_ALL_MAX
        is_first = True
        looks: list[Look] = []
        for wanted in ranges:
            partition = get(wanted.partition) or loaded.get(wanted.partition)
            limit = max(0, min(wanted.max_bytes, left)) if batches_left > 0 else 0
            look = self._in_memory(wanted, partition, limit, is_first)
            if look is None:
                assert partition is not None
                look = await self.in_ledger(wanted, partition, limit, at_least_one=is_first)
            looks.append(look)
            if look.size_bytes:
                is_first = False
                left -= look.size_bytes
                batches_left -= len(look.batches) or len(look.buffers)
        return looks

    def _in_memory(
        self, wanted: FetchRange, partition: Partition | None, limit: int, at_least_one: bool
    ) -> Look | None:
        """What can be said without waiting; None if the ledger must be asked."""
        look = Look(wanted, partition, limit)
        if partition is None:
            look.error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return look
        offset = wanted.offset
        if not partition.log_start_offset <= offset <= partition.high_watermark:
            look.error = ErrorCode.OFFSET_OUT_OF_RANGE
            return look
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
        look.buffers, look.size_bytes, look.end_offset = found
        look.is_full = look.end_offset < bound
        return look

    async def in_ledger(
        self, wanted: FetchRange, partition: Partition, limit: int, *, at_least_one: bool
    ) -> Look:
        """What the ledger has of a range that begins below the bound."""
        look = Look(wanted, partition, limit)
        bound = last_fetchable_offset(partition, wanted.isolation)
        rows: Sequence[StoredBatch]
        kept = self._ahead.take(wanted.partition, wanted.offset)
        if kept is not None and kept.compactions == partition.compactions and kept.size_bytes > limit:
            rows = kept.rows
        else:
            rows = await self._ledger.find_batches(
                wanted.partition,
                wanted.offset,
                before=bound,
                bytes_max=limit if kept is None else limit * PIECES,
                batches_max=BATCHES_MAX,
            )
            if not rows or rows[0].base_offset > wanted.offset:
                await self._explain_gap(look, is_empty=not rows)
                if look.must_answer:
                    return look
        batches: list[StoredBatch] = []
        for row in rows:
            if row.last_offset >= bound:
                break
            if look.size_bytes + row.place.length > limit and (batches or not at_least_one):
                look.is_full = True
                break
            batches.append(row)
            look.size_bytes += row.place.length
        look.batches = batches
        if batches:
            look.end_offset = batches[-1].last_offset + 1
            look.is_full = look.is_full or look.end_offset < bound
        if look.is_full:
            rest = rows[len(batches) :]
            self._ahead.keep(wanted.partition, look.end_offset, rest, partition.compactions)
        return look

    async def _explain_gap(self, look: Look, *, is_empty: bool) -> None:
        """Ask why the rows do not begin at the offset: it may be deleted in a commit not yet published."""
        wanted = look.wanted
        (newest,) = await self._ledger.load([wanted.partition])
        if newest is None:
            look.error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif newest.log_start_offset > wanted.offset:
            look.error = ErrorCode.OFFSET_OUT_OF_RANGE
        else:
            look.is_gone = is_empty
