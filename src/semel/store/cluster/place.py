"""Take the place of a process in the ledger: the row of its broker, with a new epoch.

A process that starts takes the place of the last one with the same id. It waits until the lease of that one
is over. After a clean stop, it is over at once. Otherwise PostgreSQL's clock decides; if it was set back, the
lease is over when a whole lease has passed since it was first seen. If the lease is renewed meanwhile, two
processes have the same id.
"""

import asyncio
import json
import logging
import os
from datetime import timedelta
from typing import Final, NamedTuple

from semel.store.cluster.contract import lease_clock
from semel.store.cluster.leases import LEASE_RUNS
from semel.store.cluster.postgres.database import Database
from semel.store.contract import StoreLocked

log = logging.getLogger("semel.store")

_ABANDON: Final = f"""
    UPDATE objects SET state = 'abandoned', since = clock_timestamp()
    WHERE state = 'uploading' AND NOT EXISTS (SELECT FROM brokers WHERE {LEASE_RUNS})
"""
"""No broker lives that could still commit these objects (``reconciling``). If one lives after all, because
PostgreSQL's clock was set, its commit is refused, and the client sends the records again."""


class Place(NamedTuple):
    """The row of a broker, as this process took it."""

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
    seen: int | None = None
    over_at = 0.0
    while True:
        over = seen if seen is not None and over_at <= lease_clock() else None
        row = await database.row("SELECT * FROM take_place($1, $2, $3, $4)", broker_id, instance, lease, over)
        is_taken, slot, epoch, session, sequence, renewals, whole_seconds, seconds_left, internal = row
        if is_taken:
            return Place(broker_id, slot, epoch, session, sequence)
        if seen not in (None, renewals):
            raise StoreLocked(
                f"another process runs as broker {broker_id}{_address(internal)}:"
                " stop it, or give this one another node.id"
            )
        if seen is None:
            seen, over_at = renewals, lease_clock() + whole_seconds
            seconds_left = min(seconds_left, whole_seconds)
            log.warning("waiting %.1f s for the lease of the last broker %d", seconds_left, broker_id)
        await asyncio.sleep(max(min(seconds_left, over_at - lease_clock()), 0.001))


def _address(internal: str) -> str:
    host, port = json.loads(internal)
    return f" at {host}:{port}" if host else ""
