"""Runs the console: in the foreground, or on a thread beside a broker."""

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

import uvicorn
from starlette.applications import Starlette

from semel.console.app import create_app
from semel.console.connections import CONNECTIONS_MAX, HEAD_SECONDS, BoundedProtocol
from semel.console.settings import ConsoleSettings

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
    )
    return _Server(config)


class _Server(uvicorn.Server):
    """Uvicorn's server, with a time limit on the TLS handshake: the same as for the head of a request."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen with a time limit on the handshake, for which uvicorn has no setting."""
        if self.config.is_ssl:
            loop: Any = asyncio.get_running_loop()
            loop.create_server = functools.partial(loop.create_server, ssl_handshake_timeout=HEAD_SECONDS)
        await super().startup(sockets)


def serve(settings: ConsoleSettings, ready: Callable[[str], None]) -> None:
    """Serve until a signal stops it. `ready` is called with the address."""
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


class Beside:
    """A console on a thread of its own, for a broker in the same process and for tests."""

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
