"""Connections to PostgreSQL that survive its restarts.

A query is repeated when its connection was lost: it changes nothing, or the same again. A commit is not,
because its outcome is unknown then (``committing``).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import asyncpg  # type: ignore[import-untyped]

from semel.store.interface import StoreRefused

T = TypeVar("T")

QUERY_PATIENCE_SECONDS: Final = 10.0
"""How long a query is repeated. Then its client gets an error that it can retry."""
PAUSE_SECONDS: Final = 0.05
PAUSE_MAX_SECONDS: Final = 1.0

_LOST: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.TooManyConnectionsError,
)
_OVERTAKEN: Final = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.LockNotAvailableError,
)
EXPIRED: Final = "SM010"
"""The error of ``store_objects``: the object was uploaded too long ago, and may be deleted."""


class ConnectionLost(Exception):
    """The server did not answer, so it is not known whether it has done what was asked."""


class Database:
    """A pool of connections."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def fetch(self, query: str, *arguments: Any) -> list[Any]:
        """Return the rows of a query. StoreRefused if the server is away."""
        rows: list[Any] = await self._patiently(lambda connection: connection.fetch(query, *arguments))
        return rows

    async def row(self, query: str, *arguments: Any) -> Any:
        """Return the first row of a query, or None. StoreRefused if the server is away."""
        return await self._patiently(lambda connection: connection.fetchrow(query, *arguments))

    async def value(self, query: str, *arguments: Any) -> Any:
        """Return the first value of a query, or None. StoreRefused if the server is away."""
        return await self._patiently(lambda connection: connection.fetchval(query, *arguments))

    async def _patiently(self, query: Callable[[Any], Awaitable[T]]) -> T:
        deadline = asyncio.get_running_loop().time() + QUERY_PATIENCE_SECONDS
        async for pause in pauses():
            try:
                async with self.connection() as connection:
                    return await query(connection)
            except ConnectionLost as error:
                if asyncio.get_running_loop().time() + pause > deadline:
                    raise StoreRefused(f"PostgreSQL does not answer: {error}") from error
        raise AssertionError("there is always another pause")

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        """A connection for several statements. ConnectionLost if the server is away, or goes away."""
        connection: Any = None
        try:
            async with self._pool.acquire() as connection:
                try:
                    yield connection
                except asyncpg.InternalClientError as error:
                    # The server ended the session while it was idle, and the client did not notice.
                    connection.terminate()
                    raise ConnectionLost(str(error)) from error
        except _LOST as error:
            raise ConnectionLost(str(error) or type(error).__name__) from error
        except asyncpg.InterfaceError as error:
            # Raised for wrong use too, which must not be repeated.
            if connection is None or not connection.is_closed():
                raise
            raise ConnectionLost(str(error)) from error

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """A transaction that may as well happen later: StoreRefused if it cannot happen now."""
        try:
            async with self.connection() as connection, connection.transaction():
                yield connection
        except ConnectionLost as error:
            raise StoreRefused(f"PostgreSQL does not answer: {error}") from error
        except _OVERTAKEN as error:
            raise StoreRefused(f"PostgreSQL could not do it now: {error}") from error
        except asyncpg.PostgresError as error:
            if error.sqlstate == EXPIRED:
                raise StoreRefused(str(error)) from error
            raise

    async def close(self) -> None:
        """Close the connections."""
        await self._pool.close()


async def pauses() -> AsyncIterator[float]:
    """Wait between two tries, longer each time: yields before each try how long the next pause would be."""
    pause = PAUSE_SECONDS
    while True:
        yield pause
        await asyncio.sleep(pause)
        pause = min(pause * 2, PAUSE_MAX_SECONDS)
