"""Every API about partitions at a broker that leads only some of them."""

import asyncio
from typing import Any

import pytest
from support.brokers.in_memory import send
from support.brokers.partial_owner import ELSEWHERE, HERE, MINE, NOT_LEADER, THERE, YOURS, divided
from support.clients.raw import batch
from support.models.ownership import NOBODY
from support.waiting import LIMIT_SECONDS, until_async

from semel.core.types import ErrorCode, PartitionKey
from semel.wire import messages as m
from semel.wire.messages import transactions as t
from semel.wire.messages.metadata import PartitionsTopicRequest

# -- metadata and coordinators ----------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(14))
async def test_metadata_has_nodes_and_leaders(version: int) -> None:
    async with divided() as (broker, _, _):
        for topics in (None if version else [], [m.MetadataRequestTopic(name="t")]):
            found = await send(broker, 3, m.MetadataRequest(topics=topics), version)
            nodes = [(each.node_id, each.host, each.port) for each in found.brokers]
            assert nodes == [(0, "broker-0.example", 9000), (1, "broker-1.example", 9001)]
            assert [each.rack for each in found.brokers] == (["a", "b"] if version else [None, None])
            # The controller cannot be reached by this listener, but any broker does its work.
            assert found.controller_id == (HERE if version else -1)
            shown = [
                (each.error_code, each.leader_id, each.replica_nodes, each.isr_nodes)
                for each in found.topics[0].partitions
            ]
            assert shown == [(0, HERE, [HERE], [HERE]), (0, THERE, [THERE], [THERE])]
            if version >= 7:
                assert [each.leader_epoch for each in found.topics[0].partitions] == [0, 1]


@pytest.mark.parametrize("version", [5, 6, 13])
async def test_metadata_of_a_partition_without_a_leader(version: int) -> None:
    async with divided() as (broker, owners, topic_id):

        async def shown() -> tuple[int, int, list[int], list[int]]:
            request = m.MetadataRequest(topics=[m.MetadataRequestTopic(name="t")])
            each = (await send(broker, 3, request, version)).topics[0].partitions[YOURS]
            paged = m.DescribeTopicPartitionsRequest(
                topics=[PartitionsTopicRequest(name="t")], response_partition_limit=9
            )
            same = (await send(broker, 75, paged)).topics[0].partitions[YOURS]
            assert (same.leader_id, same.replica_nodes) == (each.leader_id, each.replica_nodes)
            return each.error_code, each.leader_id, each.replica_nodes, each.offline_replicas

        key = PartitionKey(topic_id, YOURS)
        owners.move_leader(key, ELSEWHERE)
        error = ErrorCode.LISTENER_NOT_FOUND if version >= 6 else ErrorCode.LEADER_NOT_AVAILABLE
        assert await shown() == (error, -1, [ELSEWHERE], [])
        owners.remove_node(ELSEWHERE)
        assert await shown() == (ErrorCode.LEADER_NOT_AVAILABLE, -1, [ELSEWHERE], [ELSEWHERE])
        owners.move_leader(key, NOBODY)
        # Clients and tools expect that a partition has a replica.
        assert await shown() == (ErrorCode.LEADER_NOT_AVAILABLE, -1, [HERE], [])


async def test_cached_metadata_follows_ownership() -> None:
    async with divided() as (broker, owners, topic_id):

        async def leader() -> int:
            found = await send(broker, 3, m.MetadataRequest(topics=None))
            return int(found.topics[0].partitions[MINE].leader_id)

        assert await leader() == HERE
        owners.move_leader(PartitionKey(topic_id, MINE), THERE)
        assert await leader() == THERE


async def test_describe_cluster() -> None:
    async with divided() as (broker, owners, _):
        found = await send(broker, 60, m.DescribeClusterRequest())
        assert found.controller_id == HERE
        assert [(each.broker_id, each.host, each.rack) for each in found.brokers] == [
            (HERE, "broker-0.example", "a"),
            (THERE, "broker-1.example", "b"),
        ]
        owners.remove_node(ELSEWHERE)
        assert (await send(broker, 60, m.DescribeClusterRequest())).controller_id == THERE


@pytest.mark.parametrize("kind", [0, 1])
async def test_find_coordinator(kind: int) -> None:
    async with divided() as (broker, owners, _):
        owners.move_coordinator("hidden", ELSEWHERE)
        owners.move_coordinator("nobody's", NOBODY)
        names = ["mine", "yours", "hidden", "nobody's"]
        found = await send(broker, 10, m.FindCoordinatorRequest(key_type=kind, coordinator_keys=names))
        gone = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert [(each.error_code, each.node_id) for each in found.coordinators] == [
            (0, HERE),
            (0, THERE),
            (gone, -1),
            (gone, -1),
        ]
        one = await send(broker, 10, m.FindCoordinatorRequest(key_type=kind, key="yours"), 3)
        assert (one.error_code, one.node_id, one.host, one.port) == (0, THERE, "broker-1.example", 9001)


# -- partitions -------------------------------------------------------------------------------------------


