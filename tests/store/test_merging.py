"""Merging: old batches in runs, one row for many. Readers do not notice."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.servers.s3 import S3Server
from support.stores.cluster_bytes import Place, age, listed, opened, read, set_clock_back, states, trim
from support.stores.embedded import EVERYTHING
from support.waiting import until_async

from semel.config import Settings
from semel.core.facts import BatchesReplaced, TopicDeleted
from semel.core.types import PartitionKey, Rewritten
from semel.store.cluster.bytes import merging
from semel.store.cluster.store import ClusterStore
from semel.store.contract import BatchLocation, StoredBatch, StoreRefused
from semel.wire.records import Record, encode_batch

SETTINGS = Settings(semel_roll_interval_ms=0, semel_merge_age_ms=0)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "RUN_BYTES", 3_000)
    monkeypatch.setattr(merging, "RUN_BATCHES", 8)


@pytest.fixture(params=["directory", "s3"])
def place(request: pytest.FixtureRequest, postgres_dsn: str, schema: str, tmp_path: Path) -> Place:
    if request.param == "directory":
        return Place.new(postgres_dsn, tmp_path.as_uri(), schema)
    server: S3Server = request.getfixturevalue("s3")
    return Place.new(postgres_dsn, server.address, schema, **server.options)


@pytest.fixture
def nearby(postgres_dsn: str, schema: str, tmp_path: Path) -> Place:
    return Place.new(postgres_dsn, tmp_path.as_uri(), schema)


async def fill(
    store: ClusterStore, scribe: Any, key: PartitionKey, sizes: Sequence[int], times: Sequence[int] = ()
) -> list[bytes]:
    """Commit a batch of each size, one by one, and roll them."""
    written: list[bytes] = []
    for number, size in enumerate(sizes):
        at = times[number] if times else 1_000 + number
        batch = encode_batch([Record(each, at, None, os.urandom(size // 2)) for each in range(2)])
        fact, _ = scribe.append(key, records=2, timestamp=at, size=len(batch))
        await store.commit([fact, *scribe.changed()], [batch])
        written.append(batch)
    await store.roller.roll_once()
    return written


async def rows(store: ClusterStore, key: PartitionKey) -> list[tuple[int, int, int]]:
    """Base offset, last offset and number of batches of each row."""
    found = await store.ledger.database.fetch(
        """
        SELECT base_offset, last_offset, coalesce(cardinality(run_ends), 1) FROM batches
        WHERE topic_id = $1 AND partition_index = $2 ORDER BY base_offset
        """,
        *key.values(),
    )
    return [tuple(each) for each in found]


async def shape(store: ClusterStore, key: PartitionKey) -> list[tuple[int, int, int, int]]:
    """What the ledger says of each batch, except where it is."""
    found = await store.ledger.find_batches(key, 0, **EVERYTHING)
    return [(*each[:3], each.location.length) for each in found]


async def answers(store: ClusterStore, key: PartitionKey) -> list[Any]:
    """What the ledger answers to all questions about batches."""
    ledger = store.ledger

    def without_place(batch: StoredBatch | None) -> Any:
        return batch and (*batch[:3], batch.location.length)

    found: list[Any] = [await shape(store, key)]
    (partition,) = await ledger.load([key])
    assert partition is not None
    for offset in range(partition.high_watermark + 2):
        for bytes_max, batches_max in ((0, 1), (700, 100), (2**30, 3)):
            limits = {"bytes_max": bytes_max, "batches_max": batches_max}
            some = await ledger.find_batches(key, offset, before=2**62, **limits)
            found.append([without_place(each) for each in some])
            some = await ledger.find_batches(key, offset, before=offset + 5, **limits)
            found.append([without_place(each) for each in some])
        found.append(await ledger.size_below(key, offset))
    for timestamp in range(995, 1_060, 3):
        found.append(without_place(await ledger.first_batch_since(key, timestamp)))
    for size in range(0, partition.size_bytes + 300, 150):
        found.append(await ledger.offset_at_size(key, size))
    return found


async def test_a_swap_reads_only_the_rows_of_its_runs(nearby: Place, scribe: Any) -> None:
    async with opened(nearby, SETTINGS) as store:
        keys = await scribe.create(store.ledger, partitions=2)
        database = store.ledger.database
        await database.value(
            """
            INSERT INTO batches SELECT decode(md5('another topic'), 'hex'), 0, number, number, 0, 0, 1, 0, 1
            FROM generate_series(1, 20000) AS number
            """
        )
        for key in keys:
            await fill(store, scribe, key, [200] * 24)
        await database.value("ANALYZE batches")
        before = await _entries_read(store)
        assert await store.merger.merge_once() == 48
        assert await _entries_read(store) - before < 1_000


async def _entries_read(store: ClusterStore) -> int:
    """Entries of the index of batches that all sessions have read, as far as they have reported it."""
    await store.ledger.database.value("SELECT pg_stat_force_next_flush()")
    found: int = await store.ledger.database.value(
        """
        SELECT idx_tup_read FROM pg_stat_user_indexes
        WHERE schemaname = current_schema() AND indexrelname = 'batches_pkey'
        """
    )
    return found


async def test_a_run_is_one_row_and_every_answer_stays(place: Place, scribe: Any) -> None:
    async with opened(place, SETTINGS) as store:
        keys = await scribe.create(store.ledger, partitions=2)
        written = {key: await fill(store, scribe, key, [200] * 20) for key in keys}
        before = [await answers(store, key) for key in keys]
        assert await store.merger.merge_once() == 32
        for key in keys:
            assert await rows(store, key) == [
                (0, 15, 8),
                (16, 31, 8),
                *((at, at + 1, 1) for at in (32, 34, 36, 38)),
            ]
        assert [await answers(store, key) for key in keys] == before
        assert {key: await read(store, key) for key in keys} == written
        assert await store.merger.merge_once() == 0
    async with opened(place, SETTINGS) as store:
        assert {key: await read(store, key) for key in keys} == written
        # The old objects are deleted later, except the one that has what was not merged.
        await age(store, "unused", "uploading")
        await store.sweep_orphans()
        assert {key: await read(store, key) for key in keys} == written
        assert await store.reconciler.reconcile_once() == []
        assert store.reconciler.missing == 0


async def test_answers_stay_when_the_log_starts_within_a_run(nearby: Place, scribe: Any) -> None:
    sizes = [100 + 37 * number % 300 for number in range(30)]
    times = [1_000 + (number * 17) % 40 for number in range(30)]
    async with opened(nearby, SETTINGS) as store:
        (key,) = await scribe.create(store.ledger)
        await fill(store, scribe, key, sizes, times)
        await store.commit([scribe.trim(key, 7), *scribe.changed()], [])
        before = await answers(store, key)
        # The rows below the log start are not swept yet, and are not merged.
        assert await store.merger.merge_once() > 10
        assert await answers(store, key) == before
        for start in (8, 13, 20, 45):
            await store.commit([scribe.trim(key, start), *scribe.changed()], [])
            (partition,) = await store.ledger.load([key])
            assert partition is not None
            batches = await store.ledger.find_batches(key, 0, **EVERYTHING)
            assert partition.size_bytes == sum(each.location.length for each in batches)
            assert batches[0].last_offset >= start
            while await store.ledger.sweep(limit=5):
                pass
            assert await store.ledger.find_batches(key, 0, **EVERYTHING) == batches


async def test_a_size_that_was_read_before_the_merge_is_right_after_it(nearby: Place, scribe: Any) -> None:
    """DeleteRecords reads the size below an offset, and commits later."""
    async with opened(nearby, SETTINGS) as store:
        (key,) = await scribe.create(store.ledger)
        await fill(store, scribe, key, [200] * 8)
        _, below = await store.ledger.size_below(key, 6)
        assert await store.merger.merge_once() == 8
        await store.commit([scribe.trim(key, 6), *scribe.changed()], [])
        start, rest = await store.ledger.size_below(key, 16)
        assert start == 6
        assert below + rest == sum(each.location.length for each in await _all(store, key, scribe))


async def _all(store: ClusterStore, key: PartitionKey, scribe: Any) -> list[StoredBatch]:
    """The batches of a partition, also those below the log start that are not swept."""
    found = await store.ledger.database.fetch(
        "SELECT each.* FROM batches, batches_in(batches) AS each ORDER BY each.base_offset"
    )
    return [
        StoredBatch(row["base_offset"], row["last_offset"], 0, BatchLocation(0, 0, row["length"]))
        for row in found
    ]


async def test_young_batches_and_those_in_the_ledger_wait(nearby: Place, scribe: Any) -> None:
    settings = Settings(semel_roll_interval_ms=3_600_000, semel_merge_age_ms=60_000)
    async with opened(nearby, settings) as store:
        (key,) = await scribe.create(store.ledger)
        await fill(store, scribe, key, [200] * 10)
        assert await store.merger.merge_once() == 0
        await store.ledger.database.row("UPDATE inline_generation SET since = since - interval '2 hours'")
        assert await store.roller.roll_once() == 10
        assert await store.merger.merge_once() == 0
        await age(store, "stored")
        assert await store.merger.merge_once() == 8


async def test_old_batches_do_not_wait_for_a_clock_that_was_set_back(nearby: Place, scribe: Any) -> None:
    settings = Settings(semel_roll_interval_ms=0, semel_merge_age_ms=60_000)
    async with opened(nearby, settings) as store:
        (key,) = await scribe.create(store.ledger)
        await fill(store, scribe, key, [200] * 10)
        await store.roller.roll_once()
        assert await store.merger.merge_once() == 0
        await set_clock_back(store)
        assert await store.merger.merge_once() == 8


async def test_large_batches_are_moved_alone(nearby: Place, scribe: Any) -> None:
    async with opened(nearby, SETTINGS) as store:
        (key,) = await scribe.create(store.ledger)
        written = await fill(store, scribe, key, [4_000, 200, 200, 4_000, 4_000, 200])
        assert await store.merger.merge_once() == 5
        assert [count for *_, count in await rows(store, key)] == [1, 2, 1, 1, 1]
        assert await read(store, key) == written


async def test_topics_with_compaction_are_not_merged(nearby: Place, scribe: Any) -> None:
    async with opened(nearby, SETTINGS) as store:
        created = scribe.created(**{"cleanup.policy": "compact,delete"})
        await store.commit([created], [])
        key = PartitionKey(created.topic.topic_id, 0)
        await fill(store, scribe, key, [200] * 10)
        assert await store.merger.merge_once() == 0


async def test_topics_that_are_compacted_by_default_are_not_merged(nearby: Place, scribe: Any) -> None:
    settings = Settings(semel_roll_interval_ms=0, semel_merge_age_ms=0, log_cleanup_policy="compact")
    async with opened(nearby, settings) as store:
        (key,) = await scribe.create(store.ledger)
        await fill(store, scribe, key, [100] * 8)
        assert await store.merger.merge_once() == 0


@pytest.mark.parametrize("neighbour_bytes", [100, 10])
async def test_compaction_waits_for_a_merge_of_the_same_batches(
    nearby: Place, scribe: Any, monkeypatch: pytest.MonkeyPatch, neighbour_bytes: int
) -> None:
    """Both free the old bytes. Freed twice, they would take the bytes of a neighbour in the chunk along."""
    async with opened(nearby, SETTINGS) as store, opened(nearby, SETTINGS, broker_id=1) as other:
        key, neighbour = await scribe.create(store.ledger, partitions=2)
        written: list[bytes] = []
        beside: list[bytes] = []
        for number in range(8):
            pair = [
                encode_batch([Record(each, 1_000 + number, None, os.urandom(size)) for each in range(2)])
                for size in (100, neighbour_bytes)
            ]
            facts = [
                scribe.append(each, records=2, timestamp=1_000 + number, size=len(batch))[0]
                for each, batch in zip((key, neighbour), pair, strict=True)
            ]
            # One commit, so one chunk for batches of two partitions.
            await store.commit([*facts, *scribe.changed()], pair)
            written.append(pair[0])
            beside.append(pair[1])
        await store.roller.roll_once()
        reached, may_end = asyncio.Event(), asyncio.Event()
        candidates, note = store.merger._candidates, store.merger._note

        async def only_first(after: Any) -> Any:
            return [each for each in await candidates(after) if each[0] == key]

        async def slowly(connection: Any, runs: Any) -> None:
            reached.set()
            await may_end.wait()
            await note(connection, runs)

        monkeypatch.setattr(store.merger, "_candidates", only_first)
        monkeypatch.setattr(store.merger, "_note", slowly)
        merge = asyncio.create_task(store.merger.merge_once())
        await reached.wait()
        new = encode_batch([Record(0, 1_001, None, b"new")])
        replaced = BatchesReplaced(key, (Rewritten(2, 3, 1_001, len(new)),), (4,))
        compaction = asyncio.create_task(other.commit([replaced], [new]))

        async def is_waiting() -> bool:
            waiting = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"
            return bool(await store.ledger.database.value(waiting))

        await until_async(is_waiting)
        may_end.set()
        assert await merge == 8
        await compaction
        expected = [written[0], new, *written[3:]]
        assert await read(other, key) == expected
        for _ in range(5):
            await store.ledger.sweep(limit=100)
        other.chunks._places.clear()
        assert await read(other, key) == expected
        assert await read(other, neighbour) == beside


async def test_compaction_splits_the_runs_that_it_changes(nearby: Place, scribe: Any) -> None:
    """The topic was merged before it was compacted, or both happen at the same time."""
    async with opened(nearby, SETTINGS) as store:
        (key,) = await scribe.create(store.ledger)
        written = await fill(store, scribe, key, [200] * 24)
        before = await shape(store, key)
        assert await store.merger.merge_once() == 24
        new = encode_batch([Record(0, 1_009, None, b"new")])
        replaced = BatchesReplaced(key, (Rewritten(18, 19, 1_009, len(new)),), (20, 30))
        await store.commit([replaced], [new])
        assert [count for *_, count in await rows(store, key)] == [8, *[1] * 6, 8]
        expected = [each for each in before if each[0] not in (20, 30)]
        expected[9] = (18, 19, 1_009, len(new))
        assert await shape(store, key) == expected
        kept = [each for number, each in enumerate(written) if number not in (10, 15)]
        kept[9] = new
        assert await read(store, key) == kept
        while await store.ledger.sweep(limit=100):
            pass
        references = await store.ledger.chunk_references()
        assert sum(references.values()) == sum(map(len, kept))


@pytest.mark.parametrize("how", ["swept", "merged", "compacted", "deleted"])
async def test_what_changed_meanwhile_is_not_merged(
    nearby: Place, scribe: Any, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(nearby, SETTINGS) as store, opened(nearby, SETTINGS, broker_id=1) as other:
        (key,) = await scribe.create(store.ledger)
        written = await fill(store, scribe, key, [200] * 16)
        put = store.chunks.objects.put

        async def change(*arguments: Any) -> None:
            await put(*arguments)
            if how == "swept":
                await trim(other, scribe, key, 6)
            elif how == "merged":
                assert await other.merger.merge_once() == 16
            elif how == "compacted":
                await other.commit([BatchesReplaced(key, (), (20,))], [])
            else:
                await trim(other, scribe, key, 32)

        monkeypatch.setattr(store.chunks.objects, "put", change)
        merged = await store.merger.merge_once()
        monkeypatch.undo()
        expected = {"swept": written[3:], "merged": written, "compacted": [*written[:10], *written[11:]]}
        assert await read(other, key) == expected.get(how, [])
        # Only the run before the change.
        assert merged == (8 if how == "compacted" else 0)


async def test_merges_and_sweeps_and_reads_at_the_same_time(nearby: Place, scribe: Any) -> None:
    async with opened(nearby, SETTINGS) as store, opened(nearby, SETTINGS, broker_id=1) as other:
        keys = await scribe.create(store.ledger, partitions=3)
        written = {key: await fill(store, scribe, key, [200] * 60) for key in keys}
        is_done = False

        async def look() -> None:
            while not is_done:
                for key in keys:
                    found = await other.ledger.find_batches(key, 0, **EVERYTHING)
                    try:
                        data = await other.chunks.read([each.location for each in found])
                    except LookupError:
                        # A reader then looks the batches up again.
                        continue
                    start = found[0].base_offset // 2 if found else 60
                    assert data == written[key][start:]

        async def sweep() -> None:
            for offset in range(0, 120, 10):
                for key in keys:
                    await trim(other, scribe, key, offset)

        async def merge(which: ClusterStore) -> None:
            while not is_done:
                try:
                    await which.merger.merge_once()
                except StoreRefused:
                    continue

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(look())
            tasks.create_task(merge(store))
            tasks.create_task(merge(other))
            await sweep()
            is_done = True
        references = await store.ledger.chunk_references()
        assert all(size > 0 for size in references.values())


async def test_damaged_batches_stay_where_they_are(
    nearby: Place, scribe: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(nearby, SETTINGS) as store:
        (key,) = await scribe.create(store.ledger)
        await fill(store, scribe, key, [200] * 24)
        _damage(tmp_path)
        assert await store.merger.merge_once() == 16
        assert "damaged batches" in caplog.text
        assert [count for *_, count in await rows(store, key)] == [8, 8, *[1] * 8]


def _damage(directory: Path) -> None:
    """Change the last batch of the only object."""
    (path,) = directory.rglob("chunks/????????????????")
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)


async def test_a_deleted_topic_leaves_nothing(nearby: Place, scribe: Any) -> None:
    async with opened(nearby, SETTINGS) as store:
        created = scribe.created()
        await store.commit([created], [])
        key = PartitionKey(created.topic.topic_id, 0)
        await fill(store, scribe, key, [200] * 24)
        await store.merger.merge_once()
        await store.commit([TopicDeleted(created.topic)], [])
        while await store.ledger.sweep(limit=2):
            pass
        for table in ("batches", "chunks", "merged", "leftovers"):
            assert await store.ledger.database.fetch(f"SELECT FROM {table}") == []
        await age(store, "unused", "uploading")
        await store.sweep_orphans()
        assert await listed(store.chunks.objects) == []
        assert await states(store) == {}
