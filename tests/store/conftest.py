"""What store tests share: the implementations under test, faults, and a scribe that makes facts.

The contract suites (``test_ledger_contract``, ``test_chunk_contract``, ``test_sharing_contract``,
``test_membership_contract``) know no implementation. Each runs on every entry of ``LEDGERS``,
``CHUNK_STORES`` or ``SHARED_STORES`` below. A new implementation is a new entry here; the suites stay as they
are.
"""

import contextlib
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import asyncpg
import pytest
from support.stores.schemas import schemas

from semel.core.facts import BatchAppended, Closing, LogStartAdvanced, Put, TopicCreated
from semel.core.types import OpenTransaction, Partition, PartitionKey, Topic
from semel.store.cluster import membership
from semel.store.cluster.bytes.objects import Objects
from semel.store.cluster.inspection import cluster_status
from semel.store.cluster.ledger import PostgresLedger
from semel.store.cluster.postgres import opening
from semel.store.cluster.store import ClusterStore
from semel.store.contract import BatchLocation, ChunkStore, Ledger, StoredBatch
from semel.store.embedded.files import Files
from semel.store.embedded.ledger import SqliteLedger
from semel.store.embedded.local_chunks import LocalChunks
from semel.store.embedded.memory_chunks import MemoryChunks
from semel.store.embedded.store import EmbeddedStore

CHUNK_BYTES_MAX = 64 * 1024


class LedgerOpener:
    """Opens one ledger, again and again. Every one that is open is closed at the end of the test."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    async def open(self) -> Ledger:
        return await SqliteLedger.open(self._path)

    async def look(self, query: str) -> list[dict[str, Any]]:
        """What somebody sees who looks at the ledger while it is written."""
        connection = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READONLY)
        cursor = connection.execute(query)
        rows = [dict(zip([name for name, _ in cursor.get_description()], row, strict=True)) for row in cursor]
        connection.close()
        return rows


class PostgresOpener:
    """Opens one ledger in PostgreSQL, again and again: in a schema of its own."""

    def __init__(self, dsn: str, schema: str) -> None:
        self._dsn = dsn
        self._schema = schema

    async def open(self) -> Ledger:
        return await PostgresLedger.open(self._dsn, schema=self._schema)

    async def look(self, query: str) -> list[dict[str, Any]]:
        connection: Any = await asyncpg.connect(self._dsn, server_settings={"search_path": self._schema})
        rows = [dict(row) for row in await connection.fetch(query)]
        await connection.close()
        return rows


class ChunkOpener:
    """Opens one chunk store, again and again."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    async def open(self, *, full: bool = False) -> ChunkStore:
        """``full``: one that has no room for anything."""
        if self._directory is None:
            return MemoryChunks(CHUNK_BYTES_MAX, bytes_max=0 if full else None)
        return LocalChunks(self._directory, CHUNK_BYTES_MAX, 2**62 if full else 0)


class SharedOpener:
    """Opens stores of several brokers over one ledger in PostgreSQL."""

    def __init__(self, dsn: str, schema: str, directory: Path) -> None:
        self._dsn = dsn
        self._objects = directory.as_uri()
        self.schema = schema

    async def open(self, broker_id: int, lease_seconds: float = 30.0) -> ClusterStore:
        objects = Objects.open(self._objects)
        try:
            return await ClusterStore.open(
                self._dsn, objects, schema=self.schema, broker_id=broker_id, lease_seconds=lease_seconds
            )
        except BaseException:
            objects.close()
            raise

    async def expire(self, broker_id: int) -> None:
        """Let the lease of a broker be over now."""
        await self._execute(
            "UPDATE brokers SET lease = '0', lease_until = clock_timestamp() WHERE broker_id = $1", broker_id
        )

    async def set_clock(self, seconds: float) -> None:
        """Have the ledger look as after its clock was set ahead, or back: all it noted was later."""
        await self._execute(
            "UPDATE brokers SET lease_until = lease_until - make_interval(secs => $1)", seconds
        )

    async def shown(self) -> list[tuple[int, str]]:
        """The brokers and their states, as people see them."""
        return [each[:2] for each in (await cluster_status(self._dsn, self.schema)).brokers]

    async def _execute(self, statement: str, *arguments: Any) -> None:
        connection: Any = await asyncpg.connect(self._dsn, server_settings={"search_path": self.schema})
        await connection.execute(statement, *arguments)
        await connection.close()

    def pass_time(self, store: ClusterStore, seconds: float) -> None:
        """Move the clock ahead by which a broker judges the leases of others."""
        leases = store.membership._leases
        clock = leases.clock
        leases.clock = lambda: clock() + seconds

    def instead_of_waiting(self, patch: pytest.MonkeyPatch, work: Callable[[], Awaitable[object]]) -> None:
        """Have brokers that start do this where they would wait for the end of a lease."""

        async def do(seconds: float) -> None:
            await work()

        patch.setattr(membership, "asyncio", SimpleNamespace(sleep=do))

    async def kill(self, store: ClusterStore) -> None:
        """End a broker as kill -9 does."""
        store.ledger.database._pool.terminate()
        await store.chunks.close()


