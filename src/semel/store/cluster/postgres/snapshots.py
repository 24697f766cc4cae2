"""Find who holds the oldest snapshot, which keeps PostgreSQL from removing old versions of rows.

A session in a transaction, a prepared transaction, a replication slot or a standby may hold one. Commits do
not slow down meanwhile (``schema.sql``: generation), but every commit leaves versions behind, so the tables
grow. A user without the role ``pg_read_all_stats`` does not see what sessions of other users hold.
"""

import asyncio
import logging
from typing import Any, Final, NamedTuple

from semel.store.cluster.contract import SnapshotAge
from semel.store.cluster.postgres.database import Database
from semel.store.contract import StoreRefused

log = logging.getLogger("semel.store")

LOOK_SECONDS: Final = 10.0
"""Time between two looks. PostgreSQL goes through all of its sessions for each."""
WARN_SECONDS: Final = 600.0
"""An older snapshot is logged, and again each time that this time has passed."""
WARN_TRANSACTIONS: Final = 1_000_000
"""A snapshot is also logged if this many transactions have begun since, because the age of a slot or a
standby is not known in seconds. A busy cluster has that many within an hour."""
NONE: Final = SnapshotAge(0.0, 0)


class Snapshot(NamedTuple):
    """Who holds a snapshot, and how old it is."""

    holder: str
    """Its kind: session, prepared transaction, replication slot or standby."""
    name: str
    """The application of a session or a standby; the name of a prepared transaction or a slot."""
    pid: int | None
    user: str | None
    seconds: float | None
    """Since the transaction began; None if that is not known, as of a slot or a standby."""
    transactions: int
    """How many transactions of the whole server have begun since."""

    def who(self, pid: str = "") -> str:
        """Describe the holder, in the same words for all sessions of an application."""
        return f"{self.holder} {self.name!r}{pid}" + ("" if self.user is None else f" of user {self.user}")

    def __str__(self) -> str:
        pid = "" if self.pid is None else f" with pid {self.pid}"
        since = "" if self.seconds is None else f"{self.seconds:.0f} s and "
        return f"{self.who(pid)}, since {since}{self.transactions} transactions"


class Snapshots(NamedTuple):
    """What is known of the snapshots of others."""

    oldest: Snapshot | None
    hidden: int
    """Sessions of other users whose snapshots this user may not see."""


async def look(connection: Any) -> Snapshots:
    """Return who holds the oldest snapshot, apart from this session and from brokers."""
    row = await connection.fetchrow(_OLDEST)
    hidden = await connection.fetchval(_HIDDEN)
    return Snapshots(None if row is None else Snapshot._make(row), hidden)


class SnapshotWatch:
    """Looks for old snapshots, for metrics and the log of a broker."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._warned = float("-inf")
        self.age = NONE

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                await self.look_once()
            except StoreRefused as error:
                log.debug("PostgreSQL does not tell about snapshots: %s", error)
            await asyncio.sleep(LOOK_SECONDS)

    async def look_once(self) -> None:
        """Look once. StoreRefused."""
        async with self._database.transaction() as connection:
            oldest = (await look(connection)).oldest
        if oldest is None:
            self.age = NONE
            return
        self.age = SnapshotAge(oldest.seconds or 0.0, oldest.transactions, oldest.who())
        is_old = self.age.seconds >= WARN_SECONDS or self.age.transactions >= WARN_TRANSACTIONS
        now = asyncio.get_running_loop().time()
        if is_old and now - self._warned >= WARN_SECONDS:
            self._warned = now
            log.warning("the tables of the ledger grow, because a snapshot is held for long: %s", oldest)


_OLDEST: Final = """
    SELECT holder, name, pid, user_name, seconds, transactions FROM (
        SELECT 'session' AS holder, application_name AS name, pid, usename::text AS user_name,
            extract(epoch FROM clock_timestamp() - xact_start)::double precision AS seconds,
            greatest(age(backend_xmin), age(backend_xid)) AS transactions
        FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()
        AND backend_type NOT IN ('autovacuum worker', 'walsender')
        AND NOT (application_name = 'semel' AND usename = current_user)
        UNION ALL
        SELECT 'prepared transaction', gid, NULL, owner::text,
            extract(epoch FROM clock_timestamp() - prepared), age(transaction)
        FROM pg_prepared_xacts WHERE database = current_database()
        UNION ALL
        SELECT 'replication slot', slot_name::text, active_pid, NULL, NULL,
            greatest(age(xmin), age(catalog_xmin))
        FROM pg_replication_slots
        UNION ALL
        SELECT 'standby', application_name, pid, usename::text, NULL, age(backend_xmin)
        FROM pg_stat_replication
    ) AS held
    WHERE transactions IS NOT NULL ORDER BY transactions DESC, seconds DESC NULLS LAST LIMIT 1
"""
_HIDDEN: Final = """
    SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type IS NULL
"""
