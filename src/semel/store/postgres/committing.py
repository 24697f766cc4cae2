"""Commits of one broker in PostgreSQL: fenced, numbered, and repeated until their outcome is known.

Every commit counts the sequence in the broker's row, if the row has its epoch. So a process whose place was
taken can write nothing, and a process that lost its connection finds out what became of its commit: it raises
its own epoch, which waits for a commit that is under way and refuses one that arrives later, and reads the
sequence.
"""

import logging
import os
from collections.abc import Sequence
from typing import Any, Final

import asyncpg  # type: ignore[import-untyped]

from semel.store.interface import StoreBroken, StoreFenced, StoreFull, StoreRefused
from semel.store.postgres.database import EXPIRED, ConnectionLost, Database, pauses
from semel.store.postgres.fold import WRITE_ROWS, Call

log = logging.getLogger("semel.store")

FENCED: Final = "SM001"
"""The error of ``count_commit``."""


class Committer:
    """Created by ``Committer.open``. One commit at a time."""

    def __init__(
        self, database: Database, broker_id: int, instance: bytes, epoch: int, sequence: int
    ) -> None:
        self._database = database
        self._broker_id = broker_id
        self._instance = instance
        self._epoch = epoch
        self._sequence = sequence

    @classmethod
    async def open(cls, database: Database, broker_id: int) -> "Committer":
        """Take the place of the last process with this id."""
        instance = os.urandom(16)
        row = await database.row(
            """
            INSERT INTO brokers (broker_id, instance, epoch, sequence) VALUES ($1, $2, 1, 0)
            ON CONFLICT (broker_id) DO UPDATE SET instance = $2, epoch = brokers.epoch + 1
            RETURNING epoch, sequence
            """,
            broker_id,
            instance,
        )
        return cls(database, broker_id, instance, *row)

    async def commit(self, calls: Sequence[Call]) -> int:
        """Carry out these calls together and durably. Return the commit's number. StoreFull, StoreBroken."""
        number = self._sequence + 1
        async for _ in pauses():
            try:
                await self._try(calls)
                break
            except (asyncpg.SerializationError, asyncpg.DeadlockDetectedError):
                # It was rolled back for certain.
                continue
            except ConnectionLost as error:
                log.warning("PostgreSQL was lost during a commit, which is looked for: %s", error)
                if await self._reached() >= number:
                    break
        self._sequence = number
        return number

    async def _try(self, calls: Sequence[Call]) -> None:
        try:
            async with self._database.connection() as connection:
                if len(calls) == 1 and calls[0].function == WRITE_ROWS:
                    arguments = (self._broker_id, self._epoch, *calls[0].arguments)
                    await _called(connection, Call("commit_rows", arguments))
                    return
                async with connection.transaction():
                    await _called(connection, Call("count_commit", (self._broker_id, self._epoch)))
                    for call in calls:
                        await _called(connection, call)
        except asyncpg.DiskFullError as error:
            raise StoreFull(f"PostgreSQL has no room: {error}") from error
        except (asyncpg.SerializationError, asyncpg.DeadlockDetectedError):
            raise
        except asyncpg.PostgresError as error:
            if error.sqlstate == FENCED:
                raise StoreFenced(str(error)) from error
            if error.sqlstate == EXPIRED:
                raise StoreRefused(str(error)) from error
            raise StoreBroken(f"a commit in PostgreSQL failed: {error}") from error

    async def _reached(self) -> int:
        """Return the number of the last commit, after which no commit of the old epoch can come."""
        async for _ in pauses():
            try:
                async with self._database.connection() as connection:
                    row = await connection.fetchrow(
                        """
                        UPDATE brokers SET epoch = epoch + 1 WHERE broker_id = $1 AND instance = $2
                        RETURNING epoch, sequence
                        """,
                        self._broker_id,
                        self._instance,
                    )
            except ConnectionLost:
                continue
            if row is None:
                raise StoreFenced(f"another process took the place of broker {self._broker_id}")
            self._epoch, sequence = row
            return int(sequence)
        raise AssertionError("there is always another pause")


async def _called(connection: Any, call: Call) -> None:
    marks = ", ".join(f"${number}" for number in range(1, len(call.arguments) + 1))
    row = await connection.fetchrow(f"SELECT * FROM {call.function}({marks})", *call.arguments)
    if call.returns is not None:
        assert tuple(row) == call.returns, "the core counts as the ledger does"