def produce_request(topic_id: bytes, acks: int = -1) -> m.ProduceRequest:
    parts = [m.PartitionProduceData(index=index, records=batch()) for index in (MINE, YOURS)]
    return m.ProduceRequest(
        acks=acks, topic_data=[m.TopicProduceData(name="t", topic_id=topic_id, partition_data=parts)]
    )


@pytest.mark.parametrize("version", range(3, 14))
async def test_produce(version: int) -> None:
    async with divided() as (broker, _, topic_id):
        answer = await send(broker, 0, produce_request(topic_id), version)
        mine, yours = answer.responses[0].partition_responses
        assert (mine.error_code, mine.base_offset) == (0, 0)
        assert (yours.error_code, yours.base_offset) == (NOT_LEADER, -1)
        if version >= 10:
            assert (yours.current_leader.leader_id, yours.current_leader.leader_epoch) == (THERE, 1)
            assert mine.current_leader.leader_id == -1
            told = [(each.node_id, each.host, each.port, each.rack) for each in answer.node_endpoints]
            assert told == [(THERE, "broker-1.example", 9001, "b")]


async def test_produce_names_no_leader_that_clients_cannot_reach() -> None:
    async with divided() as (broker, owners, topic_id):
        for node_id in (ELSEWHERE, NOBODY):
            owners.move_leader(PartitionKey(topic_id, YOURS), node_id)
            answer = await send(broker, 0, produce_request(topic_id))
            yours = answer.responses[0].partition_responses[1]
            assert (yours.error_code, yours.current_leader.leader_id) == (NOT_LEADER, -1)
            assert answer.node_endpoints == []


def fetch_request(
    topic_id: bytes, *, epochs: tuple[int, int] = (-1, -1), wait_ms: int = 0, **fields: Any
) -> m.FetchRequest:
    asked = [
        m.FetchPartition(
            partition=index, fetch_offset=0, partition_max_bytes=1 << 20, current_leader_epoch=epoch
        )
        for index, epoch in zip((MINE, YOURS), epochs, strict=True)
    ]
    return m.FetchRequest(
        topics=[m.FetchTopic(topic="t", topic_id=topic_id, partitions=asked)],
        max_wait_ms=wait_ms,
        min_bytes=1,
        **fields,
    )


@pytest.mark.parametrize("version", range(4, 19))
async def test_fetch(version: int) -> None:
    async with divided() as (broker, _, topic_id):
        answer = await send(broker, 1, fetch_request(topic_id, wait_ms=10_000), version)
        mine, yours = answer.responses[0].partitions
        assert (mine.error_code, yours.error_code) == (0, NOT_LEADER)
        if version >= 12:
            assert (yours.current_leader.leader_id, yours.current_leader.leader_epoch) == (THERE, 1)
        if version >= 16:
            assert [(each.node_id, each.port) for each in answer.node_endpoints] == [(THERE, 9001)]


async def test_fetch_compares_epochs() -> None:
    async with divided() as (broker, owners, topic_id):
        owners.move_leader(PartitionKey(topic_id, MINE), HERE)
        for epoch, error in (
            (-1, ErrorCode.NONE),
            (0, ErrorCode.FENCED_LEADER_EPOCH),
            (1, ErrorCode.NONE),
            (2, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ):
            answer = await send(broker, 1, fetch_request(topic_id, epochs=(epoch, 1)))
            mine, yours = answer.responses[0].partitions
            assert (mine.error_code, yours.error_code) == (error, NOT_LEADER)
            is_fenced = error is ErrorCode.FENCED_LEADER_EPOCH
            assert mine.current_leader.leader_id == (HERE if is_fenced else -1)


async def test_a_waiting_fetch_hears_that_its_partition_has_moved() -> None:
    async with divided() as (broker, owners, topic_id):
        owners.move_leader(PartitionKey(topic_id, YOURS), HERE)
        # In a session, where only news are answered.
        begun = await send(broker, 1, fetch_request(topic_id, session_epoch=0))
        follow = m.FetchRequest(
            session_id=begun.session_id, session_epoch=1, max_wait_ms=60_000, min_bytes=1, topics=[]
        )
        async with asyncio.timeout(LIMIT_SECONDS):
            waiting = asyncio.create_task(send(broker, 1, follow))
            await until_async(lambda: broker.reads.parked == 1)
            owners.move_leader(PartitionKey(topic_id, YOURS), THERE)
            broker.reads.owners_changed()
            answer = await waiting
        (yours,) = answer.responses[0].partitions
        assert (yours.partition_index, yours.error_code) == (YOURS, NOT_LEADER)
        assert yours.current_leader.leader_id == THERE


async def test_list_offsets() -> None:
    async with divided() as (broker, owners, topic_id):
        owners.move_leader(PartitionKey(topic_id, MINE), HERE)
        await send(broker, 0, produce_request(topic_id))

        async def listed(timestamp: int, epoch: int) -> list[tuple[int, int, int]]:
            asked = [
                m.ListOffsetsPartition(partition_index=index, timestamp=timestamp, current_leader_epoch=epoch)
                for index in (MINE, YOURS)
            ]
            request = m.ListOffsetsRequest(topics=[m.ListOffsetsTopic(name="t", partitions=asked)])
            found = (await send(broker, 2, request)).topics[0].partitions
            return [(each.error_code, each.offset, each.leader_epoch) for each in found]

        for timestamp, offset in ((-1, 1), (-2, 0), (-3, 0), (0, 0), (-1001, 0)):
            # Batches have epoch 0, whatever the epoch of their leader.
            assert await listed(timestamp, -1) == [(0, offset, 0), (NOT_LEADER, -1, -1)]
        assert await listed(-1, 1) == [(0, 1, 0), (NOT_LEADER, -1, -1)]
        assert await listed(-1, 0) == [(ErrorCode.FENCED_LEADER_EPOCH, -1, -1)] * 2
        assert await listed(-1, 2) == [(ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)] * 2


async def test_kip_320_every_epoch_so_far_ends_at_the_high_watermark() -> None:
    async with divided() as (broker, owners, topic_id):
        for _ in range(3):
            owners.move_leader(PartitionKey(topic_id, MINE), HERE)
        await send(broker, 0, produce_request(topic_id))

        async def end(partition: int, epoch: int, current: int = -1) -> tuple[int, int, int]:
            asked = m.OffsetForLeaderPartition(
                partition=partition, leader_epoch=epoch, current_leader_epoch=current
            )
            request = m.OffsetForLeaderEpochRequest(
                topics=[m.OffsetForLeaderTopic(topic="t", partitions=[asked])]
            )
            found = (await send(broker, 23, request)).topics[0].partitions[0]
            return found.error_code, found.leader_epoch, found.end_offset

        for epoch in range(4):
            assert await end(MINE, epoch, 3) == (0, epoch, 1)
        assert await end(MINE, 4) == (0, -1, -1)
        assert await end(MINE, 0, 2) == (ErrorCode.FENCED_LEADER_EPOCH, -1, -1)
        assert await end(MINE, 0, 4) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)
        assert await end(YOURS, 0) == (NOT_LEADER, -1, -1)


