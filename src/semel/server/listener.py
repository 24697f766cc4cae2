"""A listener: an address that is bound, and the address that its clients are told."""

import asyncio
import socket
import ssl
from typing import Final, NamedTuple

from semel.broker.broker import Endpoint
from semel.server.connection import Connection
from semel.server.edge import Edge

BACKLOG: Final = 1_024
TLS_HANDSHAKE_SECONDS: Final = 10.0
TLS_SHUTDOWN_SECONDS: Final = 5.0

_ANY: Final = ("", "0.0.0.0", "::")  # compared with, never bound by default


class ListenerConfig(NamedTuple):
    """Where to listen. Port 0 takes any free port; what is not advertised apart is advertised as bound."""

    name: str
    host: str
    port: int
    advertised_host: str | None = None
    advertised_port: int | None = None
    ssl_context: ssl.SSLContext | None = None


class Listener:
    """One bound address."""

    def __init__(self, config: ListenerConfig, server: asyncio.Server) -> None:
        self.name = config.name
        self.port: int = server.sockets[0].getsockname()[1]
        self.endpoint = Endpoint(
            config.advertised_host or _reachable(config.host), config.advertised_port or self.port
        )
        self._server = server

    @classmethod
    async def bind(cls, edge: Edge, config: ListenerConfig) -> "Listener":
        """Take the address; nobody is let in before `serve`. OSError if it is taken."""
        tls = config.ssl_context is not None
        server = await asyncio.get_running_loop().create_server(
            lambda: Connection(edge, config.name),
            config.host or None,
            config.port,
            backlog=BACKLOG,
            ssl=config.ssl_context,
            ssl_handshake_timeout=TLS_HANDSHAKE_SECONDS if tls else None,
            ssl_shutdown_timeout=TLS_SHUTDOWN_SECONDS if tls else None,
            start_serving=False,
        )
        return cls(config, server)

    async def serve(self) -> None:
        """Let clients in."""
        await self._server.start_serving()

    def close(self) -> None:
        """Let nobody in any more. Those who are in stay."""
        self._server.close()

    async def wait_closed(self) -> None:
        """Until the socket is given back."""
        await self._server.wait_closed()


def _reachable(host: str) -> str:
    """A name under which clients find a host that listens on all its addresses."""
    return socket.gethostname() if host in _ANY else host
