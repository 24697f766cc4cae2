"""Clients of this process. Spark's Python workers live longer than a batch, so connections are kept.

A worker is forked from a process that may have had clients of its own: those belong to it alone.
"""

import os

from semel.client import Client
from semel.spark.errors import OptionError
from semel.spark.given import Address

#: A process serves one cluster, or a few. What is closed is opened again when it is needed.
CLIENTS_MAX = 16

_clients: dict[tuple[int, Address], Client] = {}


def connect(address: Address) -> Client:
    """The client of this process for a cluster."""
    key = (os.getpid(), address)
    if key not in _clients:
        if len(_clients) >= CLIENTS_MAX:
            _clients.pop(next(iter(_clients))).close()
        _clients[key] = _client(address)
    return _clients[key]


def _client(address: Address) -> Client:
    try:
        return Client(
            address.bootstrap_servers,
            client_id=address.client_id,
            timeout_s=address.timeout_s,
            security=address.security,
        )
    except ValueError as error:
        # A file that is not there, or not here: it has to be on every machine of the cluster.
        raise OptionError(f"of the options kafka.*: {error}") from None
