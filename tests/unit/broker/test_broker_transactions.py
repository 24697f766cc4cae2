"""The whole broker and transactions: what readers see, and what is told of the rest."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.brokers.offline import (
    COMMITTED,
    J0,
    M0,
    UNCOMMITTED,
    Producer,
    batch,
    fetch,
    later,
    plain,
    running,
)
from support.stores.slow import offsets
from support.waiting import until_async

from semel.broker.features import finalized_levels
from semel.broker.metrics_text import page as metrics_page
from semel.broker.reads.offset_search import LATEST
from semel.broker.reads.reads import FetchRange, Isolation
from semel.core.transactions.commands import AbortOpen, ChangeFeature
from semel.core.types import ErrorCode
from semel.store.contract import StoreFull


async def test_behaviour_what_a_commit_answered_is_visible() -> None:
    async with running() as broker:
        producer = await Producer(broker, "id").init()
        await plain(broker)
        assert (await producer.send()).base_offset == 1
        assert offsets(await fetch(broker)) == [0]
        assert await producer.end(is_commit=True) is ErrorCode.NONE
        result = await fetch(broker)
        assert offsets(result)[:2] == [0, 1]
        assert result.last_stable_offset == result.high_watermark == 3
        assert result.aborted == ()


async def test_an_aborted_transaction_is_told_to_those_who_read_it() -> None:
    async with running() as broker:
        producer = await Producer(broker, "id").init()
        producer_id = producer.given.producer_id
        await producer.send()
        await producer.end(is_commit=False)
        await producer.send()
        await producer.end(is_commit=True)
        assert (await fetch(broker)).aborted == [(producer_id, 0)]
        assert (await fetch(broker, offset=2)).aborted == ()


async def test_whoever_reads_past_open_transactions_sees_what_was_answered() -> None:
    async with running() as broker:
        producer = await Producer(broker, "id").init()
        await producer.send()
        assert broker.metrics.unsynced_ticks == 1
        assert offsets(await fetch(broker, isolation=UNCOMMITTED)) == [0]
        await producer.send()
        assert (await broker.reads.list_offsets(M0, LATEST, UNCOMMITTED)).offset == 2
        assert (await broker.reads.list_offsets(M0, LATEST, COMMITTED)).offset == 0
        assert offsets(await fetch(broker)) == []


async def test_a_fetch_that_waits_gets_early_work_at_once() -> None:
    async with running() as broker:
        producer = await Producer(broker, "id").init()
        waiting = asyncio.create_task(
            broker.reads.fetch([FetchRange(M0, 0, 1 << 30, UNCOMMITTED)], 1, 1 << 30, 60_000)
        )
        await until_async(lambda: broker.reads.parked == 1)
        await producer.send()
        assert offsets((await waiting)[0]) == [0]
        assert broker.metrics.unsynced_ticks == 0


async def test_staged_records_are_seen_when_they_are_committed_and_in_that_order() -> None:
    async with running() as broker:
        first, second = [await Producer(broker, each).init() for each in ("first", "second")]
        assert (await first.send(J0)).base_offset == -1
        await second.send(J0)
        await plain(broker, J0)
        for isolation in Isolation:
            assert offsets(await fetch(broker, J0, isolation=isolation)) == [0]
        await first.send(J0)
        assert await second.end(is_commit=True) is ErrorCode.NONE
        assert offsets(await fetch(broker, J0)) == [0, 1]
        await first.end(is_commit=True)
        await plain(broker, J0)
        result = await fetch(broker, J0)
        assert offsets(result) == [0, 1, 2, 3, 4]
        assert (result.last_stable_offset, result.aborted) == (5, ())


async def test_records_are_deleted_behind_a_flush() -> None:
    async with running() as broker:
        producer = await Producer(broker, "id").init()
        for _ in range(3):
            await producer.send()
        assert (await broker.delete_records(M0, 4)).error is ErrorCode.OFFSET_OUT_OF_RANGE
        await producer.send()
        deleted = await broker.delete_records(M0, 2)
        assert (deleted.error, deleted.low_watermark) == (ErrorCode.NONE, 2)
        partition = await broker.reads.partition(M0)
        assert partition is not None
        assert partition.size_bytes == 2 * len(batch())
        await producer.end(is_commit=True)


async def test_a_flush_shows_the_ledger_what_clients_were_told() -> None:
    async with running() as broker:
        await (await Producer(broker, "id").init()).send()
        assert await broker.flush()
        (open_one,) = await broker.store.ledger.open_transactions(limit=10)
        assert open_one.partitions == (M0,)


async def test_a_feature_that_changes_is_told_from_then_on(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        assert finalized_levels(broker.cluster, extensions=False)["transaction.version"] == 2
        epoch = broker.cluster.features_epoch
        assert await broker.ask(ChangeFeature(1)) is ErrorCode.NONE
        assert finalized_levels(broker.cluster, extensions=False)["transaction.version"] == 1
        assert broker.cluster.features_epoch > epoch
        told = broker.cluster.features_epoch
    async with running(tmp_path) as broker:
        assert (broker.cluster.transaction_version, broker.cluster.features_epoch) == (1, told)


async def test_transactions_are_counted() -> None:
    async with running() as broker:
        producer = await Producer(broker, "id").init()
        await producer.send()
        later(broker, 3_000)
        page = metrics_page(broker.metrics).decode()
        assert "semel_open_transactions 1.0" in page
        assert "semel_oldest_open_transaction_seconds 3." in page
        await Producer(broker, "id").init()
        assert (await producer.send()).error is not ErrorCode.NONE
        assert await broker.ask(AbortOpen("id")) is False
        page = metrics_page(broker.metrics).decode()
        assert "semel_open_transactions 0.0" in page
        assert "semel_oldest_open_transaction_seconds 0.0" in page
        assert 'semel_transactions_ended_total{outcome="abort",reason="fenced"} 1.0' in page
        assert 'semel_producers_fenced_total{reason="fenced"} 1.0' in page
        assert "semel_transaction_verification_failures_total 1.0" in page
        assert "semel_transaction_verification_seconds_count 2.0" in page
        assert "semel_unsynced_ticks_total 1.0" in page
        assert "semel_transaction_end_seconds_count 0.0" in page


async def test_the_end_of_a_transaction_is_timed_from_the_request() -> None:
    async with running() as broker:
        producer = await Producer(broker, "id").init()
        await producer.send()
        await producer.end(is_commit=True)
        seconds = broker.metrics.transactions.end_seconds
        assert sum(seconds.counts) == 1
        assert seconds.total > 0


async def test_a_ledger_without_room_takes_back_nothing_that_was_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running() as broker:
        producer = await Producer(broker, "id").init()
        await plain(broker)
        assert (await producer.send()).base_offset == 1
        assert (await producer.send(J0)).error is ErrorCode.NONE

        def full(*work: Any) -> int:
            raise StoreFull("no room")

        with monkeypatch.context() as patched:
            patched.setattr(broker.store.ledger, "apply_now", full)
            assert await producer.end(is_commit=True) is ErrorCode.NONE
            with pytest.raises(StoreFull):
                await broker.store.ledger.topics()
            # It is durable. Until the ledger has it, nothing is decided and nothing is read from there.
            for _ in range(2):
                with pytest.raises(StoreFull):
                    await producer.send()
                with pytest.raises(StoreFull):
                    await Producer(broker, "other").init()
            with pytest.raises(StoreFull):
                await fetch(broker)
        assert (await producer.send()).base_offset == 3
        assert await producer.end(is_commit=True) is ErrorCode.NONE
        assert offsets(await fetch(broker)) == [0, 1, 2, 3, 4]
        assert offsets(await fetch(broker, J0)) == [0]