async def test_records_producers_and_sizes_are_those_of_led_partitions() -> None:
    async with divided(semel_cluster_action_enable=True) as (broker, _, topic_id):
        await send(broker, 0, produce_request(topic_id))
        deleted = m.DeleteRecordsRequest(
            topics=[
                m.DeleteRecordsTopic(
                    name="t",
                    partitions=[
                        m.DeleteRecordsPartition(partition_index=index, offset=0) for index in (MINE, YOURS)
                    ],
                )
            ]
        )
        found = (await send(broker, 21, deleted)).topics[0].partitions
        assert [each.error_code for each in found] == [0, NOT_LEADER]
        producers = t.DescribeProducersRequest(
            topics=[t.ProducersTopicRequest(name="t", partition_indexes=[0, 1])]
        )
        found = (await send(broker, 61, producers)).topics[0].partitions
        assert [each.error_code for each in found] == [0, NOT_LEADER]
        marker = t.WritableTxnMarker(
            producer_id=7, topics=[t.WritableTxnMarkerTopic(name="t", partition_indexes=[YOURS])]
        )
        marked = await send(broker, 27, t.WriteTxnMarkersRequest(markers=[marker]))
        assert marked.markers[0].topics[0].partitions[0].error_code == NOT_LEADER
        dirs = await send(broker, 35, m.DescribeLogDirsRequest(topics=None))
        assert [each.partition_index for each in dirs.results[0].topics[0].partitions] == [MINE]


async def test_an_assignment_may_name_any_live_node() -> None:
    async with divided() as (broker, _, _):
        for nodes, error in (
            ([THERE], ErrorCode.NONE),
            ([THERE, HERE], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            ([9], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ):
            wanted = m.CreatableTopic(
                name="new",
                num_partitions=-1,
                replication_factor=-1,
                assignments=[m.CreatableReplicaAssignment(partition_index=0, broker_ids=nodes)],
            )
            request = m.CreateTopicsRequest(topics=[wanted], validate_only=True)
            assert (await send(broker, 19, request)).topics[0].error_code == error


async def test_ends_after_one_commit_are_told_for_partitions_of_all_brokers() -> None:
    """Feature semel.snapshot at level 3: the ledger knows all partitions, whoever leads them."""
    async with divided() as (broker, _, _):
        request = m.ListOffsetsRequest(
            replica_id=-1,
            topics=[
                m.ListOffsetsTopic(
                    name="t",
                    partitions=[
                        m.ListOffsetsPartition(partition_index=MINE, timestamp=-1003),
                        m.ListOffsetsPartition(partition_index=YOURS, timestamp=-1003),
                        m.ListOffsetsPartition(partition_index=7, timestamp=-1003),
                    ],
                )
            ],
        )
        found = (await send(broker, 2, request)).topics[0].partitions
        assert [(each.error_code, each.offset) for each in found] == [
            (0, 0),
            (0, 0),
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
        ]
