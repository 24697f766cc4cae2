"""Connect to a PostgreSQL server, or report why not: it is away, or it refuses this client.

A server that is away comes back, so callers may wait for it. A server that refuses the user, the password or
the database refuses again, until an operator changes something.
"""

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import asyncpg

from semel.store.cluster.postgres.database import ConnectionLost
from semel.store.cluster.postgres.opening import COMMAND_SECONDS, CONNECT_SECONDS
from semel.store.cluster.postgres.servers import Servers
from semel.store.contract import StoreMisconfigured, StoreRefused

log = logging.getLogger("semel.store")

PAUSE_SECONDS: Final = 0.5
SAY_SECONDS: Final = 5.0
"""Minimum time between two log lines about a server that is away."""

_AWAY: Final = (
    OSError,
    TimeoutError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ConnectionDoesNotExistError,
    asyncpg.TargetServerAttributeNotMatched,
)


async def connect(dsn: str, schema: str, purpose: str) -> Any:
    """Open a connection. StoreRefused if the server is away, StoreMisconfigured if it refuses."""
    _check_files(dsn)
    try:
        return await Servers(dsn).connect(
            timeout=CONNECT_SECONDS,
            command_timeout=COMMAND_SECONDS,
            server_settings={
                "application_name": purpose,
                "client_min_messages": "warning",
                "search_path": f'"{schema}"',
                # Keepalives, so that NATs and firewalls do not drop an idle connection.
                "tcp_keepalives_idle": "30",
            },
        )
    except ConnectionLost as error:
        raise StoreRefused(f"PostgreSQL cannot be used now: {error}") from error
    except ssl.SSLCertVerificationError as error:
        raise StoreMisconfigured(f"the certificate of PostgreSQL is not accepted: {error}") from None
    except _AWAY as error:
        raise StoreRefused(f"PostgreSQL cannot be reached: {str(error) or 'no answer in time'}") from error
    except asyncpg.InvalidAuthorizationSpecificationError as error:
        raise StoreMisconfigured(
            f"PostgreSQL refuses: {error}. Check the user, and the password in PGPASSWORD, ~/.pgpass or"
            " SEMEL_LEDGER"
        ) from None
    except asyncpg.PostgresError as error:
        raise StoreMisconfigured(f"PostgreSQL refuses: {error}") from None
    except (ValueError, asyncpg.InterfaceError) as error:
        if "certificate" in str(error):
            raise StoreMisconfigured(f"PostgreSQL cannot be reached: {error}") from None
        # The message of such an error has parts of the address, perhaps of the password.
        raise StoreMisconfigured(
            "the address of the ledger is not that of a PostgreSQL database, as in"
            " postgresql://user@host:5432/database; special characters in it must be percent-encoded"
        ) from None


def _check_files(dsn: str) -> None:
    """Check the files that an address names. Otherwise a missing file looks like a server that is away."""
    try:
        given = parse_qs(urlsplit(dsn).query)
    except ValueError:
        return  # It is refused as an address.
    for name in ("sslrootcert", "sslcert", "sslkey"):
        for path in given.get(name, ()):
            if not Path(path).is_file():
                raise StoreMisconfigured(
                    f"there is no file {path}, which the address of the ledger names as {name}"
                )


async def wait_for_server(dsn: str) -> None:
    """Wait until the server answers. It may start after this process, or be away for a while.

    StoreMisconfigured if it refuses.
    """
    loop = asyncio.get_running_loop()
    begun, say_at = loop.time(), loop.time()
    while True:
        try:
            connection = await connect(dsn, "public", "semel")
        except StoreRefused as refused:
            if loop.time() >= say_at:
                log.warning("waiting for PostgreSQL since %.0f s: %s", loop.time() - begun, refused)
                say_at = loop.time() + SAY_SECONDS
            await asyncio.sleep(PAUSE_SECONDS)
        else:
            await connection.close(timeout=CONNECT_SECONDS)
            return
