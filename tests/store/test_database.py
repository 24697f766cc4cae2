"""Connections to PostgreSQL that end while they are used."""

import os

import pytest

from semel.store.postgres.database import ConnectionLost
from semel.store.postgres.opening import open_database


async def test_a_session_that_ends_within_a_transaction_is_lost(postgres_dsn: str) -> None:
    """The end of the transaction finds the connection closed, and complains about that instead."""
    database = await open_database(postgres_dsn, f"test_{os.urandom(8).hex()}", 2)

    async def end_the_session() -> None:
        async with database.connection() as connection, connection.transaction():
            session = await connection.fetchval("SELECT pg_backend_pid()")
            assert await database.value("SELECT pg_terminate_backend($1, 5000)", session)
            await connection.fetchval("SELECT 1")

    try:
        with pytest.raises(ConnectionLost):
            await end_the_session()
        assert await database.value("SELECT 1") == 1
    finally:
        await database.close()
