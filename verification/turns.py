"""Opens small stores without threads: nothing depends on time, and limits are reached soon."""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

from semel.store import opening
from semel.store.contract import StoreBroken
from semel.store.embedded import ledger as sqlite_ledger
from semel.store.embedded import ledger_writer, local_chunks, wal, wal_applier
from semel.store.embedded import store as embedded

_WITH_WORKERS: Final = (embedded, opening, sqlite_ledger, local_chunks)

SMALL: Final[tuple[tuple[Any, str, Any], ...]] = (
    (wal, "FILE_BYTES", 8 * 1024),
    (wal, "ZEROED_BYTES", 1024),
    (embedded, "FRAME_BYTES_MAX", 3 * 1024),
    (embedded, "WAL_BATCH_BYTES_MAX", 3 * 1024),
    (wal_applier, "DELAY_SECONDS", 3_600),
    (ledger_writer, "LOG_FRAMES_MAX", 60),
    (ledger_writer, "LOOK_EVERY", 16),
)
"""All sizes are small, so that switching, moving and sealing happen soon."""

_Job = tuple["asyncio.Future[Any]", Callable[..., Any], tuple[Any, ...]]


class Turns:
    """Replaces a ``Worker``: the event loop runs its jobs in order, at once or somewhat later."""

    def __init__(self, chance: random.Random | None) -> None:
        """``chance`` decides when a job runs; without it, a job runs at once."""
        self.rest: Any = None
        self._chance = chance
        self._jobs: deque[_Job] = deque()
        self._is_stopped = False

    async def run(self, job: Callable[..., Any], *args: Any) -> Any:
        """Run the job. Return or raise its result."""
        return await self.begin(job, *args)

    def begin(self, job: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":
        """Submit the job without waiting for it."""
        if self._is_stopped:
            raise StoreBroken("the store is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._jobs.append((future, job, args))
        if self._chance is None:
            self._do()
        else:
            loop.call_soon(self._turn)
        return future

    def stop(self) -> None:
        """Finish the submitted jobs."""
        self._is_stopped = True
        while self._jobs:
            self._do()

    def _turn(self) -> None:
        assert self._chance is not None
        if self._jobs and self._chance.random() < 0.5:
            asyncio.get_running_loop().call_soon(self._turn)
        elif self._jobs:
            self._do()

    def _do(self) -> None:
        future, job, args = self._jobs.popleft()
        try:
            result = job(*args)
        except Exception as error:  # noqa: BLE001 - passed on to the waiting task
            if not future.cancelled():
                future.set_exception(error)
        else:
            if not future.cancelled():
                future.set_result(result)
        if self.rest is not None:
            self.rest(quiet=self._chance is not None and not self._jobs and self._chance.random() < 0.3)


@contextlib.contextmanager
def replaced(changes: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """Replace these attributes temporarily."""
    before = [(owner, name, vars(owner)[name]) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


@contextlib.contextmanager
def small_store(boot_id: Callable[[], str], seed: int) -> Iterator[None]:
    """Make stores opened here small and free of threads and clocks."""

    def worker(name: str, *, threads: int = 1) -> Turns:
        return Turns(None)

    changes: list[tuple[Any, str, Any]] = [
        *SMALL,
        *((module, "Worker", worker) for module in _WITH_WORKERS),
        (opening, "_boot_id", boot_id),
        (ledger_writer, "LOG_FRAMES_BUSY", 40 if seed % 4 else 200),
        (ledger_writer, "LOG_FRAMES_QUIET", 20 if seed % 4 else 100),
        (wal, "QUICK_SECONDS", 1e9 if seed % 3 == 0 else 0),
    ]
    if seed % 2:
        # Switching to the WAL's other file then has to wait for a checkpoint.
        changes.append((wal_applier.WalApplier, "begin_checkpoint", lambda wal_applier: None))
    with replaced(changes):
        yield


@contextlib.contextmanager
def by_turns(chance: random.Random) -> Iterator[None]:
    """Make stores opened here run their jobs in a random order."""

    def worker(name: str, *, threads: int = 1) -> Turns:
        return Turns(chance)

    with replaced(
        [(module, "Worker", worker) for module in (embedded, opening, sqlite_ledger, local_chunks)]
    ):
        yield
