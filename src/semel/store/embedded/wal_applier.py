"""Apply the write-ahead log to ledger and chunks, in order, several commits at a time.

Every commit is kept here until the ledger has it. ``follow`` is told up to which commit all is durable. Only
those commits are applied, because the ledger must never hold what a crash could undo. One job on the writer's
thread writes their batches to the chunks and their facts in one SQL transaction. Commits that arrive
meanwhile go with the next job, so a busy ledger writes each partition once for many commits.

Readers of the ledger wait for the applier (``catch_up``), and so do commits when it is far behind.

If the ledger has no room, the commits stay here and in the WAL, and the job is retried after a while and by
every caller. Until then reads and commits get ``StoreFull``. This is rare, because commits are written
directly when the ledger has little room left (``EmbeddedStore``).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from semel.core.types import Buffer, Fact
from semel.store.contract import BatchLocation, StoreFull
from semel.store.embedded.ledger import SqliteLedger
from semel.store.embedded.local_chunks import LocalChunks
from semel.store.embedded.memory_chunks import MemoryChunks
from semel.store.worker import StoreHealth, Worker

DELAY_SECONDS: Final = 0.1
"""How long commits may gather for one SQL transaction while no caller waits for the ledger. Rows that change
often are then written once for many commits."""
COMMITS_MAX: Final = 1_024
BYTES_MAX: Final = 16 * 1024 * 1024
"""Beyond these, commits wait for the ledger."""
AGAIN_SECONDS: Final = 0.5
"""How long to wait before retrying a full ledger if no caller needs it."""


class Commit(NamedTuple):
    """A commit on its way to ledger and chunks."""

    number: int
    facts: Sequence[Fact]
    locations: Sequence[BatchLocation]
    batches: Sequence[Buffer]
    size_bytes: int
    """Of the batches."""
    has_batches: bool
    """Whether the batches are in the WAL. If not, they are written to their chunk before the flush."""


class WalApplier:
    """Holds commits that the ledger lacks. Lives on the event loop; its jobs run on the writer's thread."""

    def __init__(
        self, ledger: SqliteLedger, chunks: LocalChunks | MemoryChunks, worker: Worker, health: StoreHealth
    ) -> None:
        self.checkpointed = ledger.commit_number
        """Ledger and chunks are flushed up to this commit."""
        self.witness: Callable[[int], None] = lambda number: None
        """Called on the writer's thread with the commit up to which ledger and chunks are flushed."""
        self._ledger = ledger
        self._chunks = chunks
        self._worker = worker
        self._health = health
        self._commits: deque[Commit] = deque()
        self._large: list[Commit] = []
        self._bytes = 0
        self._is_full = False
        self._is_stopped = False
        self._durable = self._applied = ledger.commit_number
        self._timer: asyncio.TimerHandle | None = None
        self._job: asyncio.Future[None] | None = None
        """Done when its result has been processed here; then this is None again."""
        self._checkpointing: asyncio.Task[None] | None = None

    @property
    def is_far_behind(self) -> bool:
        """Whether commits should wait, because too many have gathered or the ledger is full."""
        return len(self._commits) > COMMITS_MAX or self._bytes > BYTES_MAX or self._is_full

    @property
    def is_full(self) -> bool:
        """Whether the ledger had no room for durable commits."""
        return self._is_full

    @property
    def has_unwritten(self) -> bool:
        """Whether some batches are neither in the WAL nor in their chunk."""
        return bool(self._large)

    def chunk_ids(self) -> set[int]:
        """Return the chunks with reserved locations that the ledger does not know yet."""
        return {location.chunk_id for commit in self._commits for location in commit.locations}

    def add(self, commit: Commit) -> None:
        """Add a commit that was written."""
        self._commits.append(commit)
        self._bytes += commit.size_bytes
        if not commit.has_batches:
            self._large.append(commit)

    def begin_to_write_large(self) -> "asyncio.Task[None]":
        """Write and flush batches that are not in the WAL. The caller must await the task."""
        return asyncio.get_running_loop().create_task(self._write_large(list(self._large)))

    async def _write_large(self, large: list[Commit]) -> None:
        await self._worker.run(lambda: self._health.guard(self._write_now, large))
        # Only now, because a concurrent sync must not take them for written.
        self._large = [commit for commit in self._large if commit.number > large[-1].number]

    def follow(self, number: int) -> None:
        """Apply everything up to this commit, which is durable."""
        self._durable = number
        if self._is_stopped:
            return
        if self._applied < number and self._timer is None and self._job is None:
            self._timer = asyncio.get_running_loop().call_later(DELAY_SECONDS, self._begin)

    async def catch_up(self) -> None:
        """Wait until the ledger has everything that is durable now. StoreFull, StoreBroken."""
        target = self._durable
        while self._applied < target:
            if self._job is None:
                self._begin()
            assert self._job is not None
            await asyncio.shield(self._job)

    async def checkpoint(self) -> None:
        """Flush everything that is durable now in ledger and chunks. StoreFull, StoreBroken."""
        await self.catch_up()
        number = self._applied
        if self.checkpointed < number:
            await self._worker.run(lambda: self._health.guard(self._checkpoint_now))
            self.checkpointed = max(self.checkpointed, number)

    def begin_checkpoint(self) -> None:
        """Start a checkpoint in the background. If it fails, the next call of the store raises the error."""
        if self._checkpointing is None or self._checkpointing.done():
            self._checkpointing = asyncio.get_running_loop().create_task(self._checkpoint_alone())

    async def write_directly(self, commit: Commit) -> None:
        """Write a commit that is not in the WAL, durably. Everything before it must be checkpointed."""
        await self._worker.run(lambda: self._health.guard(self._commit_now, commit))
        self._durable = self._applied = self.checkpointed = commit.number

    async def stop(self) -> None:
        """Start no more jobs, and wait for those in progress."""
        self._is_stopped = True
        self._stop_timer()
        begun = [each for each in (self._job, self._checkpointing) if each is not None]
        if begun:
            await asyncio.wait(begun)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _checkpoint_alone(self) -> None:
        try:
            await self.checkpoint()
        except StoreFull:
            # The switch to the other file tries again, and raises the error.
            return
        except Exception as error:  # noqa: BLE001 - after any error the store cannot continue
            self._health.fail(f"the ledger cannot be checkpointed: {error}")

    def _begin(self) -> None:
        """Start a job that applies the durable commits."""
        self._stop_timer()
        commits = [commit for commit in self._commits if commit.number <= self._durable]
        work = self._worker.begin(self._health.guard, self._apply_now, commits)
        job = self._job = asyncio.get_running_loop().create_future()
        work.add_done_callback(lambda work: self._ended(work.exception(), commits, job))

    def _ended(self, error: BaseException | None, commits: list[Commit], job: "asyncio.Future[None]") -> None:
        self._job = None
        self._is_full = isinstance(error, StoreFull)
        if error is None:
            self._forget(commits)
            job.set_result(None)
            return
        # Unless the ledger is full, the store has failed. All waiting and later callers get the error.
        if self._is_full and not self._is_stopped:
            self._timer = asyncio.get_running_loop().call_later(AGAIN_SECONDS, self._begin)
        job.set_exception(error)
        # Mark the exception as retrieved, in case no caller waits.
        job.exception()

    def _forget(self, commits: list[Commit]) -> None:
        """Drop commits that the ledger has."""
        for commit in commits:
            assert self._commits[0] is commit
            self._commits.popleft()
            self._bytes -= commit.size_bytes
        self._applied = commits[-1].number
        if self._applied < self._durable:
            self.follow(self._durable)

    # -- on the writer's thread ---------------------------------------------------------------------------

    def _write_now(self, commits: Sequence[Commit]) -> None:
        for commit in commits:
            self._chunks.write_now(commit.locations, commit.batches)
        self._chunks.flush_now(self._ledger.commit_number)

    def _apply_now(self, commits: Sequence[Commit]) -> None:
        facts: list[Fact] = []
        locations: list[BatchLocation] = []
        written: list[BatchLocation] = []
        batches: list[Buffer] = []
        for commit in commits:
            facts += commit.facts
            locations += commit.locations
            if commit.has_batches:
                written += commit.locations
                batches += commit.batches
        # They are adjacent in the chunk, so one call writes many commits.
        self._chunks.write_now(written, batches)
        self._ledger.apply_now(facts, locations, commits[-1].number)

    def _checkpoint_now(self) -> None:
        self._chunks.flush_now(self._ledger.commit_number)
        self._ledger.checkpoint_now()
        self.witness(self._ledger.commit_number)

    def _commit_now(self, commit: Commit) -> None:
        self._write_now([commit])
        self._ledger.commit_now(commit.facts, commit.locations, commit.number)
