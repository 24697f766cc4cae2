"""Keep connections to PostgreSQL, and repeat queries across its restarts.

A query whose connection was lost is repeated, because it changes nothing, or the same again. A commit is not
repeated here, because its outcome is unknown (``committing``).

PostgreSQL cannot store U+0000. So in clients' text U+0000 becomes U+0001 U+0001, and U+0001 becomes U+0001
U+0002; all other text stays as it is. The order of two texts stays the same, so a page of a listing continues
where the last one ended.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final, Protocol, TypeVar

import asyncpg

from semel.store.contract import LedgerDamaged, StoreFenced, StoreFull, StoreRefused

_MARK: Final = "\x01"
_STORED: Final = {0: _MARK + "\x01", 1: _MARK + "\x02"}


def stored(text: str) -> str:
    """Return the text as it is stored."""
    # Fast, because almost no text has such a character.
    return text if text.isprintable() else text.translate(_STORED)


def original(text: str) -> str:
    """Return the text that was stored."""
    if _MARK not in text:
        return text
    return text.replace(_MARK + "\x01", "\x00").replace(_MARK + "\x02", _MARK)


T = TypeVar("T")

QUERY_PATIENCE_SECONDS: Final = 10.0
"""How long a query is repeated. Then its client gets a retriable error."""
PAUSE_SECONDS: Final = 0.05
PAUSE_MAX_SECONDS: Final = 1.0

_LOST: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.TooManyConnectionsError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)
COLLIDED: Final = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.LockNotAvailableError,
)
"""Another transaction was in the way. Nothing was done, so the work can be repeated."""
_FENCED: Final = "SM001"
"""The error of the database's functions if the broker was replaced."""
EXPIRED: Final = "SM010"
"""The error of ``store_objects``: the object was uploaded too long ago, and may be deleted."""
FLUSH: Final = "SELECT pg_logical_emit_message(true, 'semel', '')"
"""A transaction that changes nothing, but has a record in the write-ahead log. So its commit flushes the log,
and waits for the synchronous standby."""


class ConnectionLost(Exception):
    """The server did not answer, so it is unknown whether it has executed the statement."""


@contextmanager
def confirmed(session: Any) -> Iterator[None]:
    """Raise ConnectionLost at the end if a commit's wait for the synchronous standby was cancelled.

    An administrator or a timeout may cancel the wait. PostgreSQL then reports success, with a warning, and it
    is unknown whether the standby has the commit.
    """
    cancelled: list[str] = []

    def listen(_: Any, message: Any) -> None:
        # Not by its text: the warning may be in any language.
        if message.server_source_function == "SyncRepWaitForLSN":
            cancelled.append(str(message))

    session.add_log_listener(listen)
    try:
        yield
        if cancelled:
            raise ConnectionLost(f"a commit was not confirmed by the synchronous standby: {cancelled[0]}")
    finally:
        # The pool may have taken a closed session back.
        with suppress(asyncpg.InterfaceError):
            session.remove_log_listener(listen)


class Newest(Protocol):
    """Keeps this process away from servers that were left behind (``servers``)."""

    check_history: Callable[[Any], Awaitable[None]] | None
    """Raises StoreDamaged if the server of a session lacks confirmed commits."""

    @property
    def silent(self) -> Sequence[str]:
        """The hosts of the address that have not answered."""

    def learn(self, number: int, term: str) -> None:
        """Refuse servers without this term, which the server in use has."""

    def check_settings(self, unsafe: Sequence[str]) -> None:
        """Raise StoreMisconfigured if these settings of the server in use endanger durability."""

    def require(self, number: int, term: str) -> None:
        """Refuse servers without this term, and end all connections."""

    async def look_around(self) -> None:
        """Move to another server if it is newer than the one in use."""


