"""Compaction of a whole broker: what readers find afterwards, and when it is done."""

from pathlib import Path
from typing import Any

import pytest
from support.brokers.offline import Producer, later
from support.stores.compacting import (
    CODECS,
    COMMITTED,
    EAGER,
    UNCOMMITTED,
    before_first,
    compacting,
    keyed,
    seen,
)

from semel.broker.upkeep import compaction
from semel.core.log.partition import Append, DeleteRecords
from semel.core.topics import AlterTopic, CreateTopic
from semel.core.types import ErrorCode, PartitionKey
from semel.store.contract import StoreFull
from semel.wire.batch import DELETE_HORIZON, HEADER_BYTES, seal
from semel.wire.records import Codec, Header, Record, encode_batch, iter_batches, read_header

DAY_MS = 86_400_000


@pytest.mark.parametrize("codec", CODECS)
async def test_the_newest_record_of_each_key_stays_as_it_was(tmp_path: Path, codec: Codec) -> None:
    async with compacting(tmp_path) as table:
        headers = (Header("h", b"1"), Header("h", None), Header("", b""))
        newest = Record(0, 1_700_000_000_123, b"a", b"2" * 500, headers)
        await table.put(("a", "1"), ("b", "1"), ("c", "1"), codec=codec)
        await table.append(encode_batch([Record(0, 5, b"b", b"old"), newest], codec=codec))
        await table.put(("b", "3"), codec=codec)
        before = await table.partition()
        await table.compact()
        after = await table.partition()
        assert [each.offset for each in await table.records()] == [2, 4, 5]
        assert await table.records(3) == [newest._replace(offset=4), Record(5, 1_000, b"b", b"3")]
        assert (after.high_watermark, after.log_start_offset) == (6, 0)
        assert after.cleaned_offset == 6
        assert after.size_bytes < before.size_bytes
        data = b"".join((await table.fetch()).buffers)
        assert {header.codec for _, header in iter_batches(data)} == {codec}
        assert len(data) == after.size_bytes
        metrics = table.broker.metrics
        assert (metrics.compactions, metrics.compacted_bytes) == (1, before.size_bytes - after.size_bytes)


async def test_behaviour_109_who_reads_at_an_offset_that_is_gone_gets_the_next(tmp_path: Path) -> None:
    async with compacting(tmp_path) as table:
        await table.put_each(*((key, str(n)) for n in range(50) for key in "ab"))
        await table.compact()
        for offset in (0, 1, 50, 97, 98):
            assert [each.offset for each in await table.records(offset)] == [98, 99]
        assert await table.records(99) == (await table.records())[1:]
        assert await table.records(100) == []
        assert (await table.fetch(101)).error is ErrorCode.OFFSET_OUT_OF_RANGE
        earliest = await table.broker.reads.list_offsets(table.key, -2)
        latest = await table.broker.reads.list_offsets(table.key, -1)
        at_time = await table.broker.reads.list_offsets(table.key, 1_000)
        assert (earliest.offset, latest.offset, at_time.offset) == (0, 100, 98)


async def test_behaviour_107_writing_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    fields = {"producer_id": 7, "producer_epoch": 0}
    async with compacting(tmp_path) as table:
        first = await table.put(("a", "1"), ("a", "2"), base_sequence=0, **fields)
        second = await table.put(("a", "3"), base_sequence=2, **fields)
        await table.put(("a", "4"))
        await table.compact()
        # Both are gone from the log, and known all the same.
        again = await table.put(("a", "1"), ("a", "2"), base_sequence=0, **fields)
        assert again.base_offset == first.base_offset
        assert (await table.put(("a", "3"), base_sequence=2, **fields)).base_offset == second.base_offset
    async with compacting(tmp_path) as table:
        assert (await table.put(("a", "3"), base_sequence=2, **fields)).base_offset == second.base_offset
        assert (await table.put(("b", "1"), base_sequence=3, **fields)).base_offset == 4
        assert await table.pairs() == [(3, "a", "4"), (4, "b", "1")]


