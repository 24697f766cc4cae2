"""Make a cluster from the data directory of a stopped broker.

The copy is made in a separate schema, ``semel_migration``, with separate objects. When everything was copied,
read back and compared, one statement renames the schema to ``semel``. So brokers find the whole cluster, or
none. After a failure, the next attempt deletes what the interrupted one has left, and starts again. It leaves
objects at another address there, and reports them. The data directory does not change.

Meanwhile an advisory lock keeps brokers from creating a cluster in the same database, and another one
excludes a second migration.

Everything that the embedded store holds is copied, and the two are compared. Each entity, with its current
value, and each readable batch are committed to the target as facts, as if all had just been decided. So the
target needs no interface besides its commits. Offsets, ids, epochs and times stay the same. Only terms
change: work of the source's current term, which is as durable in the target as everything else, belongs to
the target's current term, and work of an earlier term to an earlier term.
"""

import logging
from collections.abc import AsyncIterator, Callable, Iterable
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple

import asyncpg

from semel.config import Settings
from semel.core import facts, types
from semel.core.entities import ENTITIES
from semel.core.shares.group import shares_of
from semel.store.cluster.bytes.objects import Objects, check_access
from semel.store.cluster.claiming import folder_of
from semel.store.cluster.contract import SharedStore
from semel.store.cluster.postgres.database import ConnectionLost, confirmed
from semel.store.cluster.postgres.opening import _LOCK as MAKING_TABLES
from semel.store.cluster.postgres.opening import open_database
from semel.store.cluster.postgres.reaching import connect
from semel.store.cluster.store import ClusterStore
from semel.store.contract import BatchLocation, ChunkStore, Ledger, StoreDamaged, StoredBatch, StoreRefused
from semel.store.embedded.examination import LEDGER
from semel.store.embedded.ledger_opening import open_reader
from semel.store.embedded.queries import Statements
from semel.store.embedded.store import EmbeddedStore
from semel.store.embedded.tools.check_storage import wrong_with
from semel.store.opening import Remote, open_store

Progress = Callable[[str, int, int], None]
"""Called with the name of the step, the bytes so far and the bytes in total."""

COMMIT_BYTES: Final = 8 * 1024 * 1024
"""Bytes of batches after which a commit ends, and so an object."""
COMMIT_FACTS: Final = 2_000
PAGE: Final = 1_000
_EARLIER_TERM: Final = 0
_HEAD: Final = Struct(">qqq")


class Copied(NamedTuple):
    """How much was copied."""

    topics: int = 0
    partitions: int = 0
    batches: int = 0
    batch_bytes: int = 0
    producers: int = 0
    transactional_ids: int = 0
    open_transactions: int = 0
    groups: int = 0
    offsets: int = 0


_COPIED: Final = frozenset(
    {
        *(types.ClusterKey, types.PolicyKey, types.TopicKey, types.PartitionKey, types.ProducerKey),
        *(types.TransactionKey, types.GroupKey, types.PendingKey, types.OffsetKey, types.ShareKey),
    }
)
"""The kinds of entities that ``Copy`` copies and compares."""
assert ENTITIES.keys() == _COPIED


