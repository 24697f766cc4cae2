"""Rows that somebody has deleted from a ledger in PostgreSQL: clients are told, and nothing else is lost."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from support.brokers.offline import J0, M0, Producer, make_topics, plain
from support.brokers.offline import fetch as read_at
from support.servers.postgres import KEY_COLUMNS
from support.stores.cluster_bytes import SETTINGS as ROLLING
from support.stores.cluster_bytes import Place, age, append, listed, opened, parts, read, states
from support.stores.slow import PLENTY, offsets
from support.waiting import until_async

from semel.broker.broker import Broker
from semel.broker.reads.reads import FetchRange, FetchResult, Isolation
from semel.broker.upkeep.damage import Scrub
from semel.config import Settings
from semel.core.entities import SHARDS
from semel.core.log.partition import Append
from semel.core.topics import CreateTopic, DeleteTopic
from semel.core.types import ErrorCode, PartitionKey
from semel.handlers.context import RequestContext
from semel.handlers.list_offsets import list_offsets
from semel.store.cluster.bytes import merging
from semel.store.cluster.checking.run import check_cluster
from semel.store.cluster.contract import Shard
from semel.store.contract import LedgerDamaged, StoreDamaged, StoreRefused
from semel.store.opening import Remote
from semel.wire.messages.fetch import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from semel.wire.records import Record, encode_batch, read_header

TOPIC_ID = bytes(range(16))
KEY, OTHER = PartitionKey(TOPIC_ID, 0), PartitionKey(TOPIC_ID, 1)
BATCHES = 12
SETTINGS = Settings(semel_roll_interval_ms=0, semel_merge_age_ms=0, log_retention_ms=-1)
LARGE = ROLLING.semel_inline_bytes_max + 1


@pytest.fixture
def place(postgres_dsn: str, schema: str, tmp_path: Path) -> Place:
    return Place.new(postgres_dsn, tmp_path.as_uri(), schema)


async def execute(place: Place, statement: str, *arguments: Any) -> None:
    """As an administrator whom no constraint stops: damage is not only done by DELETE."""
    connection: Any = await asyncpg.connect(place.dsn, server_settings={"search_path": place.schema})
    try:
        await connection.execute("SET session_replication_role = replica")
        await connection.execute(statement, *arguments)
    finally:
        await connection.close()


async def produce(broker: Broker, key: PartitionKey) -> ErrorCode:
    data = encode_batch([Record(0, 1_000, None, b"value")])
    answer = await broker.ask(Append(key, read_header(data), data))
    error: ErrorCode = answer.error
    return error


@asynccontextmanager
async def filled(place: Place, settings: Settings = SETTINGS) -> AsyncIterator[Broker]:
    """A broker with batches of one record in two partitions."""
    broker = await Broker.open(settings, Remote(place.dsn, place.address, place.schema))
    try:
        await broker.ask(CreateTopic("orders", TOPIC_ID, 2, {}))
        for _ in range(BATCHES):
            for key in (KEY, OTHER):
                assert await produce(broker, key) is ErrorCode.NONE
        yield broker
    finally:
        await broker.close()


async def fetch(broker: Broker, offset: int, *keys: PartitionKey) -> Sequence[FetchResult]:
    ranges = [FetchRange(key, offset, PLENTY) for key in keys]
    return await broker.reads.fetch(ranges, 1, PLENTY, 0)


def store_of(broker: Broker) -> Any:
    return broker.store


def forget(broker: Broker) -> None:
    """Forget what is in memory, as after a restart."""
    chunks = store_of(broker).chunks
    chunks._places.clear()
    chunks.cache._kept.clear()
    for key in (KEY, OTHER):
        broker._publisher.drop((key,))
        broker._loop.state.forget((key,))  # type: ignore[attr-defined]


# -- batches ------------------------------------------------------------------------------------------------


async def test_a_lost_batch_is_an_error_at_its_offset(place: Place) -> None:
    async with filled(place) as broker:
        await execute(place, "DELETE FROM batches WHERE partition_index = 0 AND base_offset = 5")
        (before,) = await fetch(broker, 0, KEY)
        assert offsets(before) == [0, 1, 2, 3, 4]
        at, neighbour = await fetch(broker, 5, KEY, OTHER)
        assert at.error is ErrorCode.CORRUPT_MESSAGE
        assert offsets(neighbour) == list(range(5, BATCHES))
        (behind,) = await fetch(broker, 6, KEY)
        assert offsets(behind) == list(range(6, BATCHES))
        assert broker.metrics.damaged_batches == 1


async def test_a_lost_batch_that_compaction_has_not_seen(place: Place) -> None:
    async with filled(place) as broker:
        # As if compaction had come to offset 6, and removed the batch before.
        removed = "DELETE FROM batches WHERE partition_index = 0 AND base_offset = 5 RETURNING length"
        await execute(
            place,
            f"WITH removed AS ({removed}) UPDATE partitions SET cleaned_offset = 6, compactions = 1,"
            " size_bytes = size_bytes - length FROM removed WHERE partition_index = 0",
        )
        forget(broker)
        (whole,) = await fetch(broker, 0, KEY)
        assert offsets(whole) == [0, 1, 2, 3, 4, *range(6, BATCHES)]
        await execute(place, "DELETE FROM batches WHERE partition_index = 0 AND base_offset = 8")
        forget(broker)
        (before,) = await fetch(broker, 0, KEY)
        assert offsets(before) == [0, 1, 2, 3, 4, 6, 7]
        (at,) = await fetch(broker, 8, KEY)
        assert at.error is ErrorCode.CORRUPT_MESSAGE
        assert broker.metrics.damaged_batches == 1


async def test_a_lost_run_of_batches(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "RUN_BATCHES", 4)
    async with filled(place) as broker:
        store = store_of(broker)
        await store.roller.roll_once()
        assert await store.merger.merge_once()
        assert (await check_cluster(place.dsn, place.schema, None, print)).findings == []
        await execute(place, "DELETE FROM batches WHERE partition_index = 0 AND base_offset = 4")
        finding, _ = (await check_cluster(place.dsn, place.schema, None, print)).findings
        assert "orders-0 at offsets 4 to 7 are lost" in finding.what
        forget(broker)
        (before,) = await fetch(broker, 0, KEY)
        assert offsets(before) == [0, 1, 2, 3]
        for offset in (4, 7):
            (at,) = await fetch(broker, offset, KEY)
            assert at.error is ErrorCode.CORRUPT_MESSAGE
        (behind,) = await fetch(broker, 8, KEY)
        assert offsets(behind) == [8, 9, 10, 11]


# -- partitions ---------------------------------------------------------------------------------------------


async def test_a_lost_partition_is_an_error_of_its_own(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    async with filled(place) as broker:
        await execute(place, "DELETE FROM partitions WHERE partition_index = 0")
        forget(broker)
        with caplog.at_level(logging.ERROR):
            for _ in range(3):
                at, neighbour = await fetch(broker, 0, KEY, OTHER)
                assert at.error is ErrorCode.KAFKA_STORAGE_ERROR
                assert offsets(neighbour)[:BATCHES] == list(range(BATCHES))
                with pytest.raises(LedgerDamaged):
                    await produce(broker, KEY)
                assert await produce(broker, OTHER) is ErrorCode.NONE
                for timestamp in (-1, -2, 500):
                    asked = [
                        ListOffsetsPartition(partition_index=index, timestamp=timestamp) for index in (0, 1)
                    ]
                    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="orders", partitions=asked)])
                    listed = await list_offsets(broker, request, RequestContext(6, None, "", "", 1))
                    errors = [each.error_code for each in listed.topics[0].partitions]
                    assert errors == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]
                await broker._housekeeping.retain()
        (line,) = [each.getMessage() for each in caplog.records]
        assert "the ledger has lost the row of partition 0 of topic orders" in line
        assert store_of(broker).lost_rows > 10
        # The topic can still be deleted.
        await broker.ask(DeleteTopic("orders"))
        (at,) = await fetch(broker, 0, KEY)
        assert at.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_partition_that_does_not_exist_is_not_lost(place: Place) -> None:
    async with filled(place) as broker:
        for key in (PartitionKey(TOPIC_ID, 2), PartitionKey(b"t" * 16, 0)):
            (at,) = await fetch(broker, 0, key)
            assert at.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert store_of(broker).lost_rows == 0


async def test_a_topic_that_has_partitions_cannot_be_deleted_by_hand(place: Place) -> None:
    async with filled(place) as broker:
        for table in ("topics", "objects"):
            await store_of(broker).roller.roll_once()
            with pytest.raises(LedgerDamaged, match="a row is lost or altered that others need"):
                await store_of(broker).ledger.database.row(f"DELETE FROM {table}")


async def test_commits_that_contradict_the_ledger_are_refused_alone(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """The row of the partition is older than its batches. Nothing may be overwritten, and nobody may end."""
    async with filled(place) as broker:
        await execute(place, "UPDATE partitions SET high_watermark = 2 WHERE partition_index = 0")
        forget(broker)
        refused, done = await asyncio.gather(
            produce(broker, KEY), produce(broker, OTHER), return_exceptions=True
        )
        assert isinstance(refused, LedgerDamaged)
        assert done is ErrorCode.NONE
        assert "duplicate key value violates unique constraint" in caplog.text
        assert store_of(broker).lost_rows > 0


async def test_a_transaction_whose_staged_batch_is_lost_cannot_commit(place: Place) -> None:
    async with filled(place) as broker:
        await make_topics(broker)
        producer = await Producer(broker, "torn").init()
        for _ in range(2):
            await producer.send(J0)
        await execute(place, "DELETE FROM staged WHERE stage_number = (SELECT min(stage_number) FROM staged)")
        with pytest.raises(LedgerDamaged, match="partition 0"):
            await producer.end(is_commit=True)
        assert (await read_at(broker, J0)).high_watermark == 0
        assert await producer.end(is_commit=False) is ErrorCode.NONE


async def test_a_sweep_that_contradicts_the_ledger_is_refused(place: Place) -> None:
    async with filled(place) as broker:
        await execute(place, "UPDATE chunks SET live_bytes = 1")
        await broker.delete_records(KEY, BATCHES)
        with pytest.raises(LedgerDamaged, match="violates check constraint"):
            await broker._housekeeping.sweep()
        for offset in range(BATCHES):
            (result,) = await fetch(broker, offset, OTHER)
            assert result.error is ErrorCode.NONE


# -- objects ------------------------------------------------------------------------------------------------


async def test_a_lost_object_row_is_an_error_until_it_is_written_again(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(semel_roll_interval_ms=0, semel_object_delete_delay_ms=0)
    async with filled(place, settings) as broker:
        store = store_of(broker)
        await store.roller.roll_once()
        await execute(place, "DELETE FROM objects WHERE state = 'stored'")
        forget(broker)
        (result,) = await fetch(broker, 0, KEY)
        assert result.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert "the ledger has lost the row of object" in caplog.text
        assert await store.reconciler.reconcile_once() == []
        assert "which was written again" in caplog.text
        forget(broker)
        (result,) = await fetch(broker, 0, KEY)
        assert offsets(result) == list(range(BATCHES))


@pytest.mark.parametrize("state", ["uploading", "unused", "abandoned", "deleting"])
async def test_an_object_with_a_chunk_is_not_deleted_whatever_its_state(
    place: Place, scribe: Any, state: str
) -> None:
    async with opened(place) as store:
        (key,) = await scribe.create(store.ledger)
        (batch,) = parts(LARGE)
        await append(store, scribe, key, batch)
        await execute(place, "UPDATE objects SET state = $1 WHERE state = 'stored'", state)
        await age(store, state)
        await store.sweep_orphans()
        assert await read(store, key) == [batch]
        assert list((await states(store)).values()).count(state) == 1


async def test_an_object_whose_chunk_is_lost_is_kept(
    place: Place, scribe: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(place) as store:
        (key,) = await scribe.create(store.ledger)
        await append(store, scribe, key, *parts(LARGE))
        await execute(place, "DELETE FROM chunks")
        await store.reconciler.reconcile_once()
        await age(store, "unused")
        await store.sweep_orphans()
        assert len(await listed(store.chunks.objects)) == 1
        assert "the ledger has lost a row of chunks; the object is kept" in caplog.text


# -- shards -------------------------------------------------------------------------------------------------


async def test_a_lost_shard_has_no_owner_for_a_lease_and_is_written_again(
    shared_stores: Any, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = [await shared_stores.open(number, lease_seconds=1.0) for number in (0, 1)]
    for number, store in enumerate((one, other)):
        await store.membership.join({"plain": ("host", 9092)}, ("inside", 9990 + number), None)
    epochs = {number: each.epoch for number, each in enumerate((await one.membership.renew()).shards)}
    await one.membership.hand_over(dict.fromkeys(range(SHARDS), 0), epochs)
    before = (await one.membership.renew()).shards
    place = Place(shared_stores._dsn, "", {}, shared_stores.schema)
    await execute(place, "DELETE FROM shards WHERE shard IN (7, 8)")
    seen = time.monotonic()
    for store in (one, other):
        view = await store.membership.renew()
        assert [number for number, each in enumerate(view.shards) if each.owner is None] == [7, 8]
        assert len(view.shards) == SHARDS

    async def is_back() -> bool:
        await other.membership.renew()
        shards: Any = (await one.membership.renew()).shards
        return bool(shards[7] != Shard(None, 0))

    await until_async(is_back)
    # By then, the lease of a broker that has not seen it is over.
    assert time.monotonic() - seen > 1.0
    after = (await one.membership.renew()).shards
    assert after[7].epoch == after[8].epoch > max(each.epoch for each in before)
    assert [each for number, each in enumerate(after) if number not in (7, 8)] == [
        each for number, each in enumerate(before) if number not in (7, 8)
    ]
    await one.membership.hand_over({7: 1, 8: 1}, {number: after[number].epoch for number in (7, 8)})
    assert (await one.membership.renew()).shards[7].owner == 1
    # Both brokers say once that rows are lost, and one of them that they are back.
    assert [each.levelname for each in caplog.records if "shards" in each.getMessage()].count("ERROR") == 2
    for store in (one, other):
        await store.close()


# -- what every ledger has ----------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["cluster", "numbering", "inline_generation"])
async def test_a_broker_goes_on_without_a_basic_row_and_does_not_start(place: Place, table: str) -> None:
    async with filled(place) as broker:
        await execute(place, f"DELETE FROM {table}")
        store = store_of(broker)
        for work in (store.roller.roll_once, store.reconciler.reconcile_once):
            with contextlib.suppress(LedgerDamaged):
                await work()
        assert await produce(broker, KEY) is ErrorCode.NONE
    with pytest.raises(StoreDamaged, match=f": {table}"):
        await Broker.open(SETTINGS, Remote(place.dsn, place.address, place.schema))


async def test_a_broker_does_not_start_without_meta(place: Place) -> None:
    async with filled(place):
        pass
    await execute(place, "DELETE FROM meta WHERE name IN ('schema_version', 'secret')")
    with pytest.raises(StoreDamaged, match="meta schema_version, meta secret"):
        await Broker.open(SETTINGS, Remote(place.dsn, place.address, place.schema))


# -- every table --------------------------------------------------------------------------------------------

WITHOUT_TRACE = {
    # Nothing else in the ledger counts with these rows.
    *("offsets", "pending_offsets", "policies", "groups", "shares"),
    # Work that waits, and notes of what was done: at worst, space is used that could be free.
    *("leftovers", "notices", "merged"),
    # Tables of bytes that are not in use.
    *("inline_0", "inline_1", "inline_2", "inline_3"),
}
TELLING = {
    "producers": "transaction_first_offset >= 0",
    "transactions": "state = 'Ongoing'",
}
"""Which rows leave a trace. A producer that has nothing open can be forgotten."""


async def filled_everywhere(broker: Broker, place: Place) -> None:
    """Something in every table of the ledger."""
    await make_topics(broker)
    one = await Producer(broker, "ended").init()
    for key in (M0, J0):
        await one.send(key)
        await plain(broker, key)
    await one.end(is_commit=False)
    two = await Producer(broker, "open").init()
    for key in (M0, J0):
        await two.send(key)
    other = M0
    await execute(
        place,
        """
        INSERT INTO pending_versions VALUES ('g', 1);
        INSERT INTO pending_offsets VALUES ('g', 0, 7, 'marked', 0, 0, 0, '', 0, false, 1);
        """,
    )
    await store_of(broker).roller.roll_once()
    await plain(broker, other)


async def everything(broker: Broker) -> None:
    """All that brokers do with the ledger. It may be refused, but nothing else may happen."""
    store, housekeeping = store_of(broker), broker._housekeeping
    assert broker.member is not None
    rounds = [
        *(housekeeping.retain, housekeeping.expire, housekeeping.abort_overdue),
        *(housekeeping.forget_transactions, housekeeping.compaction.compact, housekeeping.wake_groups),
        *(store.roller.roll_once, store.merger.merge_once, store.reconciler.reconcile_once),
        *(store.sweep_orphans, broker.count, broker.policies.load, broker.member._renew),
        *(broker._loop.load_open_transactions, broker._loop.forget_copies),  # type: ignore[attr-defined]
        *(lambda key=key: plain(broker, key) for key in (M0, J0)),
        *(lambda key=key: read_all(broker, key) for key in (M0, J0)),
        Scrub(broker).round,
    ]
    for work in rounds:
        with contextlib.suppress(StoreRefused):
            await work()


async def read_all(broker: Broker, key: PartitionKey) -> None:
    for isolation in Isolation:
        result = await read_at(broker, key, 0, isolation)
        assert result.error in (ErrorCode.NONE, ErrorCode.CORRUPT_MESSAGE, ErrorCode.KAFKA_STORAGE_ERROR)
        if not result.error and result.buffers:
            seen = offsets(result)
            assert seen == list(range(len(seen))), "an offset is skipped"


async def tables_of(place: Place) -> list[str]:
    connection: Any = await asyncpg.connect(place.dsn)
    try:
        rows = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1", place.schema)
        return [name for (name,) in rows]
    finally:
        await connection.close()


async def test_whatever_row_is_lost_brokers_go_on_and_the_check_finds_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that is added must be found by the check, too, or named above."""
    broker = await Broker.open(SETTINGS, Remote(place.dsn, place.address, place.schema))
    failed: list[BaseException] = []
    broker.fatal = failed.append
    try:
        await filled_everywhere(broker, place)
        assert (await check_cluster(place.dsn, place.schema, None, print)).findings == []
        unfound: set[str] = set()
        # A broker whose own row is lost ends (below), and a term begins when the row of the last one is lost.
        # Dropped batches come first, because they are swept.
        tables = set(await tables_of(place)) - {"brokers", "commits", "term"}
        for table in sorted(tables, key=lambda each: (each != "dropped", each)):
            which = TELLING.get(table, "true")
            await execute(
                place,
                f"""
                CREATE TABLE kept AS SELECT * FROM {table};
                DELETE FROM {table} WHERE ctid = (SELECT min(ctid) FROM {table} WHERE {which});
                """,
            )
            is_empty = await store_of(broker).ledger.database.value("SELECT NOT EXISTS (SELECT FROM kept)")
            if is_empty or not (await check_cluster(place.dsn, place.schema, None, print)).findings:
                unfound.add(table)
            if not is_empty:
                await everything(broker)
            keys = await store_of(broker).ledger.database.fetch(KEY_COLUMNS.format(table=table))
            names = ", ".join(name for (name,) in keys)
            which = f"({names}) NOT IN (SELECT {names} FROM {table})" if names else "true"
            await execute(
                place,
                f"""
                INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT * FROM kept WHERE {which};
                DROP TABLE kept;
                """,
            )
            assert failed == [], table
        assert unfound - WITHOUT_TRACE == set()
    finally:
        await broker.close()


async def test_a_broker_whose_commits_are_not_counted_ends_and_does_not_start(place: Place) -> None:
    """Without the number of its last commit, it would give versions that were used before."""
    async with filled(place) as broker:
        failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        broker.fatal = failed.set_result
        await execute(place, "DELETE FROM commits")
        (finding,) = (await check_cluster(place.dsn, place.schema, None, print)).findings
        assert finding.what == "the row is lost: commits of broker 0"
        produced = asyncio.create_task(produce(broker, KEY))
        assert isinstance(await asyncio.wait_for(failed, 10), StoreDamaged)
        produced.cancel()
    with pytest.raises(StoreDamaged, match="commits of broker 0"):
        await Broker.open(SETTINGS, Remote(place.dsn, place.address, place.schema))
