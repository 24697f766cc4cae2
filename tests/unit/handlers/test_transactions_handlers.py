"""InitProducerId for idempotent producers, and DescribeProducers."""

import pytest
from support.in_memory import broker_in_memory, context, make_topic

from semel.broker.broker import Broker
from semel.core.partition import Append
from semel.core.types import ErrorCode, PartitionKey
from semel.handlers.transactions import describe_producers, init_producer_id
from semel.store.interface import StoreFull
from semel.wire.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TopicRequest,
)
from semel.wire.records import Record, encode_batch, read_header


async def init(broker: Broker, version: int = 5, **fields: object) -> tuple[int, int, int]:
    request = InitProducerIdRequest(**{"transactional_id": None, **fields})  # type: ignore[arg-type]
    response = await init_producer_id(broker, request, context(version))
    decoded = InitProducerIdResponse.decode(response.encode(version), version)
    return decoded.error_code, decoded.producer_id, decoded.producer_epoch


@pytest.mark.parametrize("version", range(7))
async def test_every_idempotent_producer_gets_an_id_of_its_own(version: int) -> None:
    async with broker_in_memory() as broker:
        answers = [await init(broker, version) for _ in range(3)]
        assert {(error, epoch) for error, _, epoch in answers} == {(ErrorCode.NONE, 0)}
        assert len({producer_id for _, producer_id, _ in answers}) == 3


async def test_without_a_transactional_id_the_pair_in_the_request_is_ignored() -> None:
    async with broker_in_memory() as broker:
        _, first, _ = await init(broker)
        error, second, epoch = await init(broker, producer_id=first, producer_epoch=7)
        assert (error, epoch) == (ErrorCode.NONE, 0)
        assert second != first


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"producer_id": 1}, ErrorCode.INVALID_REQUEST),
        ({"producer_epoch": 1}, ErrorCode.INVALID_REQUEST),
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"transactional_id": "t", "producer_id": 1}, ErrorCode.INVALID_REQUEST),
        ({"transactional_id": "t", "transaction_timeout_ms": 1000}, ErrorCode.UNSUPPORTED_VERSION),
    ],
)
async def test_init_producer_id_refuses(fields: dict[str, object], error: ErrorCode) -> None:
    async with broker_in_memory() as broker:
        assert await init(broker, **fields) == (error, -1, -1)


async def test_init_producer_id_on_a_full_disk_may_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_in_memory() as broker:

        async def full(*_: object) -> None:
            raise StoreFull

        monkeypatch.setattr(broker.store, "commit", full)
        assert await init(broker) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, -1)
        monkeypatch.undo()
        assert (await init(broker))[0] == ErrorCode.NONE


async def test_100_describe_producers_shows_idempotent_producers() -> None:
    async with broker_in_memory() as broker:
        topic = await make_topic(broker, "a", 2)
        _, producer_id, _ = await init(broker)
        records = [Record(0, 1_000, None, b"v"), Record(1, 2_000, None, b"v")]
        payload = encode_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=0)
        append = Append(PartitionKey(topic.topic_id, 0), read_header(payload), payload)
        assert (await broker.ask(append)).error == ErrorCode.NONE

        wanted = [
            TopicRequest(name="a", partition_indexes=[0, 1, 2]),
            TopicRequest(name="missing", partition_indexes=[0]),
            TopicRequest(name="no/good", partition_indexes=[0]),
        ]
        answer = await describe_producers(broker, DescribeProducersRequest(topics=wanted), context(0))
        response = DescribeProducersResponse.decode(answer.encode(0), 0)
        errors = {each.name: [part.error_code for part in each.partitions] for each in response.topics}
        assert errors == {
            "a": [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
            "missing": [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
            "no/good": [ErrorCode.INVALID_TOPIC_EXCEPTION],
        }
        [found] = response.topics[0].partitions[0].active_producers
        assert response.topics[0].partitions[1].active_producers == []
        assert (found.producer_id, found.producer_epoch, found.last_sequence) == (producer_id, 0, 1)
        assert found.last_timestamp == 2_000
        assert (found.coordinator_epoch, found.current_txn_start_offset) == (-1, -1)
