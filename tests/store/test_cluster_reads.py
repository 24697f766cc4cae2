"""Readers of a broker whose batches are moved under their hands: rolled, merged, deleted."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.stores.cluster_bytes import Place, age, opened
from support.stores.slow import PLENTY

from semel.broker.broker import Broker
from semel.broker.reads.reads import FetchRange
from semel.broker.upkeep.damage import Scrub
from semel.config import Settings
from semel.core.log.partition import Append
from semel.core.topics import CreateTopic
from semel.core.types import ErrorCode, PartitionKey
from semel.store.cluster.bytes import merging
from semel.store.cluster.store import ClusterStore
from semel.store.opening import Remote
from semel.wire.records import Record, encode_batch, read_header

TOPIC_ID = bytes(range(16))
KEY = PartitionKey(TOPIC_ID, 0)
BATCHES = 60
SETTINGS = Settings(
    semel_roll_interval_ms=0, semel_merge_age_ms=0, semel_scrub_bytes_per_second=1 << 40, log_retention_ms=-1
)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "RUN_BYTES", 3_000)
    monkeypatch.setattr(merging, "RUN_BATCHES", 8)


@pytest.fixture
def place(postgres_dsn: str, schema: str, tmp_path: Path) -> Place:
    return Place.new(postgres_dsn, tmp_path.as_uri(), schema)


@asynccontextmanager
async def filled(place: Place) -> AsyncIterator[tuple[Broker, ClusterStore]]:
    """A broker with batches of two records, and the store of another one that does the housekeeping."""
    remote = Remote(place.dsn, place.address, place.schema)
    async with opened(place, SETTINGS, broker_id=1) as other:
        broker = await Broker.open(SETTINGS, remote)
        try:
            await broker.ask(CreateTopic("orders", TOPIC_ID, 1, {}))
            for number in range(BATCHES):
                at = 1_000 + 10 * number
                records = [Record(each, at + each, None, os.urandom(100)) for each in range(2)]
                data = encode_batch(records)
                await broker.ask(Append(KEY, read_header(data), data))
            yield broker, other
        finally:
            await broker.close()


async def fetch(broker: Broker, offset: int, max_bytes: int = PLENTY) -> bytes:
    (result,) = await broker.reads.fetch([FetchRange(KEY, offset, max_bytes)], 1, PLENTY, 0)
    assert result.error is ErrorCode.NONE
    return b"".join(result.buffers)


def forget(broker: Broker) -> None:
    """Forget where bytes are, as if they had never been read here."""
    chunks: Any = broker.store.chunks
    chunks._places.clear()
    chunks.cache._kept.clear()
    chunks.cache.size_bytes = 0


async def move(broker: Broker, other: ClusterStore) -> None:
    """Move all bytes, and delete the old ones at once."""
    assert await other.roller.roll_once() + await other.merger.merge_once()
    await age(other, "unused", "uploading")
    await other.sweep_orphans()
    forget(broker)


async def answers(broker: Broker) -> list[Any]:
    """Everything that a reader may ask for."""
    found: list[Any] = [await fetch(broker, offset) for offset in range(0, 2 * BATCHES, 7)]
    found += [await fetch(broker, offset, 700) for offset in range(0, 2 * BATCHES, 5)]
    found += [await broker.reads.list_offsets(KEY, at) for at in (0, 1_000, 1_001, 1_234, 1_400, 1_591, -3)]
    return found


async def test_answers_stay_the_same(place: Place) -> None:
    async with filled(place) as (broker, other):
        before = await answers(broker)
        assert await other.roller.roll_once() == BATCHES
        forget(broker)
        assert await answers(broker) == before
        while await other.merger.merge_once():
            pass
        forget(broker)
        assert await answers(broker) == before


async def test_a_reader_in_order_goes_on_while_bytes_move(place: Place) -> None:
    """It has looked up the batches of its next fetches already."""
    async with filled(place) as (broker, other):
        whole = await fetch(broker, 0)
        offset, data = 0, b""
        while offset < 2 * BATCHES:
            some = await fetch(broker, offset, 700)
            data += some
            offset += 2 * (len(some) // (len(whole) // BATCHES))
            if offset in (12, 24):
                await move(broker, other)
        assert data == whole
        assert broker.metrics.damaged_batches == 0


async def test_records_are_deleted_within_a_run(place: Place) -> None:
    async with filled(place) as (broker, other):
        await move(broker, other)
        for offset in (3, 10, 21, 100):
            answer = await broker.delete_records(KEY, offset)
            assert (answer.error, answer.low_watermark) == (ErrorCode.NONE, offset)
            partition = await broker.reads.partition(KEY)
            rest = await fetch(broker, offset)
            assert partition is not None
            assert partition.size_bytes == len(rest)
            while await other.ledger.sweep(limit=100):
                pass
            forget(broker)
            assert await fetch(broker, offset) == rest


async def test_the_scrub_does_not_take_moved_batches_for_damaged_ones(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with filled(place) as (broker, other):
        await other.roller.roll_once()
        readable = broker.damage.readable
        calls = 0

        async def move_first(batches: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 1:
                await move(broker, other)
            return await readable(batches, **options)

        monkeypatch.setattr(broker.damage, "readable", move_first)
        await Scrub(broker).round()
        assert calls
        assert broker.metrics.damaged_batches == 0


def only_object(directory: Path) -> Path:
    (path,) = directory.glob("*/chunks/*")
    return path


@pytest.mark.parametrize("is_scrubbed", [False, True])
async def test_a_damaged_object_that_is_repaired_is_read_again(
    place: Place, tmp_path: Path, is_scrubbed: bool
) -> None:
    async with filled(place) as (broker, other):
        whole = await fetch(broker, 0)
        await other.roller.roll_once()
        path = only_object(tmp_path)
        good = path.read_bytes()
        path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        forget(broker)
        if is_scrubbed:
            await Scrub(broker).round()
        else:
            (result,) = await broker.reads.fetch([FetchRange(KEY, 2 * BATCHES - 1, PLENTY)], 1, PLENTY, 0)
            assert result.error is ErrorCode.CORRUPT_MESSAGE
        assert broker.metrics.damaged_batches == 1
        path.write_bytes(good)
        assert await fetch(broker, 0) == whole