async def test_a_tombstone_stays_for_its_time_and_then_goes() -> None:
    async with compacting(configs={"delete.retention.ms": str(DAY_MS)}) as table:
        await table.put(("a", "1"), ("b", "1"))
        await table.put(("a", None), ("c", "1"), timestamp=2_000)
        await table.put(("d", "1"))
        await table.compact()
        expected = [(1, "b", "1"), (2, "a", None), (3, "c", "1"), (4, "d", "1")]
        assert await table.pairs() == expected
        # Its own time is what it was.
        assert [each.timestamp for each in await table.records(2)] == [2_000, 2_001, 1_000]
        later(table.broker, DAY_MS - 60_000)
        await table.put(("e", "1"))
        await table.compact()
        assert await table.pairs() == [*expected, (5, "e", "1")]
        later(table.broker, 120_000)
        await table.put(("f", "1"))
        await table.compact()
        assert [key for _, key, _ in await table.pairs()] == ["b", "c", "d", "e", "f"]


async def test_a_horizon_that_a_client_made_up_is_not_believed() -> None:
    async with compacting() as table:
        await table.put(("a", "1"))
        await table.append(encode_batch([Record(0, 1, b"x", b"1")]))
        plain = keyed(("a", None))
        header = read_header(plain)
        claimed = header._replace(attributes=header.attributes | DELETE_HORIZON)
        await table.append(seal(claimed, plain[HEADER_BYTES:]))
        await table.put(("z", "1"))
        await table.compact()
        assert await table.pairs() == [(1, "x", "1"), (2, "a", None), (3, "z", "1")]
        assert [each.timestamp for each in await table.records()] == [1, 1_000, 1_000]


async def test_behaviour_106_what_was_aborted_goes_and_its_marker_follows() -> None:
    async with compacting(configs={"delete.retention.ms": "1000"}) as table:
        producer = await Producer(table.broker, "t").init()
        await table.put(("a", "1"))
        await table.put_in(producer, ("a", "aborted"), ("b", "aborted"))
        await producer.end(is_commit=False)
        await table.put_in(producer, ("c", "1"))
        await producer.end(is_commit=True)
        await table.put(("d", "1"))
        visible = [(0, "a", "1"), (4, "c", "1"), (6, "d", "1")]
        assert await table.pairs() == visible
        await table.compact()
        assert await table.pairs() == await table.pairs(UNCOMMITTED) == visible
        assert await table.markers() == [3, 5]
        # No pass but one that finds something new.
        later(table.broker, 10_000)
        await table.put(("e", "1"))
        await table.compact()
        assert await table.markers() == [3, 5], "the first pass that meets no data of it sets its time"
        later(table.broker, 10_000)
        await table.put(("f", "1"))
        await table.compact()
        assert await table.markers() == [5], "the data of the other one is still there"
        assert (await table.fetch(0)).aborted == []
        assert await table.pairs() == [*visible, (7, "e", "1"), (8, "f", "1")]


async def test_behaviour_105_nothing_above_an_open_transaction_is_touched() -> None:
    async with compacting() as table:
        await table.put_each(("a", "1"), ("a", "2"))
        producer = await Producer(table.broker, "t").init()
        await table.put_in(producer, ("a", "open"))
        await table.put_each(("a", "3"), ("a", "4"))
        await table.broker.flush()
        await table.compact()
        assert [value for _, _, value in await table.pairs(UNCOMMITTED)] == ["2", "open", "3", "4"]
        await producer.end(is_commit=False)
        await table.compact()
        assert await table.pairs(UNCOMMITTED) == [(4, "a", "4")]
        assert (await table.partition()).cleaned_offset == 6