LEDGERS: dict[str, Callable[[pytest.FixtureRequest], LedgerOpener | PostgresOpener]] = {
    "memory": lambda request: LedgerOpener(None),
    "disk": lambda request: LedgerOpener(request.getfixturevalue("tmp_path") / "ledger.db"),
    "postgres": lambda request: PostgresOpener(
        request.getfixturevalue("postgres_dsn"), request.getfixturevalue("schema")
    ),
}
SHARED_STORES: dict[str, Callable[[pytest.FixtureRequest], SharedOpener]] = {
    "postgres": lambda request: SharedOpener(
        request.getfixturevalue("postgres_dsn"),
        request.getfixturevalue("schema"),
        request.getfixturevalue("tmp_path"),
    ),
}
CHUNK_STORES: dict[str, Callable[[Path], ChunkOpener]] = {
    "memory": lambda directory: ChunkOpener(None),
    "disk": lambda directory: ChunkOpener(directory / "chunks"),
}
DURABLE = ["disk"]
"""Those that are the same after they were closed and opened."""


@pytest.fixture
def schema(postgres_dsn: str) -> Iterator[str]:
    """A ledger in PostgreSQL that nobody has used."""
    with schemas(postgres_dsn).taken() as schema:
        yield schema


@pytest.fixture(params=list(LEDGERS))
def ledgers(request: pytest.FixtureRequest) -> LedgerOpener | PostgresOpener:
    return LEDGERS[request.param](request)


@pytest.fixture(params=[*DURABLE, "postgres"])
def durable_ledgers(request: pytest.FixtureRequest) -> LedgerOpener | PostgresOpener:
    return LEDGERS[request.param](request)


@pytest.fixture(params=list(SHARED_STORES))
def shared_stores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SharedOpener:
    # A broker must not lose its locks because the machine pauses between two steps of a test.
    monkeypatch.setitem(opening.SESSION, "idle_in_transaction_session_timeout", "20s")
    monkeypatch.setitem(opening.SESSION, "lock_timeout", "25s")
    monkeypatch.setitem(opening.SESSION, "statement_timeout", "30s")
    return SHARED_STORES[request.param](request)


@pytest.fixture(params=list(CHUNK_STORES))
def chunk_stores(request: pytest.FixtureRequest, tmp_path: Path) -> ChunkOpener:
    return CHUNK_STORES[request.param](tmp_path)


@pytest.fixture(params=DURABLE)
def durable_chunk_stores(request: pytest.FixtureRequest, tmp_path: Path) -> ChunkOpener:
    return CHUNK_STORES[request.param](tmp_path)


class Scribe:
    """Makes facts as the core would, and remembers what must be true after them."""

    def __init__(self) -> None:
        self.partitions: dict[PartitionKey, Partition] = {}
        self._stated: dict[PartitionKey, Partition] = {}
        self.batches: dict[PartitionKey, list[StoredBatch]] = {}
        self._chunk_end = 0

    def topic(self, name: str = "orders", partitions: int = 1, **configs: str) -> Topic:
        topic = Topic(name, os.urandom(16), partitions, configs)
        for index in range(partitions):
            key = PartitionKey(topic.topic_id, index)
            self.partitions[key] = self._stated[key] = Partition()
            self.batches[key] = []
        return topic

    def created(self, name: str = "orders", partitions: int = 1, **configs: str) -> TopicCreated:
        return TopicCreated(self.topic(name, partitions, **configs))

    async def create(self, ledger: Ledger | EmbeddedStore, partitions: int = 1) -> list[PartitionKey]:
        """Commit a new topic; its partitions."""
        created = self.created(partitions=partitions)
        await ledger.commit([created], [])
        return [PartitionKey(created.topic.topic_id, index) for index in range(partitions)]

    def append(
        self, key: PartitionKey, records: int = 1, timestamp: int = 1_000, size: int = 100, chunk_id: int = 1
    ) -> tuple[BatchAppended, BatchLocation]:
        """The next batch of a partition, and a place for it."""
        before = self.partitions[key]
        base, last = before.high_watermark, before.high_watermark + records - 1
        peak = max(before.peak_timestamp, timestamp)
        location = BatchLocation(chunk_id, self._chunk_end, size)
        self._chunk_end += size
        self.batches[key].append(StoredBatch(base, last, timestamp, location))
        self.partitions[key] = before.but(
            high_watermark=last + 1, peak_timestamp=peak, size_bytes=before.size_bytes + size
        )
        return BatchAppended(key, base, last, timestamp, peak, size, -1, False, False), location

    def opens(self, fact: BatchAppended, producer_id: int) -> BatchAppended:
        """The batch is the first of a producer's transaction."""
        before = self.partitions[fact.partition]
        opened = (*before.open_transactions, OpenTransaction(fact.base_offset, producer_id))
        self.partitions[fact.partition] = before.but(open_transactions=opened)
        return fact.but(producer_id=producer_id, is_transactional=True, opens_transaction=True)

    def closes(self, marker: BatchAppended, producer_id: int, closes: Closing) -> BatchAppended:
        """The batch is the marker that ends a producer's transaction."""
        before = self.partitions[marker.partition]
        self.partitions[marker.partition] = before.but(
            open_transactions=tuple(
                each for each in before.open_transactions if each.producer_id != producer_id
            ),
            last_aborted_offset=before.last_aborted_offset if closes.is_commit else marker.base_offset,
        )
        return marker.but(producer_id=producer_id, closes=closes)

    def changed(self) -> list[Put]:
        """The values of the partitions that have changed since this was last asked."""
        found = [(key, each) for key, each in self.partitions.items() if self._stated[key] != each]
        self._stated.update(found)
        return [Put(key, each) for key, each in found]

    def trim(self, key: PartitionKey, offset: int) -> LogStartAdvanced:
        """Everything below an offset is deleted."""
        self.batches[key] = [batch for batch in self.batches[key] if batch.last_offset >= offset]
        size = sum(batch.location.length for batch in self.batches[key])
        self.partitions[key] = self.partitions[key].but(log_start_offset=offset, size_bytes=size)
        return LogStartAdvanced(key, offset)

    async def fill(self, ledger: Ledger, key: PartitionKey, batches: list[dict[str, int]]) -> None:
        """Commit batches in one commit."""
        pairs = [self.append(key, **batch) for batch in batches]
        await ledger.commit(
            [*(fact for fact, _ in pairs), *self.changed()], [location for _, location in pairs]
        )


