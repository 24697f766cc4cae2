"""Check at intervals whether a broker's PostgreSQL server still keeps what it confirms.

The settings of a server may change while it runs, and the cluster may go on at another server without it.
"""

import asyncio
import logging
from typing import Final

from semel.store.cluster.postgres.database import Database
from semel.store.cluster.postgres.sessions import UNSAFE
from semel.store.cluster.postgres.terms import Terms
from semel.store.contract import StoreRefused

log = logging.getLogger("semel.store")

LOOK_SECONDS: Final = 1.0
"""As often as a lease is renewed by default."""
TERMS_EVERY: Final = 10
"""Looks at the settings per look at other hosts, and at the terms in the object store."""


async def watch(database: Database, terms: Terms) -> None:
    """Check the server until cancelled. StoreMisconfigured if it must not be used any more."""
    looks = 0
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        looks += 1
        try:
            database.servers.check_settings([name for (name,) in await database.fetch(UNSAFE)])
            if looks % TERMS_EVERY == 0:
                await database.servers.look_around()
                await terms.begin()
        except StoreRefused as refused:
            log.warning("whether this is still the right PostgreSQL server is checked later: %s", refused)
