"""Socket options and addresses of connections."""

import asyncio
import socket
from typing import Any, Final, TypeAlias

Address: TypeAlias = tuple[Any, ...]
"""The address and the port of a client, as sockets give them."""

KEEPALIVE_IDLE_SECONDS: Final = 60
KEEPALIVE_INTERVAL_SECONDS: Final = 10
KEEPALIVE_PROBES: Final = 6


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Have the kernel detect, after two minutes, clients that vanished without closing the connection."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_SECONDS),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_SECONDS),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
    ):
        if hasattr(socket, option):  # not every system has all three
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def address_of(transport: asyncio.BaseTransport) -> str:
    """Return the client's address, without its port."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) and peer else "local"
