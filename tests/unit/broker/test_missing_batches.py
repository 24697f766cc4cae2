"""A batch whose row the ledger has lost is an error at its offsets. It is never skipped in silence."""

import logging
from pathlib import Path
from typing import Any

import pytest
from support.stores.compacting import compacting
from support.stores.slow import PLENTY, ZERO, Reading, offsets

from semel.broker.broker import Broker
from semel.broker.reads.reads import FetchRange, FetchResult
from semel.broker.upkeep import compaction
from semel.broker.upkeep.damage import Gap, Scrub, gaps_in
from semel.config import Settings
from semel.core.log.partition import Append
from semel.core.topics import CreateTopic
from semel.core.types import ErrorCode, PartitionKey
from semel.store.contract import BatchLocation, StoredBatch
from semel.wire.records import Record, encode_batch, read_header

BATCHES = 8


def filled(*lost: int) -> Reading:
    """Batches of one record each, which are not in memory any more. Some rows are lost."""
    reading = Reading()
    for _ in range(BATCHES):
        reading.append()
    for number in sorted(lost, reverse=True):
        del reading.shelf.rows[ZERO][number]
    return reading


def test_gaps() -> None:
    def batch(first: int, last: int) -> StoredBatch:
        return StoredBatch(first, last, 0, BatchLocation(1, 0, 1))

    assert list(gaps_in([], 5, 0)) == []
    assert list(gaps_in([batch(3, 6), batch(7, 7), batch(8, 10)], 5, 0)) == []
    assert list(gaps_in([batch(6, 6)], 5, 0)) == [Gap(5, 5)]
    several = [batch(5, 6), batch(9, 9), batch(12, 12)]
    assert list(gaps_in(several, 5, 0)) == [Gap(7, 8), Gap(10, 11)]
    assert list(gaps_in(several, 5, 8)) == [Gap(7, 8), Gap(10, 11)]
    assert list(gaps_in(several, 5, 9)) == [Gap(10, 11)]
    assert list(gaps_in(several, 5, 12)) == []


