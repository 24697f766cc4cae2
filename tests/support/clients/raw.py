"""A raw client: one socket, any request in any version, and the response unchanged.

It does not retry, negotiate, pipeline or hide an error code. Beside `ask` it has the few requests that tests
of the log often need, each for one partition.
"""

import contextlib
import socket
import struct
from collections.abc import Sequence
from typing import Any, Self

from semel.wire.errors import ErrorCode
from semel.wire.frames import decode_response_header, encode_request
from semel.wire.messages import (
    APIS,
    CreatableTopic,
    CreateTopicsRequest,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    InitProducerIdRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    PartitionData,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from semel.wire.records import BatchHeader, Record, encode_batch, iter_batches
from semel.wire.schema import Request
from support.waiting import LIMIT_SECONDS

SIZE = struct.Struct(">i")
NOW = 1_700_000_000_000
KEEPS_RECORDS = {"log.retention.ms": -1}
"""For brokers that receive batches with the timestamp NOW, which is older than Kafka's default retention."""


def batch(
    sequence: int = -1, count: int = 1, *, value: bytes = b"value", timestamp: int = NOW, **fields: Any
) -> bytes:
    """A batch of `count` equal records; idempotent with `producer_id` and `producer_epoch`."""
    records = [Record(0, timestamp, None, value) for _ in range(count)]
    return encode_batch(records, base_sequence=sequence, **fields)


class RawClient:
    """One connection. `ask` sends a request and reads the response; `send` and `receive_frame` do half."""

    def __init__(
        self, bootstrap: str, client_id: str | None = "raw", timeout_seconds: float = LIMIT_SECONDS
    ) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout_seconds)
        self._client_id = client_id
        self._correlation_id = 0

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, request: Request, version: int) -> int:
        """Send without waiting; return the correlation id."""
        self._correlation_id += 1
        parts = encode_request(request, version, self._correlation_id, self._client_id)
        self._socket.sendall(b"".join(parts))
        return self._correlation_id

    def send_frame(self, payload: bytes) -> None:
        """Send any bytes as one frame."""
        self._socket.sendall(SIZE.pack(len(payload)) + payload)

    def send_header(self, api_key: int, version: int, body: bytes = b"") -> int:
        """Send a hand-made request with a non-flexible header, even in a version unknown to the codec."""
        self._correlation_id += 1
        name = (self._client_id or "").encode()
        self.send_frame(struct.pack(">hhih", api_key, version, self._correlation_id, len(name)) + name + body)
        return self._correlation_id

    def receive_frame(self) -> bytes | None:
        """The payload of the next frame, or None if the broker has closed the connection."""
        size = self._exactly(SIZE.size)
        return None if size is None else self._exactly(SIZE.unpack(size)[0])

    def is_closed_by_broker(self) -> bool:
        """Wait for the next frame or the end: True if the broker closes the connection instead."""
        return self.receive_frame() is None

    def ask(self, request: Request, version: int) -> Any:
        """Send, read the next response, and check its correlation id."""
        correlation_id = self.send(request, version)
        frame = self.receive_frame()
        assert frame is not None, f"the broker closed the connection on {type(request).__name__} v{version}"
        answered, position = decode_response_header(frame, request.api_key, version)
        assert answered == correlation_id
        return APIS[request.api_key].response.decode(frame, version, position)

    def create_topic(self, name: str, partitions: int = 1) -> None:
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
        answer = self.ask(CreateTopicsRequest(topics=[topic]), 5).topics[0]
        assert answer.error_code == ErrorCode.NONE, answer

    def new_producer(self) -> int:
        """Return a new producer id, at epoch 0."""
        answer = self.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), 4)
        assert (answer.error_code, answer.producer_epoch) == (ErrorCode.NONE, 0)
        producer_id: int = answer.producer_id
        return producer_id

    def produce(
        self, topic: str, records: bytes | None, *, partition: int = 0, version: int = 9, acks: int = -1
    ) -> PartitionProduceResponse:
        request = produce_request(topic, records, partition=partition, acks=acks)
        answer = self.ask(request, version).responses[0].partition_responses[0]
        assert isinstance(answer, PartitionProduceResponse)
        return answer

    def fetch(self, topic: str, offset: int = 0, *, partition: int = 0, version: int = 11) -> PartitionData:
        wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic=topic, partitions=[wanted])]
        )
        answer = self.ask(request, version).responses[0].partitions[0]
        assert isinstance(answer, PartitionData)
        return answer

    def log_start(self, topic: str, partition: int = 0) -> int:
        """Return the log start offset, by ListOffsets."""
        wanted = ListOffsetsPartition(partition_index=partition, timestamp=-2)
        topics = [ListOffsetsTopic(name=topic, partitions=[wanted])]
        answer = self.ask(ListOffsetsRequest(topics=topics), 7).topics[0].partitions[0]
        assert answer.error_code == ErrorCode.NONE
        offset: int = answer.offset
        return offset

    def headers(self, topic: str, partition: int = 0) -> list[BatchHeader]:
        """Return the headers of all batches of a (small) partition, as they are stored."""
        found: list[BatchHeader] = []
        while True:
            answer = self.fetch(topic, found[-1].last_offset + 1 if found else 0, partition=partition)
            assert answer.error_code == ErrorCode.NONE
            fetched: Sequence[BatchHeader] = [header for _, header in iter_batches(answer.records or b"")]
            if not fetched:
                return found
            found.extend(fetched)

    def _exactly(self, count: int) -> bytes | None:
        data = bytearray()
        with contextlib.suppress(ConnectionResetError):
            while len(data) < count:
                piece = self._socket.recv(count - len(data))
                if not piece:
                    break
                data += piece
        return bytes(data) if len(data) == count else None


def produce_request(
    topic: str, records: bytes | None, *, partition: int = 0, acks: int = -1
) -> ProduceRequest:
    part = PartitionProduceData(index=partition, records=records)
    return ProduceRequest(
        acks=acks, timeout_ms=10_000, topic_data=[TopicProduceData(name=topic, partition_data=[part])]
    )
