"""An event loop whose time passes only when nobody has anything to do.

Work takes no time, and a wait takes exactly as long as was asked for. Tasks run in the order in which they
became ready, so a program without randomness of its own does the same every time.

A history is little else than waits, so the loop does nothing that only real programs need: it knows no
sockets, threads, signals and contexts.
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


CALLS_MAX = 300_000
"""Some thirty times what a long history takes: nobody in it will ever come to an end."""


class Standstill(Exception):
    """Everyone waits, and nothing will ever happen; or everyone works, and nothing will ever be done."""


class Handle:
    """Something that will be called, unless it is cancelled."""

    __slots__ = ("args", "callback")

    def __init__(self, callback: Callable[..., object] | None, args: tuple[Any, ...]) -> None:
        self.callback = callback
        self.args = args

    def cancel(self) -> None:
        """It will not be called."""
        self.callback = None
        self.args = ()


class VirtualLoop(asyncio.BaseEventLoop):
    """One history's time."""

    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._soon: deque[Handle] = deque()
        self._later: list[tuple[float, int, Handle]] = []
        self._number = 0
        # Asked for with every future; both without a frame of their own.
        self.create_future = partial(asyncio.Future, loop=self)  # type: ignore[method-assign]
        self.get_debug = bool  # type: ignore[method-assign]

    def time(self) -> float:
        """Seconds since the beginning of the history."""
        return self.now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> Handle:
        """After all that is to be called already."""
        handle = Handle(callback, args)
        self._soon.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> Handle:
        """At that moment; what is to be called at the same one, in the order in which it was asked for."""
        handle = Handle(callback, args)
        self._number += 1
        heappush(self._later, (when, self._number, handle))
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> Handle:
        """After so many seconds."""
        handle = Handle(callback, args)
        self._number += 1
        heappush(self._later, (self.now + delay, self._number, handle))
        return handle

    def _run_once(self) -> None:
        """Until the loop is told to stop."""
        soon, later, calls = self._soon, self._later, 0
        while True:
            while soon:
                handle = soon.popleft()
                if handle.callback is not None:
                    handle.callback(*handle.args)
                calls += 1
                if calls > CALLS_MAX:
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
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody calls from another thread."""


class Sleep:
    """Awaited, it lets time pass: what ``asyncio.sleep`` does, in fewer steps."""

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
    """Garbage is collected between two histories: a history is short, and looking for it is not."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
