"""`semel cluster check`: finds every lost or altered row, and nothing in a cluster that works."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import typer
from support.brokers.cluster import Cluster, query, running
from support.brokers.cluster_members import semel
from support.clients.routed import RoutedClient
from support.servers.postgres import KEY_COLUMNS
from support.waiting import until
from support.workloads.cluster_load import loaded

from semel.cli import cluster as cli
from semel.client import Admin, Client, Consumer, NewTopic, Producer, TransactionalProducer
from semel.store.cluster.checking import rows
from semel.store.cluster.checking.rows import Checked
from semel.store.cluster.checking.run import check_cluster
from semel.store.contract import StoreRefused
from semel.wire.errors import ErrorCode
from semel.wire.records import Record, encode_batch

LARGE = b"x" * 200_000
"""A record whose batch becomes an object of its own."""
SETTINGS = {
    # Bytes are moved as often as possible.
    "semel.roll.interval.ms": 200,
    "semel.merge.interval.ms": 300,
    "semel.merge.age.ms": 0,
    "semel.object.delete.delay.ms": 1_000,
    "log.retention.check.interval.ms": 300,
}


@pytest.fixture(scope="module")
def cluster(postgres_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with running(Cluster(directory, brokers=2, settings=SETTINGS), postgres_dsn) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def filled(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster with something in every table that the check looks at. Two transactions stay open."""
    with Client(cluster.bootstrap) as client:
        admin = Admin(client)
        admin.topics.create(NewTopic("orders", 2))
        admin.topics.create(NewTopic("marked", 1))
        admin.topics.create(NewTopic("journal", 1, configs={"semel.visibility": "journal"}))
        admin.topics.create(NewTopic("table", 1, configs={"cleanup.policy": "compact"}))
        with Producer(client) as producer:
            for number in range(8):
                producer.send("orders", LARGE, partition=number % 2)
                producer.send("table", b"value", key=b"key %d" % number)
                producer.flush()
        with TransactionalProducer(client, "ended") as ended:
            with ended.transaction():
                ended.send("marked", b"committed")
                ended.send("journal", b"committed")
            ended.begin()
            ended.send("marked", b"aborted")
            ended.flush()
            ended.abort()
        open_ = TransactionalProducer(client, "open", transaction_timeout_ms=600_000)
        open_.init()
        open_.begin()
        for topic in ("marked", "journal"):
            open_.send(topic, b"open")
        open_.send_offsets({("orders", 0): 1}, "group")
        open_.flush()
        # Compaction is not waited for: the partition looks as if it had taken place.
        cluster.query(f"UPDATE semel.partitions SET compactions = 1 WHERE {at('table')}")
        until(lambda: not cluster.query("SELECT FROM semel.inline_bytes"), what="the roller")
        yield cluster


def topic_id(name: str) -> str:
    return f"SELECT topic_id FROM semel.topics WHERE name = '{name}'"


def checked(cluster: Cluster) -> Checked:
    return asyncio.run(check_cluster(cluster.dsn, "semel", cluster.chunks, lambda text: None))


async def execute(dsn: str, *statements: str) -> None:
    """As an administrator whom no constraint stops."""
    connection: Any = await asyncpg.connect(dsn, server_settings={"search_path": "semel, public"})
    try:
        await connection.execute("SET session_replication_role = replica")
        async with connection.transaction():
            for each in statements:
                await connection.execute(each)
    finally:
        await connection.close()


@contextmanager
def without(cluster: Cluster, table: str, which: str, change: str = "") -> Iterator[int]:
    """Some rows are lost, or altered, until the end of the block. How many they are."""
    alter = f"UPDATE {table} SET {change} WHERE {which}" if change else f"DELETE FROM {table} WHERE {which}"
    asyncio.run(
        execute(
            cluster.dsn, f"CREATE TABLE public.kept_{table} AS SELECT * FROM {table} WHERE {which}", alter
        )
    )
    try:
        (row,) = query(cluster.dsn, f"SELECT count(*) FROM public.kept_{table}")
        yield row["count"]
    finally:
        keys = query(cluster.dsn, KEY_COLUMNS.format(table=f"semel.{table}"))
        names = ", ".join(each["attname"] for each in keys)
        again = f"INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT * FROM public.kept_{table}"
        clear = (
            f"DELETE FROM {table} WHERE ({names}) IN (SELECT {names} FROM public.kept_{table})"
            if names
            else ""
        )
        asyncio.run(execute(cluster.dsn, *filter(None, [clear]), again, f"DROP TABLE public.kept_{table}"))