class Copy:
    """Copies one store to another, which is empty. Call ``everything``, then ``compare``."""

    def __init__(
        self, source: EmbeddedStore, rows: Statements, target: SharedStore, progress: Progress
    ) -> None:
        self._source = source
        self._rows = rows
        self._target = target
        self._progress = progress
        self._counts = dict.fromkeys(Copied._fields, 0)
        self._bytes_total = 0
        self._facts: list[types.Fact] = []
        self._batches: list[types.Buffer] = []
        self._batch_bytes = 0
        self._digests: dict[types.PartitionKey, bytes] = {}
        self._staged_digest = blake2b()
        self._names: dict[bytes, str] = {}

    async def everything(self) -> Copied:
        """Copy all entities and batches. StoreDamaged if a batch of the source is damaged."""
        self._bytes_total = sum((await self._source.ledger.chunk_references()).values())
        await self._cluster()
        await self._policies()
        async for topic in topics(self._source.ledger):
            await self._topic(topic)
        await self._staged()
        async for transaction in transactions(self._source.ledger):
            await self._add(facts.Put.of(self._in_target(transaction)))
            self._count(
                transactional_ids=1, open_transactions=transaction.state is types.TransactionState.ONGOING
            )
        async for group_id in group_ids(self._source.ledger):
            await self._group(group_id)
        await self._commit()
        return Copied(**self._counts)

    # -- copying ------------------------------------------------------------------------------------------

    async def _cluster(self) -> None:
        (cluster,), (there,) = [
            await each.load([types.ClusterKey()]) for each in (self._source.ledger, self._target.ledger)
        ]
        assert cluster is not None
        assert there is not None
        if cluster.next_producer_id > 0:
            await self._add(facts.ProducerIdAllocated(cluster.next_producer_id - 1))
        if cluster.features_epoch > there.features_epoch:
            await self._add(facts.FeatureChanged(cluster.transaction_version, cluster.features_epoch))

    async def _policies(self) -> None:
        async for key, body in policies(self._source.ledger):
            await self._add(facts.Put(key, body))

    async def _topic(self, topic: types.Topic) -> None:
        await self._add(facts.TopicCreated(topic))
        self._count(topics=1)
        self._names[topic.topic_id] = topic.name
        for key in partitions(topic):
            partition = await _partition(self._source.ledger, key)
            self._digests[key] = await self._log(key, partition)
            await self._add(facts.Put(key, partition))
            self._count(partitions=1)
            for producer_id, state in await self._source.ledger.producers(key):
                await self._add(facts.Put(key.of(producer_id), state))
                self._count(producers=1)

    async def _log(self, key: types.PartitionKey, partition: types.Partition) -> bytes:
        """Copy the batches of a partition. Return their digest."""
        aborts = {
            marker: (producer_id, facts.Closing(first, stable, False))
            for marker, producer_id, first, stable in self._rows.rows("aborted_at_rest", key.values())
        }
        digest, peak = blake2b(), -1
        async for batch, data in logged(self._source.ledger, self._source.chunks, key, partition):
            self._check(key, batch.location, data)
            digest.update(_HEAD.pack(*batch[:3]))
            digest.update(data)
            peak = max(peak, batch.max_timestamp)
            producer_id, closes = aborts.pop(batch.base_offset, (-1, None))
            fact = facts.BatchAppended(
                key, *batch[:3], peak, len(data), producer_id, closes is not None, False, closes
            )
            await self._add(fact, data)
        if aborts:
            raise StoreDamaged(f"{self._named(key)} lacks the marker of an aborted transaction")
        return digest.digest()

    async def _staged(self) -> None:
        for topic_id, index, producer_id, offsets, max_timestamp, *where in self._rows.each("staged_at_rest"):
            key, location = types.PartitionKey(topic_id, index), BatchLocation(*where)
            (data,) = await self._read(key, location)
            self._staged_digest.update(_HEAD.pack(producer_id, offsets, max_timestamp))
            self._staged_digest.update(data)
            await self._add(facts.BatchStaged(key, producer_id, offsets, max_timestamp, len(data)), data)

    async def _read(self, key: types.PartitionKey, location: BatchLocation) -> list[bytearray]:
        try:
            found = await self._source.chunks.read([location])
        except (LookupError, OSError) as error:
            raise StoreDamaged(f"a batch of {self._named(key)} cannot be read: {error}") from error
        self._check(key, location, found[0])
        return found

    def _check(self, key: types.PartitionKey, location: BatchLocation, data: types.Buffer) -> None:
        if reason := wrong_with(data, location.length):
            raise StoreDamaged(
                f"a batch of {self._named(key)} is damaged: {reason}; 'semel check-storage' lists all of them"
            )

    def _named(self, key: types.PartitionKey) -> str:
        return f"{self._names[key.topic_id]}-{key.index}"

    def _in_target(self, transaction: types.Transaction) -> types.Transaction:
        is_present = transaction.term >= self._source.term
        return transaction.but(term=self._target.term if is_present else _EARLIER_TERM)

    async def _group(self, group_id: str) -> None:
        (group,) = await self._source.ledger.load([types.GroupKey(group_id)])
        (pending,) = await self._source.ledger.load([types.PendingKey(group_id)])
        if group is not None:
            await self._add(facts.Put.of(group))
        keys = shares_of(group)
        for start in range(0, len(keys), PAGE):
            some = keys[start : start + PAGE]
            for each, share in zip(some, await self._source.ledger.load(some), strict=True):
                if share is not None:
                    await self._add(facts.Put(each, share))
        for key, value in await self._source.ledger.group_offsets(group_id):
            await self._add(facts.Put(key, value))
            self._count(offsets=1)
        if pending is not None:
            await self._add(facts.Put(types.PendingKey(group_id), pending))
        self._count(groups=1)

    async def _add(self, fact: types.Fact, batch: types.Buffer | None = None) -> None:
        self._facts.append(fact)
        if batch is not None:
            self._batches.append(batch)
            self._batch_bytes += len(batch)
            self._count(batches=1, batch_bytes=len(batch))
        if self._batch_bytes >= COMMIT_BYTES or len(self._facts) >= COMMIT_FACTS:
            await self._commit()

    async def _commit(self) -> None:
        if self._facts:
            await self._target.commit(self._facts, self._batches)
        self._facts, self._batches, self._batch_bytes = [], [], 0
        self._progress("copied", self._counts["batch_bytes"], self._bytes_total)

    def _count(self, **more: int) -> None:
        for name, number in more.items():
            self._counts[name] += number

    # -- comparing ----------------------------------------------------------------------------------------

    async def compare(self, staged: AsyncIterator[tuple[int, int, int, bytearray]]) -> None:
        """Read everything back and compare it. StoreDamaged if something differs.

        ``staged`` has producer, offsets, largest timestamp and bytes of the staged batches in the target, in
        the order of partitions, producers and staging.
        """
        done = 0
        async for topic in topics(self._source.ledger):
            for key in partitions(topic):
                digest = blake2b()
                partition = await _partition(self._source.ledger, key)
                async for batch, data in logged(self._target.ledger, self._target.chunks, key, partition):
                    digest.update(_HEAD.pack(*batch[:3]))
                    digest.update(data)
                    done += len(data)
                    self._progress("compared", done, self._counts["batch_bytes"])
                _same(f"the batches of {topic.name}-{key.index}", self._digests[key], digest.digest())
        digest = blake2b()
        async for producer_id, offsets, max_timestamp, data in staged:
            digest.update(_HEAD.pack(producer_id, offsets, max_timestamp))
            digest.update(data)
        _same("the staged batches", self._staged_digest.digest(), digest.digest())
        await self._compare_entities()

    async def _compare_entities(self) -> None:
        source, target = self._source.ledger, self._target.ledger
        _same("the numbers of entities", await source.counts(), await target.counts())
        await self._compare_values([types.ClusterKey()])
        bodies = [[each async for each in policies(ledger)] for ledger in (source, target)]
        _same("users, ACLs, quotas and configs", *bodies)
        async for topic in topics(source):
            _same(f"topic {topic.name}", topic, await target.topic_by_id(topic.topic_id))
            keys = partitions(topic)
            await self._compare_values([*keys])
            for key in keys:
                where = f"{topic.name}-{key.index}"
                _same(f"the producers of {where}", await source.producers(key), await target.producers(key))
                partition = await _partition(source, key)
                aborted = [
                    await each.aborted(key, partition.log_start_offset, partition.high_watermark)
                    for each in (source, target)
                ]
                _same(f"the aborted transactions of {where}", *aborted)
        async for transaction in transactions(source):
            (found,) = await target.load([types.TransactionKey(transaction.transactional_id)])
            _same(transaction.transactional_id, self._in_target(transaction), found)
        async for group_id in group_ids(source):
            (group,) = await source.load([types.GroupKey(group_id)])
            await self._compare_values(
                [types.GroupKey(group_id), types.PendingKey(group_id), *shares_of(group)]
            )
            offsets = [await each.group_offsets(group_id) for each in (source, target)]
            _same(f"the offsets of {group_id}", *offsets)

    async def _compare_values(self, keys: list[types.Key]) -> None:
        for start in range(0, len(keys), PAGE):
            some = keys[start : start + PAGE]
            values = [await each.load(some) for each in (self._source.ledger, self._target.ledger)]
            _same(f"{some[0]} and {len(some) - 1} more", *values)


