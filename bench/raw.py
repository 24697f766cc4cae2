"""A raw client for timing: it encodes requests before the clock starts and decodes after it stops."""

import socket
import time
from typing import Any

from semel.wire.errors import ErrorCode
from semel.wire.frames import decode_response_header, encode_request
from semel.wire.messages import (
    APIS,
    CreatableTopic,
    CreateTopicsRequest,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from semel.wire.messages.topics import CreatableTopicConfig
from semel.wire.messages.transactions import EndTxnRequest, InitProducerIdRequest
from semel.wire.records import Record, encode_batch, iter_batches
from semel.wire.schema import Request

PRODUCE_VERSION = 12
END_VERSION = 5
RECEIVE_BYTES = 1 << 18
NOW = int(time.time() * 1000)
"""The time of records: a broker would delete old records, perhaps during a measurement."""


class RawClient:
    """One connection, one request at a time."""

    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), 90)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self._socket.close()

    def ask(self, request: Request, version: int) -> Any:
        return self.ask_timed(request, version)[0]

    def ask_timed(self, request: Request, version: int) -> tuple[Any, float]:
        """Return the response, and the seconds from the first byte sent to the last byte received."""
        return self._exchange(request, version, encoded(request, version))

    def _exchange(self, request: Request, version: int, frame: bytes) -> tuple[Any, float]:
        started = time.perf_counter()
        self._socket.sendall(frame)
        received = bytearray(self._socket.recv(RECEIVE_BYTES))
        while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
            piece = self._socket.recv(RECEIVE_BYTES)
            assert piece, "the broker closed the connection"
            received += piece
        seconds = time.perf_counter() - started
        payload = bytes(received[4:])
        _, position = decode_response_header(payload, request.api_key, version)
        return APIS[request.api_key].response.decode(payload, version, position), seconds

    def create_topic(self, name: str, partitions: int, **configs: str) -> None:
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[
                CreatableTopicConfig(name=key.replace("_", "."), value=value)
                for key, value in configs.items()
            ],
        )
        answer = self.ask(CreateTopicsRequest(topics=[topic]), 5)
        assert answer.topics[0].error_code == ErrorCode.NONE, answer

    def produce(
        self,
        topic: str,
        batches: list[bytes],
        transactional_id: str | None = None,
        version: int = PRODUCE_VERSION,
    ) -> float:
        """Return the seconds until one batch for each of the first partitions was acknowledged."""
        request = produce_request(topic, batches, transactional_id)
        return self.produce_frame(request, encoded(request, version), version)

    def produce_frame(self, request: ProduceRequest, frame: bytes, version: int = PRODUCE_VERSION) -> float:
        """Produce with an encoded request: a request that is sent often is encoded once."""
        answer, seconds = self._exchange(request, version, frame)
        for part in answer.responses[0].partition_responses:
            assert part.error_code == ErrorCode.NONE, part
        return seconds

    def fetch(self, topic: str, offset: int, max_wait_ms: int = 0) -> tuple[int, int]:
        """Return how many committed records a fetch from partition 0 has, and the offset after them."""
        wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            isolation_level=1,
            topics=[FetchTopic(topic=topic, partitions=[wanted])],
        )
        part = self.ask(request, 11).responses[0].partitions[0]
        assert part.error_code == ErrorCode.NONE, part
        count = 0
        for _, header in iter_batches(part.records or b""):
            if not header.is_control:
                count += header.last_offset_delta + 1
            offset = header.last_offset + 1
        return count, offset


def encoded(request: Request, version: int) -> bytes:
    return b"".join(encode_request(request, version, 1, "bench"))


def produce_request(topic: str, batches: list[bytes], transactional_id: str | None = None) -> ProduceRequest:
    """Build a request with one batch for each of the first partitions."""
    parts = [PartitionProduceData(index=at, records=each) for at, each in enumerate(batches)]
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[TopicProduceData(name=topic, partition_data=parts)],
    )


class RawProducer:
    """A transactional producer of version 2: a write adds its partition, EndTxn gives a new epoch."""

    def __init__(self, client: RawClient, transactional_id: str) -> None:
        self.client = client
        self.transactional_id = transactional_id
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=900_000)
        answer = client.ask(request, 4)
        assert answer.error_code == ErrorCode.NONE, answer
        self.pair = (answer.producer_id, answer.producer_epoch)

    def write(self, topic: str, values: list[bytes], partitions: int = 1) -> float:
        """Return the seconds until the same values were acknowledged in each of the first partitions."""
        one = batch(values, self.pair)
        return self.client.produce(topic, [one] * partitions, self.transactional_id)

    def commit(self) -> float:
        """Return the seconds until the transaction was committed."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.pair[0],
            producer_epoch=self.pair[1],
            committed=True,
        )
        answer, seconds = self.client.ask_timed(request, END_VERSION)
        assert answer.error_code == ErrorCode.NONE, answer
        self.pair = (answer.producer_id, answer.producer_epoch)
        return seconds


def batch(values: list[bytes], pair: tuple[int, int] | None = None) -> bytes:
    """Build a batch; transactional if a producer id and epoch are given."""
    records = [Record(0, NOW, None, value) for value in values]
    if pair is None:
        return encode_batch(records)
    producer_id, epoch = pair
    return encode_batch(
        records, transactional=True, producer_id=producer_id, producer_epoch=epoch, base_sequence=0
    )