def at(name: str, index: int = 0) -> str:
    return f"topic_id = ({topic_id(name)}) AND partition_index = {index}"


LOST = {
    "a batch": ("batches", f"{at('orders')} AND base_offset = 1", "orders-0 at offsets 1 to 1 are lost"),
    "the first batch": ("batches", f"{at('orders')} AND base_offset = 0", "offsets 0 to 0 are lost"),
    "the last batch": ("batches", f"{at('orders')} AND base_offset = 3", "offsets 3 to 3 are lost"),
    "all batches": ("batches", at("orders", 1), "orders-1 at offsets 0 to 3 are lost"),
    "a batch of a compacted topic": (
        "batches",
        f"{at('table')} AND base_offset = 3",
        "table-0 should have +",
    ),
    "a partition": ("partitions", at("orders", 1), "topic orders are lost, the first is that of partition 1"),
    "a topic": ("topics", "name = 'orders'", "but no such topic: its row is lost"),
    "a chunk of a batch": (
        "chunks",
        f"chunk_id = (SELECT chunk_id FROM semel.batches WHERE {at('orders')} AND base_offset = 2)",
        "whose row is lost: they cannot be read",
    ),
    "a chunk of a staged batch": (
        "chunks",
        "chunk_id IN (SELECT chunk_id FROM semel.staged)",
        "that producer",
    ),
    "the row of an object": (
        "objects",
        "object_id = (SELECT min(object_id) FROM chunks)",
        "whose row is lost",
    ),
    "a staged batch": ("staged", "true", "in journal-0, but there are 0: some are lost"),
    "the newest aborted transaction": ("aborted", at("marked"), "the newest aborted transaction of marked-0"),
    "a producer": (
        "producers",
        f"{at('marked')} AND transaction_first_offset >= 0",
        "marked-0 has an open transaction of producer",
    ),
    "a producer that stages": (
        "producers",
        f"{at('journal')} AND octet_length(staged) > 0",
        "has staged batches in journal-0, which it forgot",
    ),
    "a transactional id": ("transactions", "transactional_id = 'open'", "that no id belongs to"),
    "a version of pending offsets": (
        "pending_versions",
        "group_id = 'group'",
        "but its row of pending_versions",
    ),
    "the cluster": ("cluster", "true", "the row is lost: cluster"),
    "numbering": ("numbering", "true", "the row is lost: numbering"),
    "the inline generation": ("inline_generation", "true", "the row is lost: inline_generation"),
    "the secret": ("meta", "name = 'secret'", "the row is lost: meta secret"),
}
ALTERED = {
    "a last offset": (
        "batches",
        f"{at('orders')} AND base_offset = 1",
        "last_offset = 7",
        "begins within the one before",
    ),
    "a chunk": (
        "batches",
        f"{at('orders')} AND base_offset = 1",
        "chunk_id = 987654",
        "in chunk 987654, whose row is lost",
    ),
    "too few bytes in use": (
        "chunks",
        f"chunk_id = (SELECT chunk_id FROM semel.batches WHERE {at('orders')} AND base_offset = 1)",
        "live_bytes = live_bytes - 1",
        "it will be deleted while batches need it",
    ),
    "a position": ("batches", f"{at('orders')} AND base_offset = 1", "position = 99999999", "beyond the end"),
    "a high watermark": ("partitions", at("orders"), "high_watermark = 9", "at offsets 4 to 8 are lost"),
    "an old high watermark": ("partitions", at("orders"), "high_watermark = 2", "but has batches up to 4"),
    "a size": ("partitions", at("orders"), "size_bytes = 1", "orders-0 should have -"),
    "a number of partitions": ("topics", "name = 'orders'", "partitions = 1", "but there is a partition 1"),
    "the state of an object": (
        "objects",
        "object_id = (SELECT min(object_id) FROM chunks)",
        "state = 'unused', since = since + interval '1 day'",
        "which is marked as unused",
    ),
    "the size of an object": (
        "objects",
        "object_id = (SELECT min(object_id) FROM chunks)",
        "size_bytes = size_bytes + 1",
        "but the ledger needs all of its",
    ),
}


def test_nothing_is_found_in_a_cluster_that_works(filled: Cluster) -> None:
    found = checked(filled)
    assert found.findings == []
    assert found.total == 0
    assert (found.partitions, found.compared_objects) == (5, True)
    assert min(found.batches, found.chunks) >= 8
    assert found.objects > 0


