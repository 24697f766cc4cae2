"""What only the ledger in PostgreSQL does: opening, fencing, text that PostgreSQL does not store."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.brokers.process import free_port
from support.servers.postgres import postgres_server, why_not
from support.stores.embedded import all_batches

from semel.core.facts import (
    GroupChanged,
    OffsetCommitted,
    PartitionChanged,
    PendingChanged,
    ProducerAdvanced,
    ProducerIdAllocated,
    ShareChanged,
    TransactionChanged,
)
from semel.core.groups import ClassicGroup
from semel.core.share_partition import AVAILABLE, Run, SharePartition
from semel.core.types import (
    Cluster,
    ClusterKey,
    CommittedOffset,
    Fact,
    GroupKey,
    Key,
    OffsetKey,
    Partition,
    PartitionKey,
    PendingKey,
    PendingOffset,
    ProducerState,
    ShareKey,
    Transaction,
    TransactionKey,
    TransactionState,
)
from semel.store.interface import LedgerDamaged, StoreBroken, StoreDamaged, StoreFenced, StoreMisconfigured
from semel.store.postgres import committing
from semel.store.postgres.fold import Call
from semel.store.postgres.ledger import PostgresLedger
from semel.store.postgres.opening import SCHEMA_VERSION
from semel.store.postgres.texts import original, stored
from semel.store.sharing import TermEnded

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


async def test_text_with_a_zero_is_stored_and_listed(postgres_dsn: str, schema: str) -> None:
    names = ["a", "a\0", "a\0b", "a\1", "b"]
    async with opened(postgres_dsn, schema) as ledger:
        transactions = [Transaction(name, number, 0, 1) for number, name in enumerate(names)]
        offset = (OffsetKey("g\0", "t", 0), CommittedOffset(1, metadata="\0\1"))
        await ledger.commit([*map(TransactionChanged, transactions), OffsetCommitted(*offset)], [])
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
        await ledger.commit([TransactionChanged(first)], [])
        await ledger.commit([TransactionChanged(second)], [])
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
            facts = [*(PartitionChanged(key, Partition()) for key in keys), PendingChanged("g", ())]
            facts += [ProducerAdvanced(key.of(7), ProducerState()) for key in keys]
            facts += [TransactionChanged(Transaction("t", 7, 0, 1)), GroupChanged(ClassicGroup("g"))]
            expected = {key: each.version for key, each in zip(wanted, found, strict=True)}
            await ledger.commit(facts, [], expected=expected)

        tables = ("partitions", "producers", "transactions", "groups", "pending_versions", "pending_offsets")
        for number in range(10):
            await commit(number)
        many = [PartitionKey(os.urandom(16), 0) for _ in range(1_000)]
        facts: list[Fact] = [PartitionChanged(key, Partition()) for key in many]
        facts += [ProducerAdvanced(key.of(1), ProducerState()) for key in many]
        facts += [TransactionChanged(Transaction(str(number), 7, 0, 1)) for number in range(1_000)]
        facts += [GroupChanged(ClassicGroup(str(number))) for number in range(1_000)]
        facts += [PendingChanged(str(number), ()) for number in range(1_000)]
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


async def test_a_ledger_of_a_newer_version_is_refused(postgres_dsn: str, schema: str) -> None:
    async with opened(postgres_dsn, schema):
        pass
    await _execute(postgres_dsn, f"UPDATE {schema}.meta SET value = '99' WHERE name = 'schema_version'")
    with pytest.raises(StoreDamaged, match=f"99.* {SCHEMA_VERSION}"):
        await PostgresLedger.open(postgres_dsn, schema=schema)


WITHOUT_RENEWALS = """
    ALTER TABLE brokers DROP COLUMN lease, DROP COLUMN renewals, DROP COLUMN now_ms;
    DROP FUNCTION take_place(integer, bytea, interval, bigint);
    DROP FUNCTION join_cluster(integer, bigint, interval, text, text, text);
    DROP FUNCTION renew_lease(integer, bigint, interval, bigint);
    DROP FUNCTION take_over(integer, bigint, integer, bigint, bigint, integer[], integer[]);
    DROP FUNCTION is_noticed(integer, bigint, integer, bigint, bigint, bigint);
    DROP TYPE member;
    CREATE TYPE member AS (is_live boolean);
    CREATE FUNCTION take_place(integer, bytea, interval) RETURNS void LANGUAGE sql AS '';
    CREATE FUNCTION join_cluster(integer, bigint, interval, text, text, text) RETURNS void LANGUAGE sql AS '';
    CREATE FUNCTION renew_lease(integer, bigint, interval, OUT members member[])
        LANGUAGE sql AS 'SELECT NULL::member[]';
    CREATE FUNCTION take_over(integer, bigint, integer, bigint, integer[], integer[])
        RETURNS void LANGUAGE sql AS '';
    CREATE FUNCTION is_noticed(integer, bigint, integer, bigint, bigint) RETURNS void LANGUAGE sql AS '';
    CREATE FUNCTION is_live(integer, bigint) RETURNS void LANGUAGE sql AS '';
