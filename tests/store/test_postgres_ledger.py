"""What only the ledger in PostgreSQL does: opening, fencing, text that PostgreSQL does not store."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.brokers.process import free_port
from support.servers.postgres import postgres_server, why_not
from support.stores.embedded import all_batches

from semel.core.facts import ProducerIdAllocated, Put
from semel.core.groups import ClassicGroup
from semel.core.types import (
    CommittedOffset,
    Fact,
    GroupKey,
    OffsetKey,
    Partition,
    PartitionKey,
    PendingKey,
    ProducerState,
    Transaction,
    TransactionKey,
    TransactionState,
)
from semel.store.cluster import committing, loading
from semel.store.cluster.commit_calls import Call
from semel.store.cluster.contract import TermEnded
from semel.store.cluster.ledger import PostgresLedger
from semel.store.cluster.postgres import opening
from semel.store.cluster.postgres.database import original, stored
from semel.store.contract import LedgerDamaged, StoreBroken, StoreDamaged, StoreFenced, StoreMisconfigured

texts = st.text(st.sampled_from("\0\1\2ab\uffff\U0010ffff")) | st.text()


@pytest.fixture
def schema() -> str:
    return f"test_{os.urandom(8).hex()}"


@asynccontextmanager
async def opened(
    dsn: str, schema: str, broker_id: int = 0, lease_seconds: float = 0.1
) -> AsyncIterator[PostgresLedger]:
    ledger = await PostgresLedger.open(dsn, schema=schema, broker_id=broker_id, lease_seconds=lease_seconds)
    try:
        yield ledger
    finally:
        await ledger.close()


@given(texts)
def test_every_text_comes_back(text: str) -> None:
    assert "\0" not in stored(text)
    assert original(stored(text)) == text


@given(texts, texts)
def test_the_order_of_texts_stays(one: str, other: str) -> None:
    assert (stored(one) < stored(other)) == (one < other)


@pytest.mark.parametrize("skips", [True, False])
@pytest.mark.parametrize("at_once", [1, 3, 50_000])
async def test_lists_are_the_same_however_rows_are_read(
    postgres_dsn: str,
    schema: str,
    scribe: Any,
    monkeypatch: pytest.MonkeyPatch,
    *,
    skips: bool,
    at_once: int,
) -> None:
    """Few rows of a statement at a time, so that none is ended for its length; and by two plans."""
    monkeypatch.setattr(loading, "_MOST_ARE_OLD", f"SELECT {skips} WHERE $1 <> ''")
    monkeypatch.setattr(loading, "READ_AT_ONCE", at_once)
    monkeypatch.setattr(loading, "SKIPPED_AT_ONCE", at_once)
    states = (TransactionState.ONGOING, TransactionState.COMPLETE_COMMIT)
    names = [f"id\0{number}" for number in range(10)]
    transactions = [Transaction(name, at, 0, 1, states[at % 3 > 0]) for at, name in enumerate(names)]
    async with opened(postgres_dsn, schema) as ledger:
        (key,) = await scribe.create(ledger)
        producers = [key.of(number) for number in range(10)]
        facts = [Put(producer, ProducerState(0, (), at, at % 2)) for at, producer in enumerate(producers)]
        await ledger.commit([*map(Put.of, transactions), *facts], [])
        open_ones = [each for each in reversed(transactions) if each.state is TransactionState.ONGOING]
        assert await ledger.open_transactions(limit=100) == open_ones
        assert await ledger.open_transactions(limit=2) == open_ones[:2]
        after = open_ones[1].transactional_id
        assert await ledger.open_transactions(limit=2, after=after) == open_ones[2:4]
        unused = [name for at, name in enumerate(names) if at % 3 > 0]
        assert await ledger.transactions_unused_since(0, limit=100) == unused[::-1]
        assert await ledger.producers_unseen_since(1, limit=100) == producers[::2][::-1]
        assert await ledger.producers_unseen_since(1, limit=2, after=producers[6]) == [
            producers[4],
            producers[2],
        ]


async def test_text_with_a_zero_is_stored_and_listed(postgres_dsn: str, schema: str) -> None:
    names = ["a", "a\0", "a\0b", "a\1", "b"]
    async with opened(postgres_dsn, schema) as ledger:
        transactions = [Transaction(name, number, 0, 1) for number, name in enumerate(names)]
        offset = (OffsetKey("g\0", "t", 0), CommittedOffset(1, metadata="\0\1"))
        await ledger.commit([*map(Put.of, transactions), Put(*offset)], [])
        assert await ledger.transactions() == transactions
        assert await ledger.transactions(after="a\0", limit=2) == transactions[2:4]
        assert await ledger.load([TransactionKey("a\1")]) == [transactions[3]]
        assert await ledger.group_offsets("g\0") == [offset]


async def test_the_last_process_with_an_id_takes_the_place_of_the_others(
    postgres_dsn: str, schema: str
) -> None:
    async with opened(postgres_dsn, schema) as first, opened(postgres_dsn, schema, 1) as other:
        assert await first.commit([ProducerIdAllocated(0)], []) == 1
        async with opened(postgres_dsn, schema) as second:
            with pytest.raises(StoreFenced):
                await first.commit([ProducerIdAllocated(1)], [])
            assert await second.commit([ProducerIdAllocated(2)], []) == 2
        assert await other.commit([ProducerIdAllocated(3)], []) == 1


async def test_brokers_that_start_at_once_make_the_tables_once(postgres_dsn: str, schema: str) -> None:
    opening = (PostgresLedger.open(postgres_dsn, schema=schema, broker_id=each) for each in range(5))
    for ledger in await asyncio.gather(*opening):
        assert await ledger.topics() == []
        await ledger.close()


@pytest.mark.parametrize("happened", [False, True])
async def test_a_commit_whose_answer_is_lost_happens_once(
    postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch, happened: bool, scribe: Any
) -> None:
    """The connection breaks before the server has the commit, or after: the ledger finds out which."""
    async with opened(postgres_dsn, schema) as ledger:
        (key,) = await scribe.create(ledger)
        _lose_one_answer(monkeypatch, "commit_rows", happened=happened)
        await scribe.fill(ledger, key, [{}])
        await scribe.fill(ledger, key, [{}])
        assert await all_batches(ledger, key) == scribe.batches[key]
        assert await ledger.commit([ProducerIdAllocated(0)], []) == 4


async def test_a_commit_that_arrives_late_is_refused(
    postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try is still on its way when the second one is made."""
    first, second = Transaction("t", 1, 0, 1), Transaction("t", 2, 0, 1)
    async with opened(postgres_dsn, schema) as ledger:
        lost = _lose_one_answer(monkeypatch, "commit_rows", happened=False)
        await ledger.commit([Put.of(first)], [])
        await ledger.commit([Put.of(second)], [])
        connection: Any = await asyncpg.connect(postgres_dsn, server_settings={"search_path": schema})
        with pytest.raises(asyncpg.PostgresError, match="another process took its place"):
            await committing._called(connection, lost[0])
        await connection.close()
        assert await ledger.load([TransactionKey("t")]) == [second]


