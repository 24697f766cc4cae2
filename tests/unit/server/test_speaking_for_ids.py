"""What the edge does for transactions: order, connections that are gone or overtaken, two-phase commit."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from support.brokers.in_memory import broker_in_memory, make_topic
from support.brokers.serving import Client, Produces, ServerUnderTest, serving
from support.waiting import until_async

from semel.broker.commit.pending_commands import Promise, resolved
from semel.server.listener import ListenerConfig
from semel.server.server import Server
from semel.wire.frames import decode_response_header
from semel.wire.messages import (
    APIS,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    ApiVersionsRequest,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    ProduceRequest,
)

END_TXN = 26


@asynccontextmanager
async def serving_all(**settings: Any) -> AsyncIterator[ServerUnderTest]:
    """A server with the real handlers and a real broker in memory."""
    async with broker_in_memory(**settings) as broker:
        server = Server(broker, [ListenerConfig("test", "127.0.0.1", 0)])
        await server.start()
        under_test = ServerUnderTest(server, broker)  # type: ignore[arg-type]
        try:
            yield under_test
        finally:
            await under_test.leave()
            await server.stop(grace_seconds=0.5)


async def ask(client: Client, message: Any, version: int) -> Any:
    """Send, and wait for the answer."""
    client.send(message, version)
    correlation_id, rest = await client.receive()
    frame = correlation_id.to_bytes(4, "big") + rest
    _, position = decode_response_header(frame, message.api_key, version)
    return APIS[message.api_key].response.decode(frame, version, position)


def adding(given: Any) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="t",
        v3_and_below_producer_id=given.producer_id,
        v3_and_below_producer_epoch=given.producer_epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name="a", partitions=[0])],
    )


async def test_the_broker_learns_of_connections_that_are_gone() -> None:
    async with serving() as under_test:
        clients = [await under_test.connect() for _ in range(3)]
        await until_async(lambda: len(under_test.context.connections) == 3)
        assert list(under_test.context.connections.values()) == [1, 2, 3]
        await clients[1].close()
        await until_async(lambda: under_test.broker.gone == [2])
    assert set(under_test.broker.gone) <= {1, 2, 3}


async def test_a_stop_does_not_count_as_clients_that_left() -> None:
    async with serving() as under_test:
        await under_test.connect()
        await until_async(lambda: len(under_test.context.connections) == 1)
        await under_test.server.stop(grace_seconds=0.5)
        assert not under_test.context.connections
        assert under_test.broker.gone == []


async def test_an_end_does_not_overtake_the_batches_before_it() -> None:
    begun: list[str] = []

    async def end_txn(broker: Any, request: Any, context: Any) -> EndTxnResponse:
        begun.append(request.transactional_id)
        return EndTxnResponse()

    produces = Produces()
    async with serving({END_TXN: end_txn}, produces) as under_test:
        client = await under_test.connect()
        for number in range(3):
            client.send(ProduceRequest(acks=-1, timeout_ms=number), 9)
        client.send(EndTxnRequest(transactional_id="t", committed=True), 3)
        client.send(ProduceRequest(acks=-1, timeout_ms=3), 9)
        await until_async(lambda: len(produces.waiting) == 3)
        assert begun == []
        for _ in range(3):
            produces.answer()
        await until_async(lambda: begun == ["t"])
        await until_async(lambda: len(produces.waiting) == 1)
        produces.answer()
        for _ in range(5):
            await client.receive()


async def test_nothing_overtakes_an_end_that_is_submitted() -> None:
    ends: list[Promise[Any]] = []
    produces = Produces()

    def end_txn(broker: Any, request: Any, context: Any) -> Promise[Any]:
        ends.append(Promise[Any]())
        return ends[-1]

    async with serving({END_TXN: end_txn}, produces) as under_test:
        client = await under_test.connect()
        client.send(ProduceRequest(acks=-1, timeout_ms=0), 9)
        client.send(EndTxnRequest(transactional_id="t", committed=True), 3)
        client.send(ProduceRequest(acks=-1, timeout_ms=1), 9)
        client.send(EndTxnRequest(transactional_id="t", committed=True), 3)
        await until_async(lambda: len(produces.waiting) == 1)
        assert not ends, "what is before it is not answered"
        produces.answer()
        await until_async(lambda: len(ends) == 1)
        await client.receive()
        assert not produces.waiting, "it is not answered itself"
        ends[0].resolve(EndTxnResponse())
        await until_async(lambda: len(produces.waiting) == 1)
        produces.answer()
        await until_async(lambda: len(ends) == 2)
        ends[1].resolve(EndTxnResponse())
        assert [(await client.receive())[0] for _ in range(3)] == [2, 3, 4]


async def test_what_is_submitted_outlives_its_client_and_gives_its_bytes_back() -> None:
    found = asyncio.Event()
    ends: list[Promise[Any]] = []

    def end_txn(broker: Any, request: Any, context: Any) -> Promise[Any]:
        async def later() -> None:
            await found.wait()
            ends.append(promise)

        promise: Promise[Any] = Promise(later())
        return promise

    async with serving({END_TXN: end_txn}) as under_test:
        client = await under_test.connect()
        client.send(EndTxnRequest(transactional_id="t", committed=True), 3)
        await until_async(lambda: under_test.context.requests.in_flight == 1)
        await client.close()
        await until_async(lambda: not under_test.context.connections)
        found.set()
        await until_async(lambda: len(ends) == 1)
        ends[0].resolve(EndTxnResponse())
        assert under_test.context.requests.in_flight == 0


async def test_a_mistake_in_an_answer_costs_the_one_who_asked() -> None:
    """The answer is made by the commit loop, whose end would be that of the process."""

    def respond(decided: Any) -> Any:
        raise LookupError("a mistake")

    def end_txn(broker: Any, request: Any, context: Any) -> Promise[Any]:
        return resolved([]).map(respond)

    async with serving({END_TXN: end_txn}) as under_test:
        client, other = await under_test.connect(), await under_test.connect()
        client.send(EndTxnRequest(transactional_id="t", committed=True), 3)
        assert await client.is_closed()
        assert (await ask(other, ApiVersionsRequest(), 0)).error_code == 0


async def test_what_comes_late_on_an_old_connection_is_not_answered() -> None:
    async with serving_all() as under_test:
        await make_topic(under_test.broker, "a")  # type: ignore[arg-type]
        old, new = await under_test.connect(), await under_test.connect()
        begin = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=10_000)
        given = await ask(old, begin, 4)
        [added] = (await ask(new, adding(given), 0)).results_by_topic_v3_and_below
        assert added.results_by_partition[0].partition_error_code == 0
        end = EndTxnRequest(
            transactional_id="t",
            producer_id=given.producer_id,
            producer_epoch=given.producer_epoch,
            committed=True,
        )
        old.send(end, 1)
        assert await old.is_closed()
        assert (await ask(new, end, 1)).error_code == 0


async def test_two_phase_commit_is_served_where_it_is_advertised() -> None:
    for enabled, highest in ((False, 5), (True, 6)):
        async with serving_all(transaction_two_phase_commit_enable=enabled) as under_test:
            client = await under_test.connect()
            versions = await ask(client, ApiVersionsRequest(), 0)
            assert {each.api_key: each.max_version for each in versions.api_keys}[22] == highest
            request = InitProducerIdRequest(transactional_id="t", enable2_pc=True)
            if enabled:
                assert (await ask(client, request, 6)).error_code == 0
            else:
                client.send(request, 6)
                assert await client.is_closed()


async def test_a_transaction_ends_with_its_connection_if_the_settings_say_so() -> None:
    async with serving_all(transaction_abort_on_disconnect=True) as under_test:
        broker: Any = under_test.broker
        await make_topic(broker, "a")
        client = await under_test.connect()
        begin = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=600_000)
        given = await ask(client, begin, 4)
        await ask(client, adding(given), 0)
        await client.close()

        async def aborted() -> Any:
            await broker.flush()
            [transaction] = await broker.store.ledger.transactions()
            return transaction if transaction.state.label == "CompleteAbort" else None

        transaction = await until_async(aborted)
        assert transaction.epoch == given.producer_epoch + 1
