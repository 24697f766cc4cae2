"""A ledger with many batches opens as fast as an empty one: nothing is read that is not asked for.

``SEMEL_BATCHES=10000000 pytest tests/store/test_many_batches.py -s`` makes a large one and says how long
opening and searching took (some ten seconds and 450 MB of disk).
"""

import os
import time
from pathlib import Path
from typing import Any

import apsw
import pytest

from bench.large_ledger import PARTITIONS, TOPIC_ID, make_large_ledger
from semel.core.types import PartitionKey
from semel.store.contract import Ledger
from semel.store.embedded.ledger import SqliteLedger

BATCHES = int(os.environ.get("SEMEL_BATCHES", "100000"))


class CountingDisk(apsw.VFS):
    """Counts what SQLite reads from the database file."""

    def __init__(self) -> None:
        self.name = f"counting-{os.urandom(4).hex()}"
        self.reads = 0
        super().__init__(self.name, base="")

    def xOpen(self, name: Any, flags: list[int]) -> "CountingFile":  # noqa: N802 - SQLite's name
        return CountingFile(self, name, flags)


class CountingFile(apsw.VFSFile):
    def __init__(self, disk: CountingDisk, name: Any, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self._disk = disk

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802 - SQLite's name
        self._disk.reads += 1
        return super().xRead(amount, offset)


async def _search(ledger: Ledger, count: int) -> list[tuple[str, float]]:
    key = PartitionKey(TOPIC_ID, PARTITIONS // 2)
    middle = count // 2
    took: list[tuple[str, float]] = []

    async def measure(name: str, asked: Any) -> Any:
        begun = time.perf_counter()
        answer = await asked
        took.append((name, time.perf_counter() - begun))
        return answer

    (partition,) = await measure("load a partition", ledger.load([key]))
    assert partition.high_watermark == count * 10
    found = await measure(
        "find 64 batches",
        ledger.find_batches(key, middle * 10 + 5, before=2**62, bytes_max=64_000, batches_max=1_000),
    )
    assert [batch.base_offset for batch in found] == [(middle + number) * 10 for number in range(64)]
    first = await measure("find by time", ledger.first_batch_since(key, 1700000000000 + middle))
    assert first.base_offset == middle * 10
    offset = await measure("find by size", ledger.offset_at_size(key, count * 1000 - 5_500))
    assert offset == 60
    await measure("chunk references", ledger.chunk_references())
    await measure("list topics", ledger.topics())
    return took


@pytest.mark.timeout(1200)
async def test_opening_reads_as_little_of_a_large_ledger_as_of_a_small_one(tmp_path: Path) -> None:
    reads: list[int] = []
    for batches in (PARTITIONS, BATCHES):
        path = tmp_path / f"{batches}.db"
        make_large_ledger(path, batches)
        disk = CountingDisk()
        begun = time.perf_counter()
        ledger = await SqliteLedger.open(path, vfs=disk.name)
        took = time.perf_counter() - begun
        reads.append(disk.reads)
        if batches == BATCHES:
            searches = await _search(ledger, batches // PARTITIONS)
            report = "".join(
                f"\n  {name}: {seconds * 1e3:.1f} ms" for name, seconds in [("open", took), *searches]
            )
            size = path.stat().st_size / batches
            os.write(2, f"\n{batches} batches, {size:.0f} bytes each:{report}\n".encode())
        await ledger.close()
        disk.unregister()
    assert reads[1] <= reads[0] + 5
