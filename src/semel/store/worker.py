"""Threads of the store, and its health.

A ``Worker`` runs jobs one after another (or a few at a time) outside the event loop. It is smaller and faster
than an executor, because the round trip to the disk is on the path of every request: one queue, one future,
one wake-up of the loop.

- A submitted job runs even if the waiting task is cancelled. A commit cannot be undone, so a client that
  disconnects only loses its answer.
- The queue needs no limit of its own: every caller waits for its job, or submits no other before it is done.
  So the queue is never longer than the number of waiting tasks, which the server bounds.
- ``rest`` is called on the thread after every job, once its answer is on its way, and again (``quiet``) when
  no job has arrived for a moment. The ledger moves SQLite's log then, because no task is waiting.

The parts of a store share one ``StoreHealth``. After a failure with an unknown outcome it refuses every later
call, because a later success must not hide the failure before it.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

from semel.store.contract import StoreBroken, StoreRefused

T = TypeVar("T")

QUIET_AFTER_SECONDS: Final = 0.02
"""Longer than the pause between two ticks of a busy broker, too short for a person to notice."""


class StoreHealth:
    """Whether the store may still be used. A failure is permanent."""

    def __init__(self) -> None:
        self._reason: str | None = None

    @property
    def has_failed(self) -> bool:
        """Whether the store has failed."""
        return self._reason is not None

    def fail(self, reason: str) -> None:
        """Refuse everything from now on. The first reason is reported."""
        if self._reason is None:
            self._reason = reason

    def check(self) -> None:
        """Raise StoreBroken if the store has failed."""
        if self._reason is not None:
            raise StoreBroken(self._reason)

    def guard(self, job: Callable[..., T], *args: Any) -> T:
        """Run the job. Any error other than a refusal is fatal."""
        self.check()
        try:
            return job(*args)
        except StoreRefused:
            raise
        except StoreBroken as error:
            self.fail(str(error))
            raise
        except Exception as error:
            # The error came in the middle of a write, so it is unknown what reached the disk.
            reason = f"{type(error).__name__}: {error}"
            self.fail(reason)
            raise StoreBroken(reason) from error


class Rest(Protocol):
    """Called on a thread between two jobs. It must not raise."""

    def __call__(self, *, quiet: bool) -> None:
        """``quiet`` means that no task is waiting."""


_Job = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[..., Any], tuple[Any, ...]]


class Worker:
    """Threads that take jobs from one queue, in order."""

    def __init__(self, name: str, *, threads: int = 1) -> None:
        self.rest: Rest | None = None
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._serve, name=f"semel-{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    async def run(self, job: Callable[..., T], *args: Any) -> T:
        """Run the job on a thread. Return or raise its result."""
        return await self.begin(job, *args)

    def begin(self, job: Callable[..., T], *args: Any) -> "asyncio.Future[T]":
        """Submit the job without waiting for it."""
        if self._stopped:
            raise StoreBroken("the store is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put((loop, future, job, args))
        return future

    def stop(self) -> None:
        """Finish the submitted jobs, then end the threads and wait for them."""
        if not self._stopped:
            self._stopped = True
            for _ in self._threads:
                self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        was_busy = False
        while True:
            rest = self.rest
            try:
                job = self._jobs.get(timeout=QUIET_AFTER_SECONDS if was_busy and rest else None)
            except queue.Empty:
                was_busy = False
                if rest is not None:
                    rest(quiet=True)
                continue
            if job is None:
                return
            was_busy = True
            self._do(*job)
            # The waiting thread must not keep the job alive: it may hold large buffers.
            del job
            if rest is not None:
                rest(quiet=False)

    def _do(
        self,
        loop: asyncio.AbstractEventLoop,
        future: "asyncio.Future[Any]",
        job: Callable[..., Any],
        args: tuple[Any, ...],
    ) -> None:
        result: Any = None
        failure: BaseException | None = None
        try:
            result = job(*args)
        except BaseException as error:  # noqa: BLE001 - passed on to the waiting task
            failure = error
        try:
            loop.call_soon_threadsafe(_settle, future, result, failure)
        except RuntimeError:
            # The loop is closed, so no task waits any more. The job is done all the same.
            return


def _settle(future: "asyncio.Future[Any]", result: Any, failure: BaseException | None) -> None:
    if future.cancelled():
        return
    if failure is None:
        future.set_result(result)
    else:
        future.set_exception(failure)
