"""Housekeeping: the periodic work of the broker.

It runs in rounds, each with its own interval: group deadlines (sessions, rebalances, locks of records),
overdue transactions, retention (old records, and the rows and bytes they leave behind), compaction
(``compaction``), and expiry (unused producers, offsets and transactional ids). A round only submits commands
to the commit loop, which checks their conditions again. So a round that works from an old read of the ledger
can be late, but not wrong.

A broker of a cluster does this for the partitions that it leads and for the groups and transactional ids that
it coordinates. Only the sweep is done by one broker for all.

If the store is full, rounds that free space continue, and the failed round is repeated at its next time. Any
other error ends the process, as in every task of the broker.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from semel.broker.upkeep.compaction import Compaction
from semel.config import Settings
from semel.core.groups import GROUP_TICK_MS, ExpireOffsets, GroupTick
from semel.core.log.partition import ExpireProducer
from semel.core.shares.commands import ShareTick
from semel.core.transactions.commands import AbortOpen, ForgetTransaction
from semel.core.types import PartitionKey
from semel.rate_limit import RateLimit
from semel.store.contract import LedgerDamaged, Store, StoreRefused

if TYPE_CHECKING:
    from semel.broker.broker import Broker

log = logging.getLogger("semel.housekeeping")

SWEEP_ROWS: Final = 5_000
"""Rows per sweep: a sweep occupies the ledger's writer, and commits wait for it."""
COUNT_MS: Final = 5_000
"""How often the entities that clients have created are counted, at most."""
COUNT_SHARE: Final = 100
"""Counting takes at most one part in so many of the time: it is slow where old versions of rows are kept."""
COUNT_MS_MAX: Final = 60_000
"""But it is done this often in any case: it may have taken long because PostgreSQL was away."""
WAITS_SECONDS: Final = 60.0
"""How often to log that housekeeping waits: some rounds are tried ten times a second."""
EXPIRE_AT_ONCE: Final = 500
"""Commands that expiry adds to one tick."""


class _Round:
    """Periodic work. One run waits for another that is in progress."""

    def __init__(
        self, name: str, interval_ms: Callable[[Settings], int], work: Callable[[], Awaitable[None]]
    ) -> None:
        self.name = name
        self.interval_ms = interval_ms
        self._work = work
        self._turn = asyncio.Lock()

    async def run(self) -> None:
        """Do the work once."""
        async with self._turn:
            await self._work()


