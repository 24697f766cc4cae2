"""Objects that nobody needs are deleted, objects that are needed never."""

import asyncio
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.servers.s3 import S3Server
from support.stores.cluster_bytes import (
    SETTINGS,
    Place,
    age,
    append,
    listed,
    opened,
    parts,
    read,
    set_clock_back,
    states,
    trim,
)

from semel.broker.broker import Broker
from semel.config import Settings
from semel.store.cluster.bytes import objects as objects_module
from semel.store.cluster.bytes.chunks import RESERVED
from semel.store.contract import StoreRefused
from semel.store.opening import Remote

AT_ONCE = Settings(semel_roll_interval_ms=0, semel_object_delete_delay_ms=0)
"""Strangers are deleted however young they are."""
LARGE = SETTINGS.semel_inline_bytes_max + 1


@pytest.fixture(params=["directory", "s3"])
def place(request: pytest.FixtureRequest, postgres_dsn: str, schema: str, tmp_path: Path) -> Place:
    if request.param == "directory":
        return Place.new(postgres_dsn, tmp_path.as_uri(), schema)
    server: S3Server = request.getfixturevalue("s3")
    return Place.new(postgres_dsn, server.address, schema, **server.options)


@pytest.fixture
def nearby(postgres_dsn: str, schema: str, tmp_path: Path) -> Place:
    return Place.new(postgres_dsn, tmp_path.as_uri(), schema)


async def test_an_object_whose_commit_did_not_come_is_deleted_after_a_while(
    place: Place, scribe: Any
) -> None:
    """The process was killed between the upload and the commit."""
    async with opened(place) as store:
        (key,) = await scribe.create(store.ledger)
        batch, lost = parts(LARGE, LARGE)
        await append(store, scribe, key, batch)
        await store.chunks.put([lost])
    async with opened(place) as store:
        assert len(await listed(store.chunks.objects)) == 2
        assert await store.sweep_orphans() == []
        await age(store, "uploading", "abandoned")
        # Those that were reserved and never uploaded are forgotten, too.
        assert len(await store.sweep_orphans()) == RESERVED - 1
        assert len(await listed(store.chunks.objects)) == 1
        assert list((await states(store)).values()) == ["stored"]
        assert await read(store, key) == [batch]


async def test_unused_objects_wait_no_longer_because_the_clock_was_set_back(
    nearby: Place,
) -> None:
    settings = Settings(semel_roll_interval_ms=0, semel_object_delete_delay_ms=60_000)
    async with opened(nearby, settings) as store:
        (lost,) = parts(LARGE)
        await store.chunks.put([lost])
        await set_clock_back(store)
        # They wait for the whole delay again: a reader may have looked them up just before.
        assert await store.sweep_orphans() == []
        await store.ledger.database.row("UPDATE objects SET since = since - interval '1 minute'")
        assert len(await store.sweep_orphans()) == RESERVED
        assert await listed(store.chunks.objects) == []


