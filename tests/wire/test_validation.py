"""Validation through a socket: order, and neighbours."""

from collections.abc import Callable
from typing import Any

from support.faults.hostile_words import TOPIC, error_codes, produce
from support.waiting import until

from semel.wire.batch import seal
from semel.wire.compression import compress
from semel.wire.errors import ErrorCode
from semel.wire.frames import encode_request
from semel.wire.messages import CreateTopicsRequest, ListOffsetsRequest, MetadataRequest, ProduceRequest
from semel.wire.messages.fetch import ListOffsetsPartition, ListOffsetsTopic
from semel.wire.messages.produce import PartitionProduceData, TopicProduceData
from semel.wire.messages.topics import CreatableTopic, CreatableTopicConfig
from semel.wire.records import Codec, Record, encode_batch, read_header


def create(wire: Any) -> None:
    topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)
    assert set(error_codes(wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=5_000), 5))) == {0}


def test_refused_records_are_named_from_version_8_on(serve_broker: Callable[..., Any]) -> None:
    """KIP-467; older versions have the error code alone."""
    batch = encode_batch([Record(0, timestamp, b"k", b"v") for timestamp in (-1, 1_000, -1, 2_000)])
    with serve_broker() as served, served.connect() as wire:
        configs = [CreatableTopicConfig(name="message.timestamp.before.max.ms", value="60000")]
        topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1, configs=configs)
        assert set(error_codes(wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=5_000), 5))) == {0}
        part = PartitionProduceData(index=0, records=batch)
        data = [TopicProduceData(name=TOPIC, partition_data=[part])]
        for version in (3, 7, 8, 9, 12):
            answer = wire.ask(ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=data), version)
            (refused,) = answer.responses[0].partition_responses
            assert refused.error_code == ErrorCode.INVALID_TIMESTAMP
            named = {each.batch_index: each.batch_index_error_message for each in refused.record_errors}
            if version < 8:
                assert (named, refused.error_message) == ({}, None)
            else:
                assert list(named) == [1, 3]
                assert "1000 is too old" in named[1]
                assert "2 of 4 records" in refused.error_message


def test_requests_that_are_sent_at_once_keep_their_order(serve_broker: Callable[..., Any]) -> None:
    """A small request does not overtake a large one that a thread validates: sequence numbers prove it."""
    with serve_broker() as served, served.connect() as wire:
        create(wire)
        expected, frames, sequence = [], [], 0
        for count in (5_000, 1, 3_000, 2, 1, 4_000, 3):
            records = [Record(0, 1_000, None, str(hash((at, sequence))).encode()) for at in range(count)]
            codec = Codec.GZIP if count > 10 else Codec.NONE
            numbers: dict[str, Any] = {"producer_id": 9, "producer_epoch": 0, "base_sequence": sequence}
            frames.append(produce(encode_batch(records, codec=codec, **numbers)))
            expected.append(sequence)
            sequence += count
        wire.socket.sendall(b"".join(frames))
        answers = [wire.receive(0, 9).responses[0].partition_responses[0] for _ in frames]
        assert [(each.error_code, each.base_offset) for each in answers] == [(0, at) for at in expected]


def test_a_request_with_very_many_partitions_keeps_its_place(serve_broker: Callable[..., Any]) -> None:
    """It is decoded and prepared in slices. What was sent behind it waits; a client may leave meanwhile."""
    count = 2_500
    with serve_broker() as served, served.connect() as wire, served.connect() as leaving:
        topic = CreatableTopic(name=TOPIC, num_partitions=count, replication_factor=1)
        assert set(error_codes(wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=5_000), 5))) == {0}
        batch = encode_batch([Record(0, 1_000, None, b"v")])
        parts = [PartitionProduceData(index=index, records=batch) for index in range(count)]
        large = ProduceRequest(
            acks=-1, timeout_ms=1, topic_data=[TopicProduceData(name=TOPIC, partition_data=parts)]
        )
        wire.socket.sendall(b"".join(encode_request(large, 9, 1, "test")) + produce(batch))
        first, second = wire.receive(0, 9), wire.receive(0, 9)
        assert {each.base_offset for each in first.responses[0].partition_responses} == {0}
        assert [each.base_offset for each in second.responses[0].partition_responses] == [1]
        large.acks = 0
        leaving.socket.sendall(b"".join(encode_request(large, 9, 1, "test")))
        leaving.socket.close()
        until(lambda: end_of(wire, count - 1) == 2, what="the batches of a client that left")


def end_of(wire: Any, partition: int) -> int:
    asked = ListOffsetsPartition(partition_index=partition, timestamp=-1)
    answer = wire.ask(ListOffsetsRequest(topics=[ListOffsetsTopic(name=TOPIC, partitions=[asked])]), 5)
    offset: int = answer.topics[0].partitions[0].offset
    return offset


def test_thirty_bombs_do_not_stop_a_neighbour(serve_broker: Callable[..., Any]) -> None:
    header = read_header(encode_batch([Record(0, 1_000, b"k", b"v")], codec=Codec.ZSTD))
    bomb = produce(seal(header, compress(Codec.ZSTD, bytes(30 << 20))))
    with serve_broker() as served, served.connect() as wire, served.connect() as neighbour:
        create(wire)
        wires = [served.connect() for _ in range(30)]
        for each in wires:
            each.socket.sendall(bomb)
        asked = 0
        while not all_answered(served, len(wires)):
            assert neighbour.ask(MetadataRequest(topics=None), 9).brokers
            asked += 1
        assert asked > 10, "the neighbour was answered while threads unpacked"
        for each in wires:
            assert set(error_codes(each.receive(0, 9))) == {87}
            each.socket.close()


def all_answered(served: Any, count: int) -> bool:
    return bool(served.server.broker.metrics.apis[0].requests >= count)
