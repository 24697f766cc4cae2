"""What ends a transaction when its producer does not: time, a lost connection, a new term."""

from pathlib import Path

import apsw
import pytest
from support.brokers.offline import J0, M0, Producer, counted, describe, fetch, later, running
from support.stores.slow import offsets

from semel.broker.broker import Broker
from semel.core.types import ErrorCode, PartitionKey, TransactionState
from semel.store import opening
from semel.store.embedded import ledger_opening


async def test_an_overdue_transaction_is_aborted_and_its_producer_fenced() -> None:
    async with running() as broker:
        slow, other = await Producer(broker, "slow").init(1_000), await Producer(broker, "other").init()
        await slow.send()
        await other.send()
        assert broker.overdue_transactions() == []
        later(broker, 2_000)
        assert broker.overdue_transactions() == ["slow"]
        await broker._housekeeping.abort_overdue()
        assert broker.overdue_transactions() == []
        assert (await describe(broker, "slow")).state is TransactionState.COMPLETE_ABORT  # type: ignore[union-attr]
        assert await slow.end(is_commit=True) is not ErrorCode.NONE
        assert (await slow.send()).error is not ErrorCode.NONE
        assert await other.end(is_commit=True) is ErrorCode.NONE
        assert counted(broker) == {("abort", "timeout"): 1, ("commit", "client"): 1}
        assert broker.metrics.transactions.fenced == {"timeout": 1}


async def test_ids_that_nobody_uses_are_forgotten() -> None:
    async with running() as broker:
        used = await Producer(broker, "used").init(900_000)
        for each in range(3):
            await Producer(broker, f"unused-{each}").init()
        later(broker, broker.settings.transactional_id_expiration_ms + 1)
        await used.send()
        await broker._housekeeping.forget_transactions()
        assert await describe(broker, "unused-0") is None
        assert await describe(broker, "used") is not None
        assert [each.transactional_id for each in await broker.store.ledger.transactions()] == ["used"]


@pytest.mark.parametrize("key", [M0, J0])
async def test_producers_with_an_open_transaction_are_not_forgotten(
    key: PartitionKey,
) -> None:
    async with running() as broker:
        producer = await Producer(broker, "id").init(900_000)
        await producer.send(key)
        assert await broker.flush()
        later(broker, broker.settings.producer_id_expiration_ms + 1)
        await broker._housekeeping.expire()
        assert len(await broker.store.ledger.producers(key)) == 1
        assert await producer.end(is_commit=True) is ErrorCode.NONE


async def settled(broker: Broker) -> None:
    """Everything that was asked is decided."""
    await describe(broker, "nobody")


async def test_a_lost_connection_aborts_where_that_is_wanted() -> None:
    async with running(transaction_abort_on_disconnect=True) as broker:
        producer = await Producer(broker, "id", connection=5).init()
        await producer.send()
        broker.connection_gone(4)
        await settled(broker)
        assert "id" in broker._loop.state.ongoing
        broker.connection_gone(5)
        await settled(broker)
        assert "id" not in broker._loop.state.ongoing
        assert counted(broker) == {("abort", "disconnect"): 1}
        assert len(broker._loop.latest_connections) == 0


async def test_a_connection_that_was_replaced_aborts_nothing() -> None:
    async with running(transaction_abort_on_disconnect=True) as broker:
        producer = await Producer(broker, "id", connection=5).init()
        await producer.send()
        await producer.end(is_commit=True)
        producer.connection = 6
        await producer.send()
        await producer.end(is_commit=True)
        await producer.send()
        broker.connection_gone(5)
        await settled(broker)
        assert "id" in broker._loop.state.ongoing


async def test_a_lost_connection_changes_nothing_by_default() -> None:
    async with running() as broker:
        producer = await Producer(broker, "id", connection=5).init()
        await producer.send()
        broker.connection_gone(5)
        await settled(broker)
        assert await producer.end(is_commit=True) is ErrorCode.NONE


async def test_a_transaction_outlives_a_restart_in_the_same_term(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        producer = await Producer(broker, "id").init()
        await producer.send()
    async with running(tmp_path) as broker:
        assert list(broker._loop.state.ongoing) == ["id"]
        producer.broker = broker
        await producer.send()
        assert await producer.end(is_commit=True) is ErrorCode.NONE
        assert offsets(await fetch(broker))[:2] == [0, 1]


async def test_a_new_term_aborts_what_was_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as broker:
        producer = await Producer(broker, "id").init()
        await producer.send()
        term = broker.store.term
    with apsw.Connection(str(tmp_path / "ledger.db"), vfs=ledger_opening.available()) as ledger:
        ledger.execute("UPDATE meta SET value = '0' WHERE name = 'clean_stop'")
    monkeypatch.setattr(opening, "_boot_id", lambda: "another start of the system")
    async with running(tmp_path) as broker:
        assert broker.store.term == term + 1
        assert not broker._loop.state.ongoing
        result = await fetch(broker)
        assert result.last_stable_offset == result.high_watermark
        producer.broker = broker
        assert (await producer.send()).error is not ErrorCode.NONE
        assert await producer.end(is_commit=True) is not ErrorCode.NONE
        assert counted(broker) == {("abort", "term"): 1}
