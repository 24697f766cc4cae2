"""Batches, sequence numbers and retries of the producer."""

from typing import Any

import pytest

from semel.client import Client, ClientError, Codec, KafkaError, Producer
from semel.client.errors import ErrorCode
from semel.client.produce.batches import Batch, Delivery, Outgoing
from semel.wire.batch import ProducerIdAndEpoch
from semel.wire.messages import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from semel.wire.records import Record, decode_batch, read_header


def add(queue: Outgoing, count: int, size_bytes: int = 10) -> None:
    for _ in range(count):
        queue.add(Record(0, 1, None, b"v"), Delivery(None, "t", 0, 1), size_bytes)  # type: ignore[arg-type]


def head(queue: Outgoing, identity: ProducerIdAndEpoch) -> Batch:
    return queue.head(identity, codec=Codec.NONE, timeout_s=1.0, transactional=False)


def test_a_batch_is_closed_when_the_next_record_would_not_fit() -> None:
    queue = Outgoing(("t", 0), batch_bytes=35)
    add(queue, 3)
    assert not queue.is_ready
    add(queue, 1)
    assert queue.is_ready
    assert len(head(queue, ProducerIdAndEpoch(7, 0)).records) == 3


def test_a_record_larger_than_a_batch_travels_alone() -> None:
    queue = Outgoing(("t", 0), batch_bytes=35)
    add(queue, 1)
    add(queue, 1, size_bytes=100)
    assert [len(batch.records) for batch in queue._queue] == [1, 1]


def test_sequences_follow_each_other_and_a_retry_is_the_same_bytes() -> None:
    queue = Outgoing(("t", 0), batch_bytes=20)
    add(queue, 4)
    first = head(queue, ProducerIdAndEpoch(7, 0))
    assert first is head(queue, ProducerIdAndEpoch(7, 0))
    assert read_header(first.data or b"").base_sequence == 0
    queue.settle_head()
    assert read_header(head(queue, ProducerIdAndEpoch(7, 0)).data or b"").base_sequence == 2


def test_sequences_wrap_after_the_largest() -> None:
    """Behaviour of 2.3: the number after 2**31 - 1 is 0, also within a batch."""
    queue = Outgoing(("t", 0), batch_bytes=30)
    queue._identity, queue._next_sequence = ProducerIdAndEpoch(7, 0), (1 << 31) - 1
    add(queue, 6)
    assert read_header(head(queue, ProducerIdAndEpoch(7, 0)).data or b"").base_sequence == (1 << 31) - 1
    queue.settle_head()
    assert read_header(head(queue, ProducerIdAndEpoch(7, 0)).data or b"").base_sequence == 2


def test_a_new_identity_starts_at_zero_but_a_batch_under_way_keeps_the_old() -> None:
    queue = Outgoing(("t", 0), batch_bytes=20)
    add(queue, 4)
    in_flight = head(queue, ProducerIdAndEpoch(7, 0))
    again = head(queue, ProducerIdAndEpoch(8, 0))
    assert again is in_flight
    assert read_header(again.data or b"").producer_id == 7
    queue.settle_head()
    header = read_header(head(queue, ProducerIdAndEpoch(8, 0)).data or b"")
    assert (header.producer_id, header.base_sequence) == (8, 0)


class Log:
    """Answers Produce from a list of error codes, and keeps what was written."""

    def __init__(self, *codes: int | type[Exception]) -> None:
        self.codes = list(codes)
        self.batches: list[bytes] = []
        self.identities = 0
        self.offset = 0

    def __call__(self, request: Any, version: int) -> Any:
        if isinstance(request, InitProducerIdRequest):
            self.identities += 1
            return InitProducerIdResponse(producer_id=100 + self.identities, producer_epoch=0)
        assert isinstance(request, ProduceRequest)
        responses = []
        for topic in request.topic_data:
            parts = [self._append(part) for part in topic.partition_data]
            responses.append(
                TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=parts)
            )
        return ProduceResponse(responses=responses) if request.acks else None

    def _append(self, part: PartitionProduceData) -> PartitionProduceResponse:
        assert part.records is not None
        data = bytes(part.records)
        self.batches.append(data)
        code = self.codes.pop(0) if self.codes else ErrorCode.NONE
        if not isinstance(code, int):
            raise code
        base = self.offset
        if code == ErrorCode.NONE:
            self.offset += read_header(data).record_count
        return PartitionProduceResponse(
            index=part.index, error_code=code, base_offset=base if not code else -1
        )


def test_deliveries_know_where_they_went(fake_broker: Any) -> None:
    log = Log()
    with Client(fake_broker(log).address) as client, Producer(client) as producer:
        deliveries = [producer.send("t", b"%d" % n, partition=1, headers={"h": b"x"}) for n in range(3)]
        assert not deliveries[0].done
        assert deliveries[1].result().offset == 1
        assert [each.result().offset for each in deliveries] == [0, 1, 2]
    assert len(log.batches) == 1
    assert [record.value for record in decode_batch(log.batches[0])] == [b"0", b"1", b"2"]