@pytest.mark.parametrize("what", LOST)
def test_a_lost_row_is_found(filled: Cluster, what: str) -> None:
    table, which, text = LOST[what]
    with without(filled, table, which) as number:
        assert number > 0
        found = checked(filled)
    assert any(text in each.what for each in found.findings), found
    assert all(each.advice for each in found.findings)
    assert checked(filled).findings == []


@pytest.mark.parametrize("what", ALTERED)
def test_an_altered_row_is_found(filled: Cluster, what: str) -> None:
    table, which, change, text = ALTERED[what]
    with without(filled, table, which, change) as number:
        assert number == 1
        found = checked(filled)
    assert any(text in each.what for each in found.findings), found
    assert checked(filled).findings == []


def test_a_topic_that_is_lost_with_its_partitions_is_found(filled: Cluster) -> None:
    which = f"topic_id = ({topic_id('journal')})"
    with without(filled, "partitions", which), without(filled, "topics", which):
        found = checked(filled)
    assert {each.kind for each in found.findings} == {"batches", "staged", "producers"}, found
    assert all("belong to nothing" in each.what for each in found.findings)


def test_a_lost_object_is_found(filled: Cluster) -> None:
    objects = [each for each in Path(filled.directory / "chunks").glob("*/chunks/*") if each.is_file()]
    assert objects
    data = objects[0].read_bytes()
    for change, text in ((data[:-1], "bytes, but the ledger needs"), (None, "is gone, but the ledger needs")):
        try:
            if change is None:
                objects[0].unlink()
            else:
                objects[0].write_bytes(change)
            (finding,) = checked(filled).findings
            assert finding.kind == "object store"
            assert text in finding.what
        finally:
            objects[0].write_bytes(data)


def test_the_command(filled: Cluster) -> None:
    options = ("--ledger", filled.dsn, "--chunks", filled.chunks)
    ran = semel("cluster", "check", *options)
    assert ran.stdout.startswith("Findings: 0 (partitions: 5, rows of batches: ")
    assert "Comparing the tables of the ledger, 1 of " in ran.stderr
    with without(filled, "batches", f"{at('orders')} AND base_offset = 1"):
        ran = semel("cluster", "check", *options, code=1)
        assert "batches: the batches of orders-0 at offsets 1 to 1 are lost" in ran.stdout
        assert "  What to do: restore the ledger from a backup" in ran.stdout
        found = json.loads(semel("cluster", "check", *options, "--json", code=1).stdout)
        assert (found["total"], found["compared_objects"]) == (2, True)
        assert [each["kind"] for each in found["findings"]] == ["batches", "chunks"]
    ran = semel("cluster", "check", "--ledger", filled.dsn)
    assert "The objects were not compared with the object store: give --chunks" in ran.stdout


