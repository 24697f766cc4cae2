"""Order, pipelining, back-pressure and timeouts of one connection, with handlers of the test's own."""

import asyncio
import gc
import logging
from collections.abc import Coroutine
from typing import Any

import pytest
import uvloop
from support.brokers.serving import Client, Produces, serving
from support.waiting import LIMIT_SECONDS, until_async

from semel.broker.commit.pending_commands import Promise
from semel.handlers.context import CloseConnection
from semel.server.in_flight import InFlightRequest
from semel.store.contract import StoreBroken, StoreFull
from semel.wire.messages import (
    ApiVersionsRequest,
    FetchRequest,
    FetchResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
)
from semel.wire.messages.fetch import FetchableTopicResponse, PartitionData

API_VERSIONS = ApiVersionsRequest(client_software_name="test", client_software_version="1")


@pytest.fixture(params=["asyncio", "uvloop"])
def loop_factory(request: pytest.FixtureRequest) -> Any:
    return uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop


def run(main: Coroutine[Any, Any, None], factory: Any = uvloop.new_event_loop) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main)


def produce(number: int, acks: int = -1) -> ProduceRequest:
    return ProduceRequest(acks=acks, timeout_ms=number)


def test_a_request_is_answered(loop_factory: Any) -> None:
    async def main() -> None:
        async with serving() as under_test:
            client = await under_test.connect()
            sent = client.send(API_VERSIONS, 3)
            correlation_id, _ = await client.receive()
            assert correlation_id == sent
            assert under_test.broker.metrics.apis[18].requests == 1

    run(main(), loop_factory)


def test_a_frame_split_at_every_byte_is_the_same_frame(loop_factory: Any) -> None:
    async def main() -> None:
        async with serving() as under_test:
            client = await under_test.connect()
            for at in range(1, len(client.frame(API_VERSIONS, 3))):
                frame = client.frame(API_VERSIONS, 3)
                client.writer.write(frame[:at])
                await client.writer.drain()
                received = under_test.broker.metrics.bytes_in
                await until_async(lambda: under_test.broker.metrics.bytes_in >= received)  # noqa: B023
                client.writer.write(frame[at:])
                correlation_id, _ = await client.receive()
                assert correlation_id == at + 1

    run(main(), loop_factory)


def test_produce_is_pipelined_and_answered_in_order(loop_factory: Any) -> None:
    async def main() -> None:
        produces = Produces()
        async with serving(produces=produces) as under_test:
            client = await under_test.connect()
            sent = [client.send(produce(number), 9) for number in range(5)]
            await until_async(lambda: len(produces.waiting) == 5)
            assert [request.timeout_ms for request, _ in produces.waiting] == [0, 1, 2, 3, 4]
            for index in (4, 2, 3, 1):  # finished in another order
                produces.answer(min(index, len(produces.waiting) - 1))
            await asyncio.sleep(0)
            assert under_test.broker.metrics.bytes_out == 0
            produces.answer(0)
            assert [(await client.receive())[0] for _ in sent] == sent

    run(main(), loop_factory)


def test_responses_of_one_turn_leave_in_one_write() -> None:
    async def main() -> None:
        produces = Produces()
        async with serving(produces=produces) as under_test:
            client = await under_test.connect()
            for number in range(10):
                client.send(produce(number), 9)
            await until_async(lambda: len(produces.waiting) == 10)
            (connection,) = under_test.context.connections
            writes: list[int] = []
            send = connection._send

            def note_and_send(outgoing: Any) -> None:
                writes.append(len(connection._out))
                send(outgoing)

            connection._send = note_and_send
            for _ in range(10):
                produces.answer()
            for _ in range(10):
                await client.receive()
            assert writes == [10]

    run(main())


