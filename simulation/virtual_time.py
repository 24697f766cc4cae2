"""An event loop in which time passes only when no task is ready.

Work takes no time, and a wait takes exactly as long as requested. Tasks run in the order in which they became
ready, so a program without randomness of its own is reproducible.

A history consists mostly of waits, so the loop omits what only real programs need: sockets, threads, signals
and contexts.
"""

import asyncio
import gc
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from heapq import heappop, heappush
from typing import Any, TypeVar

T = TypeVar("T")


class Standstill(Exception):
    """Every task waits and nothing will ever happen, or tasks run forever without finishing."""


class Handle:
    """A scheduled call that can be cancelled."""

    __slots__ = ("args", "callback")

    callback: Callable[..., object] | None
    args: tuple[Any, ...]

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Any) -> None:
        self.callback = callback
        self.args = args

    def cancel(self) -> None:
        """Cancel the call."""
        self.callback = None
        self.args = ()


class VirtualLoop(asyncio.BaseEventLoop):
    """The event loop of one history."""

    _stopping: bool
    calls_max = 300_000
    """About thirty times the calls of a long history. Beyond this, the history will never end."""
    handle: type[Handle] = Handle

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._soon: deque[Handle] = deque()
        self._later: list[tuple[float, int, Handle]] = []
        self._number = 0
        # Called for every future, so both avoid a frame of their own.
        self.create_future = partial(asyncio.Future, loop=self)  # type: ignore[method-assign]
        self.get_debug = bool  # type: ignore[method-assign]

    def time(self) -> float:
        """Seconds since the beginning of the history."""
        return self.now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> Handle:
        """Call after everything that is already scheduled."""
        handle = self.handle(callback, args, context)
        self._soon.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> Handle:
        """Call at this time. Calls at the same time run in the order of scheduling."""
        handle = self.handle(callback, args, context)
        self._number += 1
        heappush(self._later, (when, self._number, handle))
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> Handle:
        """Call after this many seconds."""
        handle = self.handle(callback, args, context)
        self._number += 1
        heappush(self._later, (self.now + delay, self._number, handle))
        return handle

    def _run_once(self) -> None:
        """Run until the loop is stopped."""
        soon, later, calls, calls_max = self._soon, self._later, 0, self.calls_max
        while True:
            while soon:
                handle = soon.popleft()
                if handle.callback is not None:
                    handle.callback(*handle.args)
                calls += 1
                if calls > calls_max:
                    raise Standstill(f"no end after {calls} calls")
            if self._stopping:
                return
            if not later:
                raise Standstill("everyone waits, and nothing will ever happen")
            when, _, handle = heappop(later)
            if handle.callback is not None:
                self.now = max(self.now, when)
                soon.append(handle)

    def _process_events(self, event_list: list[Any]) -> None:
        """Do nothing: there are no events."""

    def _write_to_self(self) -> None:
        """Do nothing: there are no other threads."""


class Sleep:
    """Awaiting this lets time pass: like ``asyncio.sleep``, in fewer steps."""

    __slots__ = ("_seconds",)

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __await__(self) -> Generator[Any, None, None]:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        loop.call_later(self._seconds, _wake, future)
        yield from future


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


sleep = Sleep


def run(loop: VirtualLoop, main: Coroutine[Any, Any, T]) -> T:
    """Run to the end in virtual time. The loop cannot be used again."""
    try:
        with _no_collection():
            return loop.run_until_complete(main)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Collect garbage between histories only: a history is short, and a collection is not."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