class Database:
    """A pool of connections."""

    def __init__(self, pool: asyncpg.Pool, servers: "Newest") -> None:
        self._pool = pool
        self.servers = servers

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
        async def work() -> T:
            async with self.connection() as connection:
                return await query(connection)

        return await patiently(work, QUERY_PATIENCE_SECONDS)

    async def row_within(self, seconds: float, query: str, *arguments: Any) -> Any:
        """Like `row`, but StoreRefused if the answer takes longer than this."""

        async def work() -> Any:
            async with self.connection() as connection:
                return await connection.fetchrow(query, *arguments, timeout=seconds)

        return await patiently(work, seconds)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        """Yield a connection for several statements. ConnectionLost if the server is away, or goes away."""
        try:
            connection = await self._acquire()
            try:
                with confirmed(connection):
                    yield connection
            except asyncpg.InternalClientError as error:
                # The server ended the session while it was idle, and the client did not notice.
                _terminate(connection)
                raise ConnectionLost(str(error)) from error
            except TimeoutError as error:
                # Cancelling the query would take another connection to a server that may be silent.
                _terminate(connection)
                raise ConnectionLost("no answer in time") from error
            except asyncpg.InterfaceError as error:
                # Also raised for wrong use, which must not be repeated.
                if not _is_closed(connection):
                    raise
                raise ConnectionLost(str(error)) from error
            finally:
                # If the connection ends at this moment, the pool has taken it back already.
                with suppress(asyncpg.InternalClientError):
                    await self._pool.release(connection)
        except _LOST as error:
            raise ConnectionLost(str(error) or type(error).__name__) from error

    async def _acquire(self) -> Any:
        try:
            return await self._pool.acquire()
        except (asyncpg.InternalClientError, asyncpg.InterfaceError) as error:
            if self._pool.is_closing():
                raise
            # The server ended the session as it began.
            raise ConnectionLost(str(error)) from error

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """Yield a connection in a transaction that may fail: StoreRefused if the server is away, or busy."""
        try:
            async with self.connection() as connection, connection.transaction():
                yield connection
        except (ConnectionLost, *COLLIDED) as error:
            raise StoreRefused(f"PostgreSQL does not answer: {error}") from error
        except asyncpg.PostgresError as error:
            if (refused := refusal(error)) is None:
                raise
            raise refused from error

    async def close(self) -> None:
        """Close the connections."""
        await self._pool.close()


def _is_closed(connection: Any) -> bool:
    try:
        return bool(connection.is_closed())
    except asyncpg.InterfaceError:
        # The pool has taken back the closed connection.
        return True


def _terminate(connection: Any) -> None:
    if not _is_closed(connection):
        connection.terminate()


async def patiently(work: Callable[[], Awaitable[T]], seconds: float) -> T:
    """Repeat ``work`` until it succeeds, for this long. Then StoreRefused. StoreFenced."""
    deadline = asyncio.get_running_loop().time() + seconds
    async for pause in pauses():
        try:
            return await work()
        except (ConnectionLost, *COLLIDED) as error:
            if asyncio.get_running_loop().time() + pause > deadline:
                raise StoreRefused(f"PostgreSQL does not answer: {error}") from error
        except asyncpg.PostgresError as error:
            if (refused := refusal(error)) is None:
                raise
            raise refused from error
    raise AssertionError("there is always another pause")


def refusal(error: asyncpg.PostgresError) -> StoreRefused | StoreFenced | None:
    """Translate an error with which PostgreSQL refuses a statement. Return None if it is a bug."""
    if error.sqlstate == _FENCED:
        return StoreFenced(str(error))
    if error.sqlstate == EXPIRED:
        return StoreRefused(str(error))
    if isinstance(error, asyncpg.IntegrityConstraintViolationError):
        return LedgerDamaged(f"a row is lost or altered that others need: {error}; see 'semel cluster check'")
    if isinstance(error, asyncpg.DiskFullError):
        return StoreFull(f"PostgreSQL has no room: {error}")
    if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        return StoreRefused(f"PostgreSQL allows no writes now: {error}")
    if isinstance(error, asyncpg.InsufficientResourcesError):
        return StoreRefused(f"PostgreSQL lacks resources: {error}")
    return None


async def pauses() -> AsyncIterator[float]:
    """Wait between attempts, longer each time. Before each attempt, yield the length of the next pause."""
    pause = PAUSE_SECONDS
    while True:
        yield pause
        await asyncio.sleep(pause)
        pause = min(pause * 2, PAUSE_MAX_SECONDS)
