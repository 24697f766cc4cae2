"""A batch that is damaged on the disk: what is good is served, and it alone is an error with a name."""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.stores.commit_loop import Looping, create
from support.stores.slow import ONE, PLENTY, ZERO, Reading, offsets

from semel import rate_limit
from semel.broker.broker import Broker
from semel.broker.reads.reads import FetchRange, FetchResult, Isolation
from semel.broker.upkeep.damage import Scrub
from semel.config import Settings
from semel.core.groups.commands import DescribeGroup
from semel.core.log.partition import Append
from semel.core.topics import CreateTopic
from semel.core.types import ErrorCode, GroupKey, PartitionKey
from semel.store.contract import LedgerDamaged
from semel.store.embedded.chunk_header import path_of
from semel.wire.records import Record, encode_batch, read_header

TOPIC_ID = bytes(range(16))
KEY = PartitionKey(TOPIC_ID, 0)
OTHER = PartitionKey(TOPIC_ID, 1)
BATCHES = 6
SETTINGS = Settings(semel_disk_reserve_bytes=0, semel_scrub_bytes_per_second=1 << 40)


class Damaged:
    """A broker with six batches in each of two partitions, and a way to damage them."""

    def __init__(self, broker: Broker, directory: Path) -> None:
        self.broker = broker
        self._directory = directory

    async def fill(self) -> None:
        await self.broker.ask(CreateTopic("orders", TOPIC_ID, 2, {}))
        for number in range(BATCHES):
            for key in (KEY, OTHER):
                data = encode_batch([Record(0, 1_000, None, f"value {number}".encode() * 20)] * 2)
                await self.broker.ask(Append(key, read_header(data), data))

    async def flip(self, number: int, at: int = 100, *, key: PartitionKey = KEY) -> None:
        """Change one bit of a batch where it lies."""
        rows = await self.broker.store.ledger.find_batches(
            key, 0, before=PLENTY, bytes_max=PLENTY, batches_max=PLENTY
        )
        location = rows[number].location
        path = path_of(self._directory / "chunks", location.chunk_id)
        data = bytearray(path.read_bytes())
        data[location.position + at] ^= 0x20
        # In place: the broker has the file open.
        with path.open("r+b") as file:
            file.write(data)

    async def fetch(self, offset: int, key: PartitionKey = KEY) -> FetchResult:
        (result,) = await self.broker.reads.fetch([FetchRange(key, offset, PLENTY)], 1, PLENTY, 0)
        return result


@asynccontextmanager
async def damaged(directory: Path, settings: Settings = SETTINGS) -> AsyncIterator[Damaged]:
    broker = await Broker.open(settings, directory)
    try:
        made = Damaged(broker, directory)
        await made.fill()
        yield made
    finally:
        await broker.close()


@pytest.mark.parametrize("at", [8, 11, 16, 17, 20, 21, 60, 61, 150])
async def test_what_is_good_is_served_up_to_the_damaged_batch_and_behind_it(tmp_path: Path, at: int) -> None:
    """Whichever byte it is: length, magic, checksum, or anything that the checksum covers."""
    async with damaged(tmp_path) as log:
        await log.flip(2, at)
        before = await log.fetch(0)
        assert (before.error, offsets(before)) == (ErrorCode.NONE, [0, 1, 2, 3])
        for offset in (4, 5):
            assert (await log.fetch(offset)).error is ErrorCode.CORRUPT_MESSAGE
        behind = await log.fetch(6)
        assert (behind.error, offsets(behind)) == (ErrorCode.NONE, [6, 7, 8, 9, 10, 11])
        # A neighbour in the same answer is not touched by it.
        both = await log.broker.reads.fetch(
            [FetchRange(KEY, 4, PLENTY), FetchRange(OTHER, 0, PLENTY)], 1, PLENTY, 0
        )
        assert both[0].error is ErrorCode.CORRUPT_MESSAGE
        assert offsets(both[1]) == list(range(12))


@pytest.mark.parametrize("at", [0, 7, 12, 15])
async def test_what_the_broker_stamps_itself_cannot_be_damaged(tmp_path: Path, at: int) -> None:
    async with damaged(tmp_path) as log:
        await log.flip(2, at)
        assert offsets(await log.fetch(0)) == list(range(12))


async def test_it_is_named_in_the_log_at_a_bounded_rate_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with damaged(tmp_path) as log:
        await log.flip(2)
        with caplog.at_level(logging.ERROR):
            for _ in range(20):
                assert (await log.fetch(4)).error is ErrorCode.CORRUPT_MESSAGE
            (line,) = [record.getMessage() for record in caplog.records]
            assert "offsets 4 to 5 of topic orders partition 0 is damaged: its checksum is wrong" in line
            assert log.broker.metrics.damaged_batches == 20
            # There is a bound on how many of them are named.
            monkeypatch.setattr(rate_limit, "LOGGED_MAX", 2)
            for number in (3, 4, 5):
                await log.flip(number)
                await log.fetch(2 * number)
        assert len(caplog.records) == 2


