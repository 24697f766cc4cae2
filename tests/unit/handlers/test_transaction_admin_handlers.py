"""DescribeTransactions, ListTransactions, DescribeProducers, WriteTxnMarkers."""

from typing import Any

import pytest
from support.brokers.in_memory import broker_in_memory, make_topic
from support.clients.transactional import Transactional, batch, committed, produce_request, produced, send

from semel.broker.broker import Broker
from semel.core.topics import DeleteTopic
from semel.core.types import ErrorCode
from semel.store.contract import StoreFull
from semel.wire.messages.transactions import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    ProducersTopicRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from semel.wire.partitioner import coordinator_partition


async def begun(broker: Broker, transactional_id: str = "t", *topics: str) -> Transactional:
    """A producer that has written to these topics in an open transaction."""
    producer = Transactional(broker, transactional_id)
    assert await producer.init() == ErrorCode.NONE
    for topic in topics:
        assert (await producer.write(topic, version=12)).error_code == ErrorCode.NONE
    return producer


async def describe(broker: Broker, *ids: str) -> list[Any]:
    request = DescribeTransactionsRequest(transactional_ids=list(ids))
    return list((await send(broker, request, 0)).transaction_states)


async def test_a_transaction_is_described_with_its_partitions_and_groups() -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a", 3)
        await make_topic(broker, "gone")
        producer = await begun(broker, "t", "a", "gone")
        await producer.write("a", 2, version=12)
        await producer.commit_offsets("g", "a", version=5)
        await broker.ask(DeleteTopic("gone"))
        [shown] = await describe(broker, "t")
        assert (shown.error_code, shown.transactional_id) == (ErrorCode.NONE, "t")
        assert (shown.transaction_state, shown.transaction_timeout_ms) == ("Ongoing", 60_000)
        assert (shown.producer_id, shown.producer_epoch) == (producer.producer_id, producer.epoch)
        assert 0 < shown.transaction_start_time_ms <= broker.time_of_day() + 1
        assert {each.topic: each.partitions for each in shown.topics} == {
            "a": [0, 2],
            "__consumer_offsets": [coordinator_partition("g", 50)],
        }
        await producer.end(version=5)
        [shown] = await describe(broker, "t")
        assert (shown.transaction_state, shown.topics) == ("CompleteCommit", [])


async def test_ids_that_cannot_be_described() -> None:
    async with broker_in_memory() as broker:
        await begun(broker)
        found = await describe(broker, "missing", "", "t")
        assert [(each.error_code, each.transactional_id, each.transaction_state) for each in found] == [
            (ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, "missing", ""),
            (ErrorCode.INVALID_REQUEST, "", ""),
            (ErrorCode.NONE, "t", "Empty"),
        ]


async def listed(broker: Broker, version: int = 2, **fields: Any) -> tuple[int, list[str], list[str]]:
    response = await send(broker, ListTransactionsRequest(**fields), version)
    ids = [each.transactional_id for each in response.transaction_states]
    return response.error_code, response.unknown_state_filters, ids


@pytest.mark.parametrize("version", range(3))
async def test_transactions_are_listed_with_their_states(version: int) -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a")
        ended = await begun(broker, "ended", "a")
        await ended.end(commit=False, version=5)
        opened = await begun(broker, "opened", "a")
        await begun(broker, "unused")
        response = await send(broker, ListTransactionsRequest(), version)
        found = {
            each.transactional_id: (each.producer_id, each.transaction_state)
            for each in response.transaction_states
        }
        assert found["ended"] == (ended.producer_id, "CompleteAbort")
        assert found["opened"] == (opened.producer_id, "Ongoing"), "also what was not flushed yet"
        assert found["unused"][1] == "Empty"
        assert len(found) == 3