async def test_a_topic_with_journal_visibility_is_compacted_by_what_is_visible() -> None:
    async with compacting(configs={"semel.visibility": "journal"}) as table:
        one, two = [await Producer(table.broker, name).init() for name in "12"]
        await table.put_in(one, ("a", "1"), ("b", "1"))
        await table.put_in(two, ("a", "aborted"))
        await table.put(("a", "0"))
        await two.end(is_commit=False)
        await one.end(is_commit=True)
        await table.put_in(one, ("b", "open"))
        await table.compact()
        assert await table.pairs() == [(1, "a", "1"), (2, "b", "1")]
        await one.end(is_commit=True)
        await table.compact()
        assert await table.pairs() == [(1, "a", "1"), (3, "b", "open")]


async def test_a_log_of_nothing_but_aborted_records_can_be_read_to_its_end() -> None:
    async with compacting(configs={"delete.retention.ms": "0"}) as table:
        producer = await Producer(table.broker, "t").init()
        for _ in range(4):
            await table.put_in(producer, ("a", "aborted"))
            await producer.end(is_commit=False)
            await table.compact()
            later(table.broker, 1_000)
        result = await table.fetch(0)
        last = max(header.last_offset for _, header in iter_batches(b"".join(result.buffers)))
        assert last + 1 == result.high_watermark == 8
        assert seen(result, 0) == []
        assert await table.markers() == [5, 7]


async def test_how_much_must_be_new_before_it_is_worth_it() -> None:
    async with compacting(configs={"min.cleanable.dirty.ratio": "0.5"}) as table:
        await table.put_each(*((str(n), "v") for n in range(10)))
        await table.compact()
        assert (await table.partition()).cleaned_offset == 10
        await table.put_each(*((str(n), "w") for n in range(10)))
        await table.compact()
        assert (await table.partition()).cleaned_offset == 10, "as much as before is not more than half"
        await table.put(("0", "x"))
        await table.compact()
        assert (await table.partition()).cleaned_offset == 21
        assert len(await table.records()) == 10


async def test_records_are_left_alone_for_min_compaction_lag() -> None:
    async with compacting(configs={"min.compaction.lag.ms": "60000"}) as table:
        now = table.broker.time_of_day()
        await table.put_each(("a", "1"), ("a", "2"), timestamp=now - 120_000)
        await table.put_each(("a", "3"), ("a", "4"), timestamp=now)
        await table.compact()
        assert [value for _, _, value in await table.pairs()] == ["2", "3", "4"]
        later(table.broker, 120_000)
        await table.compact()
        assert [value for _, _, value in await table.pairs()] == ["4"]


async def test_max_compaction_lag_makes_it_worth_it_at_any_ratio() -> None:
    configs = {"min.cleanable.dirty.ratio": "1", "max.compaction.lag.ms": "60000"}
    async with compacting(configs=configs) as table:
        await table.put_each(("a", "1"), ("a", "2"), timestamp=table.broker.time_of_day())
        await table.compact()
        assert len(await table.records()) == 2
        later(table.broker, 61_000)
        await table.compact()
        assert len(await table.records()) == 1


async def test_more_keys_than_fit_take_more_passes() -> None:
    async with compacting(semel_compaction_keys_max=7) as table:
        for value in "12":
            await table.put_each(*((str(n), value) for n in range(30)))
        await table.compact()
        partition = await table.partition()
        assert [(int(key), value) for _, key, value in await table.pairs()] == [(n, "2") for n in range(30)]
        assert partition.cleaned_offset == 60
        assert partition.compactions >= 60 // 7


async def test_a_pass_goes_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "STEP_BYTES", 300)
    async with compacting() as table:
        producer = await Producer(table.broker, "t").init()
        await table.put_each(*((str(n % 5), str(n)) for n in range(40)))
        for n in range(3):
            await table.put_in(producer, ("0", "aborted"), ("9", "aborted"))
            await table.put((f"in between {n}", "1"))
            await table.put_in(producer, ("1", "aborted"))
            await producer.end(is_commit=False)
        await table.put(("0", "last"))
        await table.compact()
        expected = [("1", "36"), ("2", "37"), ("3", "38"), ("4", "39")]
        expected += [(f"in between {n}", "1") for n in range(3)] + [("0", "last")]
        assert [(key, value) for _, key, value in await table.pairs(UNCOMMITTED)] == expected
        assert (await table.partition()).compactions > 10


