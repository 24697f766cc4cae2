"""Runs blocking work on threads: bounded in time and number, and stopped when the browser goes away.

`run` is for pages: it calls a function with a client on a pool of threads. `stream` is for live views and
long scans: it runs a generator with a client and a stop on a thread of its own, and returns a `Source`.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager, suppress
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from anyio import (
    BrokenResourceError,
    CancelScope,
    CapacityLimiter,
    EndOfStream,
    create_memory_object_stream,
    from_thread,
    move_on_after,
    to_thread,
)
from starlette.requests import Request
from starlette.types import Receive

from semel.console.clients import ClientPool, StoppableClient, WorkStopped
from semel.console.sessions import Identity, LoginSession
from semel.console.settings import ConsoleSettings

P = ParamSpec("P")
T = TypeVar("T")

#: Items of a stream that are queued for a slow browser before its thread blocks.
AHEAD_MAX = 8

#: Threads for sampling, which must not take those of pages.
BACKGROUND_THREADS = 4

LIVE, SCAN, CHANGES = "live", "scan", "changes"
NAMES = {LIVE: "live views", SCAN: "searches, exports and checks", CHANGES: "pages that refresh themselves"}
OVER = "you have logged out, or the session has ended. Log in again."

Next: TypeAlias = Callable[[], Awaitable[T]]
"""Returns the next item of a source. EndOfStream after the last one. It may be cancelled and called again."""

Source: TypeAlias = AbstractAsyncContextManager[Next[T]]
"""A stream for a response: enter it to begin the work, leave it to stop the work."""


class Busy(Exception):
    """A limit on concurrent work is reached; the text says what to do."""


class TookTooLong(Exception):
    """A page exceeded its time limit."""


class SessionOver(Exception):
    """The user logged out, or the session ended, while work ran for it."""


class Stop(threading.Event):
    """Set when the work is no longer wanted. Generators of `Workers.stream` check it."""


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[None]:
    """Cancel the body and raise WorkStopped when the browser disconnects."""

    async def until_gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    with CancelScope() as scope:
        gone = asyncio.create_task(until_gone())
        gone.add_done_callback(lambda _: scope.cancel())
        try:
            yield
        finally:
            gone.cancel()
    if scope.cancelled_caught:
        gone.result()  # It raises if the browser sent too large a body, which the page does not read.
        raise WorkStopped("the browser has gone.")


class Workers:
    """Threads and clients for the requests of all users."""

    def __init__(self, settings: ConsoleSettings, pool: ClientPool) -> None:
        self._settings = settings
        self.pool = pool
        # Not anyio's threads: they are daemons, so the process could exit in the middle of a change, and a
        # page that is given up would free its place under their limit while its thread is still at work.
        self._pages = ThreadPoolExecutor(settings.threads_max, thread_name_prefix="console")
        self._background = ThreadPoolExecutor(BACKGROUND_THREADS, thread_name_prefix="console sampling")
        self._stream_threads = CapacityLimiter(settings.live_max)
        # By identity: several sessions with the same credentials are one user.
        self._running: Counter[Identity] = Counter()
        self._streams: Counter[tuple[Identity, str]] = Counter()
        self._scopes: dict[CancelScope, LoginSession] = {}

    async def run(
        self,
        request: Request,
        function: Callable[Concatenate[StoppableClient, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Call `function(client, ...)` on a thread. Busy if the user has too much running already."""
        session: LoginSession = request.state.session
        seconds = self._settings.request_seconds
        # Without a login, all browsers are one user.
        is_one = self._settings.needs_login
        most = self._settings.requests_per_user if is_one else self._settings.live_per_user
        if self._running[session.identity] >= most:
            raise Busy("too many of your pages are loading at once. Wait for them, and try again.")
        stop = Stop()
        work = asyncio.get_running_loop().run_in_executor(
            self._pages, lambda: self._call(session, stop, function, *args, **kwargs)
        )

        def ended(_: object) -> None:
            self._running -= Counter([session.identity])

        # Counted until its thread has ended, which may be after the page was given up.
        self._running[session.identity] += 1
        work.add_done_callback(ended)
        try:
            async with while_connected(request.receive):
                with move_on_after(seconds):
                    return await asyncio.shield(work)
            raise TookTooLong(f"the broker did not answer within {seconds:g} seconds. {_advice(request)}")
        finally:
            stop.set()

    async def run_as(
        self,
        session: LoginSession,
        function: Callable[Concatenate[StoppableClient, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Call `function(client, ...)` on a background thread. No browser waits for the result."""
        stop = Stop()
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._background, lambda: self._call(session, stop, function, *args, **kwargs)
            )
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
        with self.pool.client(session, stop) as client:
            return function(client, *args, **kwargs)

    def stream(
        self,
        request: Request,
        function: Callable[..., Generator[T, None, None]],
        *args: Any,
        kind: str = LIVE,
    ) -> Source[T]:
        """Return what the generator `function(client, stop, *args)` yields on a thread of its own.

        When the source is left, the stop is set and the generator is closed. `kind` is `LIVE` for views that
        wait most of the time, and `SCAN` for those that read as fast as they can. Busy if there are too many
        already.
        """
        session: LoginSession = request.state.session
        self._admit(session.identity, kind)
        return self._stream(session, kind, function, args)

    @asynccontextmanager
    async def _stream(
        self, session: LoginSession, kind: str, function: Callable[..., Generator[T, None, None]], args: Any
    ) -> AsyncIterator[Next[T]]:
        stop = Stop()
        sending, receiving = create_memory_object_stream[T](AHEAD_MAX)

        def pump() -> None:
            with (
                _named("console stream"),
                suppress(WorkStopped, BrokenResourceError),
                self.pool.client(session, stop) as client,
                closing(function(client, stop, *args)) as items,
            ):
                for item in items:
                    from_thread.run(sending.send, item)

        def ended(done: "asyncio.Task[None]") -> None:
            sending.close()
            if not done.cancelled():
                done.exception()  # Retrieve it: the stream may have been left, and asyncio would log it.

        async def receive() -> T:
            try:
                return await receiving.receive()
            except EndOfStream:
                work.result()  # It raises the error that ended the generator.
                raise

        with self._counted(session, kind), receiving:
            # A task of its own, that is not cancelled: its thread holds its place until it has ended.
            work = asyncio.create_task(to_thread.run_sync(pump, limiter=self._stream_threads))
            work.add_done_callback(ended)
            try:
                yield receive
            finally:
                stop.set()

    def watch(self, request: Request, receive: Next[T]) -> Source[T]:
        """Return a source of what `receive` returns: counted and ended like a stream, without a thread."""
        session: LoginSession = request.state.session
        self._admit(session.identity, CHANGES)
        return self._watch(session, receive)

    @asynccontextmanager
    async def _watch(self, session: LoginSession, receive: Next[T]) -> AsyncIterator[Next[T]]:
        with self._counted(session, CHANGES):
            yield receive

    def _admit(self, identity: Identity, kind: str) -> None:
        most = self._settings.scans_per_user if kind == SCAN else self._settings.live_per_user
        if self._streams[identity, kind] >= most:
            what = NAMES[kind]
            raise Busy(f"{most} of your {what} run already. Stop one of them, and try again.")
        if self.streams >= self._settings.live_max:
            raise Busy("too many live views are open. Try again later.")

    @contextmanager
    def _counted(self, session: LoginSession, kind: str) -> Iterator[None]:
        """Count a stream, and end it with SessionOver when its session is over."""
        counted = (session.identity, kind)
        self._admit(*counted)
        self._streams[counted] += 1
        with CancelScope() as scope:
            self._scopes[scope] = session
            try:
                yield
            finally:
                del self._scopes[scope]
                self._streams -= Counter([counted])
        if scope.cancelled_caught:
            raise SessionOver(OVER)

    def end(self, sessions: Container[LoginSession]) -> None:
        """End the streams of sessions that are over."""
        for scope, session in self._scopes.items():
            if session in sessions:
                scope.cancel()

    @property
    def streams(self) -> int:
        """How many live views and scans run."""
        return self._streams.total()

    def close(self) -> None:
        """Start no more work. Threads end at their next request, or when the broker answers."""
        self._pages.shutdown(wait=False, cancel_futures=True)
        self._background.shutdown(wait=False, cancel_futures=True)
        self.pool.close()


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Give this thread, which does other work later, a name by which a profile shows what it does."""
    thread = threading.current_thread()
    before, thread.name = thread.name, name
    try:
        yield
    finally:
        thread.name = before


def _advice(request: Request) -> str:
    if request.method not in ("GET", "HEAD"):
        return "The change may have been made, or be made later: look before you try again."
    return "Narrow the search, or try again." if request.query_params.get("q") else "Try again."
