"""Connections to PostgreSQL that end while they are used."""

import asyncio
import os

import pytest

from semel.store.cluster.postgres.database import ConnectionLost
from semel.store.cluster.postgres.opening import open_database


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


async def test_a_connection_that_ends_while_it_is_given_back_is_no_error(postgres_dsn: str) -> None:
    database = await open_database(postgres_dsn, f"test_{os.urandom(8).hex()}", 2)
    try:
        async with database.connection() as connection:
            assert await connection.fetchval("SELECT 1") == 1
            # Before the pool takes it back, which it does in a task of its own.
            asyncio.get_running_loop().call_soon(connection.terminate)
        assert await database.value("SELECT 2") == 2
    finally:
        await database.close()
