"""Writers, readers, compaction and the sweep at once: whoever reads gets what was written, or less."""

import asyncio
import random
from pathlib import Path

import pytest
from support.brokers.offline import Producer
from support.stores.compacting import COMMITTED, UNCOMMITTED, Table, compacting

from semel.broker.reads.reads import Isolation
from semel.broker.upkeep import compaction
from semel.core.types import ErrorCode

WRITES = 200
"""With compaction after ten of them at the latest."""
KEYS = 6


class Race:
    """One partition, and what was committed under each key, in the order of the offsets."""

    def __init__(self, table: Table, seed: int) -> None:
        self.table = table
        self.chance = random.Random(seed)
        self.number = 0
        self.newest: dict[str, str] = {}
        self.aborted: set[str] = set()
        self.is_over = False
        self.compacted = asyncio.Event()
        self.read = 0

    def pairs(self) -> list[tuple[str | None, str | None]]:
        pairs: list[tuple[str | None, str | None]] = []
        for _ in range(self.chance.choice((1, 1, 3))):
            self.number += 1
            filling = "x" * self.chance.choice((10, 400, 3_000))
            pairs.append((f"key {self.chance.randrange(KEYS)}", f"{self.number} {filling}"))
        return pairs

    async def write(self) -> None:
        producer = await Producer(self.table.broker, "t").init()
        for written in range(WRITES):
            if written % 10 == 9:
                self.compacted.clear()
                await self.compacted.wait()
            pairs = self.pairs()
            values = {str(key): str(value) for key, value in pairs}
            if self.chance.random() < 0.5:
                await self.table.put(*pairs)
                self.newest |= values
                continue
            is_commit = self.chance.random() < 0.6
            if not is_commit:
                self.aborted.update(values.values())
            await self.table.put_in(producer, *pairs)
            assert await producer.end(is_commit=is_commit) is ErrorCode.NONE
            if is_commit:
                self.newest |= values
        self.is_over = True

    async def follow(self, isolation: Isolation) -> None:
        """Read from anywhere to the end, again and again."""
        while not self.is_over:
            partition = await self.table.partition()
            offset = self.chance.randint(partition.log_start_offset, partition.high_watermark)
            result = await self.table.fetch(offset, isolation)
            if result.error is ErrorCode.OFFSET_OUT_OF_RANGE:
                continue
            assert result.error is ErrorCode.NONE
            records = await self.table.records(max(offset, (await self.table.partition()).log_start_offset))
            offsets = [each.offset for each in records]
            assert offsets == sorted(set(offsets))
            for each in records:
                assert each.value is not None
                number, filling = each.value.decode().split(" ")
                assert not filling.strip("x")
                assert f"{number} {filling}" not in self.aborted
            self.read += len(records)
            listed = await self.table.broker.reads.list_offsets(self.table.key, 1_000, isolation)
            assert (listed.error, listed.offset >= -1) == (ErrorCode.NONE, True)
            await asyncio.sleep(0)

    async def compact(self) -> None:
        while not self.is_over:
            await self.table.compact()
            self.compacted.set()
            await asyncio.sleep(0.001)

    async def sweep(self) -> None:
        while not self.is_over:
            await self.table.broker._housekeeping.sweep()
            await asyncio.sleep(0.002)


@pytest.mark.parametrize(
    ("is_on_disk", "visibility"),
    [
        (True, "marker"),
        pytest.param(True, "journal", marks=pytest.mark.slow),
        (False, "marker"),
        (False, "journal"),
    ],
)
async def test_nobody_is_in_anybodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visibility: str, is_on_disk: bool
) -> None:
    monkeypatch.setattr(compaction, "STEP_BYTES", 4_000)
    configs = {"semel.visibility": visibility, "delete.retention.ms": "0"}
    directory = tmp_path if is_on_disk else None
    async with compacting(directory, configs, semel_chunk_bytes_max=60_000) as table:
        race = Race(table, seed=len(visibility) + is_on_disk)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(race.write())
            tasks.create_task(race.follow(COMMITTED))
            tasks.create_task(race.follow(UNCOMMITTED))
            tasks.create_task(race.compact())
            tasks.create_task(race.sweep())
        assert race.read > 0
        assert (await table.partition()).compactions >= WRITES // 10
        for _ in range(2):
            found = {key: value for _, key, value in await table.pairs()}
            assert found == race.newest
            await table.compact()
        assert len(await table.records()) <= KEYS
