"""An object store that fails: a clear error or a wait, and nothing is lost. A proxy spoils requests."""

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest
from support.faults.faulty_s3 import Fault, FaultyS3
from support.servers.s3 import S3Server
from support.stores.cluster_bytes import Place, append, inline_chunks, listed, opened, parts, read

from semel.store.cluster.bytes.objects import Objects
from semel.store.contract import BatchLocation, StoreRefused

HASTY: Any = {"retry_config": {"max_retries": 0}}
LARGE = 300_000


@pytest.fixture
def faulty(s3: S3Server) -> Iterator[FaultyS3]:
    with FaultyS3(s3) as proxy:
        yield proxy


@pytest.fixture
def objects(faulty: FaultyS3) -> Iterator[Objects]:
    """Requests are not repeated by the library, so that each fault is seen."""
    address = f"{faulty.address}/{os.urandom(4).hex()}"
    opened = Objects.open(address, patience_seconds=20.0, **faulty.options, **HASTY)
    yield opened
    opened.close()


@pytest.fixture
def place(postgres_dsn: str, schema: str, faulty: FaultyS3) -> Place:
    return Place.new(
        postgres_dsn, f"{faulty.address}/{os.urandom(4).hex()}", schema, **faulty.options, **HASTY
    )


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.CUT, Fault.SHORT, Fault.LOST_ANSWER])
async def test_a_read_is_repeated(objects: Objects, faulty: FaultyS3, fault: Fault) -> None:
    data = os.urandom(LARGE)
    await objects.put(1, [data])
    faulty.spoil("GET", fault, times=2)
    wanted = [BatchLocation(1, 10, 100_000), BatchLocation(1, 200_000, 1_000)]
    assert await objects.read(wanted) == [data[10:100_010], data[200_000:201_000]]
    assert faulty.count("GET") == 3


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.CUT, Fault.SHORT])
async def test_a_read_gives_up_at_last(s3: S3Server, faulty: FaultyS3, fault: Fault) -> None:
    address = f"{faulty.address}/{os.urandom(4).hex()}"
    objects = Objects.open(address, patience_seconds=0.3, **faulty.options, **HASTY)
    await objects.put(1, [os.urandom(LARGE)])
    faulty.spoil("GET", fault, times=100)
    with pytest.raises(OSError, match="cannot be read"):
        await objects.read([BatchLocation(1, 0, 1_000)])
    faulty.heal()
    assert len((await objects.read([BatchLocation(1, 0, 1_000)]))[0]) == 1_000
    objects.close()


async def test_a_reader_waits_once_for_a_store_that_is_away(objects: Objects, faulty: FaultyS3) -> None:
    data = os.urandom(LARGE)
    await objects.put(1, [data])
    faulty.spoil("GET", Fault.UNAVAILABLE, times=1_000)
    patience, objects._patience_seconds = objects._patience_seconds, 0.5

    async def tries() -> int:
        before = faulty.count("GET")
        with pytest.raises(OSError, match="cannot be read"):
            await objects.read([BatchLocation(1, 0, 1_000)])
        return faulty.count("GET") - before

    assert await tries() > 1
    # What is left of the patience is too short for the next pause, and may be enough for a first one.
    await asyncio.sleep(0.5)
    assert [await tries() for _ in range(4)] == [1] * 4
    objects._patience_seconds = patience
    faulty.heal()
    assert await objects.read([BatchLocation(1, 0, 1_000)]) == [data[:1_000]]
    # It is away again, so the reader waits again.
    faulty.spoil("GET", Fault.UNAVAILABLE, times=2)
    assert await objects.read([BatchLocation(1, 0, 1_000)]) == [data[:1_000]]


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.SWALLOWED, Fault.SHRUNK])
async def test_an_upload_that_does_not_arrive_is_refused(
    objects: Objects, faulty: FaultyS3, fault: Fault
) -> None:
    faulty.spoil("PUT", fault)
    with pytest.raises(StoreRefused):
        await objects.put(1, [os.urandom(LARGE)])
    await objects.put(2, [b"next"])
    assert await listed(objects) == [(2, 4)]