async def test_how_far_it_has_come_and_what_it_left_outlive_the_broker(tmp_path: Path) -> None:
    async with compacting(tmp_path) as table:
        await table.put_each(*((str(n % 3), "v" * n) for n in range(100)))
        await table.compact()
        kept, before = await table.records(), await table.partition()
        await table.broker._housekeeping.sweep()
        assert await table.records() == kept
    async with compacting(tmp_path) as table:
        assert await table.records() == kept
        assert await table.partition() == before
        await table.compact()
        assert await table.partition() == before, "there is nothing new"
        references = await table.broker.store.ledger.chunk_references()
        assert sum(references.values()) == before.size_bytes


async def test_compact_and_delete_go_together() -> None:
    configs = {"cleanup.policy": "compact,delete", "retention.ms": "60000"}
    async with compacting(configs=configs) as table:
        now = table.broker.time_of_day()
        await table.put_each(("a", "1"), ("b", "1"), ("a", "2"), timestamp=now - 50_000)
        await table.put_each(("c", "1"), ("c", "2"), timestamp=now)
        await table.compact()
        assert [offset for offset, _, _ in await table.pairs()] == [1, 2, 4]
        later(table.broker, 30_000)
        await table.broker._housekeeping.retain()
        partition = await table.partition()
        assert (partition.log_start_offset, partition.cleaned_offset) == (4, 5)
        assert [each.offset for each in await table.records(4)] == [4]
        await table.put(("c", "3"))
        await table.compact()
        assert [each.offset for each in await table.records(4)] == [5]
        assert (await table.partition()).size_bytes == len(keyed(("c", "3")))


async def test_a_size_that_was_looked_up_before_a_swap_is_looked_up_again() -> None:
    async with compacting() as table:
        await table.put_each(("a", "1"), ("a", "2"), ("b", "1"))
        start, below = await table.broker.store.ledger.size_below(table.key, 2)
        await table.compact()
        stale = await table.broker.ask(DeleteRecords(table.key, 2, start, below))
        assert stale.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert (await table.broker.delete_records(table.key, 2)).low_watermark == 2
        assert (await table.partition()).size_bytes == len(keyed(("b", "1")))


@pytest.mark.parametrize(("start", "left"), [(2, [4, 5]), (5, [5]), (6, [])])
async def test_a_log_start_that_moves_meanwhile_overtakes_a_step(start: int, left: list[int]) -> None:
    async with compacting() as table:
        await table.put_each(*((str(n % 2), "v") for n in range(6)))
        read = table.broker.store.chunks.read
        reads = 0

        async def read_late(locations: Any) -> Any:
            nonlocal reads
            found = await read(locations)
            reads += 1
            if reads == 2:
                # The keys are noted, and the first step is under way.
                await table.broker.delete_records(table.key, start)
            return found

        table.broker.store.chunks.read = read_late  # type: ignore[method-assign]
        await table.compact()
        assert reads >= 2
        assert [each.offset for each in await table.records(start)] == left
        partition = await table.partition()
        assert max(partition.cleaned_offset, start) == 6
        assert partition.size_bytes == len(left) * len(keyed(("0", "v")))


async def test_on_a_full_disk_nothing_is_compacted_and_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with compacting() as table:
        await table.put(("a", "1"), ("b", "1"))
        await table.put(("a", "2"))

        async def no_room(length: int) -> None:
            raise StoreFull("no room")

        with monkeypatch.context() as patch:
            patch.setattr(table.broker.store, "make_room", no_room)
            with pytest.raises(StoreFull):
                await table.compact()
        assert len(await table.records()) == 3
        await table.compact()
        assert await table.pairs() == [(1, "b", "1"), (2, "a", "2")]


