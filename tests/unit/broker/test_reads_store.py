"""Reading from the real store, in memory and on disk, against a list."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.stores.slow import PLENTY, TOPIC_ID, PublishedReader, offsets

from semel.broker.metrics import Metrics
from semel.broker.reads.reads import FetchRange
from semel.config import Settings
from semel.core.facts import BatchAppended, LogStartAdvanced, Put, TopicCreated, TopicDeleted
from semel.core.log.partition import Append
from semel.core.state import BrokerState
from semel.core.types import Buffer, ErrorCode, Fact, Partition, PartitionKey, Topic
from semel.store.embedded.store import EmbeddedStore
from semel.store.opening import open_store
from semel.wire.records import Codec, Record, encode_batch, read_header

PARTITIONS = 3
TOPIC = Topic("t", TOPIC_ID, PARTITIONS, {})
KEYS = [PartitionKey(TOPIC_ID, index) for index in range(PARTITIONS)]


class Written:
    """A store, its readers, and a writer that commits and publishes as the commit loop does."""

    def __init__(self, store: EmbeddedStore) -> None:
        self.store = store
        self.state = BrokerState()
        self.begin_reading()

    def begin_reading(self) -> None:
        reader = PublishedReader(self.store, Settings(), Metrics())
        self.reads, self.published = reader.reads, reader.published

    async def commit(self, facts: list[Fact], batches: list[Buffer]) -> None:
        for fact in facts:
            self.state.apply(fact)
        await self.store.commit(facts, batches)

    async def append(self, *batches: tuple[PartitionKey, bytes]) -> None:
        decisions = []
        for key, batch in batches:
            decision = self.state.decide(Append(key, read_header(batch), batch), 1_000)
            assert decision.answer.error is ErrorCode.NONE
            for fact in decision.facts:
                self.state.apply(fact)
            decisions.append(decision)
        facts = [fact for decision in decisions for fact in decision.facts]
        data = [batch for decision in decisions for batch in decision.batches]
        await self.store.commit(facts, data)
        touched = {key: self.partition(key) for key, _ in batches}
        appended = [fact for fact in facts if isinstance(fact, BatchAppended)]
        self.published.publish(touched, list(zip(appended, data, strict=True)))

    def partition(self, key: PartitionKey) -> Partition:
        partition = self.state.partitions[key]
        assert partition is not None
        return partition

    async def delete_below(self, key: PartitionKey, offset: int) -> None:
        _, below = await self.store.ledger.size_below(key, offset)
        before = self.partition(key)
        after = before.but(log_start_offset=offset, size_bytes=before.size_bytes - below)
        await self.commit([LogStartAdvanced(key, offset), Put(key, after)], [])
        self.published.publish({key: self.partition(key)}, [])
        await self.store.chunks.release(await self.store.ledger.sweep(limit=1_000))


@asynccontextmanager
async def written(directory: Path | None) -> AsyncIterator[Written]:
    store = await open_store(directory, Settings(semel_disk_reserve_bytes=0, semel_chunk_bytes_max=50_000))
    try:
        made = Written(store)
        await made.commit([TopicCreated(TOPIC)], [])
        yield made
    finally:
        await store.close()


def batch(count: int, size: int = 10, timestamp: int = 1_000, codec: Codec = Codec.NONE) -> bytes:
    return encode_batch([Record(0, timestamp + n, None, bytes(size)) for n in range(count)], codec=codec)


@pytest.mark.parametrize("where", ["memory", "disk"])
async def test_every_range_of_a_random_log_is_what_was_written(where: str, tmp_path: Path) -> None:
    choose = random.Random(7)
    async with written(tmp_path / "data" if where == "disk" else None) as log:
        ends = {key: [0] for key in KEYS}
        for _ in range(40):
            batches = [
                (choose.choice(KEYS), batch(choose.randint(1, 5), choose.randint(1, 800)))
                for _ in range(choose.randint(1, 6))
            ]
            await log.append(*batches)
            for key, data in batches:
                ends[key].append(ends[key][-1] + read_header(data).record_count)
            if choose.random() < 0.2:
                key = choose.choice(KEYS)
                start = log.partition(key).log_start_offset
                offset = choose.randint(start, log.partition(key).high_watermark)
                if offset > start:
                    await log.delete_below(key, offset)
            wanted = [FetchRange(key, choose.randint(0, ends[key][-1] + 1), PLENTY) for key in KEYS]
            for each, result in zip(wanted, await log.reads.fetch(wanted, 1, PLENTY, 0), strict=True):
                partition = log.partition(each.partition)
                if not partition.log_start_offset <= each.offset <= partition.high_watermark:
                    assert result.error is ErrorCode.OFFSET_OUT_OF_RANGE
                    continue
                first = max(end for end in ends[each.partition] if end <= each.offset)
                assert offsets(result) == list(range(first, partition.high_watermark))


@pytest.mark.parametrize("where", ["memory", "disk"])
async def test_offsets_by_time(where: str, tmp_path: Path) -> None:
    async with written(tmp_path / "data" if where == "disk" else None) as log:
        for number, codec in enumerate(Codec):
            await log.append((KEYS[0], batch(10, timestamp=1_000 * number, codec=codec)))
        for timestamp, expected in (
            (0, (0, 0)),
            (1_003, (1_003, 13)),
            (3_500, (4_000, 40)),
            (4_010, (-1, -1)),
        ):
            assert await log.reads.list_offsets(KEYS[0], timestamp) == (ErrorCode.NONE, *expected)
        assert await log.reads.list_offsets(KEYS[0], -3) == (ErrorCode.NONE, 4_009, 49)
        await log.delete_below(KEYS[0], 15)
        assert await log.reads.list_offsets(KEYS[0], 0) == (ErrorCode.NONE, 1_005, 15)
        assert await log.reads.list_offsets(KEYS[0], -2) == (ErrorCode.NONE, -1, 15)


async def test_a_new_reader_finds_what_an_old_one_published() -> None:
    async with written(None) as log:
        await log.append((KEYS[0], batch(3)), (KEYS[1], batch(2)))
        log.begin_reading()
        ranges = [FetchRange(key, 0, PLENTY) for key in KEYS]
        assert [offsets(result) for result in await log.reads.fetch(ranges, 1, PLENTY, 0)] == [
            [0, 1, 2],
            [0, 1],
            [],
        ]


async def test_a_deleted_topic_is_unknown_and_wakes_who_waits() -> None:
    async with written(None) as log:
        fetch = asyncio.create_task(log.reads.fetch([FetchRange(KEYS[0], 0, PLENTY)], 1, PLENTY, 60_000))
        await log.append((KEYS[1], batch(1)))
        assert not fetch.done()
        await log.commit([TopicDeleted(TOPIC)], [])
        log.published.forget(KEYS)
        assert (await fetch)[0].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