def test_another_request_waits_for_produce_and_holds_up_what_follows(loop_factory: Any) -> None:
    """Read-your-writes: Produce, Metadata, Produce on one connection happen one after another."""

    async def main() -> None:
        produces = Produces()
        asked = asyncio.Event()
        go = asyncio.Event()

        async def metadata(broker: Any, request: Any, context: Any) -> MetadataResponse:
            asked.set()
            await go.wait()
            return MetadataResponse()

        async with serving({3: metadata}, produces) as under_test:
            client = await under_test.connect()
            sent = [client.send(produce(1), 9), client.send(MetadataRequest(), 9), client.send(produce(2), 9)]
            await until_async(lambda: len(produces.waiting) == 1)
            for _ in range(20):
                await asyncio.sleep(0)
            assert not asked.is_set()
            produces.answer()
            await asked.wait()
            assert produces.submitted == 1
            go.set()
            await until_async(lambda: produces.submitted == 2)
            produces.answer()
            assert [(await client.receive())[0] for _ in sent] == sent

    run(main(), loop_factory)


def test_a_parked_request_holds_up_its_own_connection_only() -> None:
    async def main() -> None:
        go = asyncio.Event()

        async def fetch(broker: Any, request: Any, context: Any) -> FetchResponse:
            await go.wait()
            return FetchResponse()

        async with serving({1: fetch}) as under_test:
            parked = await under_test.connect()
            first, second = parked.send(FetchRequest(), 12), parked.send(API_VERSIONS, 3)
            other = await under_test.connect()
            other.send(API_VERSIONS, 3)
            await other.receive()
            assert not await parked.is_closed(0.02)
            go.set()
            assert [(await parked.receive())[0], (await parked.receive())[0]] == [first, second]

    run(main())


def test_acks_0_is_not_answered_and_does_not_hold_up_what_follows() -> None:
    async def main() -> None:
        produces = Produces()
        async with serving(produces=produces) as under_test:
            client = await under_test.connect()
            client.send(produce(1, acks=0), 9)
            asked = client.send(API_VERSIONS, 3)
            await until_async(lambda: len(produces.waiting) == 1)
            produces.answer(0, None)
            assert (await client.receive())[0] == asked

    run(main())


def test_requests_in_flight_are_limited_and_reading_stops() -> None:
    async def main() -> None:
        produces = Produces()
        async with serving(produces=produces, semel_requests_in_flight_max=3) as under_test:
            client = await under_test.connect()
            sent = [client.send(produce(number), 9) for number in range(10)]
            await until_async(lambda: produces.submitted == 3)
            (connection,) = under_test.context.connections
            await until_async(lambda: not connection._is_reading)
            for answered in range(10):
                await until_async(lambda: bool(produces.waiting))
                assert len(produces.waiting) <= 3
                produces.answer()
                assert (await client.receive())[0] == sent[answered]
            await until_async(lambda: connection._is_reading)

    run(main())