async def _partition(ledger: Ledger, key: types.PartitionKey) -> types.Partition:
    (partition,) = await ledger.load([key])
    assert isinstance(partition, types.Partition)
    return partition


def _same(what: str, before: Any, after: Any) -> None:
    if before != after:
        raise StoreDamaged(f"the copy differs from its original in {what}")


def partitions(topic: types.Topic) -> list[types.PartitionKey]:
    """Return the partitions of a topic."""
    return [types.PartitionKey(topic.topic_id, index) for index in range(topic.partitions)]


async def policies(ledger: Ledger) -> AsyncIterator[tuple[types.PolicyKey, str]]:
    """Yield all users, ACLs, quotas and configs of brokers and groups."""
    after: types.PolicyKey | None = None
    while page := await ledger.policies(after=after, limit=PAGE):
        for each in page:
            yield each
        after = page[-1][0]


async def topics(ledger: Ledger) -> AsyncIterator[types.Topic]:
    """Yield all topics."""
    after = ""
    while page := await ledger.topics(after=after, limit=PAGE):
        for each in page:
            yield each
        after = page[-1].name


async def transactions(ledger: Ledger) -> AsyncIterator[types.Transaction]:
    """Yield all transactions."""
    after = ""
    while page := await ledger.transactions(after=after, limit=PAGE):
        for each in page:
            yield each
        after = page[-1].transactional_id