async def test_a_partition_without_room_does_not_keep_others_from_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with compacting() as table:
        # Topics come by their names: the large one first.
        large = PartitionKey(b"large".ljust(16, b"."), 0)
        await table.broker.ask(CreateTopic("large", large.topic_id, 1, EAGER))
        for data in (keyed(("a", "1"), ("b", "1" * 1_000)), keyed(("a", "2"))):
            await table.broker.ask(Append(large, read_header(data), data))
        await table.put(("a", "1"), ("b", "1"))
        await table.put(("a", "2"))

        async def little_room(length: int) -> None:
            if length > 500:
                raise StoreFull("no room")

        with monkeypatch.context() as patch:
            patch.setattr(table.broker.store, "make_room", little_room)
            with pytest.raises(StoreFull):
                await table.compact()
        assert await table.pairs() == [(1, "b", "1"), (2, "a", "2")]


async def test_a_reader_that_was_overtaken_looks_again(tmp_path: Path) -> None:
    async with compacting(tmp_path) as table:
        await table.put_each(*(("a", "v" * 5_000) for _ in range(20)))

        async def compact() -> None:
            await table.compact()
            await table.broker._housekeeping.sweep()

        chunks = table.broker.store.chunks
        chunks.read = before_first(chunks.read, compact)  # type: ignore[method-assign]
        assert [each.offset for each in await table.records()] == [19]


async def test_who_follows_the_end_is_not_served_what_is_gone() -> None:
    async with compacting(configs={"delete.retention.ms": "0"}) as table:
        await table.fetch()
        producer = await Producer(table.broker, "t").init()
        await table.put_in(producer, ("a", "aborted"))
        await producer.end(is_commit=False)
        await table.put_each(("b", "1"), ("b", "2"))
        for _ in range(3):
            await table.compact()
            later(table.broker, 1_000)
            await table.put(("b", "3"))
            for isolation in (COMMITTED, UNCOMMITTED):
                assert {value for _, _, value in await table.pairs(isolation)} <= {"2", "3"}


async def test_policies_change_and_what_was_done_counts() -> None:
    async with compacting(configs={"cleanup.policy": "delete"}) as table:
        await table.put_each(("a", "1"), (None, "no key"), ("a", "2"))
        await table.compact()
        assert len(await table.records()) == 3
        await table.broker.ask(AlterTopic("table", (("cleanup.policy", 0, "compact"),)))
        await table.compact()
        assert await table.pairs() == [(2, "a", "2")], "a record without a key cannot stay"


async def test_what_cannot_be_opened_stays() -> None:
    async with compacting() as table:
        await table.put(("a", "1"))
        damaged = encode_batch([Record(0, 1, b"a", b"x")])
        header = read_header(damaged)._replace(record_count=9, last_offset_delta=8)
        broken = seal(header, damaged[HEADER_BYTES:])
        await table.broker.ask(Append(table.key, read_header(broken), broken))
        await table.put_each(("c", "1"), ("c", "2"))
        await table.compact()
        data_now = b"".join((await table.fetch(isolation=UNCOMMITTED)).buffers)
        assert [header.base_offset for _, header in iter_batches(data_now)] == [0, 1, 11]


@pytest.mark.parametrize("is_followed", [True, False])
async def test_a_reader_of_aborted_records_is_told_of_them_however_late(is_followed: bool) -> None:
    async with compacting(configs={"delete.retention.ms": "0"}) as table:
        if is_followed:
            await table.fetch()
        producer = await Producer(table.broker, "t").init()
        await table.put_in(producer, ("a", "aborted"))
        await producer.end(is_commit=False)
        await table.put(("b", "1"))
        was_compacted = False

        async def compact() -> None:
            nonlocal was_compacted
            was_compacted = True
            for _ in range(3):
                await table.compact()
                later(table.broker, 1_000)
                await table.put(("b", "2"))
            assert await table.markers() == []

        ledger = table.broker.store.ledger
        ledger.aborted = before_first(ledger.aborted, compact)  # type: ignore[method-assign]
        assert {value for _, _, value in await table.pairs()} <= {"1", "2"}
        assert was_compacted
