"""The commit loop of a broker in a cluster. Read ``commit_loop`` first; this module has only the differences.

- Entities have versions, and a commit names those that its decisions were based on. After a ``Conflict`` with
  another broker's commit the tick is undone, its entities are loaded again under locks, and it is decided
  again. No client was answered meanwhile.
- Entities that other brokers own are loaded for every tick and forgotten after it. So a decision that writes
  nothing, such as an error, is never based on an old copy of them.
- The owners of entities that a tick has changed get a notice (``notice``), and the tick is answered when they
  have it (``announce``). A later tick that read one of these entities is answered after it.
- A notice from another broker is applied between two ticks, if its facts replace the copies in memory. Copies
  that they do not replace are forgotten.
- Large batches are uploaded before they are decided.
- Work inside open transactions may be unsynced, in PostgreSQL too. If PostgreSQL crashes, the term ends and
  all copies are forgotten, because they may be ahead of the ledger.

An object store may take a tenth of a second. So no tick waits for it, and a tick that is decided again does
not upload the same bytes again. Later requests of the same client wait for the upload, because the queue
keeps their order; those of other clients do not.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final

from semel.broker.clock import Clock
from semel.broker.cluster.announcing import Announcer, Unannounced
from semel.broker.cluster.notice import (
    Notice,
    Notices,
    confirming,
    is_awaited,
    is_confirming,
    outgoing,
    revealing,
    take_notice,
)
from semel.broker.cluster.state import SharedState
from semel.broker.commit.loop import CommitLoop
from semel.broker.commit.pending_commands import PendingCommands, without_moved, without_refused
from semel.broker.commit.tick import Tick, keys_of
from semel.broker.metrics import Metrics
from semel.broker.ownership import Ownership
from semel.broker.reads.published_log import Publisher
from semel.config import Settings
from semel.core.entities import entity_of, name_shard, shard_of
from semel.core.facts import Put
from semel.core.log.partition import Append
from semel.core.types import (
    Buffer,
    ClusterKey,
    GroupKey,
    Key,
    OffsetKey,
    PartitionKey,
    PendingKey,
    TransactionKey,
)
from semel.store.cluster.contract import Conflict, SharedStore, TermEnded
from semel.store.contract import LedgerDamaged, StoreRefused


class Uploads:
    """Owned by the commit loop of a broker in a cluster."""

    def __init__(
        self, store: SharedStore, inline_bytes_max: int, release: Callable[[PendingCommands], None]
    ) -> None:
        self._store = store
        self._inline_bytes_max = inline_bytes_max
        self._release = release
        """Called when the hold of commands is over."""
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, pending: PendingCommands) -> None:
        """Hold commands with large batches, and upload these."""
        if pending.room_bytes <= self._inline_bytes_max:
            return
        batches = [each.records for each in pending.commands if isinstance(each, Append)]
        if sum(map(len, batches)) > self._inline_bytes_max:
            pending.is_held = True
            task = asyncio.get_running_loop().create_task(self._upload(pending, batches))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _upload(self, pending: PendingCommands, batches: Sequence[Buffer]) -> None:
        try:
            await self._store.put_ahead(batches)
            pending.uploaded = batches
        except StoreRefused as refused:
            # The commit must not try again: the commands of other clients would wait for it.
            pending.refused = refused
            log.warning("records could not be uploaded: %s", refused)
        finally:
            # After any other error the commit meets the same error, which stops the broker.
            self._release(pending)

    def forget(self, answered: Iterable[PendingCommands]) -> None:
        """Forget the uploads of commands that were answered."""
        for each in answered:
            if each.uploaded:
                self._store.forget_ahead(each.uploaded)


log = logging.getLogger("semel.broker")

PAGE: Final = 1_000
TRIES_MAX: Final = 100
"""How often a tick is decided."""
TRIES_WITHOUT_LOCKS: Final = 3
"""After these tries a tick locks its entities, so that it cannot conflict forever. Locks delay others."""


class SharedCommitLoop(CommitLoop):
    """The single writer of one broker among several."""

    state: SharedState

    def __init__(
        self,
        store: SharedStore,
        settings: Settings,
        clock: Clock,
        metrics: Metrics,
        publisher: Publisher,
        ownership: Ownership,
        announcer: Announcer,
    ) -> None:
        super().__init__(store, settings, clock, metrics, publisher)
        self.state = SharedState(term=store.term)
        self._shared = store
        self._ownership = ownership
        self._announcer = announcer
        self._reads: dict[Key, None] = {}
        """The entities that the commands of this tick read."""
        self._has_locks = False
        self._notices: Notices = {}
        self._later: Notices = {}
        """The notices of this tick: those that its answers wait for, and the others."""
        self.unannounced = Unannounced(announcer, publisher.policies.catch_up)
        self._has_left = False
        self._uploads = Uploads(store, settings.semel_inline_bytes_max, self._release)
        self.conflicts = 0
        """How often a tick was decided again, because another broker had changed what it read."""

    def _put(self, pending: PendingCommands) -> None:
        self._uploads.begin(pending)
        super()._put(pending)

    def _release(self, pending: PendingCommands) -> None:
        self._queue.release(pending)
        self._wake()

    # -- a tick -------------------------------------------------------------------------------------------

    async def _tick(self, pending: list[PendingCommands]) -> None:
        if self._has_left:
            # Refuse: this broker may exit before it has sent the notices of a commit.
            for each in pending:
                each.resolve(StoreRefused("the broker stops"))
            return
        try:
            pending = without_refused(pending)
            if mine := without_moved(pending, self._owns):
                await super()._tick(mine)
        finally:
            # Only for a tick that was refused: after a commit, ``_answer`` has forgotten them already.
            self._forget_foreign(self._reads)
            self._uploads.forget(pending)

    def left(self) -> None:
        """Refuse all further commands, because this broker has left the cluster."""
        self._has_left = True

    async def _load(self, pending: list[PendingCommands]) -> None:
        commands = [command for each in pending for command in each.commands]
        self._reads = dict.fromkeys(keys_of(commands))
        await self._load_missing(self._reads)
        if any(each.has_more_keys for each in pending):
            more = [
                key for each in commands if hasattr(each, "more_keys") for key in each.more_keys(self.state)
            ]
            await self._load_missing(more)
            self._reads.update(dict.fromkeys(more))

    async def _load_missing(self, keys: Iterable[Key]) -> None:
        wanted = list(keys)
        self._forget_offsets({key.group_id for key in wanted if type(key) is PendingKey and self._owns(key)})
        missing = list(dict.fromkeys(key for key in wanted if not self.state.is_current(key)))
        if missing:
            found = await self._shared.load(missing, locks=self._has_locks)
            for key, (value, version) in zip(missing, found, strict=True):
                self.state.put_versioned(key, value, version)
                if type(key) is PartitionKey and self._owns(key) and not self._publisher.shows(key, value):
                    # An answer may reveal a commit of another broker before its notice arrives.
                    self._drop((key,))

    def _forget_offsets(self, groups: set[str]) -> None:
        """Forget committed offsets of groups whose pending ones are not current: one version covers both."""
        old = {each for each in groups if not self.state.is_current(PendingKey(each))}
        if old:
            self.state.forget([key for key in self.state.offsets if key.group_id in old])

    def _decide(self, pending: list[PendingCommands]) -> Tick:
        self.state.begin_tick()
        return super()._decide(pending)

    async def _commit(self, tick: Tick) -> Tick:
        try:
            for number in range(1, TRIES_MAX + 1):
                try:
                    await self._check_transactions(tick)
                    return await super()._commit(tick)
                except Conflict as conflict:
                    self._has_locks = number >= TRIES_WITHOUT_LOCKS
                    tick = await self._decide_again(tick, conflict.keys)
            raise StoreRefused("other brokers change the same entities all the time")
        except TermEnded:
            raise _NewTerm("PostgreSQL has crashed; open transactions are aborted") from None
        finally:
            if self._has_locks:
                self._has_locks = False
                await self._shared.unlock()

    async def _check_transactions(self, tick: Tick) -> None:
        """Raise Conflict or TermEnded if a tick that writes nothing has read an old copy of a transaction.

        A write to another broker changes a transaction of this one, and is answered before the notice of it
        arrives. A crash may have lost an open transaction, and the transactional id is as it was before. A
        commit detects both by itself.
        """
        read = [key for key in self._reads if type(key) is TransactionKey]
        if tick.durable or not read:
            return
        if not self._has_locks and (copies := [key for key in read if self._owns(key)]):
            versions = self.state.versions
            pairs = zip(copies, await self._shared.load(copies), strict=True)
            if changed := [key for key, each in pairs if each.version != versions.get(key)]:
                raise Conflict(changed)
        # Check the term after all reads: versions may be used again after a crash.
        await self._shared.check_term()

    async def _decide_again(self, tick: Tick, changed: Sequence[Key]) -> Tick:
        """Undo the tick, load what has changed, perhaps under locks, and decide it again."""
        self.conflicts += 1
        self.state.undo()
        reads = [key for key in self._reads if type(key) is not GroupKey]
        if self._has_locks or not changed:
            # Not groups: one may be ahead of the ledger while members join, and others rarely write it.
            self.state.forget(reads)
        self.state.forget(changed)
        pending = list(tick.pending)
        for each in pending:
            each.answers.clear()
        while True:
            try:
                await self._shared.unlock()
                if self._has_locks:
                    # Lock all at once, because brokers that lock in several steps may wait for each other.
                    await self._load_missing(reads)
                await self._load(pending)
                # The commands may read other entities now, such as the partitions of a transaction.
                self._forget_foreign([key for key in reads if key not in self._reads])
                return self._decide(pending)
            except Conflict:
                # Another broker holds a lock for a long time. Try again.
                continue

    def _write(self, tick: Tick, *, defers_sync: bool) -> Awaitable[int]:
        return self._write_expected(tick, defers_sync)

    async def _write_expected(self, tick: Tick, defers_sync: bool) -> int:
        state = self.state
        expected = state.expected(self._reads, tick.durable)
        version = await self._shared.commit(
            tick.durable, tick.batches, expected=expected, defers_sync=defers_sync
        )
        state.keep(tick.durable, version)
        self._notices, self._later = outgoing(tick, version, expected, self._owns)
        return version

    def _may_stay_unsynced(self, tick: Tick) -> bool:
        # What other brokers publish must be durable.
        return super()._may_stay_unsynced(tick) and not any(
            is_awaited(fact) and not self._owns(entity_of(fact)) for fact in tick.durable
        )

    def _owns(self, key: Key | None) -> bool:
        return key is None or type(key) is ClusterKey or self._ownership.owns(key)

    async def _refuse(self, tick: Tick, full: StoreRefused) -> None:
        """Undo a tick that was not written, and refuse its commands.

        If a term begins, the commands are decided again, because retries would meet the same state. If the
        ledger is damaged, only commands that need the damaged rows are refused.
        """
        self.state.undo()
        pending = list(tick.pending)
        begins_term = isinstance(full, _NewTerm)
        if not begins_term and (len(pending) == 1 or not isinstance(full, LedgerDamaged)):
            for each in pending:
                each.resolve(full)
            return
        for each in pending:
            each.answers.clear()
        if begins_term:
            await self._begin_term()
            await self._tick(pending)
            return
        for each in pending:
            await self._tick([each])

    async def _begin_term(self) -> None:
        """Forget all copies, which may be ahead of the ledger; abort transactions that may be incomplete.

        Groups stay, with the deadlines of their members: their facts are always flushed.
        """
        log.warning("term %d begins: unsynced work of open transactions may be lost", self._store.term)
        self.unsynced.take()
        before, self.state = self.state, SharedState(term=self._store.term)
        self.state.take_over(before)
        # If PostgreSQL is unavailable again, the next tick tries again.
        self._must_recall = True
        with contextlib.suppress(StoreRefused):
            await self._recall()

    async def _recall(self) -> None:
        await self.load_open_transactions()
        self._must_recall = False
        await self.abort_older_terms()

    # -- answers ------------------------------------------------------------------------------------------

    def _answer(self, tick: Tick) -> None:
        reads, self._reads = self._reads, {}
        notices, self._notices = self._notices, {}
        later, self._later = self._later, {}
        written = [fact.key for fact in tick.durable if type(fact) is Put and type(fact.key) is OffsetKey]
        self._forget_foreign((*reads, *written))
        if later:
            self._announcer.announce_later(later)
        if is_confirming(tick):
            notices = confirming(notices)
            self._publisher.suspect_all()
        self.unannounced.answer(
            reads, notices, revealing(tick, notices), lambda: super(SharedCommitLoop, self)._answer(tick)
        )

    def _forget_foreign(self, keys: Iterable[Key]) -> None:
        self.state.forget([key for key in keys if not self._owns(key)])

    # -- between ticks ------------------------------------------------------------------------------------

    async def take_notices(self, notices: Sequence[Notice]) -> None:
        """Apply what other brokers have committed."""

        async def take() -> None:
            for notice in notices:
                take_notice(notice, self.state, self.unsynced, self._publisher)
            # Load changed policies now, before the broker that changed them answers its client.
            await self._publisher.policies.catch_up()

        await self.between_ticks(take)

    async def forget_copies(self) -> None:
        """Forget all copies, because any of them may be old.

        Groups stay: they may be ahead of the ledger, and only their owners change them.
        """
        # Commits need not wait for the search. What opens after it has notices, or is looked for later.
        found = await self._open_in(self._ownership.shards() or ())

        async def forget() -> None:
            for kind, table in self.state.tables.items():
                if kind is not GroupKey:
                    self.state.forget(list(table))
            self.unsynced.take()
            self._publisher.drop_unless(lambda key: False)
            await self._load_if_open(filter(self._owns, found))

        await self.between_ticks(forget)

    def _drop(self, partitions: Collection[PartitionKey]) -> None:
        """Drop these partitions, with their unsynced work, so that readers load them again."""
        self.unsynced.take_partitions(partitions)
        self._publisher.drop(partitions)

    async def adopt(self, shards: Collection[int]) -> None:
        """Begin to own shards: load their open transactions, and abort those of older terms."""
        found = await self._open_in(shards)

        async def adopt() -> None:
            # Forget copies of these entities: they may be older than the ownership of another broker.
            self.state.forget_unless(lambda key: shard_of(key) not in shards)
            self._publisher.drop_unless(lambda key: shard_of(key) not in shards)
            await self._load_if_open(found)
            await self.abort_older_terms()

        await self.between_ticks(adopt)

    async def load_open_transactions(self) -> None:
        """Load the open transactions of all owned shards; other brokers may have opened some of them."""
        await self._load_if_open(await self._open_in(self._ownership.shards() or ()))

    async def look_for_open_transactions(self) -> float:
        """Find transactions that a write to another broker has opened, and whose notice was lost.

        Return the seconds for which the ledger was searched. Commits wait only if something was found.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        found = await self._open_in(self._ownership.shards() or ())
        searched = clock() - began
        if any(key.transactional_id not in self.state.ongoing for key in found):
            await self.between_ticks(lambda: self._load_if_open(filter(self._owns, found)))
        return searched

    async def _open_in(self, shards: Collection[int]) -> list[TransactionKey]:
        """Return the open transactions of these shards."""
        found: list[TransactionKey] = []
        after = ""
        while shards and (page := await self._store.ledger.open_transactions(after=after, limit=PAGE)):
            after = page[-1].transactional_id
            names = (each.transactional_id for each in page)
            found += [TransactionKey(name) for name in names if name_shard(name) in shards]
            if len(page) < PAGE:
                break
        return found

    async def _load_if_open(self, keys: Iterable[TransactionKey]) -> None:
        """Load these transactions. Called between two ticks.

        A copy in another state is old, because this broker commits nothing meanwhile.
        """
        wanted = [key for key in keys if key.transactional_id not in self.state.ongoing]
        self.state.forget(wanted)
        await self._load_missing(wanted)

    async def release(self, give_away: Callable[[], Awaitable[None]]) -> None:
        """Give shards away, and forget what this broker does not own any more. Raises StoreRefused.

        ``give_away`` commits the new owners to the ledger. That also makes all unsynced work durable, unless
        the ledger has crashed and lost it.
        """

        async def release() -> None:
            try:
                await give_away()
                # Readers load the partitions from the ledger: a crash of it may have lost this work.
                self._drop(list(self.unsynced.partitions))
                self.unsynced.take()
            finally:
                self.state.forget_unless(self._owns)
                self._publisher.drop_unless(self._owns)
                self._replies.refuse((), StoreRefused("another broker coordinates this group now"))

        await self.between_ticks(release)


class _NewTerm(StoreRefused):
    """A commit found that the term has ended."""
