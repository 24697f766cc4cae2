"""Sockets: their options, their addresses, and the file descriptors that they need.

The limit of descriptors is raised, and some are reserved that connections cannot use. A store that cannot
open a file does not know the outcome of its commit and has to stop. Clients must not be able to cause that by
opening connections.
"""

import asyncio
import contextlib
import resource
import socket
from typing import Any, Final, TypeAlias

RESERVED: Final = 128
"""Descriptors for the files of the store, which keeps 64 open to read, and for other uses of the process."""


def take_all() -> None:
    """Raise the soft limit of this process to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # Some systems report a hard limit that they do not grant.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def for_connections() -> int | None:
    """Return the number of connections that the descriptors allow; None if there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else max(1, soft - RESERVED)


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