@pytest.mark.parametrize("partition_max_bytes", [1, 200, PLENTY])
async def test_readers_get_what_is_before_the_gap_then_an_error_then_what_is_behind(
    partition_max_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether rows are read for one fetch, or kept for the next ones."""
    reading = filled(4, 5)
    seen: list[int] = []
    with caplog.at_level(logging.ERROR):
        while (result := await reading.fetch(len(seen), partition_max_bytes=partition_max_bytes)).buffers:
            seen += offsets(result)
        assert seen == [0, 1, 2, 3]
        for offset in (4, 5, 4):
            assert (await reading.fetch(offset)).error is ErrorCode.CORRUPT_MESSAGE
    assert offsets(await reading.fetch(6)) == [6, 7]
    assert result.error is ErrorCode.CORRUPT_MESSAGE
    assert reading.metrics.damaged_batches == 4
    first, second = (record.getMessage() for record in caplog.records)
    assert "the batches at offsets 4 to 5" in first
    assert "are missing: the ledger has lost their rows" in first
    assert "the batches at offsets 5 to 5" in second


async def test_a_gap_at_the_start_and_at_the_end() -> None:
    reading = filled(0, BATCHES - 1)
    for offset in (0, BATCHES - 1):
        assert (await reading.fetch(offset)).error is ErrorCode.CORRUPT_MESSAGE
    assert offsets(await reading.fetch(1)) == list(range(1, BATCHES - 1))


async def test_gaps_of_compaction_are_no_damage() -> None:
    """Also if readers know of it later than the ledger."""
    for is_published in (True, False):
        reading = filled(0, 3)
        partition = reading.shelf.partitions[ZERO]
        reading.shelf.partitions[ZERO] = partition.but(cleaned_offset=BATCHES, compactions=1)
        if is_published:
            reading.publish(keys=[ZERO])
        seen = offsets(await reading.fetch(0))
        while seen[-1] < BATCHES - 1:
            seen += offsets(await reading.fetch(seen[-1] + 1))
        assert seen == [1, 2, 4, 5, 6, 7]
        assert reading.metrics.damaged_batches == 0


async def test_a_log_start_that_has_moved_is_no_damage() -> None:
    reading = filled()
    reading.delete_below(3, publish=False)
    assert (await reading.fetch(0)).error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert offsets(await reading.fetch(3)) == [3, 4, 5, 6, 7]
    assert reading.metrics.damaged_batches == 0


# -- a real broker ------------------------------------------------------------------------------------------

KEY = PartitionKey(bytes(range(16)), 0)
SETTINGS: dict[str, Any] = {"semel_disk_reserve_bytes": 0, "semel_scrub_bytes_per_second": 1 << 40}


async def append(broker: Broker, key: str, value: str) -> None:
    data = encode_batch([Record(0, 1_000, key.encode(), value.encode())])
    await broker.ask(Append(KEY, read_header(data), data))


async def lose(broker: Broker, base_offset: int) -> None:
    """Delete a row from the embedded ledger."""
    statement = f"DELETE FROM batches WHERE base_offset = {base_offset}"
    await broker.store.checkpoint()
    ledger: Any = broker.store.ledger
    await ledger._worker.run(lambda: ledger._writer.connection.execute(statement))


async def fetch(broker: Broker, offset: int) -> FetchResult:
    (result,) = await broker.reads.fetch([FetchRange(KEY, offset, PLENTY)], 1, PLENTY, 0)
    return result


async def test_an_embedded_ledger_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broker = await Broker.open(Settings(**SETTINGS), tmp_path)
    try:
        await broker.ask(CreateTopic("orders", KEY.topic_id, 1, {}))
        for number in range(4):
            await append(broker, "k", f"v{number}")
        await lose(broker, 2)
        assert offsets(await fetch(broker, 0)) == [0, 1]
        assert (await fetch(broker, 2)).error is ErrorCode.CORRUPT_MESSAGE
        assert offsets(await fetch(broker, 3)) == [3]
        assert "offsets 2 to 2 of topic orders partition 0 are missing" in caplog.text
        # The scrub finds it, too.
        await lose(broker, 3)
        await Scrub(broker).round()
        assert broker.metrics.damaged_batches == 2
    finally:
        await broker.close()


async def test_compaction_does_not_cover_a_missing_batch(tmp_path: Path) -> None:
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    broker = await Broker.open(Settings(**SETTINGS), tmp_path)
    try:
        await broker.ask(CreateTopic("orders", KEY.topic_id, 1, configs))
        for number in range(6):
            await append(broker, f"k{number % 2}", f"v{number}")
        await lose(broker, 2)
        await broker._housekeeping.compaction.compact()
        assert (await fetch(broker, 2)).error is ErrorCode.CORRUPT_MESSAGE
        partition = await broker.reads.partition(KEY)
        assert partition is not None
        assert partition.compactions == 0
    finally:
        await broker.close()


async def test_a_missing_batch_that_compaction_has_not_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gaps are only legitimate as far as compaction has come, also if a pass has ended early."""
    monkeypatch.setattr(compaction, "STEP_BATCHES", 4)
    async with compacting(tmp_path) as table:
        # The first step removes all its batches, so its last gap ends where the pass has come to.
        await table.put_each(*((str(number % 2), "v") for number in range(10)))
        going = table.broker._housekeeping.compaction
        step = going._step

        async def one_step(*args: Any) -> None:
            await step(*args)

        monkeypatch.setattr(going, "_step", one_step)
        await table.compact()
        partition = await table.partition()
        assert (partition.compactions, partition.cleaned_offset) == (1, 4)
        for offset in (0, 3):
            assert [each.offset for each in await table.records(offset)] == list(range(4, 10))
        assert table.broker.metrics.damaged_batches == 0

        await lose(table.broker, 6)
        assert offsets(await table.fetch(0)) == [4, 5]
        assert (await table.fetch(6)).error is ErrorCode.CORRUPT_MESSAGE
        assert offsets(await table.fetch(7)) == [7, 8, 9]
        damaged = table.broker.metrics.damaged_batches
        await Scrub(table.broker).round()
        assert table.broker.metrics.damaged_batches > damaged

        # The next pass does not make it look like a gap of its own.
        monkeypatch.setattr(going, "_step", step)
        await table.compact()
        assert (await table.fetch(6)).error is ErrorCode.CORRUPT_MESSAGE
        assert (await table.partition()).cleaned_offset <= 6


async def test_a_pass_that_ended_early_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "STEP_BATCHES", 4)
    async with compacting() as table:
        await table.put_each(*((str(number % 3), f"v{number}") for number in range(10)))
        going = table.broker._housekeeping.compaction
        step = going._step

        async def one_step(*args: Any) -> None:
            await step(*args)

        monkeypatch.setattr(going, "_step", one_step)
        await table.compact()
        monkeypatch.setattr(going, "_step", step)
        await table.put(("0", "last"))
        await table.compact()
        assert [(key, value) for _, key, value in await table.pairs()] == [
            ("1", "v7"),
            ("2", "v8"),
            ("0", "last"),
        ]
        assert (await table.partition()).cleaned_offset == 11