def test_a_full_disk_is_no_mistake(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async def metadata(broker: Any, request: Any, context: Any) -> MetadataResponse:
            raise StoreFull("no room for what was committed")

        async with serving({3: metadata}) as under_test:
            client = await under_test.connect()
            client.send(MetadataRequest(), 9)
            assert await client.is_closed()
            assert under_test.broker.metrics.connections_closed == {"no room": 1}
            assert not under_test.broker.failures

    with caplog.at_level(logging.ERROR):
        run(main())
    assert not caplog.records


def test_a_mistake_in_a_handler_costs_one_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async def metadata(broker: Any, request: Any, context: Any) -> MetadataResponse:
            raise ZeroDivisionError("a mistake")

        async with serving({3: metadata}) as under_test:
            other, client = await under_test.connect(), await under_test.connect()
            client.send(MetadataRequest(), 9)
            assert await client.is_closed()
            other.send(API_VERSIONS, 3)
            await other.receive()
            assert under_test.broker.metrics.apis[3].errors == 1
            assert under_test.broker.metrics.connections_closed == {"internal error": 1}
            assert not under_test.broker.failures

    with caplog.at_level(logging.ERROR):
        run(main())
    assert any(record.exc_info and "a request failed" in record.message for record in caplog.records)


def test_a_mistake_in_produce_costs_one_connection(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Produces):
        def handle(self, *_: Any) -> Promise[Any]:
            raise KeyError("a mistake")

    async def main() -> None:
        async with serving(produces=Broken()) as under_test:
            other, client = await under_test.connect(), await under_test.connect()
            client.send(produce(1), 9)
            assert await client.is_closed()
            other.send(API_VERSIONS, 3)
            await other.receive()

    run(main())


def test_a_refused_request_is_freed_without_the_garbage_collector(caplog: pytest.LogCaptureFixture) -> None:
    """An error refers to the stack, and that to the request with its frame."""

    class Refusing(Produces):
        def handle(self, *_: Any) -> Promise[Any]:
            raise CloseConnection("acks=0 failed")

    def requests_in_memory() -> int:
        return sum(type(each) is InFlightRequest for each in gc.get_objects())

    async def main() -> None:
        async with serving(produces=Refusing()) as under_test:
            gc.collect()
            gc.disable()
            before = requests_in_memory()
            for _ in range(5):
                client = await under_test.connect()
                client.send(produce(1, acks=0), 9)
                assert await client.is_closed()
            await until_async(lambda: not under_test.context.connections)
            assert requests_in_memory() == before

    caplog.set_level(logging.CRITICAL, "semel.server")  # what is captured is kept
    try:
        run(main())
    finally:
        gc.enable()


def test_a_response_that_cannot_be_encoded_costs_one_connection() -> None:
    async def main() -> None:
        async def heartbeat(broker: Any, request: Any, context: Any) -> HeartbeatResponse:
            return HeartbeatResponse(throttle_time_ms=1 << 40)

        async with serving({12: heartbeat}) as under_test:
            client = await under_test.connect()
            client.send(HeartbeatRequest(), 4)
            assert await client.is_closed()

    run(main())


def test_a_broken_store_is_fatal() -> None:
    async def main() -> None:
        async def metadata(broker: Any, request: Any, context: Any) -> MetadataResponse:
            raise StoreBroken("the disk is gone")

        async with serving({3: metadata}) as under_test:
            client = await under_test.connect()
            client.send(MetadataRequest(), 9)
            assert await client.is_closed()
            assert [type(each) for each in under_test.broker.failures] == [StoreBroken]

    run(main())


def test_close_connection_answers_what_came_before() -> None:
    async def main() -> None:
        produces = Produces()
        async with serving(produces=produces) as under_test:
            client = await under_test.connect()
            first = client.send(produce(1), 9)
            client.send(produce(2, acks=0), 9)
            await until_async(lambda: len(produces.waiting) == 2)
            produces.answer(1, CloseConnection("acks=0 failed"))
            produces.answer(0)
            assert (await client.receive())[0] == first
            assert await client.is_closed()

    run(main())


def test_garbage_behind_requests_closes_after_they_are_answered() -> None:
    async def main() -> None:
        produces = Produces()
        async with serving(produces=produces) as under_test:
            client = await under_test.connect()
            first = client.send(produce(1), 9)
            await until_async(lambda: len(produces.waiting) == 1)
            client.writer.write(b"\xff\xff\xff\xff")
            await until_async(lambda: bool(under_test.broker.metrics.connections_closed))
            produces.answer()
            assert (await client.receive())[0] == first
            assert await client.is_closed()

    run(main())


def test_a_client_that_leaves_drops_its_answer_and_nothing_else() -> None:
    async def main() -> None:
        produces = Produces()
        cancelled = asyncio.Event()

        async def fetch(broker: Any, request: Any, context: Any) -> FetchResponse:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.set()
                raise
            return FetchResponse()

        async with serving({1: fetch}, produces) as under_test:
            producer, consumer = await under_test.connect(), await under_test.connect()
            producer.send(produce(1), 9)
            consumer.send(FetchRequest(), 12)
            await until_async(lambda: produces.submitted == 1 and under_test.context.responses.fetches == 1)
            await producer.close()
            await consumer.close()
            await cancelled.wait()
            await until_async(lambda: not under_test.context.connections)
            assert under_test.context.requests.used > 0  # the commit loop still holds the batch
            produces.answer()
            assert under_test.context.requests.used == 0

    run(main())


def test_produce_without_acks_counts_though_the_client_left_right_after(loop_factory: Any) -> None:
    """Sixty requests, three at a time, and a goodbye behind them."""

    async def main() -> None:
        produces = Produces()
        async with serving(produces=produces, semel_requests_in_flight_max=3) as under_test:
            client = await under_test.connect()
            for number in range(60):
                client.send(produce(number, acks=0), 9)
            await client.writer.drain()
            await until_async(lambda: produces.submitted == 3)
            client.writer.write_eof()
            for expected in range(60):
                await until_async(lambda: bool(produces.waiting))
                assert produces.waiting[0][0].timeout_ms == expected
                produces.answer(0, None)
            assert await client.is_closed()

    run(main(), loop_factory)


def test_a_goodbye_counts_though_the_client_left_right_after(loop_factory: Any) -> None:
    """Behind a heartbeat that takes its time."""

    async def main() -> None:
        begun, go, left = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def heartbeat(broker: Any, request: Any, context: Any) -> HeartbeatResponse:
            begun.set()
            await go.wait()
            return HeartbeatResponse()

        async def leave(broker: Any, request: Any, context: Any) -> LeaveGroupResponse:
            left.set()
            return LeaveGroupResponse()

        async with serving({12: heartbeat, 13: leave}) as under_test:
            client = await under_test.connect()
            client.send(HeartbeatRequest(), 0)
            client.send(LeaveGroupRequest(), 0)
            await begun.wait()
            client.writer.write_eof()
            await asyncio.sleep(0.05)
            go.set()
            async with asyncio.timeout(LIMIT_SECONDS):
                await left.wait()
            await until_async(lambda: not under_test.context.connections)

    run(main(), loop_factory)


@pytest.mark.filterwarnings("error")
def test_a_request_that_is_cancelled_before_it_starts_gives_its_bytes_back(loop_factory: Any) -> None:
    async def main() -> None:
        async def heartbeat(broker: Any, request: Any, context: Any) -> HeartbeatResponse:
            raise AssertionError("it must not start")

        async with serving({12: heartbeat}) as under_test:
            client = await under_test.connect()
            await until_async(lambda: len(under_test.context.connections) == 1)
            (connection,) = under_test.context.connections
            connection.data_received(client.frame(HeartbeatRequest(), 0))
            assert under_test.context.requests.in_flight == 1
            connection.abort()
            connection.connection_lost(None)
            await until_async(lambda: under_test.context.requests.in_flight == 0)
            assert under_test.context.requests.used == 0
            gc.collect()

    run(main(), loop_factory)


def test_a_lookup_before_produce_keeps_the_order_and_outlives_the_client() -> None:
    """The first Produce has to look its topic up; the second does not, and must not overtake it."""

    async def main() -> None:
        found = asyncio.Event()

        class LooksUp(Produces):
            def handle(self, broker: Any, request: ProduceRequest, context: Any) -> Promise[Any]:
                async def later() -> None:
                    await found.wait()
                    super(LooksUp, self).handle(broker, request, context).then(promise.resolve)

                if request.timeout_ms != 1:
                    return super().handle(broker, request, context)
                promise: Promise[Any] = Promise(later())
                return promise

        produces = LooksUp()
        async with serving(produces=produces) as under_test:
            client = await under_test.connect()
            client.send(produce(1), 9)
            client.send(produce(2), 9)
            await until_async(lambda: under_test.context.requests.in_flight == 1)
            for _ in range(10):
                await asyncio.sleep(0)
            assert produces.submitted == 0
            found.set()
            await until_async(lambda: produces.submitted == 2)
            assert [request.timeout_ms for request, _ in produces.waiting] == [1, 2]
            produces.answer()
            produces.answer()
            await client.receive()
            await client.receive()
            found.clear()
            client.send(produce(1), 9)
            await until_async(lambda: under_test.context.requests.in_flight == 1)
            await client.close()
            await until_async(lambda: not under_test.context.connections)
            found.set()
            await until_async(lambda: produces.submitted == 3)
            produces.answer()

    run(main())


def test_more_connections_than_allowed_are_closed_at_once() -> None:
    async def main() -> None:
        async with serving(max_connections=2) as under_test:
            first, second = await under_test.connect(), await under_test.connect()
            for client in (first, second):
                client.send(API_VERSIONS, 3)
                await client.receive()
            third = await under_test.connect()
            assert await third.is_closed()
            await first.close()
            await until_async(lambda: len(under_test.context.connections) == 1)
            fourth = await under_test.connect()
            fourth.send(API_VERSIONS, 3)
            await fourth.receive()

    run(main())


def test_a_silent_client_is_closed_but_not_one_that_waits() -> None:
    async def main() -> None:
        go = asyncio.Event()

        async def fetch(broker: Any, request: Any, context: Any) -> FetchResponse:
            await go.wait()
            return FetchResponse()

        async with serving({1: fetch}, connections_max_idle_ms=60_000) as under_test:
            waiting, silent = await under_test.connect(), await under_test.connect()
            waiting.send(FetchRequest(), 12)
            await until_async(lambda: under_test.context.responses.fetches == 1)
            await until_async(lambda: len(under_test.context.connections) == 2)
            under_test.check_after(61)
            assert await silent.is_closed()
            assert under_test.broker.metrics.connections_closed == {"idle": 1}
            go.set()
            await waiting.receive()
            under_test.check_after(61)
            assert await waiting.is_closed()

    run(main())


@pytest.mark.parametrize("beginning", [b"\x00", b"\x00\x00\x00\x20", b"\x00\x00\x00\x20\x00\x12"])
def test_a_frame_that_does_not_end_is_closed(beginning: bytes) -> None:
    async def main() -> None:
        async with serving(semel_write_timeout_ms=80) as under_test:
            client = await under_test.connect()
            client.writer.write(beginning)
            assert await client.is_closed()
            assert under_test.broker.metrics.connections_closed == {"slow sender": 1}

    run(main())


def big_response(size: int) -> FetchResponse:
    partition = PartitionData(partition_index=0, records=bytes(size))
    return FetchResponse(responses=[FetchableTopicResponse(partitions=[partition])])


async def big_fetch(broker: Any, request: FetchRequest, context: Any) -> FetchResponse:
    return big_response(min(request.max_bytes, 20 << 20))


def test_a_client_that_does_not_read_gets_nothing_more_begun_and_is_closed(loop_factory: Any) -> None:
    async def main() -> None:
        async with serving({1: big_fetch}, semel_write_timeout_ms=300) as under_test:
            client = await under_test.connect(limit=1024)
            for _ in range(10):
                client.send(FetchRequest(), 12)
            await until_async(lambda: under_test.context.responses.used > 0)
            assert under_test.broker.metrics.apis[1].requests == 1
            other = await under_test.connect()
            other.send(API_VERSIONS, 3)
            await other.receive()
            await until_async(lambda: under_test.context.responses.used == 0)
            assert under_test.broker.metrics.connections_closed == {"slow reader": 1}
            assert under_test.broker.metrics.apis[1].requests == 1

    run(main(), loop_factory)


def test_slow_readers_over_the_budget_make_room_for_others() -> None:
    """With a long write timeout, those who hold the memory that others wait for are closed early."""

    async def fetch(broker: Any, request: FetchRequest, context: Any) -> FetchResponse:
        return big_response(request.min_bytes)

    async def main() -> None:
        async with serving({1: fetch}, semel_queued_max_response_bytes=24 << 20) as under_test:
            for _ in range(2):
                stuck = await under_test.connect(limit=1024)
                stuck.send(FetchRequest(min_bytes=20 << 20), 12)
            await until_async(lambda: under_test.context.responses.exceeded)
            reader = await under_test.connect()
            reader.send(FetchRequest(min_bytes=1 << 20), 12)
            await until_async(lambda: under_test.context.responses.is_waited_for)
            under_test.check_after(0)
            under_test.check_after(2)
            await reader.receive()
            assert under_test.broker.metrics.connections_closed["slow reader"] >= 1
            assert under_test.context.responses.used <= 24 << 20

    run(main())


def test_a_fetch_is_told_its_share_of_what_is_left() -> None:
    async def main() -> None:
        asked: list[int] = []
        go = asyncio.Event()

        async def fetch(broker: Any, request: FetchRequest, context: Any) -> FetchResponse:
            asked.append(request.max_bytes)
            await go.wait()
            return FetchResponse()

        async with serving({1: fetch}, semel_queued_max_response_bytes=12 << 20) as under_test:
            clients: list[Client] = []
            for number in range(3):
                clients.append(await under_test.connect())
                clients[-1].send(FetchRequest(max_bytes=50 << 20), 12)
                await until_async(lambda: len(asked) == number + 1)  # noqa: B023
            assert asked == [12 << 20, 6 << 20, 4 << 20]
            go.set()
            for client in clients:
                await client.receive()

    run(main())


def test_over_the_request_budget_others_are_not_read_and_then_are() -> None:
    async def main() -> None:
        produces = Produces()
        async with serving(produces=produces, queued_max_request_bytes=10_000) as under_test:
            first, second = await under_test.connect(), await under_test.connect()
            large = ProduceRequest(transactional_id="x" * 12_000)
            first.send(large, 9)
            await until_async(lambda: produces.submitted == 1)
            second.send(large, 9)
            await until_async(lambda: under_test.context.requests.is_waited_for)
            assert await second.is_closed(0.02) is False
            produces.answer()
            await first.receive()
            await until_async(lambda: len(produces.waiting) == 1)
            produces.answer()
            await second.receive()
            await until_async(lambda: not under_test.context.requests.is_waited_for)

    run(main())


def test_half_frames_over_the_budget_do_not_stop_everyone() -> None:
    """All bytes are held by frames that have not ended: one after another is let through to its end.

    Also while a Fetch is parked, which is under way but gives nothing back for long.
    """

    async def fetch(broker: Any, request: FetchRequest, context: Any) -> FetchResponse:
        await asyncio.sleep(60)
        return FetchResponse()

    async def main() -> None:
        produces = Produces(answer_at_once=True)
        async with serving({1: fetch}, produces, queued_max_request_bytes=30_000) as under_test:
            consumer = await under_test.connect()
            consumer.send(FetchRequest(), 12)
            await until_async(lambda: under_test.context.responses.fetches == 1)
            clients = [await under_test.connect() for _ in range(6)]
            frames = [client.frame(ProduceRequest(transactional_id="x" * 20_000), 9) for client in clients]
            for client, frame in zip(clients, frames, strict=True):
                client.writer.write(frame[:10_000])
            await until_async(lambda: under_test.context.requests.used > 30_000)
            for client, frame in zip(clients, frames, strict=True):
                client.writer.write(frame[10_000:])
            for client in clients:
                await client.receive()

    run(main())


def test_a_graceful_stop_answers_what_was_begun_and_begins_nothing() -> None:
    async def main() -> None:
        produces = Produces()
        async with serving(produces=produces, semel_requests_in_flight_max=1) as under_test:
            client, idle = await under_test.connect(), await under_test.connect()
            first = client.send(produce(1), 9)
            client.send(produce(2), 9)
            await until_async(lambda: len(under_test.context.connections) == 2 and produces.submitted == 1)
            stopping = asyncio.create_task(under_test.server.stop(grace_seconds=5))
            assert await idle.is_closed()
            with pytest.raises(ConnectionError):
                await under_test.connect()
            produces.answer()
            assert (await client.receive())[0] == first
            assert await client.is_closed()
            await stopping
            assert produces.submitted == 1

    run(main())


def test_a_stop_cuts_what_does_not_end_within_the_grace() -> None:
    async def main() -> None:
        produces = Produces()
        async with serving(produces=produces) as under_test:
            client = await under_test.connect()
            client.send(produce(1), 9)
            await until_async(lambda: produces.submitted == 1)
            await under_test.server.stop(grace_seconds=0.05)
            assert await client.is_closed()
            produces.answer()

    run(main())