@pytest.fixture
def scribe() -> Scribe:
    return Scribe()


class FailingFiles(Files):
    """Fails the calls that are named, with the error that is given; counts all of them."""

    def __init__(self) -> None:
        self.failures: dict[str, int] = {}
        self.calls: list[str] = []
        self.short_write_bytes: int | None = None
        self.after: Callable[[str], None] = lambda call: None

    def _call(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        self.calls.append(name)
        if name in self.failures:
            code = self.failures[name]
            raise OSError(code, os.strerror(code))
        result = function(*args)
        self.after(name)
        return result

    def create(self, path: Path) -> int:
        return int(self._call("create", super().create, path))

    def allocate(self, descriptor: int, position: int, length: int) -> None:
        self._call("allocate", super().allocate, descriptor, position, length)

    def write(self, descriptor: int, buffers: Any, position: int) -> int:
        if self.short_write_bytes is not None:
            buffers = [b"".join(buffers)[: self.short_write_bytes]]
        return int(self._call("write", super().write, descriptor, buffers, position))

    def flush(self, descriptor: int) -> None:
        self._call("flush", super().flush, descriptor)

    def flush_directory(self, path: Path) -> None:
        self._call("flush_directory", super().flush_directory, path)

    def punch(self, descriptor: int, position: int, length: int) -> None:
        self._call("punch", super().punch, descriptor, position, length)


@pytest.fixture
def failing_files() -> FailingFiles:
    return FailingFiles()


class FailingDisk(apsw.VFS):
    """SQLite's way to the disk, on which writing or flushing the write-ahead log can be made to fail.

    ``move`` fails writing the database itself, to which the log is moved.
    """

    def __init__(self) -> None:
        self.name = f"failing-{os.urandom(4).hex()}"
        self.failing: dict[str, type[apsw.Error]] = {}
        super().__init__(self.name, base="")

    def xOpen(self, name: Any, flags: list[int]) -> "FailingFile":  # noqa: N802 - SQLite's name
        return FailingFile(self, name, flags)


class FailingFile(apsw.VFSFile):
    def __init__(self, disk: FailingDisk, name: Any, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self._disk = disk
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._is_log = str(path).endswith("-wal")

    def _fail(self, call: str) -> None:
        if self._is_log and call in self._disk.failing:
            raise self._disk.failing[call](call)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - SQLite's name
        self._fail("write")
        if not self._is_log and "move" in self._disk.failing:
            raise self._disk.failing["move"]("move")
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite's name
        self._fail("sync")
        super().xSync(flags)


@pytest.fixture
def failing_disk() -> Iterator[FailingDisk]:
    disk = FailingDisk()
    yield disk
    disk.unregister()


@pytest.fixture
def open_files() -> Callable[[], list[str]]:
    """The names of all files that this process has open."""

    def names() -> list[str]:
        found: list[str] = []
        for entry in list(Path("/proc/self/fd").iterdir()):
            # The descriptor with which the directory is listed is closed by now.
            with contextlib.suppress(FileNotFoundError):
                found.append(str(entry.readlink()))
        return found

    return names
