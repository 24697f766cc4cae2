"""Keeps the clients of each thread. Spark's Python workers outlive a batch, so connections are reused.

A worker is forked from a process that may have clients of its own; those are not used. But all Python
processes of a driver, and of an executor, share the list of clusters that they have reached, in a file in
their common directory: `patience_s` applies only to these (see `semel.client.net.cluster`), and a new process
may make its first contact just when the broker is restarting.
"""

import hashlib
import os
import threading
from contextlib import suppress
from pathlib import Path

from semel.client import Client
from semel.spark.errors import OptionError
from semel.spark.option_reader import Address
from semel.spark.scratch import scratch_directory

#: A thread uses one cluster, or a few. A closed client is opened again when it is needed.
CLIENTS_MAX = 16
DIRECTORY = "semel-clusters"


class _Known(dict[tuple[int, Address], Client]):
    """The clients of a thread, each with the process that has opened it."""

    def __del__(self) -> None:
        """Close them when the thread ends."""
        for (process, _), client in self.items():
            if process == os.getpid():
                client.close()


class _Clients(threading.local):
    def __init__(self) -> None:
        self.known = _Known()


_clients = _Clients()


def connect(address: Address) -> Client:
    """Return the client of this thread for a cluster."""
    known, key = _clients.known, (os.getpid(), address)
    if key not in known:
        if len(known) >= CLIENTS_MAX:
            known.pop(next(iter(known))).close()
        try:
            known[key] = _SharingClient(address)
        except ValueError as error:
            # For example a missing file: it has to be on every machine of the Spark cluster.
            raise OptionError(f"the options kafka.* are invalid: {error}") from None
    return known[key]


class _SharingClient(Client):
    """A client that shares the list of reached clusters with the processes around it."""

    def __init__(self, address: Address) -> None:
        super().__init__(
            address.bootstrap_servers,
            client_id=address.client_id,
            timeout_s=address.timeout_s,
            patience_s=address.patience_s,
            security=address.security,
        )
        self._servers = address.bootstrap_servers

    @property
    def is_known(self) -> bool:
        """Whether a process of this driver or executor has reached the cluster before."""
        if not self._has_connected:
            mark = self._mark()
            self._has_connected = mark is not None and mark.exists()
        return self._has_connected

    def _note_connected(self) -> None:
        if not self._has_connected and (mark := self._mark()) is not None:
            # Without the file, other processes only fail sooner on their own first contact.
            with suppress(OSError):
                mark.parent.mkdir(mode=0o700, exist_ok=True)
                mark.touch()
        super()._note_connected()

    def _mark(self) -> Path | None:
        scratch = scratch_directory()
        if scratch is None:
            return None
        return scratch / DIRECTORY / hashlib.sha256(self._servers.encode()).hexdigest()
