"""A server: listeners, the connections that came through them, and how it ends.

There are two ways to end, and both leave the same on disk. `stop` is polite: nobody new is let in, what
was begun is answered, then connections are closed. `abort` is for a broker that cannot go on: every
connection is cut at once, so that nobody is told what may not be true.

`fail` and `request_stop` only say that it should end; whoever runs the server (`run.serve`, an embedded
broker) waits for `stopping` and does it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Sequence
from typing import Any

from semel.broker.broker import Broker
from semel.server.dispatch import Dispatch
from semel.server.listener import Listener, ListenerConfig
from semel.server.logs import event
from semel.server.server_context import ServerContext
from semel.server.tls import look_for_certificates
from semel.server.watch import check_connections, probe_loop, release_memory

log = logging.getLogger("semel.server")


class Server:
    """All listeners of one broker."""

    def __init__(
        self, broker: Broker, listeners: Sequence[ListenerConfig], dispatch: Dispatch | None = None
    ) -> None:
        self.broker = broker
        self.stopping = asyncio.Event()
        self.failure: BaseException | None = None
        self._server = ServerContext(broker, dispatch or _default_dispatch(broker))
        self._configs = listeners
        self._listeners: list[Listener] = []
        self._tasks: list[asyncio.Task[Any]] = []

    @property
    def ports(self) -> dict[str, int]:
        """The port that each listener is bound to."""
        return {listener.name: listener.port for listener in self._listeners}

    async def start(self) -> None:
        """Bind all, tell the broker what to advertise, then let clients in. OSError if one is taken."""
        try:
            for config in self._configs:
                self._listeners.append(await Listener.bind(self._server, config))
        except OSError:
            self._close_listeners()
            raise
        for listener in self._listeners:
            self.broker.endpoints[listener.name] = listener.endpoint
        self._watch("check connections", check_connections(self._server))
        self._watch("probe loop", probe_loop(self._server))
        self._watch("release memory", release_memory(self._server))
        for tls in {config.tls for config in self._configs if config.tls is not None}:
            self._watch("certificates", look_for_certificates(tls))
        for listener in self._listeners:
            await listener.serve()
            event(
                log,
                logging.INFO,
                "listening",
                listener=listener.name,
                port=listener.port,
                advertised=f"{listener.endpoint.host}:{listener.endpoint.port}",
            )

    async def stop(self, grace_seconds: float = 5.0) -> None:
        """Let nobody in, answer what was begun, close. After the grace, cut what is left."""
        self._close_listeners()
        for connection in tuple(self._server.connections):
            connection.finish()
        await self._all_gone(grace_seconds)
        await self._end()

    async def abort(self) -> None:
        """Cut every connection now."""
        self._close_listeners()
        await self._end()

    def request_stop(self) -> None:
        """Ask whoever runs this server to stop it."""
        self.stopping.set()

    def fail(self, error: BaseException) -> None:
        """The broker cannot go on. The first reason is the one that is kept."""
        if self.failure is None:
            self.failure = error
            log.critical("the broker cannot go on: %r", error, exc_info=error)
        for connection in tuple(self._server.connections):
            connection.abort()
        self.stopping.set()

    async def _end(self) -> None:
        for connection in tuple(self._server.connections):
            connection.abort()
        # An aborted transport tells its protocol in the next turn of the loop.
        await self._all_gone(1.0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listener in self._listeners:
            await listener.wait_closed()

    async def _all_gone(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._server.emptied.wait(), seconds)

    def _close_listeners(self) -> None:
        self._server.is_closing = True
        for listener in self._listeners:
            listener.close()

    def _watch(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        """Start a task without which the server must not go on."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.broker.fatal(error)


def _default_dispatch(broker: Broker) -> Dispatch:
    # Imported here, because a test with handlers of its own does not need ours.
    from semel.handlers import HANDLERS, served

    settings = broker.settings
    apis = served(
        two_phase=settings.transaction_two_phase_commit_enable, extensions=settings.semel_extensions_enable
    )
    return Dispatch(HANDLERS, apis)
