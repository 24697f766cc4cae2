"""A ledger and its object store belong together, or a broker does not start."""

import os
import shutil
from pathlib import Path
from typing import Any

import asyncpg
import obstore
import pytest
from support.brokers.process import free_port
from support.stores.cluster_bytes import Place, age, append, listed, opened, read, states

from semel.config import Settings
from semel.store.cluster.bytes.chunks import RESERVED
from semel.store.cluster.bytes.objects import MARK
from semel.store.cluster.checking.run import check_cluster
from semel.store.contract import StoreBroken, StoreMisconfigured, StoreRefused

SMALL, LARGE = os.urandom(100), os.urandom(Settings().semel_inline_bytes_max + 1)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "objects"
    made.mkdir()
    return made


@pytest.fixture
def place(postgres_dsn: str, directory: Path) -> Place:
    return Place.new(postgres_dsn, directory.as_uri())


async def test_two_ledgers_of_one_cluster_id_have_objects_of_their_own(
    postgres_dsn: str, directory: Path, scribe: Any
) -> None:
    """A data directory was migrated twice."""
    places = [Place.new(postgres_dsn, directory.as_uri()) for _ in range(2)]
    for place in places:
        async with opened(place) as store:
            await store.ledger.database.row("UPDATE meta SET value = 'same' WHERE name = 'cluster_id'")
            await store.ledger.database.row("DELETE FROM meta WHERE name = 'folder_marked'")
    async with opened(places[0]) as one, opened(places[1]) as two:
        (key,) = await scribe.create(one.ledger)
        await append(one, scribe, key, LARGE)
        assert await listed(two.chunks.objects) == []
        await two.chunks.put([LARGE[1:]])
        assert await read(one, key) == [LARGE]
    assert sum(each.startswith("same-") for each in os.listdir(directory)) == 2  # noqa: PTH208


async def test_another_object_store_is_refused(place: Place, directory: Path, tmp_path: Path) -> None:
    async with opened(place):
        pass
    (tmp_path / "other").mkdir()
    with pytest.raises(StoreMisconfigured, match=f"other/.*{MARK}"):
        async with opened(place._replace(address=(tmp_path / "other").as_uri())):
            pass
    # All of it may be moved.
    shutil.move(directory, tmp_path / "moved")
    async with opened(place._replace(address=(tmp_path / "moved").as_uri())):
        pass