async def group_ids(ledger: Ledger) -> AsyncIterator[str]:
    """Yield all groups. ``Ledger.groups`` lacks those that have only pending offsets."""
    seen: set[str] = set()
    after = ""
    while page := await ledger.groups(after=after, limit=PAGE):
        for each in page:
            seen.add(each.group_id)
            yield each.group_id
        after = page[-1].group_id
    async for transaction in transactions(ledger):
        for group_id in _unseen(transaction.groups, seen):
            yield group_id


def _unseen(names: Iterable[str], seen: set[str]) -> list[str]:
    found = [each for each in names if each not in seen]
    seen.update(found)
    return found


async def logged(
    ledger: Ledger, chunks: ChunkStore, key: types.PartitionKey, partition: types.Partition
) -> AsyncIterator[tuple[StoredBatch, bytearray]]:
    """Yield the batches of a partition that can be read, and their bytes. StoreDamaged."""
    offset = partition.log_start_offset
    while offset < partition.high_watermark:
        page = await ledger.find_batches(
            key, offset, before=partition.high_watermark, bytes_max=COMMIT_BYTES, batches_max=PAGE
        )
        if not page:
            return
        try:
            data = await chunks.read([each.location for each in page])
        except (LookupError, OSError) as error:
            raise StoreDamaged(f"a batch of {key} cannot be read: {error}") from error
        for pair in zip(page, data, strict=True):
            yield pair
        offset = page[-1].last_offset + 1


log = logging.getLogger("semel.store")

MIGRATING: Final = 0x53454D454D
"""An advisory lock: one migration at a time."""


class Migrated(NamedTuple):
    """A migration that is complete."""

    cluster_id: str
    copied: Copied


async def migrate(
    directory: Path, place: Remote, progress: Progress, tell: Callable[[str], None] = log.warning
) -> Migrated:
    """Copy a data directory to a database without a cluster and an object store.

    ``tell`` is called with a sentence if an interrupted migration has left objects at another address.

    StoreRefused, StoreLocked, StoreBroken: nothing has changed for brokers.
    """
    if not (directory / LEDGER).exists():
        raise StoreRefused(f"{directory} is not a data directory: it has no {LEDGER}")
    await check_access(place.chunks)
    guard = await connect(place.ledger, "public", "semel migrate")
    try:
        await _begin(guard, place.schema)
        await _discard(place, _staging(place), guard, tell)
        source = await open_store(directory, Settings())
        try:
            return await _migrate(directory, source, place, guard, progress)
        finally:
            await source.close()
    except asyncpg.PostgresError as error:
        raise StoreRefused(f"PostgreSQL refuses: {error}") from error
    except (asyncpg.InterfaceError, OSError, ConnectionLost) as error:
        raise StoreRefused(f"the connection to PostgreSQL was lost: {error}") from error
    finally:
        guard.terminate()