def test_what_was_found_is_kept_if_the_check_fails(
    filled: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server is restarted while the check runs, or ends its session."""
    told: list[str] = []
    printed: list[str] = []

    def ended(text: str) -> None:
        if text.startswith("Adding up"):
            printed.append(capsys.readouterr().out)
            end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            statement = f"{end} AND datname = current_database() AND application_name = 'semel cluster'"
            with ThreadPoolExecutor(1) as thread:
                thread.submit(filled.query, statement).result()

    with without(filled, "batches", f"{at('orders')} AND base_offset = 1"):
        found = asyncio.run(
            check_cluster(filled.dsn, "semel", filled.chunks, ended, lambda each: told.append(each.what))
        )
        assert ["orders-0 at offsets 1 to 1 are lost" in each for each in told] == [True]
        assert [each.what for each in found.findings] == told
        assert found.failure is not None
        assert "the connection to PostgreSQL was lost" in found.failure
        assert found.not_checked == ("the bytes of chunks", "the objects")
        assert not found.compared_objects

        monkeypatch.setattr(cli, "say", ended)
        for as_json in (False, True):
            printed.clear()
            with pytest.raises(typer.Exit) as ending:
                cli.check(filled.dsn, filled.chunks, as_json)
            output = capsys.readouterr()
            assert ending.value.exit_code == 1
            assert output.err.startswith("Error: The connection to PostgreSQL was lost")
            if as_json:
                shown = json.loads(output.out)
                assert shown["not_checked"] == ["the bytes of chunks", "the objects"]
                assert shown["findings"] == [each._asdict() for each in found.findings]
            else:
                # Before the failure.
                assert "batches: the batches of orders-0 at offsets 1 to 1 are lost" in printed[0]
                assert "Not checked, or not to the end: the bytes of chunks, the objects." in output.out
                assert "Findings: 1 (" in output.out
    with pytest.raises(typer.Exit):
        # Nothing was found, but not all was checked.
        cli.check(filled.dsn, filled.chunks, False)
    assert "Findings: 0 (" in capsys.readouterr().out


def test_a_wrong_object_store_is_refused_at_once(filled: Cluster, tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(StoreRefused, match="this is not the object store of the cluster"):
        asyncio.run(check_cluster(filled.dsn, "semel", tmp_path.as_uri(), said.append))
    assert said == []


def test_bytes_are_added_up_block_by_block(filled: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement that reads whole tables is only needed for chunks that look wrong twice."""
    said: list[str] = []
    monkeypatch.setattr(rows, "CHUNKS", 5)
    monkeypatch.setattr(rows, "BLOCKS", 1)

    def problems() -> list[str]:
        said.clear()
        found = asyncio.run(check_cluster(filled.dsn, "semel", None, said.append))
        return [each.what for each in found.findings]

    assert problems() == []
    assert not any("again" in each for each in said)
    assert sum(each.startswith("Comparing the tables of the ledger, ") for each in said) == len(rows.CHECKS)
    table, which, change, text = ALTERED["too few bytes in use"]
    filled.query(f"UPDATE semel.{table} SET {change} WHERE {which}")
    try:
        (found,) = problems()
        assert text in found
        assert said[-1] == "Adding up the bytes of 1 chunks again."
    finally:
        filled.query(f"UPDATE semel.{table} SET {change.replace('-', '+')} WHERE {which}")
    # Enough rows for several blocks, of a partition that does not exist.
    rows_of_many_blocks = """
        INSERT INTO semel.batches SELECT '\\x00'::bytea, 7, number, number, 0, 0, first, 0, 1
        FROM generate_series(1, 300) AS number, (SELECT min(chunk_id) AS first FROM semel.chunks) AS each
    """
    filled.query(rows_of_many_blocks)
    try:
        every = problems()
        assert any("it will be deleted while batches need it" in each for each in every), every
        assert any(" blocks of batches." in each for each in said), said
    finally:
        filled.query("DELETE FROM semel.batches WHERE partition_index = 7")
    assert problems() == []


# -- what clients see ---------------------------------------------------------------------------------------


def test_brokers_write_lost_shards_again_and_serve_them(filled: Cluster) -> None:
    asyncio.run(execute(filled.dsn, "DELETE FROM shards WHERE shard % 2 = 0"))
    assert any("the row of shard 0 is lost" in each.what for each in checked(filled).findings)
    until(lambda: sum(filled.owners().values()) == 256 and None not in filled.owners(), what="all shards")
    filled.settle()
    for member in filled.brokers:
        text = member.log.read_text()
        assert text.count("the ledger has lost the rows of") == 1
        assert "Traceback" not in text
    with Client(filled.bootstrap, timeout_s=30) as client, Consumer(client, "orders") as consumer:
        assert len(list(consumer.read_to_end())) == 8


def test_a_broker_starts_with_a_lost_shard(filled: Cluster) -> None:
    first = filled.brokers[0]
    first.stop()
    asyncio.run(execute(filled.dsn, "DELETE FROM shards WHERE shard = 5"))
    first.start()
    until(lambda: sum(filled.owners().values()) == 256 and None not in filled.owners(), what="all shards")
    assert "Traceback" not in first.log.read_text()


def test_clients_are_told_of_a_lost_partition(filled: Cluster) -> None:
    filled.brokers[0].stop()
    filled.brokers[1].stop()
    with without(filled, "partitions", at("orders", 1)):
        for each in filled.brokers:
            each.start()
        filled.settle()
        with RoutedClient(filled.bootstrap) as raw:
            batch = encode_batch([Record(0, 1_000, None, b"v")])
            for index, code in ((1, ErrorCode.KAFKA_STORAGE_ERROR), (0, ErrorCode.NONE)):
                assert raw.fetch("orders", partition=index).error_code == code
                assert raw.produce("orders", batch, partition=index).error_code == code
        assert any(
            "the row of partition 1 of topic orders" in each.log.read_text() for each in filled.brokers
        )


# -- under load ---------------------------------------------------------------------------------------------


def test_nothing_is_found_under_load(cluster: Cluster) -> None:
    """Producers, transactions, the roller, merging, deletion of objects: all of it goes on meanwhile."""
    with loaded(cluster, kinds=["own"], copies=False) as load:
        for _ in range(5):
            found = checked(cluster)
            assert found.findings == []
            load.go_on(1)
    assert checked(cluster).findings == []