async def test_99_filters_of_the_list() -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a")
        first = await begun(broker, "orders/1", "a")
        await begun(broker, "orders/2 é")
        assert await listed(broker, state_filters=["Ongoing"]) == (0, [], ["orders/1"])
        assert await listed(broker, state_filters=["Ongoing", "Strange"]) == (0, ["Strange"], ["orders/1"])
        assert await listed(broker, state_filters=["Strange"]) == (0, ["Strange"], [])
        assert await listed(broker, state_filters=["PrepareCommit"]) == (0, [], [])
        assert await listed(broker, producer_id_filters=[first.producer_id]) == (0, [], ["orders/1"])
        everything = ["orders/1", "orders/2 é"]
        assert await listed(broker, producer_id_filters=[]) == (0, [], everything)
        assert await listed(broker, duration_filter=3_600_000) == (0, [], ["orders/2 é"])
        assert await listed(broker, transactional_id_pattern="orders/[^1].*") == (0, [], ["orders/2 é"])
        assert await listed(broker, transactional_id_pattern="orders") == (0, [], [])
        assert await listed(broker, transactional_id_pattern="") == (0, [], everything)
        wrong = await listed(broker, transactional_id_pattern="(")
        assert wrong == (ErrorCode.INVALID_REGULAR_EXPRESSION, [], [])


async def test_a_long_list_comes_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.broker.reads.listings.PAGE", 2)
    async with broker_in_memory() as broker:
        ids = [f"t{index}" for index in range(5)]
        for each in ids:
            await begun(broker, each)
        assert await listed(broker) == (0, [], ids)
        assert await listed(broker, transactional_id_pattern="t[13]") == (0, [], ["t1", "t3"])


async def producers(broker: Broker, topic: str) -> list[Any]:
    request = DescribeProducersRequest(topics=[ProducersTopicRequest(name=topic, partition_indexes=[0])])
    [part] = (await send(broker, request, 0)).topics[0].partitions
    assert part.error_code == ErrorCode.NONE
    return list(part.active_producers)