async def test_the_number_of_an_object_is_written_down_before_its_upload(
    nearby: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(nearby) as store:
        put = store.chunks.objects.put
        known: list[str] = []

        async def look(number: int, contents: Any) -> None:
            known.append((await states(store))[number])
            await put(number, contents)

        monkeypatch.setattr(store.chunks.objects, "put", look)
        await store.chunks.put(parts(LARGE))
        assert known == ["uploading"]


async def test_large_commits_take_their_numbers_without_a_round_trip(
    nearby: Place, scribe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(nearby) as store:
        (key,) = await scribe.create(store.ledger)
        await append(store, scribe, key, *parts(LARGE))

        async def refuse(*_: Any) -> None:
            raise AssertionError("a round trip")

        monkeypatch.setattr(store.chunks._database, "fetch", refuse)
        monkeypatch.setattr(store.chunks._database, "value", refuse)
        await append(store, scribe, key, *parts(LARGE))


async def test_a_commit_that_comes_too_late_is_refused_and_can_be_repeated(
    nearby: Place, scribe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its object may be deleted already. The next one takes other numbers."""
    async with opened(nearby) as store:
        (key,) = await scribe.create(store.ledger)
        put = store.chunks.objects.put

        async def put_slowly(*arguments: Any) -> None:
            await put(*arguments)
            await age(store, "uploading")
            await store.sweep_orphans()

        (batch,) = parts(LARGE)
        fact, _ = scribe.append(key, size=LARGE)
        facts = [fact, *scribe.changed()]
        with monkeypatch.context() as patch:
            patch.setattr(store.chunks.objects, "put", put_slowly)
            with pytest.raises(StoreRefused, match="uploaded too long ago"):
                await store.commit(facts, [batch])
        assert await read(store, key) == []
        await store.commit(facts, [batch])
        assert await read(store, key) == [batch]


async def test_numbers_that_were_reserved_long_ago_are_not_used(nearby: Place, scribe: Any) -> None:
    async with opened(nearby) as store:
        (key,) = await scribe.create(store.ledger)
        written = list(parts(LARGE, LARGE))
        await append(store, scribe, key, written[0])
        # Two days pass, also for the process. They do not pass for an upload on a busy machine.
        await age(store, "uploading")
        store.chunks.numbers._valid_until -= timedelta(days=2).total_seconds()
        assert len(await store.sweep_orphans()) == RESERVED - 1
        await append(store, scribe, key, written[1])
        assert await read(store, key) == written


async def test_an_object_is_forgotten_only_when_its_deletion_is_confirmed(
    nearby: Place, scribe: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(nearby) as store:
        (key,) = await scribe.create(store.ledger)
        await append(store, scribe, key, *parts(LARGE))
        await trim(store, scribe, key, 1)
        await age(store, "unused")
        ((number, _),) = await listed(store.chunks.objects)

        async def refuse(*_: Any) -> None:
            raise StoreRefused("the object store is away")

        with monkeypatch.context() as patch:
            patch.setattr(store.chunks.objects, "delete", refuse)
            assert await store.sweep_orphans() == []
        assert "deleted later: the object store is away" in caplog.text
        assert (await states(store))[number] == "deleting"
    async with opened(nearby) as store:
        assert number in await store.sweep_orphans()
        assert await listed(store.chunks.objects) == []


async def test_two_sweeps_at_once_leave_no_object_behind(nearby: Place, scribe: Any) -> None:
    """Each deletes some of the chunks in an object."""
    async with opened(nearby) as one, opened(nearby, broker_id=1) as other:
        (key,) = await scribe.create(one.ledger)
        for batch in parts(*[10] * 40):
            await append(one, scribe, key, batch)
        assert await one.roller.roll_once() == 40
        await one.commit([scribe.trim(key, 40), *scribe.changed()], [])

        async def sweep(store: Any) -> None:
            while True:
                try:
                    if not await store.ledger.sweep(limit=3):
                        return
                except StoreRefused:
                    continue

        await asyncio.gather(sweep(one), sweep(other))
        assert "stored" not in (await states(one)).values()


async def test_strangers_are_deleted_and_all_others_stay(
    place: Place, scribe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects_module, "PAGE", 2)
    async with opened(place, AT_ONCE) as store:
        (key,) = await scribe.create(store.ledger)
        written = list(parts(*[LARGE] * 5))
        for batch in written:
            await append(store, scribe, key, batch)
        before = await listed(store.chunks.objects)
        taken: int = await store.chunks.numbers.chunk()
        await store.chunks.numbers.object()
        # As an upload that arrived after its deletion was confirmed.
        await store.chunks.objects.put(taken, [b"late"])
        # As objects of a future that this ledger, restored from a copy, does not know.
        await store.chunks.objects.put(10**9, [b"future"])
        assert len(before) == 5
        assert await store.reconciler.reconcile_once() == [taken]
        assert await listed(store.chunks.objects) == [*before, (10**9, 6)]
        assert await read(store, key) == written
        assert store.reconciler.missing == 0


async def test_young_strangers_stay(nearby: Place) -> None:
    async with opened(nearby) as store:
        taken = await store.chunks.numbers.chunk()
        await store.chunks.numbers.object()
        await store.chunks.objects.put(taken, [b"late"])
        assert await store.reconciler.reconcile_once() == []


async def test_objects_of_another_cluster_at_the_same_address_are_left_alone(
    nearby: Place, scribe: Any
) -> None:
    other_place = Place.new(nearby.dsn, nearby.address)
    async with opened(nearby, AT_ONCE) as store, opened(other_place, AT_ONCE) as other:
        (key,) = await scribe.create(store.ledger)
        (batch,) = parts(LARGE)
        await append(store, scribe, key, batch)
        for _ in range(3):
            await other.chunks.numbers.object()
            other.chunks.numbers.forget()
        assert await other.reconciler.reconcile_once() == []
        assert await read(store, key) == [batch]


async def test_a_missing_object_is_reported_and_never_forgotten(
    place: Place, scribe: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(place, AT_ONCE) as store:
        (key,) = await scribe.create(store.ledger)
        for batch in parts(LARGE, LARGE, LARGE):
            await append(store, scribe, key, batch)
        numbers = [number for number, _ in await listed(store.chunks.objects)]
        await store.chunks.objects.delete(numbers[1:])
        with caplog.at_level(logging.ERROR):
            assert await store.reconciler.reconcile_once() == []
        assert store.reconciler.missing == 2
        for number in numbers[1:]:
            assert f"object {number:016x} is gone" in caplog.text
        assert [number for number, state in (await states(store)).items() if state == "stored"] == numbers
        with pytest.raises(LookupError):
            await read(store, key)


async def test_a_broker_starts_while_the_object_store_is_away(
    nearby: Place, scribe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(nearby) as store:
        (key,) = await scribe.create(store.ledger)
        await append(store, scribe, key, *parts(LARGE))
        await trim(store, scribe, key, 1)
        await age(store, "unused", "uploading")

    def refuse(*_: Any) -> None:
        raise StoreRefused("the object store is away")

    monkeypatch.setattr(objects_module.Objects, "_delete", refuse)
    broker = await Broker.open(Settings(), Remote(nearby.dsn, nearby.address, nearby.schema))
    await broker.store.sweep_orphans()
    assert "deleting" in (await states(broker.store)).values()  # type: ignore[arg-type]
    await broker.close()