async def test_checksums_need_not_be_compared(tmp_path: Path) -> None:
    settings = Settings(semel_disk_reserve_bytes=0, semel_fetch_check_crcs=False)
    async with damaged(tmp_path, settings) as log:
        await log.flip(2)
        assert len((await log.fetch(0)).buffers[0]) > 0
        assert (await log.fetch(4)).error is ErrorCode.NONE


async def test_a_batch_whose_bytes_are_gone_is_an_error_of_its_own(tmp_path: Path) -> None:
    async with damaged(tmp_path, Settings(semel_disk_reserve_bytes=0, semel_chunk_bytes_max=1_000)) as log:
        rows = await log.broker.store.ledger.find_batches(
            KEY, 0, before=PLENTY, bytes_max=PLENTY, batches_max=PLENTY
        )
        first = rows[0].location.chunk_id
        gone = next(row for row in rows if row.location.chunk_id > first)
        path_of(tmp_path / "chunks", gone.location.chunk_id).unlink()
        before = await log.fetch(0)
        assert offsets(before) == list(range(gone.base_offset))
        assert (await log.fetch(gone.base_offset)).error is ErrorCode.KAFKA_STORAGE_ERROR


async def test_the_scrub_finds_what_nobody_reads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with damaged(tmp_path) as log:
        scrub = Scrub(log.broker)
        await scrub.round()
        size = log.broker.metrics.scrubbed_bytes
        assert (size > 1_000, log.broker.metrics.damaged_batches) == (True, 0)
        await log.flip(1)
        await log.flip(4)
        await log.flip(5, key=OTHER)
        with caplog.at_level(logging.ERROR):
            await scrub.round()
        assert (log.broker.metrics.scrubbed_bytes, log.broker.metrics.damaged_batches) == (2 * size, 3)
        assert len(caplog.records) == 3


# -- pages of the ledger ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["aborted", "find_batches", "first_batch_since"])
async def test_a_damaged_page_of_the_ledger_is_an_error_of_its_partition(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = Reading()
    reading.append(opens_transaction=True)
    reading.abort(1, 0)
    reading.append(ONE)

    async def damaged(key: PartitionKey, *args: Any, **options: Any) -> Any:
        if key == ZERO:
            raise LedgerDamaged("a page is damaged")
        return await original(key, *args, **options)

    original = getattr(reading.shelf.ledger, method)
    monkeypatch.setattr(reading.shelf.ledger, method, damaged)
    if method == "first_batch_since":
        listed = [await reading.reads.list_offsets(key, 5) for key in (ZERO, ONE)]
        errors = [each.error for each in listed]
    else:
        ranges = [FetchRange(key, 0, PLENTY, Isolation.READ_COMMITTED) for key in (ZERO, ONE)]
        errors = [each.error for each in await reading.reads.fetch(ranges, 1, PLENTY, 0)]
    assert errors == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]


async def test_nothing_is_served_without_the_list_of_aborted_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not even the batches before a damaged one."""
    reading = Reading()
    reading.append(opens_transaction=True)
    reading.abort(7, 0)
    reading.shelf.gone.add(reading.shelf.rows[ZERO][1].location)
    found = await reading.fetch(isolation=Isolation.READ_COMMITTED)
    assert (found.error, offsets(found), found.aborted) == (ErrorCode.NONE, [0], [(7, 0)])

    async def damaged(*args: Any) -> Any:
        raise LedgerDamaged("a page is damaged")

    monkeypatch.setattr(reading.shelf, "aborted", damaged)
    found = await reading.fetch(isolation=Isolation.READ_COMMITTED)
    assert (found.error, found.buffers) == (ErrorCode.KAFKA_STORAGE_ERROR, ())


async def test_only_commands_that_need_a_damaged_page_are_refused() -> None:
    looping = Looping()
    load = looping.store.ledger.load

    async def damaged(keys: Sequence[Any]) -> Any:
        if GroupKey("bad") in keys:
            raise LedgerDamaged("a page is damaged")
        return await load(keys)

    looping.store.ledger.load = damaged  # type: ignore[method-assign]
    looping.store.let.set()
    looping.submit(create())
    looping.submit(DescribeGroup("bad"))
    looping.submit(DescribeGroup("good"))
    await looping.settle()
    assert [isinstance(outcome, LedgerDamaged) for outcome in looping.outcomes] == [False, True, False]