async def test_an_object_store_that_ignores_conditions_is_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would let a server that was left behind note a term that another one has begun."""
    async with opened(place):
        pass
    put = obstore.put

    def overwrite(store: Any, path: str, data: Any, **options: Any) -> Any:
        return put(store, path, data, **(options | {"mode": "overwrite"}))

    with monkeypatch.context() as patched:
        patched.setattr(obstore, "put", overwrite)
        for each in (place, place._replace(schema=f"{place.schema}_new")):
            with pytest.raises(StoreMisconfigured, match="does not honour If-None-Match"):
                async with opened(each):
                    pass
    async with opened(place):
        pass


async def test_a_directory_that_is_not_mounted_any_more_is_not_written_to(
    place: Place, directory: Path, tmp_path: Path, scribe: Any
) -> None:
    async with opened(place) as store:
        (key,) = await scribe.create(store.ledger)
        await append(store, scribe, key, LARGE)
        store.chunks.objects._patience_seconds = 0.0
        shutil.move(directory, tmp_path / "elsewhere")
        for is_there in (False, True):
            if is_there:
                os.mkdir(directory)  # noqa: PTH102
            with pytest.raises(StoreRefused, match="is the directory mounted"):
                await store.chunks.put([LARGE])
            # Not LookupError: the records are not lost.
            with pytest.raises(OSError, match="is the directory mounted"):
                await store.chunks.objects.read(
                    [
                        each.location
                        for each in await store.ledger.find_batches(
                            key, 0, before=9, bytes_max=9, batches_max=9
                        )
                    ]
                )
            with pytest.raises(OSError, match="is the directory mounted"):
                await store.reconciler.reconcile_once()
        shutil.rmtree(directory)
        shutil.move(tmp_path / "elsewhere", directory)
        await append(store, scribe, key, LARGE)
        assert await read(store, key) == [LARGE] * 2


async def test_a_ledger_that_is_older_than_its_objects_is_refused(place: Place, scribe: Any) -> None:
    """It was restored from a backup, and brokers have gone on after that."""
    async with opened(place) as store:
        (key,) = await scribe.create(store.ledger)
        await append(store, scribe, key, LARGE)
        last = await store.ledger.database.value("SELECT last_object FROM numbering")
        # As if brokers had counted on.
        await store.chunks.objects.put(last + 1, [LARGE])
        # After a restore from base backup and log, PostgreSQL's sequences are up to 32 steps ahead.
        await store.ledger.database.value("SELECT setval('chunk_ids', last_value + 32000) FROM chunk_ids")
    for _ in range(2):
        with pytest.raises(StoreMisconfigured, match="the ledger is older than its objects"):
            async with opened(place):
                pass
    connection: Any = await asyncpg.connect(place.dsn, server_settings={"search_path": place.schema})
    await connection.fetchval("SELECT skip_numbers()")
    await connection.close()
    async with opened(place) as store:
        assert await read(store, key) == [LARGE]


async def test_a_ledger_that_lacks_a_term_of_the_cluster_is_refused(place: Place, scribe: Any) -> None:
    """It was restored from a backup, or its server was left behind by a failover."""
    async with opened(place) as store:
        (key,) = await scribe.create(store.ledger)
        await append(store, scribe, key, LARGE)
        await store.chunks.objects.note_term(store.term + 1, "of another server")
    for _ in range(2):
        with pytest.raises(StoreMisconfigured, match=r"term 2 .*'Restoring'"):
            async with opened(place):
                pass
    connection: Any = await asyncpg.connect(place.dsn, server_settings={"search_path": place.schema})
    await connection.fetchval("SELECT skip_numbers()")
    await connection.close()
    for _ in range(2):
        async with opened(place) as store:
            assert await read(store, key) == [LARGE]
            assert store.term > 1_000_000


async def test_a_server_that_was_left_behind_is_not_taken_for_a_restored_one(
    place: Place, scribe: Any
) -> None:
    """It lacks the newest objects, too. A host of the address that is silent may be the right one."""
    async with opened(place) as store:
        (key,) = await scribe.create(store.ledger)
        await append(store, scribe, key, LARGE)
        last = await store.ledger.database.value("SELECT last_object FROM numbering")
        await store.chunks.objects.put(last + 1, [LARGE])
        await store.chunks.objects.note_term(store.term + 1, "of another server")
    with pytest.raises(StoreMisconfigured, match="left behind"):
        async with opened(place):
            pass
    silent = f"127.0.0.1:{free_port()}"
    host = place.dsn.partition("@")[2].partition("/")[0]
    both = place._replace(dsn=place.dsn.replace(host, f"{host},{silent}"))
    with pytest.raises(StoreBroken, match=silent):
        async with opened(both):
            pass
    checked = await check_cluster(place.dsn, place.schema, place.address, print)
    assert [each.kind for each in checked.findings] == ["terms"]


async def test_what_was_reserved_before_a_time_without_brokers_is_kept_for_a_day(
    place: Place, scribe: Any
) -> None:
    """In a backup that is the wrong one, these may be objects that were committed after it."""
    async with opened(place) as store:
        await scribe.create(store.ledger)
        await store.chunks.put([LARGE])
        await store.ledger.database.row("UPDATE objects SET since = since - interval '1 hour'")
    async with opened(place) as store:
        assert set((await states(store)).values()) <= {"abandoned"}
        assert await store.sweep_orphans() == []
        assert len(await listed(store.chunks.objects)) == 1
        async with opened(place, broker_id=1) as other:
            await other.chunks.put([LARGE])
        # Another broker runs, so nobody has restored anything.
        async with opened(place, broker_id=2):
            pass
        await age(store, "abandoned")
        assert len(await store.sweep_orphans()) == RESERVED
        assert len(await listed(store.chunks.objects)) == 1
