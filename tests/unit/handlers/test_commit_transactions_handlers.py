"""CommitTransactions and BeginAttempt against a broker in memory: a full disk, and metrics."""

from typing import Any

import pytest
from support.brokers.in_memory import broker_in_memory
from support.clients.transactional import send

from semel.broker.broker import Broker
from semel.core.types import ErrorCode
from semel.store.contract import StoreFull
from semel.wire.messages.semel import (
    BeginAttemptRequest,
    CommitTransactionsRequest,
    CommitTransactionsTransaction,
)
from semel.wire.messages.transactions import InitProducerIdRequest

FULL = ErrorCode.COORDINATOR_NOT_AVAILABLE


async def begin_run(broker: Broker) -> Any:
    request = InitProducerIdRequest(transactional_id="driver", transaction_timeout_ms=60_000)
    return await send(broker, request, 4)


def attempt(run: Any, name: str) -> BeginAttemptRequest:
    return BeginAttemptRequest(
        transactional_id=name,
        driver_transactional_id="driver",
        driver_producer_id=run.producer_id,
        driver_producer_epoch=run.producer_epoch,
    )


def commit(run: Any, **members: Any) -> CommitTransactionsRequest:
    return CommitTransactionsRequest(
        transactional_id="driver",
        producer_id=run.producer_id,
        producer_epoch=run.producer_epoch,
        transactions=[
            CommitTransactionsTransaction(
                transactional_id=name, producer_id=each.producer_id, producer_epoch=each.producer_epoch
            )
            for name, each in members.items()
        ],
    )


async def test_a_full_disk_may_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_in_memory() as broker:
        run = await begin_run(broker)
        a = await send(broker, attempt(run, "a"), 0)

        async def full(*_: object, **__: object) -> None:
            raise StoreFull

        monkeypatch.setattr(broker.store, "commit", full)
        assert (await send(broker, attempt(run, "b"), 0)).error_code == FULL
        assert (await send(broker, commit(run, a=a), 0)).error_code == FULL
        monkeypatch.undo()
        b = await send(broker, attempt(run, "b"), 0)
        assert (await send(broker, commit(run, a=a, b=b), 0)).error_code == ErrorCode.NONE


async def test_every_transaction_is_counted_once() -> None:
    async with broker_in_memory() as broker:
        ended = broker.metrics.transactions.ended
        run = await begin_run(broker)
        members = {name: await send(broker, attempt(run, name), 0) for name in "abc"}
        for _ in range(2):
            assert (await send(broker, commit(run, **members), 0)).error_code == ErrorCode.NONE
        assert ended == {("commit", "client"): 3}
        assert broker.metrics.transactions.end_seconds.total > 0
