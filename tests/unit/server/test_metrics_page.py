"""The metrics page, as Prometheus and as somebody with bad manners would ask for it."""

import asyncio
import contextlib
import json
import socket
from collections.abc import Coroutine
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.waiting import LIMIT_SECONDS, until_async

from semel.broker.commit.pending_commands import PendingCommands
from semel.broker.commit.tick import Tick
from semel.broker.metrics import Metrics
from semel.broker.metrics_text import page as page_of
from semel.core.facts import ProducerIdAllocated
from semel.core.log.partition import AllocateProducerId
from semel.server.metrics_page import CLIENTS_MAX, REQUEST_BYTES_MAX, MetricsPage, MetricsThread


async def ask(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        async with asyncio.timeout(LIMIT_SECONDS):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def samples(metrics: Metrics) -> dict[str, float]:
    families = text_string_to_metric_families(page_of(metrics).decode())
    return {
        sample.name + "".join(f"[{value}]" for value in sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_what_was_counted_is_on_the_page() -> None:
    metrics = Metrics()
    metrics.apis[0].requests = 3
    metrics.apis[0].seconds.observe(0.002)
    tick = Tick([PendingCommands([AllocateProducerId()] * 7)])
    tick.durable = [ProducerIdAllocated(1)] * 5
    tick.is_synced = True
    metrics.observe_tick(tick, 0.01)
    metrics.observe_loop_lag(0.3)
    metrics.observe_loop_lag(0.1)
    metrics.count_closed("idle")
    metrics.gauge("disk_free_bytes", "Free.", lambda: 42)
    page = samples(metrics)
    assert page["semel_requests_total[Produce]"] == 3
    assert page["semel_request_seconds_count[Produce]"] == 1
    assert page["semel_request_seconds_bucket[Produce][0.001]"] == 0
    assert page["semel_request_seconds_bucket[Produce][0.0025]"] == 1
    assert page["semel_ticks_total"] == 1
    assert page["semel_facts_total"] == 5
    assert page["semel_flush_seconds_sum"] == 0.01
    assert page["semel_commands_per_tick_bucket[10.0]"] == 1
    assert (page["semel_loop_lag_seconds"], page["semel_loop_lag_max_seconds"]) == (0.1, 0.3)
    assert page["semel_connections_closed_total[idle]"] == 1
    assert page["semel_disk_free_bytes"] == 42


def test_a_flush_takes_as_long_as_those_that_were() -> None:
    """Most turns of a busy broker with transactions flush nothing; as zeros they would hide a slow disk."""
    metrics = Metrics()
    for is_unsynced, is_synced in ((False, False), (True, False), (False, True)):
        tick = Tick([PendingCommands([])])
        tick.is_unsynced, tick.is_synced = is_unsynced, is_synced
        metrics.observe_tick(tick, 0.01)
    page = samples(metrics)
    assert page["semel_ticks_total"] == page["semel_decide_seconds_count"] == 3
    assert page["semel_commit_seconds_count"] == 2
    assert (page["semel_flush_seconds_count"], page["semel_flush_seconds_sum"]) == (1, 0.01)


def test_two_brokers_do_not_share_their_counters() -> None:
    first, second = Metrics(), Metrics()
    first.bytes_in = 10
    assert samples(first)["semel_received_bytes_total"] == 10
    assert samples(second)["semel_received_bytes_total"] == 0


def test_pages() -> None:
    async def main() -> None:
        is_serving = True
        page = MetricsPage(lambda: page_of(Metrics()), lambda: (is_serving, {"cluster_id": "c"}))
        port = await page.start("127.0.0.1", 0)
        answer = await ask(port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"semel_ticks_total 0.0" in answer
        head = await ask(port, b"HEAD /metrics?x=1 HTTP/1.1\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert head.endswith(b"\r\n\r\n")
        health = await ask(port, b"GET /health HTTP/1.0\r\n\r\n")
        assert json.loads(health.partition(b"\r\n\r\n")[2]) == {"status": "serving", "cluster_id": "c"}
        is_serving = False
        assert (await ask(port, b"GET /health HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 503 ")
        assert (await ask(port, b"GET / HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 404 ")
        assert (await ask(port, b"POST /metrics HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 405 ")
        assert (await ask(port, b"\x00\x00\x00\x10hello\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
        assert (await ask(port, b"x" * (REQUEST_BYTES_MAX * 2) + b"\r\n\r\n"))[:13] in (b"HTTP/1.1 400 ", b"")
        await page.stop()

    run(main())


def test_only_a_few_are_served_at_a_time_and_stop_lets_go_of_them() -> None:
    async def main() -> None:
        page = MetricsPage(lambda: page_of(Metrics()), lambda: (True, {}))
        port = await page.start("127.0.0.1", 0)
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CLIENTS_MAX)]
        await until_async(lambda: len(page._clients) == CLIENTS_MAX)
        assert await ask(port, b"GET /health HTTP/1.1\r\n\r\n") == b""
        await page.stop()
        assert not page._clients
        for reader, writer in silent:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()

    run(main())


def test_a_program_without_an_event_loop_serves_it_on_a_thread() -> None:
    page = MetricsPage(lambda: b"up 1\n", lambda: (True, {}))
    with MetricsThread(page, "127.0.0.1", 0) as served:
        with urlopen(f"http://127.0.0.1:{served.port}/metrics", timeout=LIMIT_SECONDS) as answer:
            assert answer.read() == b"up 1\n"
        with pytest.raises(OSError, match="in use"):
            MetricsThread(page, "127.0.0.1", served.port)
        idle = socket.create_connection(("127.0.0.1", served.port))
    with contextlib.suppress(ConnectionResetError):  # It was still to be accepted.
        assert idle.recv(1) == b""
    idle.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", served.port))
