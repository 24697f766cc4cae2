"""Bytes that are read for responses are reserved before, in turn, and given back whatever happens."""

import asyncio
from typing import Any

from support.brokers.serving import serving
from support.waiting import until_async

from semel.server.budgets import ResponseBudget, ResponseCharge
from semel.wire.messages import FetchRequest, FetchResponse
from semel.wire.messages.fetch import FetchableTopicResponse, PartitionData


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_over_the_limit_reservations_wait_in_turn() -> None:
    budget = ResponseBudget(100)
    charges = [ResponseCharge(budget) for _ in range(4)]
    tasks = [asyncio.create_task(charge.reserve(80)) for charge in charges]
    await settle()
    assert [task.done() for task in tasks] == [True, True, False, False]
    assert budget.used == 160, "the limit and one response"
    assert budget.is_waited_for
    charges[0].handed_over()
    await settle()
    assert [task.done() for task in tasks] == [True, True, True, False]
    charges[1].measured(80)  # it is handed over, and the client does not read it
    charges[1].handed_over()
    charges[2].handed_over()
    await settle()
    assert tasks[3].done()
    assert budget.used == 160
    charges[3].handed_over()
    charges[1].measured(0)
    assert (budget.used, budget.is_waited_for) == (0, False)


async def test_a_client_that_leaves_while_it_waits_reserves_nothing() -> None:
    budget = ResponseBudget(100)
    budget.change(150)
    early, late = (asyncio.create_task(ResponseCharge(budget).reserve(10)) for _ in range(2))
    await settle()
    early.cancel()
    await settle()
    budget.change(-150)
    late.cancel()  # in the turn in which it was granted
    await asyncio.gather(early, late, return_exceptions=True)
    assert (budget.used, budget.is_waited_for) == (0, False)


async def test_what_fetches_read_together_is_the_limit_and_one_response() -> None:
    size, most, reading = 100_000, 0, asyncio.Event()

    async def fetch(broker: Any, request: Any, context: Any) -> FetchResponse:
        nonlocal most
        await context.reserve(size)
        most = max(most, under_test.context.responses.used)
        await reading.wait()
        data = PartitionData(partition_index=0, records=bytes(size))
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[data])])

    async with serving({1: fetch}, semel_queued_max_response_bytes=3 * size) as under_test:
        clients = [await under_test.connect() for _ in range(10)]
        for client in clients:
            client.send(FetchRequest(max_bytes=size), 11)
        await until_async(lambda: under_test.context.responses.used > 3 * size)
        reading.set()
        for client in clients:
            await client.receive()
        assert most <= 4 * size
        await until_async(lambda: under_test.context.responses.used == 0)
