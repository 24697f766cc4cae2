"""Memory is bounded by budgets, whoever sends much and whoever reads slowly.

A broker in a process of its own with small budgets, bulk producers that never wait for an answer, and fifty
consumers that ask for all they can get and take it slowly or not at all. The bound is what the settings add
up to, beside what the issue allows an idle broker. ``SEMEL_LOAD_SECONDS`` makes it longer.
"""

import os
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
from support.brokers.process import BrokerProcess
from support.clients.raw import RawClient, batch, produce_request
from support.waiting import until

from semel.allocator import KEPT_BYTES
from semel.wire.errors import ErrorCode
from semel.wire.frames import encode_request
from semel.wire.messages import FetchPartition, FetchRequest, FetchTopic

SECONDS = float(os.environ.get("SEMEL_LOAD_SECONDS", "2"))
MIB = 1024 * 1024
REQUESTS = RESPONSES = 16 * MIB
TICK = 8 * MIB
TAIL = 32 * MIB
LEDGER_CACHES = 3 * 16 * MIB
IDLE = 150 * MIB
BOUND = IDLE + REQUESTS + RESPONSES + TICK + TAIL + LEDGER_CACHES
AFTER_BURST = IDLE + 2 * KEPT_BYTES
"""What an idle broker may have: itself, and the free memory up to which it does not look for more."""
OPTIONS = (
    *("--set", f"queued.max.request.bytes={REQUESTS}"),
    *("--set", f"semel.queued.max.response.bytes={RESPONSES}"),
    *("--set", f"semel.tick.bytes.max={TICK}"),
    *("--set", f"semel.chunk.bytes.max={16 * MIB}"),
    *("--set", "log.retention.check.interval.ms=500"),
    *("--set", f"log.retention.bytes={64 * MIB}"),
)
PARTITIONS = 4
DEFAULT_EXECUTOR_THREADS = min(32, (os.cpu_count() or 1) + 4)
"""asyncio's own, which come when something is first done on them and stay."""


def fetch_frame(offset: int) -> bytes:
    partitions = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=50 * MIB)
        for index in range(PARTITIONS)
    ]
    request = FetchRequest(
        max_wait_ms=100,
        min_bytes=1,
        max_bytes=50 * MIB,
        topics=[FetchTopic(topic="t", partitions=partitions)],
    )
    return b"".join(encode_request(request, 11, 1, "slow"))


def slow_consumer(bootstrap: str) -> socket.socket:
    """Asks twenty times for everything, before it has read anything."""
    host, port = bootstrap.split(":")
    consumer = socket.socket()
    consumer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    consumer.connect((host, int(port)))
    consumer.settimeout(5)
    consumer.sendall(fetch_frame(0) * 20)
    return consumer


def bulk(bootstrap: str, partition: int, stopping: threading.Event, sent: list[int]) -> None:
    """Eight requests of half a megabyte under way, all the time."""
    record = batch(value=os.urandom(MIB // 2), timestamp=int(time.time() * 1000))
    frame = b"".join(encode_request(produce_request("t", record, partition=partition), 9, 1, "bulk"))
    with RawClient(bootstrap, timeout_seconds=60) as client:
        in_flight = 0
        while not stopping.is_set() or in_flight:
            while in_flight < 8 and not stopping.is_set():
                client.send_frame(frame[4:])
                in_flight += 1
            assert client.receive_frame() is not None
            in_flight -= 1
            sent.append(len(record))


def goes_on(deadline: float, is_enough: bool) -> bool:
    """Until the deadline, and longer if a busy machine has not done enough by then."""
    return time.monotonic() < deadline + (0 if is_enough else 60)


def test_memory_descriptors_and_threads_are_bounded(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", *OPTIONS) as broker:
        process = psutil.Process(broker.pid)
        with RawClient(broker.bootstrap) as client:
            client.create_topic("t", PARTITIONS)
            client.produce("t", batch(timestamp=int(time.time() * 1000)))
            client.fetch("t")
        idle = process.memory_info().rss
        assert idle < IDLE
        before = until(lambda: settled(process), what="an idle broker")
        threads = process.num_threads()
        stopping = threading.Event()
        sent: list[int] = []
        producers = [
            threading.Thread(target=bulk, args=(broker.bootstrap, index, stopping, sent))
            for index in range(PARTITIONS)
        ]
        for producer in producers:
            producer.start()
        peak = 0
        with ExitStack() as stack:
            consumers = [stack.enter_context(slow_consumer(broker.bootstrap)) for _ in range(50)]
            deadline = time.monotonic() + SECONDS
            while goes_on(deadline, sum(sent) > 2 * REQUESTS):
                for consumer in consumers[:25]:
                    nibble(consumer)
                peak = max(peak, process.memory_info().rss)
                time.sleep(0.02)
            stopping.set()
            for producer in producers:
                producer.join(60)
                assert not producer.is_alive(), "a producer was never answered"
        print(f"sent {sum(sent) >> 20} MiB; idle {idle >> 20}, peak {peak >> 20} of {BOUND >> 20} MiB")  # noqa: T201
        assert sum(sent) > 2 * REQUESTS
        assert peak < BOUND
        # Chunks that were read stay open, a bounded number of them; everything else is given back.
        until(lambda: 0 < settled(process) <= before + 64, what="closing what the clients held")
        assert process.num_threads() <= threads + DEFAULT_EXECUTOR_THREADS
        with RawClient(broker.bootstrap) as client:
            assert client.produce("t", batch()).error_code == ErrorCode.NONE


def test_the_memory_of_a_burst_is_given_back(tmp_path: Path) -> None:
    """Fifty consumers ask for all there is and take it slowly; when they are gone, so is the memory."""
    with BrokerProcess(tmp_path / "data", "--set", "message.max.bytes=8388608") as broker:
        process = psutil.Process(broker.pid)
        with RawClient(broker.bootstrap) as client:
            client.create_topic("t", PARTITIONS)
            for at in range(24):
                record = batch(value=os.urandom(2 * MIB), timestamp=int(time.time() * 1000))
                assert client.produce("t", record, partition=at % PARTITIONS).error_code == ErrorCode.NONE
        peak = 0
        with ExitStack() as stack:
            consumers = [stack.enter_context(slow_consumer(broker.bootstrap)) for _ in range(50)]
            deadline = time.monotonic()
            while goes_on(deadline, peak > AFTER_BURST):
                for consumer in consumers:
                    nibble(consumer)
                peak = max(peak, process.memory_info().rss)
                time.sleep(0.02)
        assert peak > AFTER_BURST, "this was no burst"
        until(lambda: process.memory_info().rss < AFTER_BURST, seconds=30, what="memory that is given back")


def nibble(consumer: socket.socket) -> None:
    consumer.setblocking(False)
    try:
        consumer.recv(1_000)
    except BlockingIOError:
        return
    except ConnectionError:
        # It was too slow for too long while others waited: the broker may close it.
        return


def settled(process: psutil.Process) -> int:
    """How many descriptors it has, once no client is connected."""
    connected = [each for each in process.net_connections("tcp") if each.status != psutil.CONN_LISTEN]
    return 0 if connected else process.num_fds()
