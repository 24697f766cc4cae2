"""`semel migrate`: a data directory full of everything becomes a cluster, in which clients just go on."""

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import pytest
from support.brokers.cluster_members import Member, database, members, semel
from support.clients.raw import KEEPS_RECORDS, RawClient, batch
from support.clients.raw_groups import ClassicMember, ConsumerMember, commit_offset
from support.clients.raw_log import READ_COMMITTED, READ_UNCOMMITTED, Log
from support.clients.raw_transactions import RawProducer, committed, describe, make_topic, producers
from support.models.facts import kind_of
from support.waiting import until

import semel as package
from semel.client import Admin, Client, Consumer, Isolation, NewTopic, Producer
from semel.client.admin.acls import Acl
from semel.client.admin.quotas import QuotaEntity
from semel.core.facts import ProducerIdAllocated, TopicCreated
from semel.core.types import PolicyKey
from semel.store.cluster import migration
from semel.store.cluster.migration import migrate
from semel.store.contract import StoreDamaged
from semel.store.opening import Remote
from semel.wire.errors import ErrorCode
from semel.wire.messages import (
    AlterShareGroupOffsetsPartition,
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsTopic,
    DescribeShareGroupOffsetsGroup,
    DescribeShareGroupOffsetsRequest,
)
from semel.wire.records import Record, encode_batch, iter_batches

SETTINGS = {
    **KEEPS_RECORDS,
    "log.cleaner.backoff.ms": 50,
    "group.initial.rebalance.delay.ms": 0,
    "transaction.max.timeout.ms": 3_600_000,
}
LARGE_BATCHES, LARGE_BYTES = 24, 900_000
HOUR_MS = 3_600_000


class Everything(NamedTuple):
    """What the directory is filled with, and who goes on."""

    directory: Path
    cluster_id: str
    partitions: dict[str, int]
    table: str
    idempotent: tuple[str, int, bytes]
    open: list[RawProducer]
    classic: ClassicMember
    consumer: ConsumerMember
    seen: dict[str, Any]


def observed(client: RawClient, partitions: dict[str, int], groups: dict[str, str]) -> dict[str, Any]:
    """All that a client can see of these topics and groups."""
    until(lambda: client.fetch(next(iter(partitions))).error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER)
    found: dict[str, Any] = {}
    for topic, count in partitions.items():
        for index in range(count):
            log = Log(client, topic, index)
            start = client.log_start(topic, index)
            found[f"{topic}-{index}"] = {
                "start": start,
                "read": [_values(log, start, each) for each in (READ_COMMITTED, READ_UNCOMMITTED)],
                "ends": (log.list_offset(), log.list_offset(isolation=READ_UNCOMMITTED)),
                "by time": log.list_offset(1_700_000_000_500),
                "producers": [_without_clock(each) for each in producers(client, topic, index)],
            }
    for group, topic in groups.items():
        found[group] = committed(client, group, topic), committed(client, group, topic, stable=True)
    return found


def _values(log: Log, offset: int, isolation: int) -> list[Any]:
    found: list[Any] = []
    while data := bytes((part := log.fetch(offset, isolation=isolation)).records or b""):
        aborted = [(each.producer_id, each.first_offset) for each in part.aborted_transactions or ()]
        # The leader epoch is stamped into the bytes, outside of the checksum.
        found += [(header.base_offset, header.last_offset, header.crc) for _, header in _batches(data)]
        found.append(aborted)
        offset = found[-2][1] + 1
    return found


def _batches(data: bytes) -> Any:
    return list(iter_batches(data))


def _without_clock(producer: Any) -> tuple[int, ...]:
    each = producer
    return each.producer_id, each.producer_epoch, each.last_sequence, each.current_txn_start_offset


GROUPS: dict[str, str] = {}


def fill(directory: Path) -> Everything:
    """A broker on a directory, with everything that it can hold."""
    with (
        package.embedded(directory, settings=SETTINGS) as broker,
        RawClient(broker.bootstrap_servers) as client,
        Client(broker.bootstrap_servers) as admin,
    ):
        return _fill(directory, client, Admin(admin))