def test_the_key_decides_the_partition_as_in_every_client(fake_broker: Any) -> None:
    with Client(fake_broker(Log()).address) as client, Producer(client) as producer:
        assert producer.send("t", b"", key=b"a").partition == producer.send("t", b"", key=b"a").partition
        # Java's client sends these to partitions 0 and 1 of two (murmur2).
        assert {producer.send("t", b"", key=b"%d" % n).partition for n in range(8)} == {0, 1}
        without_key = {producer.send("t", b"").partition for _ in range(20)}
        assert len(without_key) == 1


def test_a_lost_answer_is_asked_for_again_with_the_same_bytes(fake_broker: Any, hang_up: Any) -> None:
    log = Log(hang_up, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    broker = fake_broker(log)
    with Client(broker.address, timeout_s=5) as client, Producer(client) as producer:
        assert producer.send("t", b"once", partition=0).result().offset == 0
    assert len(log.batches) == 3
    assert len(set(log.batches)) == 1
    assert log.identities == 1


def test_a_refused_batch_fails_its_deliveries_and_the_next_has_a_new_identity(fake_broker: Any) -> None:
    log = Log(ErrorCode.MESSAGE_TOO_LARGE)
    with Client(fake_broker(log).address) as client:
        producer = Producer(client)
        refused = producer.send("t", b"large", partition=0)
        with pytest.raises(KafkaError, match=r"MESSAGE_TOO_LARGE.*max\.message\.bytes"):
            producer.flush()
        assert isinstance(refused.error, KafkaError)
        assert producer.send("t", b"small", partition=0).result().offset == 0
        producer.close()
        with pytest.raises(ClientError):
            producer.send("t", b"")
    first, second = map(read_header, log.batches)
    assert (first.producer_id, first.base_sequence) == (101, 0)
    assert (second.producer_id, second.base_sequence) == (102, 0)


def test_retriable_errors_end_with_the_delivery_timeout(fake_broker: Any, no_pauses: None) -> None:
    log = Log(*[ErrorCode.KAFKA_STORAGE_ERROR] * 1000)
    with Client(fake_broker(log).address) as client:
        producer = Producer(client, delivery_timeout_s=60)
        delivery = producer.send("t", b"v", partition=0)
        with pytest.raises(KafkaError, match="KAFKA_STORAGE_ERROR"):
            delivery.result()
        producer.close()  # the failure was told already
    assert len(set(log.batches)) == 1
    assert len(log.batches) > 1


def test_acks_0_waits_for_nothing(fake_broker: Any) -> None:
    log = Log()
    with Client(fake_broker(log).address) as client:
        with pytest.raises(ValueError, match="idempotent"):
            Producer(client, acks=0)
        with Producer(client, acks=0, idempotent=False) as producer:
            assert producer.send("t", b"v", partition=0).result().offset == -1
        client.describe()  # an answer means that the broker has read what came before
    assert read_header(log.batches[0]).base_sequence == -1
    assert log.identities == 0


def test_a_full_batch_and_linger_send_without_flush(fake_broker: Any) -> None:
    log = Log()
    with (
        Client(fake_broker(log).address) as client,
        Producer(client, batch_bytes=100, linger_s=60) as producer,
    ):
        first = producer.send("t", b"x" * 50, partition=0)
        producer.send("t", b"x" * 50, partition=0)
        assert first.done
    with Client(fake_broker(log).address) as client, Producer(client, linger_s=0) as producer:
        assert producer.send("t", b"v", partition=0).done


@pytest.mark.parametrize("bad", ["text", 7, bytearray(b"x")])
def test_what_is_not_bytes_is_refused_at_once(fake_broker: Any, bad: Any) -> None:
    with Client(fake_broker(Log()).address) as client, Producer(client) as producer:
        with pytest.raises(TypeError, match="value"):
            producer.send("t", bad)
        with pytest.raises(TypeError, match="key"):
            producer.send("t", b"", key=bad)
        with pytest.raises(TypeError, match="header 'h'"):
            producer.send("t", b"", headers={"h": bad})
        with pytest.raises(KafkaError, match="0 to 1"):
            producer.send("t", b"", partition=2)


def test_an_error_in_the_block_is_not_hidden_by_one_of_the_producer(fake_broker: Any) -> None:
    log = Log(ErrorCode.MESSAGE_TOO_LARGE)

    def work(producer: Producer) -> None:
        with producer:
            producer.send("t", b"v", partition=0)
            raise ZeroDivisionError

    with Client(fake_broker(log).address) as client, pytest.raises(ZeroDivisionError):
        work(Producer(client))
    assert len(log.batches) == 1