"""
"""What version 7 did not have, or had otherwise."""
WITHOUT_REFERENCES = """
    ALTER TABLE chunks DROP CONSTRAINT chunks_in_object;
    ALTER TABLE partitions DROP CONSTRAINT partitions_of_topic;
"""
WITHOUT_TERMS = "DROP TABLE terms;"
WITHOUT_GENERATIONS = """
    ALTER TABLE brokers ADD COLUMN session bigint DEFAULT 0, ADD COLUMN sequence bigint DEFAULT 0,
        ADD COLUMN next_producer_id bigint DEFAULT 0;
    UPDATE brokers SET (session, sequence, next_producer_id) = (
        SELECT session, sequence, next_producer_id FROM commits WHERE commits.broker_id = brokers.broker_id
    );
    DROP TABLE commits;
    DROP INDEX inline_generation_newest;
    DROP FUNCTION last_commit(integer);
    DROP FUNCTION begin_session(integer, bigint);
    DROP FUNCTION fence_commits(integer, bigint);
    ALTER TABLE partitions DROP COLUMN generation, ADD PRIMARY KEY (topic_id, partition_index);
    ALTER TABLE producers DROP COLUMN generation, ADD PRIMARY KEY (topic_id, partition_index, producer_id);
    ALTER TABLE offsets DROP COLUMN generation, ADD PRIMARY KEY (group_id, topic, partition_index);
    ALTER TABLE pending_versions DROP COLUMN generation, ADD PRIMARY KEY (group_id);
    ALTER TABLE pending_offsets DROP COLUMN row_version, ADD PRIMARY KEY (group_id, position);
    ALTER TABLE transactions DROP COLUMN generation, ADD PRIMARY KEY (transactional_id);
    ALTER TABLE groups DROP COLUMN generation, ADD PRIMARY KEY (group_id);
    ALTER TABLE shares DROP COLUMN generation, ADD PRIMARY KEY (topic_id, partition_index, group_id);
"""
SINCE_7 = WITHOUT_RENEWALS + WITHOUT_REFERENCES + WITHOUT_TERMS + WITHOUT_GENERATIONS
WITHOUT_NUMBERING = f"""
    {SINCE_7}
    DROP TABLE numbering;
    DROP FUNCTION skip_numbers();
"""
"""What version 6 did not have."""
WITHOUT_SHARES = f"""
    {WITHOUT_NUMBERING}
    ALTER TABLE transactions DROP COLUMN shares;
    DROP FUNCTION write_shares(shares[], shares[]);
    DROP FUNCTION commit_shares(claim, expectations, shares[], shares[]);
    DROP FUNCTION delete_shares_of_topic(bytea);
    DROP TABLE shares;
    ALTER TYPE expectations DROP ATTRIBUTE shares;
    DROP TYPE share_version;
