"""Runs the console: in the foreground, or on a thread beside a broker.

Limits browser connections: closes those without a complete request, and bounds how many an address has.
"""

import asyncio
import functools
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import h11
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from semel.console.app import create_app
from semel.console.settings import ConsoleSettings

#: How long the head of a request may take, from connecting or from the end of the last response.
HEAD_SECONDS = 10.0
#: How long the body may take after that. It suffices for the largest file on a slow connection.
BODY_SECONDS = 120.0
CONNECTIONS_MAX = 1024
#: Connections from one address. The limit is large because all browsers may come through one proxy.
CONNECTIONS_PER_ADDRESS = CONNECTIONS_MAX // 2


class BoundedProtocol(H11Protocol):
    """Uvicorn's HTTP protocol with time limits. Uvicorn itself waits for a request forever."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._awaited: object = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Close the connection at once if its address has too many."""
        super().connection_made(transport)
        if self._is_one_too_many():
            transport.abort()
        else:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer."""
        self._await(None)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Handle what was received, and time the part of the request that is still to come."""
        super().handle_events()
        self._watch()

    def _watch(self) -> None:
        """Run a timer while a head or a body is awaited. More bytes of the same part do not restart it."""
        state = None if self.transport.is_closing() else self.conn.their_state
        if state is not self._awaited:
            self._await(state)

    def _await(self, state: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._awaited = state
        limits: dict[object, float] = {h11.IDLE: HEAD_SECONDS, h11.SEND_BODY: BODY_SECONDS}
        seconds = limits.get(state)
        self._timer = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)

    def _is_one_too_many(self) -> bool:
        ours = [each.client for each in self.connections if isinstance(each, BoundedProtocol)]
        address = self.client[0] if self.client else None
        return sum(1 for each in ours if each and each[0] == address) > CONNECTIONS_PER_ADDRESS


#: How long open live views can delay a stop of the console.
STOP_SECONDS = 3
HEADER_BYTES_MAX = 32 << 10
SWITCH_SECONDS = 0.0005
#: Lowers the priority of the console below that of a broker on the same machine.
NICE = 5


def listening(settings: ConsoleSettings) -> socket.socket:
    """Return a socket that listens on the console's address. OSError if it is taken."""
    host = settings.host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.create_server((host, settings.port), family=family, backlog=128)
    made.set_inheritable(True)
    return made


def address_of(settings: ConsoleSettings, bound: socket.socket) -> str:
    """Return the address for a browser."""
    host = settings.host.strip("[]")
    scheme = "https" if settings.certificate is not None else "http"
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{bound.getsockname()[1]}"


def server_of(settings: ConsoleSettings, app: Starlette | None = None) -> uvicorn.Server:
    """Return the HTTP server of a console. ValueError if the settings are invalid."""
    config = uvicorn.Config(
        app or create_app(settings),
        http=BoundedProtocol,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=HEADER_BYTES_MAX,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=STOP_SECONDS,
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.key,
        ws="none",
        lifespan="on",
    )
    return _Server(config)


class _Server(uvicorn.Server):
    """Uvicorn's server, with a time limit on the TLS handshake: the same as for the head of a request.

    It ends when a background task of the console has failed.
    """

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen with a time limit on the handshake, for which uvicorn has no setting."""
        if self.config.is_ssl:
            loop: Any = asyncio.get_running_loop()
            loop.create_server = functools.partial(loop.create_server, ssl_handshake_timeout=HEAD_SECONDS)
        await super().startup(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Return whether to end: uvicorn itself serves on after its lifespan has failed."""
        return await super().on_tick(counter) or self.lifespan.error_occurred


def serve(settings: ConsoleSettings, ready: Callable[[str], None]) -> None:
    """Serve until a signal stops it. `ready` is called with the address. SystemExit if the console failed."""
    server = server_of(settings)
    bound = listening(settings)
    os.nice(NICE)
    # Pages must not wait long for a thread that decodes the description of a large cluster.
    sys.setswitchinterval(SWITCH_SECONDS)
    # After its shutdown, uvicorn raises the signal that stopped it again. Ignore it: the stop is no failure.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    ready(address_of(settings, bound))
    server.run(sockets=[bound])
    if server.lifespan.error_occurred:
        sys.exit(1)  # Its log says why.


class Beside:
    """A console on a thread of its own, for a broker in the same process and for tests.

    Not anyio's blocking portal: that waits for its thread without a time limit, which would hold up a broker.
    """

    def __init__(self, settings: ConsoleSettings, app: Starlette | None = None) -> None:
        self._server = server_of(settings, app)
        self._socket = listening(settings)
        self.address = address_of(settings, self._socket)
        self._thread = threading.Thread(target=self._run, name="semel console", daemon=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> Self:
        """Begin to serve. Connections that were made earlier wait in the backlog."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop, and wait until the thread has ended."""
        self._server.should_exit = True
        self._thread.join(STOP_SECONDS + 10)

    def _run(self) -> None:
        # Not `Server.run`: that installs signal handlers, which belong to the main thread.
        with suppress(KeyboardInterrupt):
            asyncio.run(self._server.serve(sockets=[self._socket]))
