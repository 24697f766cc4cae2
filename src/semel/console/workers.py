"""Runs blocking work on threads: bounded in time and number, and stopped when the browser goes away.

`run` is for pages: it calls a function with a client on a pool of threads. `stream` is for live views and
long scans: it runs a generator with a client and a stop on its own thread, and returns an async iterator.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Container, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from starlette.requests import Request

from semel.console.clients import ClientPool, StoppableClient, WorkStopped
from semel.console.sessions import Identity, LoginSession
from semel.console.settings import ConsoleSettings

P = ParamSpec("P")
T = TypeVar("T")

#: How often the console checks whether a browser still waits for a page.
LOOK_SECONDS = 0.25
#: Items of a stream that are queued for a slow browser before its thread blocks.
AHEAD_MAX = 8

#: Threads for sampling, which must not take those of pages.
BACKGROUND_THREADS = 4

LIVE, SCAN, CHANGES = "live", "scan", "changes"
NAMES = {LIVE: "live views", SCAN: "searches, exports and checks", CHANGES: "pages that refresh themselves"}
OVER = "you have logged out, or the session has ended. Log in again."


class Busy(Exception):
    """A limit on concurrent work is reached; the text says what to do."""


class TookTooLong(Exception):
    """A page exceeded its time limit."""


class SessionOver(Exception):
    """The user logged out, or the session ended, while work ran for it."""


class Stop(threading.Event):
    """Set when the work is no longer wanted. Generators of `Workers.stream` check it."""


class Workers:
    """Threads and clients for the requests of all users."""

    def __init__(self, settings: ConsoleSettings, pool: ClientPool) -> None:
        self._settings = settings
        self.pool = pool
        self._executor = ThreadPoolExecutor(settings.threads_max, thread_name_prefix="console")
        self._background = ThreadPoolExecutor(BACKGROUND_THREADS, thread_name_prefix="console sampling")
        # By identity: several sessions with the same credentials are one user.
        self._running: Counter[Identity] = Counter()
        self._streams: Counter[tuple[Identity, str]] = Counter()
        self._stops: set[Stop] = set()
        self._ends: dict[Callable[[], object], LoginSession] = {}

    async def run(
        self,
        request: Request,
        function: Callable[Concatenate[StoppableClient, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Call `function(client, ...)` on a thread. Busy if the user has too much running already."""
        session: LoginSession = request.state.session
        # Without a login, all browsers are one user.
        is_one = self._settings.needs_login
        most = self._settings.requests_per_user if is_one else self._settings.live_per_user
        if self._running[session.identity] >= most:
            raise Busy("too many of your pages are loading at once. Wait for them, and try again.")
        stop = Stop()
        work = asyncio.get_running_loop().run_in_executor(
            self._executor, lambda: self._call(session, stop, function, *args, **kwargs)
        )
        self._begin(session.identity, stop, work)
        return await self._wait(request, work, stop)

    async def run_as(
        self,
        session: LoginSession,
        function: Callable[Concatenate[StoppableClient, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Call `function(client, ...)` on a background thread. No browser waits for the result."""
        stop = Stop()
        work = asyncio.get_running_loop().run_in_executor(
            self._background, lambda: self._call(session, stop, function, *args, **kwargs)
        )
        self._stops.add(stop)
        work.add_done_callback(lambda _: self._stops.discard(stop))
        try:
            return await work
        finally:
            stop.set()

    def _begin(self, identity: Identity, stop: Stop, work: "asyncio.Future[Any]") -> None:
        """Count the work until its thread has ended, which may be after the page was given up."""
        self._running[identity] += 1
        self._stops.add(stop)

        def ended(done: "asyncio.Future[Any]") -> None:
            self._stops.discard(stop)
            self._running[identity] -= 1
            if not self._running[identity]:
                del self._running[identity]
            if not done.cancelled():
                done.exception()  # Retrieve it: the page may have given up, and asyncio would log it.

        work.add_done_callback(ended)

    async def _wait(self, request: Request, work: "asyncio.Future[T]", stop: Stop) -> T:
        deadline = time.monotonic() + self._settings.request_seconds
        try:
            while True:
                done, _ = await asyncio.wait({work}, timeout=LOOK_SECONDS)
                if done:
                    return work.result()
                if time.monotonic() > deadline:
                    seconds = self._settings.request_seconds
                    raise TookTooLong(
                        f"the broker did not answer within {seconds:g} seconds. {_advice(request)}"
                    )
                if await request.is_disconnected():
                    raise WorkStopped("the browser has gone.")
        finally:
            stop.set()

    def _call(
        self,
        session: LoginSession,
        stop: Stop,
        function: Callable[Concatenate[StoppableClient, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        client = self.pool.take(session)
        client.stop = stop
        try:
            return function(client, *args, **kwargs)
        finally:
            self.pool.give_back(session, client)

    def stream(
        self,
        request: Request,
        function: Callable[..., Generator[T, None, None]],
        *args: Any,
        kind: str = LIVE,
    ) -> AsyncGenerator[T, None]:
        """Run the generator `function(client, stop, *args)` on its own thread, and return what it yields.

        If the iteration ends early, because the browser has disconnected, the stop is set and the generator
        is closed. `kind` is `LIVE` for views that wait most of the time, and `SCAN` for those that read as
        fast as they can. Busy if there are too many already.
        """
        session: LoginSession = request.state.session
        self._admit(session.identity, kind)
        return self._iterate(session, kind, function, args)

    def _admit(self, identity: Identity, kind: str) -> None:
        most = self._settings.scans_per_user if kind == SCAN else self._settings.live_per_user
        if self._streams[identity, kind] >= most:
            what = NAMES[kind]
            raise Busy(f"{most} of your {what} run already. Stop one of them, and try again.")
        if self._streams.total() >= self._settings.live_max:
            raise Busy("too many live views are open. Try again later.")

    async def _iterate(
        self, session: LoginSession, kind: str, function: Callable[..., Generator[T, None, None]], args: Any
    ) -> AsyncGenerator[T, None]:
        bridge: _Bridge[T] = _Bridge(asyncio.get_running_loop())
        with self._counted(session, kind, bridge.cut):
            self._stops.add(bridge.stop)
            thread = threading.Thread(
                target=self._pump, args=(session, bridge, function, args), name="console stream", daemon=True
            )
            thread.start()
            try:
                while True:
                    is_last, item = await bridge.receive()
                    if is_last:
                        return
                    yield item
            finally:
                bridge.stop.set()
                self._stops.discard(bridge.stop)

    def watch(self, request: Request, items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """Pass `items` on, counted and ended like a stream, but without a thread and a client."""
        session: LoginSession = request.state.session
        self._admit(session.identity, CHANGES)
        return self._watch(session, items)

    async def _watch(self, session: LoginSession, items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        over = asyncio.ensure_future((ended := asyncio.Event()).wait())
        pending: asyncio.Future[T] | None = None
        with self._counted(session, CHANGES, ended.set):
            try:
                while True:
                    pending = asyncio.ensure_future(anext(items))
                    await asyncio.wait({pending, over}, return_when=asyncio.FIRST_COMPLETED)
                    if over.done():
                        raise SessionOver(OVER)
                    try:
                        item = pending.result()
                    except StopAsyncIteration:
                        return
                    yield item
            finally:
                over.cancel()
                if pending is not None:
                    pending.cancel()
                    await asyncio.gather(pending, return_exceptions=True)
                await items.aclose()

    @contextmanager
    def _counted(self, session: LoginSession, kind: str, end: Callable[[], object]) -> Iterator[None]:
        """Count a stream. `end` is called when its session is over."""
        counted = (session.identity, kind)
        self._admit(*counted)
        self._streams[counted] += 1
        self._ends[end] = session
        try:
            yield
        finally:
            del self._ends[end]
            self._streams[counted] -= 1
            if not self._streams[counted]:
                del self._streams[counted]

    def end(self, sessions: Container[LoginSession]) -> None:
        """End the streams of sessions that are over."""
        for end in [end for end, session in self._ends.items() if session in sessions]:
            end()

    def _pump(
        self,
        session: LoginSession,
        bridge: "_Bridge[T]",
        function: Callable[..., Generator[T, None, None]],
        args: Any,
    ) -> None:
        error: BaseException | None = None
        client = self.pool.take(session)
        client.stop = bridge.stop
        try:
            items = function(client, bridge.stop, *args)
            try:
                for item in items:
                    if not bridge.send(item):
                        break
            finally:
                items.close()
        except WorkStopped:
            pass
        except BaseException as raised:  # noqa: BLE001 - it is raised again where the stream is read
            error = raised
        finally:
            self.pool.give_back(session, client)
            bridge.end(error)

    @property
    def streams(self) -> int:
        """How many live views and scans run."""
        return self._streams.total()

    def close(self) -> None:
        """Stop all work. Threads end at their next request, or when the broker answers."""
        for stop in list(self._stops):
            stop.set()
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._background.shutdown(wait=False, cancel_futures=True)
        self.pool.close()


def _advice(request: Request) -> str:
    if request.method not in ("GET", "HEAD"):
        return "The change may have been made, or be made later: look before you try again."
    return "Narrow the search, or try again." if request.query_params.get("q") else "Try again."


async def first_of(request: Request, items: AsyncGenerator[T, None]) -> T:
    """Return the first item of a stream. If the browser disconnects first, close it and raise WorkStopped."""
    pending = asyncio.ensure_future(anext(items))
    try:
        while not (await asyncio.wait({pending}, timeout=LOOK_SECONDS))[0]:
            if await request.is_disconnected():
                raise WorkStopped("the browser has gone.")
        return pending.result()
    except WorkStopped:
        pending.cancel()
        await asyncio.gather(pending, return_exceptions=True)
        await items.aclose()
        raise


class _Bridge(Generic[T]):
    """A bounded queue from one thread to an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.stop = Stop()
        self._loop = loop
        self._is_cut = False
        self._room = threading.Semaphore(AHEAD_MAX)
        self._queue: asyncio.Queue[tuple[bool, Any]] = asyncio.Queue()

    def send(self, item: T) -> bool:
        """Queue an item, and wait while the reader is behind; False if the reader has stopped."""
        while not self._room.acquire(timeout=LOOK_SECONDS):
            if self.stop.is_set():
                return False
        return not self.stop.is_set() and self._post((False, item))

    def end(self, error: BaseException | None) -> None:
        """Queue the end of the stream, with the error if there was one."""
        self._post((True, error))

    def cut(self) -> None:
        """End the stream at once, without waiting for the thread. Called on the event loop."""
        self.stop.set()
        self._is_cut = True
        self.end(None)

    def _post(self, entry: tuple[bool, Any]) -> bool:
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, entry)
        except RuntimeError:  # The loop is closed: the console has ended.
            return False
        return True

    async def receive(self) -> tuple[bool, Any]:
        """Return whether the stream has ended, and the next item. Raises the error that ended it."""
        is_last, item = await self._queue.get()
        self._room.release()
        if self._is_cut:
            raise SessionOver(OVER)
        if is_last and item is not None:
            raise item
        return is_last, item