async def _begin(guard: Any, schema: str) -> None:
    if not await guard.fetchval("SELECT pg_try_advisory_lock($1)", MIGRATING):
        raise StoreRefused("another migration to this database is under way")
    if await guard.fetchval("SELECT to_regclass($1) IS NOT NULL", f'"{schema}".meta'):
        raise StoreRefused(
            f"there is a cluster in this database already (schema {schema}): choose another database, or drop"
            " the schema if nobody needs it"
        )


async def _migrate(
    directory: Path, source: EmbeddedStore, place: Remote, guard: Any, progress: Progress
) -> Migrated:
    staging = _staging(place)
    database = await open_database(place.ledger, staging, 1)
    try:
        # Before the target is opened, because the names of objects may contain the id.
        await database.row("UPDATE meta SET value = $1 WHERE name = 'cluster_id'", source.cluster_id)
    finally:
        await database.close()
    target = await _opened(place, staging)
    try:
        await guard.fetchval("SELECT pg_advisory_lock($1)", MAKING_TABLES)
        await source.checkpoint()
        rows = Statements(open_reader(directory / LEDGER))
        try:
            copy = Copy(source, rows, target, progress)
            copied = await copy.everything()
            await copy.compare(_staged(target))
        finally:
            rows.connection.close(True)
    finally:
        await target.close()
    with confirmed(guard):
        async with guard.transaction():
            await guard.execute(f'DROP SCHEMA IF EXISTS "{place.schema}"')
            await guard.execute(f'ALTER SCHEMA "{staging}" RENAME TO "{place.schema}"')
    return Migrated(source.cluster_id, copied)


def _staging(place: Remote) -> str:
    return f"{place.schema}_migration"


async def _discard(place: Remote, staging: str, guard: Any, tell: Callable[[str], None]) -> None:
    """Delete what an interrupted migration left. Its objects may be gone, or at another address."""
    if await guard.fetchval("SELECT to_regclass($1) IS NULL", f'"{staging}".meta'):
        return
    database = await open_database(place.ledger, staging, 1)
    try:
        cluster_id = await database.value("SELECT value FROM meta WHERE name = 'cluster_id'")
        folder = await folder_of(database, cluster_id)
        numbers = [number for (number,) in await database.fetch("SELECT object_id FROM objects")]
    finally:
        await database.close()
    objects = Objects.open(place.chunks)
    try:
        objects.belong_to(folder)
        if await objects.is_marked():
            await objects.delete(numbers)
            await objects.unmark()
        elif numbers:
            tell(
                f"An interrupted migration wrote to a folder {folder} that is not in {place.chunks}. If it is"
                " elsewhere, delete it there: nothing needs it."
            )
    except OSError as error:
        raise StoreRefused(str(error)) from error
    finally:
        objects.close()
    await guard.execute(f'DROP SCHEMA "{staging}" CASCADE')


async def _opened(place: Remote, staging: str) -> ClusterStore:
    objects = Objects.open(place.chunks)
    try:
        return await ClusterStore.open(place.ledger, objects, schema=staging)
    except BaseException:
        objects.close()
        raise


async def _staged(target: ClusterStore) -> AsyncIterator[tuple[int, int, int, bytearray]]:
    rows = await target.ledger.database.fetch(
        """
        SELECT producer_id, offsets, max_timestamp, chunk_id, position, length FROM staged
        ORDER BY topic_id, partition_index, producer_id, stage_number
        """
    )
    for producer_id, offsets, max_timestamp, *where in rows:
        (data,) = await target.chunks.read([BatchLocation(*where)])
        yield producer_id, offsets, max_timestamp, data
