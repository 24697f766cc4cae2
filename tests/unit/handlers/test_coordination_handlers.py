"""Every API about groups and transactional ids at a broker that coordinates only some of them."""

import pytest
from support.brokers.in_memory import send
from support.brokers.partial_owner import HERE, MINE, NOT_COORDINATOR, THERE, YOURS, divided

from semel.core.types import ErrorCode
from semel.wire import messages as m
from semel.wire.messages import transactions as t
from semel.wire.schema import Request

JOIN = m.JoinGroupRequest(
    group_id="yours",
    member_id="me",
    session_timeout_ms=10_000,
    rebalance_timeout_ms=10_000,
    protocol_type="consumer",
    protocols=[m.JoinGroupRequestProtocol(name="range", metadata=b"")],
)
COMMIT = m.OffsetCommitRequest(
    group_id="yours",
    topics=[
        m.OffsetCommitRequestTopic(
            name="t", partitions=[m.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
        )
    ],
)
PENDING = t.TxnOffsetCommitRequest(
    transactional_id="mine",
    group_id="yours",
    producer_id=1,
    producer_epoch=0,
    topics=[
        t.TxnOffsetCommitRequestTopic(
            name="t", partitions=[t.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
        )
    ],
)
FETCH = m.OffsetFetchRequest(
    group_id="yours",
    topics=[m.OffsetFetchRequestTopic(name="t", partition_indexes=[0])],
    groups=[m.OffsetFetchRequestGroup(group_id="yours", topics=None)],
)
WHOLE: list[Request] = [
    JOIN,
    m.SyncGroupRequest(group_id="yours", member_id="me", protocol_type="consumer", protocol_name="range"),
    m.HeartbeatRequest(group_id="yours", member_id="me"),
    m.LeaveGroupRequest(group_id="yours", member_id="me", members=[m.MemberIdentity(member_id="me")]),
    m.ConsumerGroupHeartbeatRequest(group_id="yours", member_id="me", subscribed_topic_names=["t"]),
    m.OffsetDeleteRequest(group_id="yours"),
    t.InitProducerIdRequest(transactional_id="yours", transaction_timeout_ms=60_000),
    t.AddOffsetsToTxnRequest(transactional_id="yours", producer_id=1, producer_epoch=0, group_id="mine"),
    t.EndTxnRequest(transactional_id="yours", producer_id=1, producer_epoch=0, committed=True),
    m.CommitTransactionsRequest(transactional_id="yours", producer_id=1, producer_epoch=0, group_id="mine"),
    m.BeginAttemptRequest(
        transactional_id="yours",
        driver_transactional_id="mine",
        driver_producer_id=1,
        driver_producer_epoch=0,
    ),
]
"""Requests whose response has one error code."""


@pytest.mark.parametrize("request_", WHOLE, ids=lambda each: type(each).__name__)
async def test_another_broker_coordinates(request_: Request) -> None:
    api = m.APIS[request_.api_key]
    async with divided() as (broker, _, _):
        for version in range(api.min_version, api.max_version + 1):
            answer = await send(broker, api.key, request_, version)
            assert answer.error_code == NOT_COORDINATOR, version


async def test_positions_of_another_coordinator() -> None:
    async with divided() as (broker, _, topic_id):
        by_id = [m.OffsetCommitRequestTopic(topic_id=topic_id, partitions=COMMIT.topics[0].partitions)]
        for version in range(2, 11):
            request = COMMIT if version < 10 else m.OffsetCommitRequest(group_id="yours", topics=by_id)
            answer = await send(broker, 8, request, version)
            assert answer.topics[0].partitions[0].error_code == NOT_COORDINATOR
        for version in range(6):
            answer = await send(broker, 28, PENDING, version)
            assert answer.topics[0].partitions[0].error_code == NOT_COORDINATOR
        for version in range(1, 11):
            answer = await send(broker, 9, FETCH, version)
            if version == 1:
                assert answer.topics[0].partitions[0].error_code == NOT_COORDINATOR
            else:
                assert (answer if version < 8 else answer.groups[0]).error_code == NOT_COORDINATOR


@pytest.mark.parametrize("version", range(6))
async def test_partitions_of_a_transaction_of_another_coordinator(version: int) -> None:
    topics = [t.AddPartitionsToTxnTopic(name="t", partitions=[MINE, YOURS])]
    request = t.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="yours",
        v3_and_below_producer_id=1,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=topics,
        transactions=[
            t.AddPartitionsToTxnTransaction(
                transactional_id=name, producer_id=1, producer_epoch=0, topics=topics
            )
            for name in ("mine", "yours")
        ],
    )
    async with divided(semel_cluster_action_enable=True) as (broker, _, _):
        answer = await send(broker, 24, request, version)
        if version < 4:
            (topic,) = answer.results_by_topic_v3_and_below
        else:
            mine, yours = answer.results_by_transaction
            codes = {each.partition_error_code for each in mine.topic_results[0].results_by_partition}
            assert codes == {ErrorCode.INVALID_PRODUCER_ID_MAPPING}
            (topic,) = yours.topic_results
        assert [each.partition_error_code for each in topic.results_by_partition] == [NOT_COORDINATOR] * 2


async def test_each_group_and_id_is_answered_for_itself() -> None:
    async with divided() as (broker, owners, _):
        owners.move_coordinator("yours", HERE)
        for name in ("mine", "yours"):
            await send(broker, 8, m.OffsetCommitRequest(group_id=name, topics=COMMIT.topics), 9)
            init = t.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
            assert (await send(broker, 22, init, 5)).error_code == 0
        owners.move_coordinator("yours", THERE)

        names = ["yours", "mine", "none"]
        described = (await send(broker, 15, m.DescribeGroupsRequest(groups=names))).groups
        missing = ErrorCode.GROUP_ID_NOT_FOUND
        assert [each.error_code for each in described] == [NOT_COORDINATOR, 0, missing]
        described = (await send(broker, 69, m.ConsumerGroupDescribeRequest(group_ids=names))).groups
        assert [each.error_code for each in described] == [NOT_COORDINATOR, missing, missing]
        listed = (await send(broker, 16, m.ListGroupsRequest())).groups
        assert [each.group_id for each in listed] == ["mine"]

        states = await send(broker, 65, t.DescribeTransactionsRequest(transactional_ids=names))
        assert [each.error_code for each in states.transaction_states] == [
            NOT_COORDINATOR,
            0,
            ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ]
        found = (await send(broker, 66, t.ListTransactionsRequest())).transaction_states
        assert [each.transactional_id for each in found] == ["mine"]

        deleted = (await send(broker, 42, m.DeleteGroupsRequest(groups_names=names))).results
        assert [(each.group_id, each.error_code) for each in deleted] == [
            ("yours", NOT_COORDINATOR),
            ("mine", 0),
            ("none", missing),
        ]


async def test_any_broker_gives_producer_ids() -> None:
    async with divided() as (broker, _, _):
        init = t.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        assert (await send(broker, 22, init, 5)).error_code == 0
