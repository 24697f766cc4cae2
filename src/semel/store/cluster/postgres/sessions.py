"""Check a new session of PostgreSQL before it is used.

It must not be a session that a connection pooler shares between clients. Its settings must keep what is
confirmed. And it must identify its server: after a failover there may be two, one of which was left behind
(``servers``).
"""

import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import asyncpg

from semel.store.contract import StoreMisconfigured

log = logging.getLogger("semel.store")

DURABLE: Final = ("fsync", "full_page_writes")
"""Settings of a server that must be on: without them a crash loses or damages what was confirmed."""
SESSION_SETTING: Final = "synchronous_commit"
"""A setting that each session sets for itself."""
_POOLED: Final = "SM020"
_POOLER: Final = (
    "there is a connection pooler between Semel and PostgreSQL, such as PgBouncer: %s. Give the address of"
    " PostgreSQL itself. A broker pools its few connections, and a pooler would mix its sessions up"
)
# Uses the simple protocol: a pooler may send the parts of a prepared statement to different sessions.
_BEGIN: Final = """
DO $$ BEGIN
    IF pg_backend_pid() <> {pid} THEN
        RAISE EXCEPTION 'pooled' USING ERRCODE = '{pooled}';
    END IF;
    -- Commits that are acknowledged must be durable, also on a synchronous standby, whatever the default of
    -- the server, the database or the role is. It is set in every case: a default may change while this runs.
    PERFORM set_config('synchronous_commit', CASE current_setting('synchronous_commit')
        WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, false);
    BEGIN
        -- The server notices during a long wait that the broker is gone, if its operating system tells.
        PERFORM set_config('client_connection_check_interval', '2s', false);
    EXCEPTION WHEN OTHERS THEN NULL;
    END;
END $$
"""
_SYSTEM: Final = "SELECT system_identifier::text FROM pg_control_system()"
_TIMELINE: Final = """
    SELECT CASE WHEN NOT pg_is_in_recovery()
    THEN substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) END
"""


UNSAFE: Final = f"""
    SELECT name FROM unnest(ARRAY['{"', '".join(DURABLE)}']) AS name WHERE current_setting(name) <> 'on'
    UNION ALL
    SELECT '{SESSION_SETTING}' WHERE current_setting('{SESSION_SETTING}') NOT IN ('on', 'remote_apply')
"""
"""The settings that endanger durability: of a server, and of this session, which ``begin`` sets."""


class Server(NamedTuple):
    """Which server a session is at, and what that server knows of the cluster."""

    system: str | None
    """The identifier of the database system: a standby has that of its primary. None if it is hidden."""
    timeline: int
    """Counts promotions; 0 for a standby, or if it is hidden."""
    is_standby: bool
    started: str
    """When it was started, which tells two servers apart."""
    terms: tuple[str, ...]
    """The ids of the terms that have begun there."""


def is_pooled(error: Exception) -> bool:
    """Whether an error shows that a pooler refuses a startup parameter, which PostgreSQL accepts."""
    return isinstance(error, asyncpg.ProtocolViolationError) and "startup parameter" in str(error)


def pooler(reason: object) -> StoreMisconfigured:
    """Return the error for a pooler that was detected for this reason."""
    return StoreMisconfigured(_POOLER % reason)


async def begin(session: Any, settings: Mapping[str, str]) -> None:
    """Begin a session with these settings. StoreMisconfigured if it is a pooler's, or a setting was lost."""
    try:
        await session.execute(_BEGIN.format(pid=session.get_server_pid(), pooled=_POOLED))
    except asyncpg.PostgresError as error:
        if error.sqlstate != _POOLED:
            raise
        raise pooler("the process that answers is not the one that was connected to") from None
    found = await session.fetch(
        "SELECT name, current_setting(name) FROM unnest($1::text[]) AS name", [*settings]
    )
    if lost := [name for name, value in found if value != settings[name]]:
        raise pooler(f"{', '.join(sorted(lost))} has not the value that was asked for")


async def server_of(session: Any) -> Server:
    """Return the server of a session. A managed service may hide some of its properties."""
    is_standby, started = await session.fetchrow(
        "SELECT pg_is_in_recovery(), pg_postmaster_start_time()::text"
    )
    reports: list[str | None] = [None, None]
    for at, query in enumerate((_SYSTEM, _TIMELINE)):
        with suppress(asyncpg.SyntaxOrAccessError, asyncpg.FeatureNotSupportedError):
            reports[at] = await session.fetchval(query)
    system, timeline = reports
    terms: list[str] = []
    if await session.fetchval("SELECT to_regclass('terms') IS NOT NULL"):
        terms = await session.fetchval("SELECT array_agg(term_id ORDER BY term) FROM terms") or []
    return Server(system, int(timeline or "0", 16), is_standby, started, tuple(terms))


def check_unsafe(unsafe: Collection[str], allowed: Collection[str] | None) -> None:
    """Raise StoreMisconfigured if unsafe settings are not allowed. None allows all."""
    refused = [] if allowed is None else [each for each in unsafe if each not in allowed]
    if SESSION_SETTING in refused:
        raise StoreMisconfigured(
            f"something has turned {SESSION_SETTING} off in a session of Semel: find out what"
        )
    if refused:
        names = " and ".join(refused)
        raise StoreMisconfigured(
            f"PostgreSQL runs with {names} off, so a crash of its machine loses or damages what was"
            f" confirmed: turn {names} on. On a server for tests, and full_page_writes on a file system that"
            f" never writes half a page, allow it by semel.ledger.unsafe={','.join(refused)}"
        )