class Housekeeping:
    """The rounds of one broker."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._woken_for = -1
        self._count_ms = 0
        self._rescheduled = asyncio.Event()
        self._limit = RateLimit(lines=1, seconds=WAITS_SECONDS)
        self.compaction = Compaction(broker)
        self.rounds = [
            _Round("group deadlines", lambda settings: GROUP_TICK_MS, self._groups),
            _Round("counts", lambda settings: self._count_interval_ms(), self._count),
            _Round("retention", lambda settings: settings.log_retention_check_interval_ms, self.retain),
            _Round("compaction", lambda settings: settings.log_cleaner_backoff_ms, self._compact),
            _Round("expiry", lambda settings: settings.producer_id_expiration_check_interval_ms, self.expire),
            _Round(
                "transaction timeouts",
                lambda settings: settings.transaction_abort_timed_out_transaction_cleanup_interval_ms,
                self.abort_overdue,
            ),
            _Round(
                "transactional id expiry",
                lambda settings: settings.transaction_remove_expired_transaction_cleanup_interval_ms,
                self.forget_transactions,
            ),
        ]

    def _count_interval_ms(self) -> int:
        return max(COUNT_MS, min(self._count_ms * COUNT_SHARE, COUNT_MS_MAX))

    async def run(self) -> None:
        """Run all rounds until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for each in self.rounds:
                tasks.create_task(self._every(each), name=each.name)

    async def catch_up(self) -> None:
        """Run every round once, because the clock was moved ahead. StoreRefused."""
        for each in self.rounds:
            await each.run()

    def reschedule(self) -> None:
        """Apply new intervals to rounds that are waiting, because settings have changed."""
        self._rescheduled.set()
        self._rescheduled = asyncio.Event()

    async def _every(self, round_: _Round) -> None:
        while True:
            await self._pause(round_.interval_ms)
            await self._unless_full(round_.run)

    async def _pause(self, interval_ms: Callable[[Settings], int]) -> None:
        """Wait for an interval, which may be changed meanwhile."""
        clock = asyncio.get_running_loop().time
        began = clock()
        while True:
            wanted, rescheduled = interval_ms(self._broker.settings), self._rescheduled
            try:
                async with asyncio.timeout_at(began + wanted / 1000):
                    await rescheduled.wait()
            except TimeoutError:
                return

    async def _unless_full(self, round_: Callable[[], Awaitable[None]]) -> None:
        try:
            await round_()
        except StoreRefused as full:
            if self._limit.suppressed("waits") is not None:
                log.warning("housekeeping waits until the store accepts writes: %s", full)

    async def _count(self) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        await self._broker.count()
        self._count_ms = round((clock() - began) * 1000)

    async def _groups(self) -> None:
        await self.begin_sessions()
        await self._broker.ask(GroupTick())
        if self._broker.share_locks:
            await self._broker.ask(ShareTick())

    async def begin_sessions(self) -> None:
        """Start sessions for groups with members, after a start and after each change of owners."""
        changes = self._broker.ownership.changes
        if changes != self._woken_for:
            await self.wake_groups()
            self._woken_for = changes

    async def wake_groups(self) -> None:
        """Start sessions for groups with members, so that members that died with the broker time out."""
        broker = self._broker
        coordinates, configs = broker.ownership.coordinates, broker.policies.configs
        after = ""
        while page := await broker.store.ledger.groups(after=after, limit=EXPIRE_AT_ONCE):
            after = page[-1].group_id
            with_members: dict[tuple[int, int], list[str]] = {}
            for group in page:
                if group.state not in ("", "Empty", "Dead") and coordinates(group.group_id):
                    timeouts = (
                        configs.group(group.group_id).session_timeout_ms,
                        configs.share_group(group.group_id).session_timeout_ms,
                    )
                    with_members.setdefault(timeouts, []).append(group.group_id)
            for timeouts, group_ids in with_members.items():
                await broker.ask(GroupTick(tuple(group_ids), *timeouts))

    async def abort_overdue(self) -> None:
        """Abort the transactions whose deadline has passed, and fence their producers."""
        coordinates = self._broker.ownership.coordinates
        overdue = [each for each in self._broker.overdue_transactions() if coordinates(each)]
        refused: StoreRefused | None = None
        for start in range(0, len(overdue), EXPIRE_AT_ONCE):
            # One submission for each, so that a transaction with damaged rows is refused alone.
            some = overdue[start : start + EXPIRE_AT_ONCE]
            for each in [self._broker.submit([AbortOpen(name, overdue_only=True)]) for name in some]:
                try:
                    await each
                except StoreRefused as error:
                    refused = error
        if refused is not None:
            raise refused

    async def forget_transactions(self) -> None:
        """Forget transactional ids that have expired."""
        broker = self._broker
        before = broker.time_of_day() - broker.settings.transactional_id_expiration_ms
        ledger, after = broker.store.ledger, ""
        while ids := await ledger.transactions_unused_since(before, after=after, limit=EXPIRE_AT_ONCE):
            after = ids[-1]
            await broker.submit(
                [ForgetTransaction(each, before) for each in ids if broker.ownership.coordinates(each)]
            )

    async def _compact(self) -> None:
        if self._broker.settings.log_cleaner_enable:
            await self.compaction.compact()

    async def retain(self) -> None:
        """Advance log starts by age and by size, then free the space below them."""
        await self._unless_full(self._move_log_starts)
        await self.sweep()

    async def _move_log_starts(self) -> None:
        for topic in await self._broker.catalog.all():
            for key in self._broker.catalog.limits(topic).partitions:
                if self._broker.ownership.leads(key):
                    # Damaged ledger rows of one partition must not stop the retention of others.
                    with contextlib.suppress(LedgerDamaged):
                        await self._retain_partition(key)

    async def _retain_partition(self, key: PartitionKey) -> None:
        # The current value: configs may change during a long round.
        topic = await self._broker.catalog.topic_by_id(key.topic_id)
        partition = await self._broker.reads.partition(key)
        if topic is None or partition is None:
            return
        limits = self._broker.catalog.limits(topic)
        if not limits.deletes or partition.log_start_offset == partition.high_watermark:
            return
        ledger = self._broker.store.ledger
        keep_from = partition.log_start_offset
        if limits.retention_ms >= 0:
            oldest = self._broker.time_of_day() - limits.retention_ms
            if partition.peak_timestamp < oldest:
                keep_from = partition.high_watermark
            else:
                first = await ledger.first_batch_since(key, oldest)
                # None: the batch with the largest timestamp is deleted, and all that are left are too old.
                keep_from = max(keep_from, first.base_offset if first else partition.high_watermark)
        if 0 <= limits.retention_bytes < partition.size_bytes:
            keep_from = max(keep_from, await ledger.offset_at_size(key, limits.retention_bytes))
        if keep_from > partition.log_start_offset:
            await self._broker.delete_records(key, keep_from)

    async def sweep(self) -> None:
        """Delete unreachable rows and release their bytes."""
        if self._broker.ownership.is_janitor():
            await sweep(self._broker.store, SWEEP_ROWS)

    async def expire(self) -> None:
        """Forget producers and offsets that have expired, and start sessions of idle groups."""
        await self.wake_groups()
        await self._expire_producers()
        await self._expire_offsets()

    async def _expire_producers(self) -> None:
        broker = self._broker
        before = broker.time_of_day() - broker.settings.producer_id_expiration_ms
        ledger, after = broker.store.ledger, None
        while keys := await ledger.producers_unseen_since(before, after=after, limit=EXPIRE_AT_ONCE):
            after = keys[-1]
            await broker.submit(
                [
                    ExpireProducer(key, before)
                    for key in keys
                    if broker.ownership.leads(PartitionKey(key.topic_id, key.index))
                ]
            )

    async def _expire_offsets(self) -> None:
        broker = self._broker
        before = broker.time_of_day() - broker.settings.offsets_retention_minutes * 60_000
        after = ""
        while page := await broker.store.ledger.groups(after=after, limit=EXPIRE_AT_ONCE):
            after = page[-1].group_id
            for group in page:
                if not broker.ownership.coordinates(group.group_id):
                    continue
                stored = await broker.store.ledger.group_offsets(group.group_id)
                stale = tuple(key for key, value in stored if value.committed_ms <= before)
                if stale or not stored:
                    forget_group = len(stale) == len(stored)
                    await broker.ask(ExpireOffsets(group.group_id, stale, before, forget_group))


async def sweep(store: Store, rows: int) -> None:
    """Release the bytes of unreachable rows, then delete the rows, `rows` at a time.

    In this order, because a crash in between leaves rows that are swept again. The reverse order would leave
    bytes that are never released.
    """
    while True:
        released = await store.ledger.leftovers(limit=rows)
        # Only after they were read: the checkpoint flushes them, so recovery no longer looks for their bytes.
        await store.checkpoint()
        await store.chunks.release(released)
        swept = await store.ledger.sweep(limit=rows)
        # The sweep may delete newer rows than those that were read.
        if missed := sorted(set(swept) - set(released)):
            await store.checkpoint()
            await store.chunks.release(missed)
        if not swept:
            break
    await store.sweep_orphans()