async def test_a_process_that_lost_its_place_meanwhile_stops(
    postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(postgres_dsn, schema) as ledger:
        _lose_one_answer(monkeypatch, "commit_rows", happened=True)
        async with opened(postgres_dsn, schema):
            with pytest.raises(StoreFenced):
                await ledger.commit([ProducerIdAllocated(0)], [])


async def test_commits_and_queries_survive_backends_that_are_terminated(
    postgres_dsn: str, schema: str, scribe: Any
) -> None:
    terminate = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'semel'"
    rounds, is_over = 0, False

    async def disturb() -> None:
        disturbed_round = -1
        while not is_over:
            # Not by the clock: on a busy machine nothing would ever be done in time.
            if disturbed_round != rounds:
                disturbed_round = rounds
                await _execute(postgres_dsn, terminate)
            await asyncio.sleep(0.02)

    async with opened(postgres_dsn, schema) as ledger:
        (key,) = await scribe.create(ledger)
        disturbed = asyncio.create_task(disturb())
        for _ in range(40):
            await scribe.fill(ledger, key, [{}, {}])
            assert await all_batches(ledger, key) == scribe.batches[key]
            rounds += 1
        is_over = True
        await disturbed


async def test_commits_and_queries_wait_for_a_server_that_is_restarted(scribe: Any) -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with postgres_server() as server:
        async with opened(server.dsn, "semel") as ledger:
            (key,) = await scribe.create(ledger)
            for mode in ("fast", "immediate"):
                server.stop(mode=mode)
                fact, location = scribe.append(key)
                facts = [fact, *scribe.changed()]
                filled = asyncio.create_task(ledger.commit(facts, [location]))
                found = asyncio.create_task(ledger.topics())
                await asyncio.sleep(0.2)
                assert not filled.done()
                await asyncio.to_thread(server.start)
                if mode == "immediate":
                    with pytest.raises(TermEnded):
                        await filled
                    await ledger.commit(facts, [location])
                else:
                    await filled
                assert len(await found) == 1
                assert await all_batches(ledger, key) == scribe.batches[key]


async def test_a_table_that_has_grown_is_not_read_as_a_whole(
    postgres_dsn: str, schema: str, scribe: Any
) -> None:
    """A session keeps the plans that it made when the table was small."""
    async with opened(postgres_dsn, schema) as ledger:
        keys = await scribe.create(ledger, 2)

        async def commit(number: int) -> None:
            wanted = [
                *keys,
                *(key.of(7) for key in keys),
                TransactionKey("t"),
                GroupKey("g"),
                PendingKey("g"),
            ]
            found = await ledger.load_versioned(wanted, locks=bool(number % 2))
            facts = [*(Put(key, Partition()) for key in keys), Put(PendingKey("g"), None)]
            facts += [Put(key.of(7), ProducerState()) for key in keys]
            facts += [Put.of(Transaction("t", 7, 0, 1)), Put.of(ClassicGroup("g"))]
            expected = {key: each.version for key, each in zip(wanted, found, strict=True)}
            await ledger.commit(facts, [], expected=expected)

        tables = ("partitions", "producers", "transactions", "groups", "pending_versions", "pending_offsets")
        for number in range(10):
            await commit(number)
        many = [PartitionKey(os.urandom(16), 0) for _ in range(1_000)]
        facts: list[Fact] = [Put(key, Partition()) for key in many]
        facts += [Put(key.of(1), ProducerState()) for key in many]
        facts += [Put.of(Transaction(str(number), 7, 0, 1)) for number in range(1_000)]
        facts += [Put.of(ClassicGroup(str(number))) for number in range(1_000)]
        facts += [Put(PendingKey(str(number)), None) for number in range(1_000)]
        await ledger.database.row(
            "INSERT INTO topics SELECT encode(id, 'hex'), id, 1, '{}', 1 FROM unnest($1::bytea[]) AS id",
            [key.topic_id for key in many],
        )
        await ledger.commit(facts, [])
        before = await _full_reads(ledger, tables)
        for number in range(10):
            await commit(number)
        assert await _full_reads(ledger, tables) == before


async def _full_reads(ledger: PostgresLedger, tables: tuple[str, ...]) -> dict[str, int]:
    """How often tables were read as a whole, by all connections of the ledger."""
    pool = ledger.database._pool
    connections = [await pool.acquire() for _ in range(pool.get_size())]
    for each in connections:
        await each.fetchval("SELECT pg_stat_force_next_flush()")
        await pool.release(each)
    rows = await ledger.database.fetch(
        """
        SELECT relname, seq_scan FROM pg_stat_user_tables
        WHERE schemaname = current_schema() AND relname = ANY ($1)
        """,
        list(tables),
    )
    assert len(rows) == len(tables)
    return dict(rows)


def _lose_one_answer(monkeypatch: pytest.MonkeyPatch, function: str, *, happened: bool) -> list[Call]:
    """The next call of a function breaks its connection; returns it."""
    called = committing._called
    lost: list[Call] = []

    async def losing(connection: Any, call: Call) -> Any:
        if call.function != function or lost:
            return await called(connection, call)
        lost.append(call)
        if happened:
            await called(connection, call)
        raise ConnectionResetError("lost")

    monkeypatch.setattr(committing, "_called", losing)
    return lost


async def test_nobody_listens() -> None:
    with pytest.raises(StoreBroken, match="PostgreSQL cannot be reached"):
        await PostgresLedger.open(f"postgresql://semel@127.0.0.1:{free_port()}/postgres")


async def test_a_user_that_does_not_exist(postgres_dsn: str) -> None:
    with pytest.raises(StoreBroken, match='role "nobody"'):
        await PostgresLedger.open(postgres_dsn.replace("semel@", "nobody@"))


async def test_a_schema_that_an_administrator_has_made_is_enough(postgres_dsn: str, schema: str) -> None:
    await _execute(
        postgres_dsn,
        f"""
        CREATE ROLE {schema} LOGIN;
        CREATE SCHEMA {schema};
        GRANT CREATE, USAGE ON SCHEMA {schema} TO {schema};
        """,
    )
    async with opened(postgres_dsn.replace("semel@", f"{schema}@"), schema) as ledger:
        await ledger.commit([Put.of(Transaction("t", 1, 0, 1))], [])


STEPS = {
    1: "CREATE TABLE notes (note text); INSERT INTO notes VALUES ('a')",
    2: "ALTER TABLE notes ADD COLUMN noted_ms bigint",
}
"""Upgrades. No release has an older schema, so the test provides them."""


async def test_an_older_ledger_is_upgraded_as_a_whole_or_not_at_all(
    postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch, scribe: Any
) -> None:
    async with opened(postgres_dsn, schema) as ledger:
        (key,) = await scribe.create(ledger)

    async def refused(kind: type[StoreBroken], match: str) -> None:
        with pytest.raises(kind, match=match):
            await PostgresLedger.open(postgres_dsn, schema=schema)

    brokers = f"UPDATE {schema}.brokers SET is_member ="
    version = f"SELECT value FROM {schema}.meta WHERE name = 'schema_version'"
    with monkeypatch.context() as newer:
        newer.setattr(opening, "SCHEMA_VERSION", 3)
        newer.setattr(opening, "_UPGRADES", {**STEPS, 2: "ALTER TABLE absent ADD COLUMN x bigint"})
        await refused(StoreBroken, '"absent" does not exist')
        newer.setattr(opening, "_UPGRADES", STEPS)
        await _execute(postgres_dsn, f"{brokers} true, lease_until = clock_timestamp() + interval '1 minute'")
        await refused(StoreMisconfigured, "stop all of them")
        await _execute(postgres_dsn, f"{brokers} false")
        assert await _value(postgres_dsn, version) == "1"
        assert await _value(postgres_dsn, f"SELECT to_regclass('{schema}.notes')") is None
        for _ in range(2):
            async with opened(postgres_dsn, schema) as ledger:
                assert await ledger.load([key]) == [scribe.partitions[key]]
                assert await ledger.database.fetch("SELECT * FROM notes") == [("a", None)]
            assert await _value(postgres_dsn, version) == "3"
    await refused(StoreDamaged, "version 3, and this Semel knows version 1: use the Semel that wrote it")


async def test_rows_that_others_need_cannot_be_lost(postgres_dsn: str, schema: str, scribe: Any) -> None:
    async with opened(postgres_dsn, schema) as ledger:
        await scribe.create(ledger)
        with pytest.raises(LedgerDamaged, match="violates foreign key constraint"):
            await ledger.database.row("DELETE FROM topics")
        with pytest.raises(LedgerDamaged, match="violates foreign key constraint"):
            await ledger.database.row("INSERT INTO chunks VALUES (2, 1, 1, 0)")


async def test_the_ledger_knows_the_largest_number_of_an_object(postgres_dsn: str, schema: str) -> None:
    async with opened(postgres_dsn, schema) as ledger:
        for count in (50, 1):
            first = await ledger.database.value("SELECT reserve_objects($1)", count)
            assert await ledger.database.value("SELECT last_object FROM numbering") == first + count - 1


async def test_a_database_that_cannot_hold_all_text_is_refused(postgres_dsn: str, schema: str) -> None:
    await _execute(
        postgres_dsn,
        f"CREATE DATABASE {schema} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0",
    )
    with pytest.raises(StoreBroken, match="LATIN1"):
        await PostgresLedger.open(postgres_dsn.replace("/postgres", f"/{schema}"))


async def _execute(dsn: str, statement: str) -> None:
    connection: Any = await asyncpg.connect(dsn)
    await connection.execute(statement)
    await connection.close()


async def _value(dsn: str, query: str) -> Any:
    connection: Any = await asyncpg.connect(dsn)
    value = await connection.fetchval(query)
    await connection.close()
    return value
