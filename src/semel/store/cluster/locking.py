"""Lock entities for one broker, from loading them to its next commit.

The locks are row locks of a transaction that stays open. PostgreSQL ends it if the broker is silent for too
long. Nothing is written then: the commit notices, and compares versions as any other commit does.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from semel.core.types import Key
from semel.store.cluster.postgres.database import Database
from semel.store.cluster.versions import Expectations


class _Unlocked(Exception):
    """Rolls the transaction back."""


class Locks:
    """The open transaction of a broker, if there is one."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._open: AsyncExitStack | None = None
        self._connection: Any = None
        self._keys: dict[Key, None] = {}

    @property
    def are_held(self) -> bool:
        """Whether a transaction is open."""
        return self._open is not None

    @asynccontextmanager
    async def taken(self, keys: Iterable[Key]) -> AsyncIterator[Any]:
        """Lock these entities too. Yield the transaction's connection. ConnectionLost. Errors roll it back.

        All brokers take the locks of one call in the same order, but not those of several calls. After an
        error the next call takes all locks again, in order.
        """
        wanted = dict.fromkeys(keys)
        is_new = self._open is None
        self._keys |= wanted
        async with self._open or AsyncExitStack() as stack:
            self._open = None
            if is_new:
                wanted = self._keys
                self._connection = await stack.enter_async_context(self._database.connection())
                await stack.enter_async_context(self._connection.transaction())
            locked = Expectations.of_locks(wanted).argument
            await self._connection.fetchrow("SELECT lock_entities($1)", locked)
            yield self._connection
            self._open = stack.pop_all()

    @asynccontextmanager
    async def release(self) -> AsyncIterator[Any]:
        """Yield the transaction's connection. Commit the transaction at the end, or roll back on an error."""
        assert self._open is not None
        stack, self._open = self._open, None
        self._keys.clear()
        async with stack:
            yield self._connection

    async def give_up(self) -> None:
        """Roll the transaction back, if there is one."""
        self._keys.clear()
        if self.are_held:
            with suppress(_Unlocked):
                async with self.release():
                    raise _Unlocked