async def test_an_upload_whose_answer_is_lost_is_repeated_by_the_library(
    s3: S3Server, faulty: FaultyS3
) -> None:
    objects = Objects.open(f"{faulty.address}/{os.urandom(4).hex()}", **faulty.options)
    data = os.urandom(LARGE)
    faulty.spoil("PUT", Fault.UNAVAILABLE)
    faulty.spoil("PUT", Fault.LOST_ANSWER)
    await objects.put(1, [data])
    assert faulty.count("PUT") == 3
    assert await objects.read([BatchLocation(1, 0, LARGE)]) == [data]
    objects.close()


async def test_an_upload_that_cannot_be_confirmed_is_refused(objects: Objects, faulty: FaultyS3) -> None:
    faulty.spoil("HEAD", Fault.UNAVAILABLE)
    with pytest.raises(StoreRefused, match="cannot be written"):
        await objects.put(1, [b"abc"])


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.SWALLOWED, Fault.LOST_ANSWER])
async def test_a_commit_whose_upload_fails_does_not_happen_and_can_be_repeated(
    place: Place, faulty: FaultyS3, fault: Fault, scribe: Any
) -> None:
    async with opened(place) as store:
        (key,) = await scribe.create(store.ledger)
        (batch,) = parts(LARGE)
        fact, _ = scribe.append(key, size=LARGE)
        facts = [fact, *scribe.changed()]
        faulty.spoil("PUT", fault)
        with pytest.raises(StoreRefused):
            await store.commit(facts, [batch])
        assert await read(store, key) == []
        await store.commit(facts, [batch])
        assert await read(store, key) == [batch]


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.SWALLOWED, Fault.LOST_ANSWER])
async def test_a_roll_whose_upload_fails_leaves_the_bytes_where_they_are(
    place: Place, faulty: FaultyS3, fault: Fault, scribe: Any
) -> None:
    async with opened(place) as store:
        (key,) = await scribe.create(store.ledger)
        written = list(parts(1_000, 2_000))
        for batch in written:
            await append(store, scribe, key, batch)
        faulty.spoil("PUT", fault)
        with pytest.raises(StoreRefused):
            await store.roller.roll_once()
        assert len(await inline_chunks(store)) == 2
        assert await store.roller.roll_once() == 2
        assert await inline_chunks(store) == []
    async with opened(place) as store:
        faulty.spoil("GET", Fault.CUT)
        assert await read(store, key) == written


async def test_a_deletion_that_fails_is_repeated(place: Place, faulty: FaultyS3) -> None:
    async with opened(place) as store:
        await store.chunks.put(parts(LARGE))
        await store.ledger.database.row("UPDATE objects SET since = since - interval '1 hour'")
        store.chunks.numbers.forget()
        faulty.spoil("POST", Fault.UNAVAILABLE)
        assert await store.sweep_orphans() == []
        assert len(await listed(store.chunks.objects)) == 1
        faulty.spoil("POST", Fault.LOST_ANSWER)
        assert await store.sweep_orphans() == []
        assert len(await store.sweep_orphans()) == 50
        assert await listed(store.chunks.objects) == []


async def test_a_listing_that_fails_deletes_and_reports_nothing(
    place: Place, faulty: FaultyS3, scribe: Any
) -> None:
    async with opened(place) as store:
        (key,) = await scribe.create(store.ledger)
        await append(store, scribe, key, *parts(LARGE))
        faulty.spoil("GET", Fault.UNAVAILABLE, times=100)
        with pytest.raises(OSError, match="cannot be listed"):
            await store.reconciler.reconcile_once()
        assert store.reconciler.missing == 0
        faulty.heal()
        assert await store.reconciler.reconcile_once() == []


async def test_wrong_credentials_and_a_missing_bucket_are_clear_errors(
    postgres_dsn: str, s3: S3Server, scribe: Any
) -> None:
    for address, options in (
        (s3.address, {**s3.options, "secret_access_key": "wrong"}),
        ("s3://missing/log", s3.options),
    ):
        async with opened(Place.new(postgres_dsn, address, **options)) as store:
            (key,) = await scribe.create(store.ledger)
            # Small commits need no object store.
            (small,) = parts(100)
            await append(store, scribe, key, small)
            with pytest.raises(StoreRefused, match=address):
                await store.commit([scribe.append(key, size=LARGE)[0], *scribe.changed()], parts(LARGE))
            with pytest.raises(StoreRefused, match=address):
                await store.roller.roll_once()
            assert await read(store, key) == [small]