"""
"""What version 4 did not have."""


async def test_a_ledger_of_version_4_gets_share_partitions(postgres_dsn: str, schema: str) -> None:
    async with opened(postgres_dsn, schema):
        pass
    await _execute(
        postgres_dsn,
        f"SET search_path = {schema}; {WITHOUT_SHARES}"
        " UPDATE meta SET value = '4' WHERE name = 'schema_version';",
    )
    async with opened(postgres_dsn, schema) as ledger:
        key = ShareKey(b"t" * 16, 0, "g")
        await ledger.commit([ShareChanged(key, SharePartition(5))], [], expected={key: 0})
        assert await ledger.load([key]) == [SharePartition(5)]


async def test_a_ledger_of_version_5_keeps_its_transactions_and_share_partitions(
    postgres_dsn: str, schema: str
) -> None:
    share_key, share = ShareKey(b"t" * 16, 0, "g"), SharePartition(3, 1, (Run(3, 4, AVAILABLE, 2),))
    transaction_key = TransactionKey("x")
    ongoing = Transaction("x", 1, 1, 1, TransactionState.ONGOING, (), ("g",))
    async with opened(postgres_dsn, schema) as ledger:
        facts = [TransactionChanged(ongoing), ShareChanged(share_key, share)]
        version = await ledger.commit(facts, [], expected={transaction_key: 0, share_key: 0})
    await _execute(
        postgres_dsn,
        f"""
        SET search_path = {schema};
        {WITHOUT_NUMBERING}
        ALTER TABLE transactions DROP COLUMN shares;
        UPDATE shares SET runs = '[[3,4,0,2]]';
        UPDATE meta SET value = '5' WHERE name = 'schema_version';
        """,
    )
    async with opened(postgres_dsn, schema) as ledger:
        assert await ledger.load([transaction_key, share_key]) == [ongoing, share]
        joined = ongoing.but(shares=(share_key,))
        await ledger.commit([TransactionChanged(joined)], [], expected={transaction_key: version})
        assert await ledger.load([transaction_key]) == [joined]


async def test_a_ledger_of_version_7_gets_an_id_for_its_term(postgres_dsn: str, schema: str) -> None:
    async with opened(postgres_dsn, schema) as ledger:
        term = ledger.committer.term
    await _execute(
        postgres_dsn,
        f"""
        SET search_path = {schema};
        {SINCE_7}
        UPDATE meta SET value = '7' WHERE name = 'schema_version';
        """,
    )
    async with opened(postgres_dsn, schema) as ledger:
        assert ledger.committer.term == term
        assert await ledger.database.value("SELECT array_agg(term) FROM terms") == [term]


async def test_a_ledger_of_version_6_knows_its_numbers(postgres_dsn: str, schema: str) -> None:
    async with opened(postgres_dsn, schema) as ledger:
        first = await ledger.database.value("SELECT reserve_objects(50)")
        assert await ledger.database.value("SELECT last_object FROM numbering") == first + 49
    await _execute(
        postgres_dsn,
        f"""
        SET search_path = {schema};
        {WITHOUT_NUMBERING}
        UPDATE meta SET value = '6' WHERE name = 'schema_version';
        """,
    )
    async with opened(postgres_dsn, schema) as ledger:
        # Version 6 gave numbers in blocks, and did not note how many of a block were reserved.
        assert await ledger.database.value("SELECT last_object FROM numbering") == first + 999
        assert await ledger.database.value("SELECT reserve_objects(1)") == first + 1000
        assert await ledger.database.value("SELECT last_object FROM numbering") == first + 1000


async def test_a_ledger_of_version_7_keeps_its_rows_and_the_numbers_of_commits(
    postgres_dsn: str, schema: str, scribe: Any
) -> None:
    offset = OffsetKey("g", "orders", 0)
    pending = (PendingOffset(7, offset, CommittedOffset(2)),)
    transaction = Transaction("t", 7, 0, 1)
    facts = [
        TransactionChanged(transaction),
        PendingChanged("g", pending),
        OffsetCommitted(offset, CommittedOffset(1)),
        GroupChanged(ClassicGroup("g")),
        ProducerIdAllocated(41),
    ]
    async with opened(postgres_dsn, schema) as ledger:
        (key,) = await scribe.create(ledger)
        producer, share = key.of(7), ShareKey(key.topic_id, 0, "s")
        facts += [ProducerAdvanced(producer, ProducerState(0)), ShareChanged(share, SharePartition(5))]
        await ledger.commit(facts, [])
        await scribe.fill(ledger, key, [{}])
        keys: list[Key] = [key, producer, share, offset, TransactionKey("t"), PendingKey("g")]
        keys += [GroupKey("g"), ClusterKey()]
        before = await ledger.load_versioned(keys, locks=False)
        place = ledger.place
    await _execute(
        postgres_dsn,
        f"""
        SET search_path = {schema};
        {SINCE_7}
        UPDATE meta SET value = '7' WHERE name = 'schema_version';
        """,
    )
    async with opened(postgres_dsn, schema) as ledger:
        assert await ledger.load_versioned(keys, locks=False) == before
        assert (ledger.place.epoch, ledger.place.sequence) == (place.epoch + 1, 3)
        cluster = before[-1].value
        assert isinstance(cluster, Cluster)
        assert cluster.next_producer_id == 42
        await scribe.fill(ledger, key, [{}])
        await ledger.commit([*facts, PendingChanged("g", ())], [])
        assert await ledger.load([key, PendingKey("g")]) == [scribe.partitions[key], None]
        assert await all_batches(ledger, key) == scribe.batches[key]


async def test_a_ledger_of_version_7_that_is_damaged_gets_references(postgres_dsn: str, schema: str) -> None:
    """Rows that are lost already are no obstacle. From then on, others cannot be lost in the same way."""
    async with opened(postgres_dsn, schema) as ledger:
        await ledger.database.value("SELECT put_topic('kept', $1, 1, '{}', 1)", b"k" * 16)
        await ledger.database.value("SELECT put_topic('lost', $1, 1, '{}', 1)", b"l" * 16)
    await _execute(
        postgres_dsn,
        f"""
        SET search_path = {schema};
        {SINCE_7}
        DELETE FROM topics WHERE name = 'lost';
        INSERT INTO chunks VALUES (1, 1, 1, 0);
        UPDATE meta SET value = '7' WHERE name = 'schema_version';
        """,
    )
    async with opened(postgres_dsn, schema) as ledger:
        with pytest.raises(LedgerDamaged, match="violates foreign key constraint"):
            await ledger.database.row("DELETE FROM topics")
        with pytest.raises(LedgerDamaged, match="violates foreign key constraint"):
            await ledger.database.row("INSERT INTO chunks VALUES (2, 1, 1, 0)")
        partition = PartitionKey(b"l" * 16, 0)
        assert await ledger.load([partition]) == [Partition()]


async def test_a_ledger_of_version_7_becomes_as_a_new_one(postgres_dsn: str, schema: str) -> None:
    async with opened(postgres_dsn, schema) as ledger:
        new = await _shape(ledger, schema)
    old = (Path(__file__).parent / "postgres_schema_7.sql").read_text()
    await _execute(postgres_dsn, f"DROP SCHEMA {schema} CASCADE; CREATE SCHEMA {schema}")
    await _execute(
        postgres_dsn,
        f"""
        SET search_path = {schema};
        {old}
        INSERT INTO meta
        VALUES ('schema_version', '7'), ('cluster_id', 'c'), ('secret', '00'), ('folder', 'f');
        """,
    )
    async with opened(postgres_dsn, schema) as ledger:
        assert await _shape(ledger, schema) == new
        await ledger.commit([TransactionChanged(Transaction("t", 1, 0, 1))], [])


async def _shape(ledger: PostgresLedger, schema: str) -> set[tuple[str, str, str]]:
    """Columns, constraints, indexes and functions, without comments."""
    rows = await ledger.database.fetch(
        """
        SELECT relname, attname, format_type(atttypid, atttypmod)
            || (CASE WHEN attnotnull THEN ' not null' ELSE '' END)
            || coalesce(' ' || pg_get_expr(adbin, adrelid), '')
        FROM pg_attribute JOIN pg_class ON attrelid = pg_class.oid
        LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
        WHERE relnamespace = $1::regnamespace AND attnum > 0 AND NOT attisdropped
        UNION ALL
        SELECT conrelid::regclass::text, '', pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = $1::regnamespace
        UNION ALL
        SELECT indrelid::regclass::text, '', pg_get_indexdef(indexrelid) FROM pg_index
        JOIN pg_class ON indexrelid = pg_class.oid WHERE relnamespace = $1::regnamespace
        UNION ALL
        SELECT proname, pg_get_function_arguments(oid),
            regexp_replace(prosrc, '(--[^\n]*|[[:space:]])+', ' ', 'g')
        FROM pg_proc WHERE pronamespace = $1::regnamespace
        """,
        schema,
    )
    return {tuple(row) for row in rows}


async def test_a_ledger_of_version_1_is_upgraded(postgres_dsn: str, schema: str) -> None:
    async with opened(postgres_dsn, schema):
        pass
    await _execute(
        postgres_dsn,
        f"""
        SET search_path = {schema};
        {WITHOUT_SHARES}
        DROP FUNCTION hand_over(integer, bigint, integer[], integer[], bigint[]);
        CREATE FUNCTION hand_over(integer, bigint, integer[], integer[]) RETURNS void LANGUAGE sql AS '';
        DROP FUNCTION write_policy(text, text, text);
        DROP TABLE policies;
        UPDATE meta SET value = '1' WHERE name = 'schema_version';
        """,
    )
    async with opened(postgres_dsn, schema) as ledger:
        assert await ledger.policies() == []
        assert await ledger.database.value("SELECT value FROM meta WHERE name = 'schema_version'") == str(
            SCHEMA_VERSION
        )
        names = "SELECT count(*) FROM pg_proc WHERE proname = 'hand_over' AND pronamespace = $1::regnamespace"
        assert await ledger.database.value(names, schema) == 1
        place = ledger.place
        await ledger.database.value(
            "SELECT hand_over($1, $2, '{0}', '{1}', '{0}')", place.broker_id, place.epoch
        )


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
        await ledger.commit([TransactionChanged(Transaction("t", 1, 0, 1))], [])


async def test_a_ledger_is_not_upgraded_under_running_brokers(postgres_dsn: str, schema: str) -> None:
    async with opened(postgres_dsn, schema):
        pass
    await _execute(
        postgres_dsn,
        f"""
        SET search_path = {schema};
        UPDATE brokers SET is_member = true, lease_until = clock_timestamp() + interval '1 minute';
        UPDATE meta SET value = '1' WHERE name = 'schema_version';
        """,
    )
    with pytest.raises(StoreMisconfigured, match="stop all of them"):
        await PostgresLedger.open(postgres_dsn, schema=schema)


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