async def test_100_describe_producers_shows_idempotent_producers() -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a", 2)
        given = await send(broker, InitProducerIdRequest(transactional_id=None), 5)
        producer_id = given.producer_id
        payload = batch(
            b"v", b"w", transactional=False, producer_id=producer_id, producer_epoch=0, base_sequence=0
        )
        [answer] = await produced(broker, produce_request({("a", 0): payload}, None), 11)
        assert answer.error_code == ErrorCode.NONE

        wanted = [
            ProducersTopicRequest(name="a", partition_indexes=[0, 1, 2]),
            ProducersTopicRequest(name="missing", partition_indexes=[0]),
            ProducersTopicRequest(name="no/good", partition_indexes=[0]),
        ]
        response = await send(broker, DescribeProducersRequest(topics=wanted), 0)
        errors = {each.name: [part.error_code for part in each.partitions] for each in response.topics}
        assert errors == {
            "a": [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
            "missing": [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
            "no/good": [ErrorCode.INVALID_TOPIC_EXCEPTION],
        }
        [found] = response.topics[0].partitions[0].active_producers
        assert response.topics[0].partitions[1].active_producers == []
        assert (found.producer_id, found.producer_epoch, found.last_sequence) == (producer_id, 0, 1)
        assert found.last_timestamp == 1_000
        assert (found.coordinator_epoch, found.current_txn_start_offset) == (-1, -1)


async def test_100_describe_producers_shows_open_transactions() -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a")
        producer = await begun(broker, "t", "a")
        [found] = await producers(broker, "a")
        assert (found.producer_id, found.producer_epoch) == (producer.producer_id, 0)
        assert found.current_txn_start_offset == 0, "also what was not flushed yet"
        await producer.end(version=5)
        [found] = await producers(broker, "a")
        assert (found.producer_epoch, found.last_sequence, found.current_txn_start_offset) == (1, -1, -1)
        assert found.coordinator_epoch >= 0


def markers(producer: Any, *locations: tuple[str, int], **fields: Any) -> WriteTxnMarkersRequest:
    marker = WritableTxnMarker(
        **{"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch, **fields},
        topics=[WritableTxnMarkerTopic(name=name, partition_indexes=[index]) for name, index in locations],
    )
    return WriteTxnMarkersRequest(markers=[marker])


def marker_errors(response: Any) -> dict[int, dict[tuple[str, int], int]]:
    return {
        each.producer_id: {
            (topic.name, part.partition_index): part.error_code
            for topic in each.topics
            for part in topic.partitions
        }
        for each in response.markers
    }


@pytest.mark.parametrize("version", [1, 2])
async def test_101_an_administrator_ends_what_hangs(version: int) -> None:
    async with broker_in_memory() as broker:
        topic = await make_topic(broker, "a")
        await begun(broker, "t", "a")
        [hanging] = await producers(broker, "a")
        request = markers(
            hanging,
            ("a", 0),
            ("a", 1),
            ("missing", 0),
            ("__consumer_offsets", 0),
            coordinator_epoch=hanging.coordinator_epoch,
        )
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert marker_errors(await send(broker, request, version)) == {
            hanging.producer_id: {
                ("a", 0): ErrorCode.NONE,
                ("a", 1): unknown,
                ("missing", 0): unknown,
                ("__consumer_offsets", 0): unknown,
            }
        }
        part = await committed(broker, topic)
        assert (part.last_stable_offset, part.high_watermark) == (2, 2)
        assert [each.first_offset for each in part.aborted_transactions] == [0]


async def test_what_is_staged_can_be_dropped_by_an_administrator() -> None:
    async with broker_in_memory() as broker:
        topic = await make_topic(broker, "a", semel_visibility="journal")
        await begun(broker, "t", "a")
        [hanging] = await producers(broker, "a")
        assert hanging.current_txn_start_offset == -1
        response = await send(broker, markers(hanging, ("a", 0)), 1)
        assert marker_errors(response) == {hanging.producer_id: {("a", 0): ErrorCode.NONE}}
        assert (await committed(broker, topic)).high_watermark == 0


async def test_markers_of_one_producer_are_answered_together() -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a")
        await make_topic(broker, "b")
        await begun(broker, "t", "a", "b")
        [hanging] = await producers(broker, "a")
        both = [markers(hanging, (name, 0)).markers[0] for name in ("a", "b")]
        response = await send(broker, WriteTxnMarkersRequest(markers=both), 1)
        assert marker_errors(response) == {hanging.producer_id: {("a", 0): 0, ("b", 0): 0}}


async def test_81_a_marker_that_is_late_is_refused() -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a")
        producer = await begun(broker, "t", "a")
        await producer.end(version=5)
        await producer.write("a", version=12)
        [opened] = await producers(broker, "a")

        async def error(version: int = 2, **fields: Any) -> int:
            given = {"coordinator_epoch": opened.coordinator_epoch, **fields}
            answers = marker_errors(await send(broker, markers(opened, ("a", 0), **given), version))
            return answers[opened.producer_id]["a", 0]

        assert await error(producer_epoch=0) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await error(coordinator_epoch=-1) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
        assert await error(transaction_version=2) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await error(transaction_version=2, producer_epoch=2) == ErrorCode.NONE


async def test_markers_need_cluster_rights_and_room(monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_in_memory(semel_cluster_action_enable=False) as broker:
        await make_topic(broker, "a")
        producer = await begun(broker, "t", "a")
        [hanging] = await producers(broker, "a")
        answer = marker_errors(await send(broker, markers(hanging, ("a", 0)), 1))
        assert answer == {producer.producer_id: {("a", 0): ErrorCode.CLUSTER_AUTHORIZATION_FAILED}}
    async with broker_in_memory() as broker:
        await make_topic(broker, "a")
        producer = await begun(broker, "t", "a")
        [hanging] = await producers(broker, "a")

        async def full(*_: object, **__: object) -> None:
            raise StoreFull

        monkeypatch.setattr(broker.store, "commit", full)
        answer = marker_errors(await send(broker, markers(hanging, ("a", 0)), 1))
        assert answer == {producer.producer_id: {("a", 0): ErrorCode.KAFKA_STORAGE_ERROR}}
