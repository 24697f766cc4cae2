"""A listener: the address that is bound, and the address that clients get."""

import asyncio
import socket
from typing import Final, NamedTuple

from semel.broker.ownership import Endpoint
from semel.server.connection import Connection
from semel.server.sasl_connection import SaslConnection
from semel.server.server_context import ServerContext
from semel.server.tls import ServerTls, TlsDoor
from semel.wire.addresses import write_address

BACKLOG: Final = 1_024

_ANY: Final = ("", "0.0.0.0", "::")  # compared with, never bound by default


class ListenerConfig(NamedTuple):
    """Where to listen. Port 0 means any free port. By default the bound address is advertised."""

    name: str
    host: str
    port: int
    advertised_host: str | None = None
    advertised_port: int | None = None
    tls: ServerTls | None = None
    has_sasl: bool = False
    """Whether clients must authenticate by SASL."""


class Listener:
    """One bound address."""

    def __init__(self, config: ListenerConfig, server: asyncio.Server, door: TlsDoor | None) -> None:
        self.name = config.name
        self.port: int = server.sockets[0].getsockname()[1]
        self.bound = f"{config.name}://{write_address(config.host, self.port)}"
        """The bound address, as Kafka writes it."""
        self.endpoint = Endpoint(
            config.advertised_host or reachable(config.host), config.advertised_port or self.port
        )
        self._server = server
        self._door = door

    @classmethod
    async def bind(cls, server: ServerContext, config: ListenerConfig) -> "Listener":
        """Bind the address; no client is accepted before `serve`. OSError if the address is in use."""

        def admit() -> Connection:
            if config.has_sasl:
                return SaslConnection(server, config.name, server.authenticators)
            return Connection(server, config.name)

        def refused(host: str, error: Exception) -> None:
            server.refused_handshake(config.name, host, error)

        listening = await asyncio.get_running_loop().create_server(
            admit, config.host or None, config.port, backlog=BACKLOG, start_serving=False
        )
        tls = config.tls
        door = None if tls is None else TlsDoor(listening.sockets, tls, admit, refused, server)
        return cls(config, listening, door)

    async def serve(self) -> None:
        """Start to accept clients."""
        if self._door is None:
            await self._server.start_serving()
        else:
            self._door.open(BACKLOG)

    def close(self) -> None:
        """Stop accepting clients. Open connections stay."""
        self._server.close()
        if self._door is not None:
            self._door.close()

    async def wait_closed(self) -> None:
        """Wait until the socket is closed."""
        if self._door is not None:
            await self._door.wait_closed()
        await self._server.wait_closed()


def reachable(host: str) -> str:
    """Return the host to advertise: the host name if the listener is bound to all addresses."""
    return socket.gethostname() if host in _ANY else host
