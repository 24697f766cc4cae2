"""The place of a process in the ledger: the row of its broker, with an epoch of its own.

A process that starts takes the place of the last one with the same id. It waits for the lease of that one,
which is over at once after a clean stop. If somebody prolongs the lease meanwhile, two processes have one id.
"""

import asyncio
import json
import logging
import os
from datetime import timedelta
from typing import Final, NamedTuple

from semel.store.interface import StoreLocked
from semel.store.postgres.database import Database

log = logging.getLogger("semel.store")

_ABANDON: Final = """
    UPDATE objects SET state = 'abandoned', since = clock_timestamp()
    WHERE state = 'uploading' AND NOT EXISTS (SELECT FROM brokers WHERE lease_until > clock_timestamp())
"""
"""Nobody is there who could still commit them (``reconciling``)."""


class Place(NamedTuple):
    """The row of a broker, as of when it was taken."""

    broker_id: int
    slot: int
    epoch: int
    session: int
    sequence: int


async def take_place(database: Database, broker_id: int, lease_seconds: float) -> Place:
    """Take the place of the last process with this id, and begin a lease. StoreLocked, StoreRefused."""
    await database.row(_ABANDON)
    instance = os.urandom(16)
    lease = timedelta(seconds=lease_seconds)
    first_lease = None
    while True:
        row = await database.row("SELECT * FROM take_place($1, $2, $3)", broker_id, instance, lease)
        is_taken, slot, epoch, session, sequence, lease_until, seconds_left, internal = row
        if is_taken:
            return Place(broker_id, slot, epoch, session, sequence)
        if first_lease not in (None, lease_until):
            raise StoreLocked(
                f"another process runs as broker {broker_id}{_address(internal)}:"
                " stop it, or give this one another node.id"
            )
        if first_lease is None:
            log.warning("waiting %.1f s for the lease of the last broker %d", seconds_left, broker_id)
        first_lease = lease_until
        await asyncio.sleep(max(seconds_left, 0.001))


def _address(internal: str) -> str:
    host, port = json.loads(internal)
    return f" at {host}:{port}" if host else ""
