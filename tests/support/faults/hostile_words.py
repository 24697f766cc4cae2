"""Helpers for writing hostile input: hand-made frames and headers, batches that are wrong in one place."""

import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import crc32c

from semel.wire.errors import ErrorCode
from semel.wire.frames import encode_request
from semel.wire.messages import FetchRequest, ProduceRequest
from semel.wire.messages.fetch import FetchPartition, FetchTopic
from semel.wire.messages.produce import PartitionProduceData, TopicProduceData
from semel.wire.records import Record, encode_batch
from semel.wire.schema import Declared, Request

TOPIC = "hostile"
CORRELATION_ID = 7

#: Position and struct format of each field of a batch header.
BATCH_FIELDS = {
    "base_offset": (0, ">q"),
    "length": (8, ">i"),
    "leader_epoch": (12, ">i"),
    "magic": (16, ">B"),
    "crc": (17, ">I"),
    "attributes": (21, ">h"),
    "last_offset_delta": (23, ">i"),
    "base_timestamp": (27, ">q"),
    "max_timestamp": (35, ">q"),
    "producer_id": (43, ">q"),
    "producer_epoch": (51, ">h"),
    "base_sequence": (53, ">i"),
    "record_count": (57, ">i"),
}


@dataclass(frozen=True)
class Closed:
    """The broker must close the connection without a response."""


@dataclass(frozen=True)
class Answered:
    """The broker must answer with these error codes; None if any code is accepted."""

    api_key: int
    version: int
    codes: frozenset[int] | None = None


@dataclass(frozen=True)
class ClosedOrAnswered:
    """The broker may close the connection or answer."""


Expected = Closed | Answered | ClosedOrAnswered


CLOSED = Closed()
EITHER = ClosedOrAnswered()
INT_MAX = 2**31 - 1


def answered(api_key: int, version: int, *errors: ErrorCode) -> Answered:
    return Answered(api_key, version, frozenset(int(error) for error in errors) if errors else None)


@dataclass(frozen=True)
class Hostile:
    """One hostile input: its number in the catalogue, a description, its bytes, and the expected result."""

    number: int
    name: str
    data: bytes
    expected: Expected
    trickle_seconds: float = 0.0
    """Send one byte at a time, with this pause between bytes."""
    is_work: bool = False
    """Not malformed, only large: it may take longer than a second while other clients are served."""


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def header(
    api_key: int, version: int, client_id: bytes = b"hostile", length: int | None = None, tags: bytes = b""
) -> bytes:
    size = len(client_id) if length is None else length
    return struct.pack(">hhih", api_key, version, CORRELATION_ID, size) + client_id + tags


def call(api_key: int, version: int, body: bytes, tags: bytes = b"") -> bytes:
    """Build a frame with a correct header and this body."""
    return frame(header(api_key, version, tags=tags) + body)


def request(message: Request, version: int) -> bytes:
    """Build a well-formed frame; only its content is hostile."""
    return b"".join(encode_request(message, version, CORRELATION_ID, "hostile"))


def batch(*, is_sealed: bool = True, payload: bytes | None = None, **patches: int) -> bytes:
    """Build a valid batch of one record, overwrite these header fields; if sealed, correct the checksum."""
    timestamp = int(time.time() * 1000)  # a topic may refuse timestamps that are too old or too far ahead
    data = bytearray(encode_batch([Record(offset=0, timestamp=timestamp, key=b"k", value=b"v")]))
    if payload is not None:
        data[61:] = payload
        struct.pack_into(">i", data, 8, len(data) - 12)
    for name, value in patches.items():
        position, form = BATCH_FIELDS[name]
        struct.pack_into(form, data, position, value)
    if is_sealed:
        struct.pack_into(">I", data, 17, crc32c.crc32c(bytes(data[21:])))
    return bytes(data)


def produce(
    records: bytes | None,
    *,
    version: int = 9,
    partition: int = 0,
    topic: str = TOPIC,
    acks: int = -1,
    transactional_id: str | None = None,
    times: int = 1,
) -> bytes:
    data = [PartitionProduceData(index=partition, records=records) for _ in range(times)]
    message = ProduceRequest(
        acks=acks,
        timeout_ms=1_000,
        transactional_id=transactional_id,
        topic_data=[TopicProduceData(name=topic, partition_data=data)],
    )
    return request(message, version)


def fetch(
    *,
    partition: int = 0,
    partitions: int = 1,
    version: int = 12,
    offset: int = 0,
    bytes_each: int = 1 << 20,
    **changes: Any,
) -> bytes:
    asked = [
        FetchPartition(partition=partition + index, fetch_offset=offset, partition_max_bytes=bytes_each)
        for index in range(partitions)
    ]
    message = FetchRequest(max_wait_ms=1, topics=[FetchTopic(topic=TOPIC, partitions=asked)])
    for name, value in changes.items():
        setattr(message, name, value)
    return request(message, version)


def error_codes(message: Any) -> Iterator[int]:
    """Every error code in a response, at any depth."""
    if isinstance(message, Declared):
        for name in message.declared:
            value = getattr(message, name)
            if name == "error_code":
                yield int(value)
            else:
                yield from error_codes(value)
    elif isinstance(message, list):
        for value in message:
            yield from error_codes(value)