def _fill(directory: Path, client: RawClient, admin: Admin) -> Everything:
    plain, large = make_topic(client, 3), make_topic(client, 2)
    marked, staged = make_topic(client, 2), make_topic(client, 2, semel_visibility="journal")
    table = make_topic(client, 1, cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    gone = make_topic(client, 2)
    for number in range(30):
        at: dict[str, Any] = {
            "value": f"plain {number}".encode(),
            "timestamp": 1_700_000_000_000 + 100 * number,
        }
        client.produce(plain, batch(count=2, **at), partition=number % 3)
        client.produce(gone, batch())
    admin.topics.delete_records({(plain, 0): 7})
    admin.topics.delete(gone)
    for number in range(LARGE_BATCHES):
        client.produce(large, batch(value=os.urandom(LARGE_BYTES)), partition=number % 2)
    producer_id = client.new_producer()
    again = batch(3, producer_id=producer_id, producer_epoch=0, value=b"the fourth")
    for sequence in range(3):
        client.produce(plain, batch(sequence, producer_id=producer_id, producer_epoch=0))
    client.produce(plain, again)
    left_open = _transactions(client, marked, staged, plain)
    _compact(client, table)
    commit_offset(client, "only-offsets", plain, 5, "a note \x00 with a zero")
    classic = ClassicMember(client, "classic", session_timeout_ms=HOUR_MS // 2)
    consumer = ConsumerMember(client, "consumer", plain)
    _share(client, plain)
    partitions = {plain: 3, large: 2, marked: 2, staged: 2, table: 1}
    groups = {"only-offsets": plain, "done": plain, "waiting": plain}
    GROUPS.update(groups)
    seen = observed(client, partitions, groups)
    return Everything(
        directory,
        admin.cluster().cluster_id,
        partitions,
        table,
        (plain, producer_id, again),
        left_open,
        classic,
        consumer,
        seen,
    )


def _share(client: RawClient, topic: str) -> None:
    """A share group that begins at offset 9 of partition 1."""
    start = AlterShareGroupOffsetsPartition(partition_index=1, start_offset=9)
    wanted = AlterShareGroupOffsetsTopic(topic_name=topic, partitions=[start])
    altered = client.ask(AlterShareGroupOffsetsRequest(group_id="sharing", topics=[wanted]), 0)
    assert altered.error_code == altered.responses[0].partitions[0].error_code == ErrorCode.NONE


def _shared(client: RawClient) -> list[int]:
    """Where the share group is."""
    group = DescribeShareGroupOffsetsGroup(group_id="sharing", topics=None)
    (found,) = client.ask(DescribeShareGroupOffsetsRequest(groups=[group]), 1).groups
    return [each.start_offset for each in found.topics[0].partitions]


def _transactions(client: RawClient, marked: str, staged: str, plain: str) -> list[RawProducer]:
    """Committed and aborted transactions in both versions; those that are returned are open."""
    left_open: list[RawProducer] = []
    for generation in (1, 2):
        for topic in (marked, staged):
            producer = RawProducer(client, generation=generation)
            for number in range(3):
                producer.write(topic, b"committed %d" % number, b"more")
                producer.commit()
                producer.write(topic, b"aborted %d" % number, partition=1)
                producer.abort()
            producer.write_offset("done", plain, 3)
            producer.commit()
        left = RawProducer(client, generation=generation, timeout_ms=HOUR_MS)
        for topic in (marked, staged):
            left.write(topic, b"open %d" % generation)
            left.write(topic, b"open %d too" % generation, partition=1)
        left.write_offset("waiting", plain, 20 + generation)
        left_open.append(left)
    return left_open


def _compact(client: RawClient, table: str) -> None:
    """Write until compaction has removed all that it can: nothing changes later, and there is a gap."""
    for number in range(40):
        key = b"key %d" % (number % 3) if number else b"only once"
        client.produce(table, encode_batch([Record(0, 1_700_000_000_000, key, b"value %d" % number)]))
    kept = [b"value %d" % number for number in (0, 37, 38, 39)]
    until(lambda: Log(client, table).values() == kept, what="compaction of all that is replaced")


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Everything:
    return fill(tmp_path_factory.mktemp("embedded") / "data")


@pytest.fixture
def ledger(postgres_dsn: str) -> Iterator[str]:
    with database(postgres_dsn) as dsn:
        yield dsn


@pytest.fixture
def chunks(tmp_path: Path) -> Path:
    (tmp_path / "chunks").mkdir()
    return tmp_path / "chunks"


# The lease outlasts a pause of the machine.
OPTIONS = tuple(
    word
    for name, value in (SETTINGS | {"semel.lease.ms": 15_000}).items()
    for word in ("--set", f"{name}={value}")
)


def test_clients_go_on_where_they_were(everything: Everything, ledger: str, chunks: Path) -> None:
    ran = semel("migrate", str(everything.directory), "--ledger", ledger, "--chunks", chunks.as_uri())
    assert everything.cluster_id in ran.stdout
    assert "5 topics with 10 partitions" in ran.stdout
    assert "(2 open transactions)" in ran.stdout
    sizes = sorted(each.stat().st_size for each in chunks.rglob("*") if each.is_file())
    assert sum(sizes) > LARGE_BATCHES * LARGE_BYTES
    assert len([each for each in sizes if each > 7 << 20]) >= 2, "bytes are in objects of several MiB"
    with Member(ledger, chunks, 0, *OPTIONS) as first, RawClient(first.bootstrap) as client:
        assert observed(client, everything.partitions, GROUPS) == everything.seen
        assert _shared(client) == [-1, 9, -1]
        _go_on(everything, client)
        with members(ledger, chunks, 1, options=OPTIONS) as (second,):
            bootstrap = f"{first.bootstrap},{second.bootstrap}"
            with Client(bootstrap) as reader:
                assert Admin(reader).cluster().cluster_id == everything.cluster_id
                for topic in everything.partitions:
                    with Consumer(reader, topic, isolation=Isolation.READ_COMMITTED) as consumer:
                        assert [
                            each for each in consumer.read_to_end() if b"aborted" in (each.value or b"")
                        ] == []


def test_users_acls_and_quotas_come_along(ledger: str, chunks: Path, tmp_path: Path) -> None:
    secured = {"semel.authorizer": "acl", "super.users": "User:ANONYMOUS"}
    options = tuple(word for name, value in secured.items() for word in ("--set", f"{name}={value}"))
    right = Acl.of("User:ann", "Read", topic="\u20ac", is_prefix=True, is_denied=True)
    quota = QuotaEntity(user="ann", client_id="app")
    broker = package.embedded(tmp_path / "data", settings=secured)
    with broker, Client(broker.bootstrap_servers) as client:
        Admin(client).acls.add(right)
        Admin(client).users.put("ann", "secret")
        Admin(client).quotas.alter(quota, {"producer_byte_rate": 5.0})
    asyncio.run(migrate(tmp_path / "data", Remote(ledger, chunks.as_uri()), quiet))
    with Member(ledger, chunks, 0, *options) as member, Client(member.bootstrap) as client:
        assert Admin(client).acls.list() == [right]
        assert [each.user for each in Admin(client).users.list()] == ["ann"]
        assert [each.limits for each in Admin(client).quotas.list()] == [{"producer_byte_rate": 5.0}]


def _go_on(everything: Everything, client: RawClient) -> None:
    plain, producer_id, again = everything.idempotent
    first = client.produce(plain, again)
    assert first.error_code == ErrorCode.NONE, "the duplicate of a batch is recognised"
    assert client.produce(plain, again).base_offset == first.base_offset
    assert everything.seen[f"{plain}-0"]["ends"][0][1] == Log(client, plain).list_offset()[1]
    following = batch(4, producer_id=producer_id, producer_epoch=0)
    assert client.produce(plain, following).base_offset == first.base_offset + 1
    assert client.new_producer() > max(each.pair[0] for each in everything.open)
    assert everything.classic.heartbeat(client) == ErrorCode.NONE
    assert everything.consumer.heartbeat(client) == ErrorCode.NONE
    topics = [topic for topic in everything.partitions if topic != everything.table]
    marked, staged = topics[2], topics[3]
    for producer, ends_in_commit in zip(everything.open, (True, False), strict=True):
        producer.client = client
        assert describe(client, producer.transactional_id).transaction_state == "Ongoing"
        for topic in (marked, staged):
            producer.write(topic, b"after the migration")
        (producer.commit if ends_in_commit else producer.abort)()
    for topic in (marked, staged):
        values = Log(client, topic).values()
        assert values.count(b"open 1") == 1
        assert values.count(b"after the migration") == 1
        assert b"open 2" not in values
        assert Log(client, topic).is_settled
    assert committed(client, "waiting", plain, stable=True) == (ErrorCode.NONE, 21)


def test_a_database_with_a_cluster_is_refused(everything: Everything, ledger: str, chunks: Path) -> None:
    with Member(ledger, chunks, 0):
        pass
    ran = semel("migrate", str(everything.directory), "--ledger", ledger, "--chunks", chunks.as_uri(), code=1)
    assert "there is a cluster in this database already" in ran.stderr.lower()


def test_what_is_no_data_directory_is_refused(ledger: str, chunks: Path, tmp_path: Path) -> None:
    ran = semel("migrate", str(tmp_path), "--ledger", ledger, "--chunks", chunks.as_uri(), code=1)
    assert "it has no ledger.db" in ran.stderr
    assert sorted(each.name for each in tmp_path.iterdir()) == ["chunks"]


def test_a_directory_in_use_is_refused(ledger: str, chunks: Path, tmp_path: Path) -> None:
    with package.embedded(tmp_path / "data"):
        ran = semel(
            "migrate", str(tmp_path / "data"), "--ledger", ledger, "--chunks", chunks.as_uri(), code=1
        )
    assert "is in use by process" in ran.stderr
    asyncio.run(migrate(tmp_path / "data", Remote(ledger, chunks.as_uri()), quiet))


def quiet(what: str, done: int, total: int) -> None:
    pass


def test_an_interrupted_migration_is_nothing_and_can_be_repeated(
    everything: Everything, ledger: str, chunks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def power_loss(*_: Any) -> None:
        raise SystemExit

    place = Remote(ledger, chunks.as_uri())
    with monkeypatch.context() as patch:
        patch.setattr(migration.Copy, "_compare_entities", power_loss)
        with pytest.raises(SystemExit):
            asyncio.run(migrate(everything.directory, place, quiet))
    left = {each for each in chunks.rglob("*") if each.is_file()}
    assert left, "it got as far as the bytes"
    ran = semel("cluster", "status", "--ledger", ledger, code=1)
    assert "there is no cluster in this database" in ran.stderr.lower()
    made = asyncio.run(migrate(everything.directory, place, quiet))
    assert made.cluster_id == everything.cluster_id
    assert left.isdisjoint(each for each in chunks.rglob("*") if each.is_file())
    schemas = "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'semel%'"
    assert asyncio.run(_fetch(ledger, schemas)) == [("semel",)]
    with Member(ledger, chunks, 0, *OPTIONS) as broker, RawClient(broker.bootstrap) as client:
        assert observed(client, everything.partitions, GROUPS) == everything.seen


@pytest.mark.parametrize("second", ["chunks", pytest.param("elsewhere", marks=pytest.mark.slow)])
def test_an_interrupted_migration_whose_objects_are_not_there_can_be_repeated(
    second: str, ledger: str, chunks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy was cleaned away, or the next one is to be at another address."""
    with package.embedded(tmp_path / "data") as broker, RawClient(broker.bootstrap_servers) as client:
        client.create_topic("orders")
        client.produce("orders", batch(value=os.urandom(LARGE_BYTES)))

    async def power_loss(*_: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(migration.Copy, "compare", power_loss)
        with pytest.raises(SystemExit):
            asyncio.run(migrate(tmp_path / "data", Remote(ledger, chunks.as_uri()), quiet))
    (folder,) = chunks.iterdir()
    if second == "chunks":
        shutil.rmtree(folder)
    place = tmp_path / second
    place.mkdir(exist_ok=True)
    ran = semel("migrate", str(tmp_path / "data"), "--ledger", ledger, "--chunks", place.as_uri())
    assert f"a folder {folder.name} that is not in {place.as_uri()}" in ran.stderr
    assert folder.exists() == (second == "elsewhere")
    with Member(ledger, place, 0) as member, RawClient(member.bootstrap) as client:
        until(lambda: len(client.fetch("orders").records or b"") > LARGE_BYTES)


async def _fetch(dsn: str, query: str) -> list[Any]:
    connection = await asyncpg.connect(dsn)
    try:
        return [tuple(row) for row in await connection.fetch(query)]
    finally:
        await connection.close()


def test_a_copy_that_differs_is_found(everything: Everything, ledger: str, chunks: Path) -> None:
    def spoil(what: str, done: int, total: int) -> None:
        """As soon as everything is copied, an object loses a bit."""
        if what == "copied" and done > LARGE_BATCHES * LARGE_BYTES:
            path = max(
                (each for each in chunks.rglob("*") if each.is_file()), key=lambda each: each.stat().st_size
            )
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)

    with pytest.raises(StoreDamaged, match="batches of"):
        asyncio.run(migrate(everything.directory, Remote(ledger, chunks.as_uri()), spoil))
    assert "there is no cluster" in semel("cluster", "status", "--ledger", ledger, code=1).stderr.lower()


@pytest.mark.parametrize(
    ("spoilt", "where"),
    [
        (PolicyKey, "users, ACLs, quotas and configs"),
        (TopicCreated, "topic orders"),
        (ProducerIdAllocated, "ClusterKey"),
    ],
)
def test_a_fact_that_is_not_copied_is_found(
    spoilt: type, where: str, tmp_path: Path, ledger: str, chunks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with package.embedded(tmp_path / "data") as broker, Client(broker.bootstrap_servers) as client:
        Admin(client).topics.create(NewTopic("orders", 1, configs={"retention.ms": "-1"}))
        Admin(client).users.put("ann", "secret")
        with Producer(client) as producer:
            producer.send("orders", b"one")
    add, spoilt_facts = migration.Copy._add, []

    async def forgetful(self: migration.Copy, fact: Any, data: Any = None) -> None:
        if kind_of(fact) is spoilt:
            spoilt_facts.append(fact)
            if not isinstance(fact, TopicCreated):
                return
            fact = TopicCreated(fact.topic.but(configs={}))
        await add(self, fact, data)

    monkeypatch.setattr(migration.Copy, "_add", forgetful)
    with pytest.raises(StoreDamaged, match=where):
        asyncio.run(migrate(tmp_path / "data", Remote(ledger, chunks.as_uri()), quiet))
    assert spoilt_facts


def test_a_damaged_batch_is_refused_by_name(tmp_path: Path, ledger: str, chunks: Path) -> None:
    with package.embedded(tmp_path / "data") as broker, RawClient(broker.bootstrap_servers) as client:
        client.create_topic("orders")
        client.produce("orders", batch(value=b"x" * 400_000))
    (chunk,) = [each for each in (tmp_path / "data/chunks").iterdir() if each.is_file()]
    data = bytearray(chunk.read_bytes())
    data[data.index(b"xxxx") + 1_000] ^= 1
    chunk.write_bytes(data)
    ran = semel("migrate", str(tmp_path / "data"), "--ledger", ledger, "--chunks", chunks.as_uri(), code=1)
    assert "a batch of orders-0 is damaged: its checksum is wrong" in ran.stderr.lower()
