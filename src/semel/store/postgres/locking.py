"""Locks that one broker holds on entities, from loading them to the next commit.

They are row locks of a transaction that is open meanwhile. PostgreSQL ends it if the broker is silent for
too long. Nothing is written then: the commit finds out, and compares versions as any other commit does.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from semel.core.types import Key
from semel.store.postgres.database import Database
from semel.store.postgres.versions import Expectations


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
        """Lock these entities too; the connection of the transaction. ConnectionLost ends it, as all errors.

        Locks are taken in the same order by all brokers, but not if there are several calls. After an error
        the next call takes all locks again, in order.
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
        """The connection of the transaction, which ends with this: committed, or rolled back by an error."""
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
