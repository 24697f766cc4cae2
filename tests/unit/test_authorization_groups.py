"""Rights on groups, their offsets, and the transactions of Semel's own APIs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.brokers.guarded import ROOT, Guarded, guarded_broker
from support.brokers.in_memory import make_topic
from support.models.rights import DELETE, DESCRIBE, READ, WRITE, Right
from support.models.rights_requests import ATTEMPT, CONSUMER, DRIVER, consuming, decided, joining, prepare

from semel.core.security.acls import CLUSTER_NAME, Operation, ResourceType
from semel.core.types import ErrorCode
from semel.wire.messages.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
)
from semel.wire.messages.metadata import FindCoordinatorRequest
from semel.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from semel.wire.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

OK, DENIED, TOPIC_DENIED = ErrorCode.NONE, 30, 29
MINE, OTHER = b"mine............", b"other..........."
OMITTED = -(2**31)


def on(name: str, operation: Operation = READ, kind: ResourceType = ResourceType.GROUP) -> Right:
    return Right(operation, kind, name)


def topic(name: str, operation: Operation = READ) -> Right:
    return on(name, operation, ResourceType.TOPIC)


def bits(*operations: Operation) -> int:
    return sum(1 << each for each in operations)


@asynccontextmanager
async def world(*rights: Right, **settings: Any) -> AsyncIterator[Guarded]:
    async with guarded_broker(**settings) as it:
        await make_topic(it.broker, "mine", 2)
        await make_topic(it.broker, "other", 2)
        await it.allow(*rights)
        yield it


# -- members ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [5, 6, 9])
async def test_a_denied_join_has_the_fields_of_no_member(version: int) -> None:
    async with world() as it:
        response = await it.ask(11, joining("g"), version)
        assert (response.error_code, response.generation_id, response.member_id) == (DENIED, -1, "")
        assert (response.leader, response.members) == ("", [])
        assert response.protocol_name == ("" if version < 7 else None)


async def test_a_sync_without_protocol_is_refused_for_that_reason() -> None:
    async with world() as it:
        wanted = SyncGroupRequest(group_id="g", generation_id=1, member_id="m")
        assert (await it.ask(14, wanted, 5)).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert (await it.ask(14, wanted, 4)).error_code == DENIED


async def test_a_denied_leave_lists_no_members() -> None:
    async with world() as it:
        wanted = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id="m")])
        response = await it.ask(13, wanted, 5)
        assert (response.error_code, response.members) == (DENIED, [])


async def test_a_pattern_does_not_assign_topics_that_may_not_be_described() -> None:
    async with world(on("g"), topic("mine", DESCRIBE)) as it:
        joined = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="m",
            rebalance_timeout_ms=30_000,
            subscribed_topic_regex=".*",
            topic_partitions=[],
        )
        response = await it.ask(68, joined, 1)
        assert response.error_code == OK
        assert [each.topic_id for each in response.assignment.topic_partitions] == [MINE]


async def test_one_denied_topic_of_a_subscription_refuses_the_member() -> None:
    async with world(on("g"), topic("mine", DESCRIBE)) as it:
        joined = ConsumerGroupHeartbeatRequest(
            group_id="g",
            rebalance_timeout_ms=30_000,
            subscribed_topic_names=["mine", "other"],
            topic_partitions=[],
        )
        response = await it.ask(68, joined, 0)
        assert (response.error_code, response.member_id, response.assignment) == (TOPIC_DENIED, None, None)
        assert (await it.ask(16, ListGroupsRequest(), 5, ROOT)).groups == []


# -- administration ---------------------------------------------------------------------------------------


async def test_described_groups_have_the_bits_of_the_client() -> None:
    async with world(on("a", READ), on("b", DESCRIBE)) as it:
        wanted = DescribeGroupsRequest(groups=["c", "a", "b", "a"], include_authorized_operations=True)
        response = await it.ask(15, wanted, 5)
        answers = [(each.group_id, each.error_code, each.authorized_operations) for each in response.groups]
        assert answers == [
            ("c", DENIED, OMITTED),
            ("a", OK, bits(READ, DESCRIBE)),
            ("b", OK, bits(DESCRIBE)),
        ]
        response = await it.ask(15, DescribeGroupsRequest(groups=["a"]), 5)
        assert response.groups[0].authorized_operations == OMITTED


async def test_a_consumer_group_is_hidden_with_its_topics() -> None:
    async with guarded_broker() as it:
        await prepare(it.as_root)
        await it.allow(on(CONSUMER, DESCRIBE), on("missing", READ))
        names = [CONSUMER, "missing", "denied"]
        wanted = ConsumerGroupDescribeRequest(group_ids=names, include_authorized_operations=True)
        response = await it.ask(69, wanted, 0)
        answers = {each.group_id: (each.error_code, each.members) for each in response.groups}
        assert answers == {
            "denied": (DENIED, []),
            CONSUMER: (TOPIC_DENIED, []),
            "missing": (ErrorCode.GROUP_ID_NOT_FOUND, []),
        }
        await it.allow(topic("t", DESCRIBE))
        group = (await it.ask(69, wanted, 0)).groups[1]
        assert (group.error_code, group.authorized_operations) == (OK, bits(DESCRIBE))
        assert group.members[0].assignment.topic_partitions[0].topic_name == "t"


async def test_groups_are_listed_for_those_who_may_describe_them_or_the_cluster() -> None:
    async with world(on("b", READ)) as it:
        for name in ("a", "b"):
            await it.ask(11, joining(name), 3, ROOT)
        listed = await it.ask(16, ListGroupsRequest(), 4)
        assert [each.group_id for each in listed.groups] == ["b"]
        await it.allow(on(CLUSTER_NAME, DESCRIBE, ResourceType.CLUSTER))
        listed = await it.ask(16, ListGroupsRequest(), 4)
        assert sorted(each.group_id for each in listed.groups) == ["a", "b"]


async def test_groups_are_deleted_one_by_one() -> None:
    async with world(on("a", DELETE)) as it:
        response = await it.ask(42, DeleteGroupsRequest(groups_names=["b", "a", "b"]), 2)
        answers = [(each.group_id, each.error_code) for each in response.results]
        assert answers == [("a", ErrorCode.GROUP_ID_NOT_FOUND), ("b", DENIED)]


async def test_coordinators_are_found_in_the_order_of_their_keys() -> None:
    async with world(on("b", DESCRIBE), on("d", READ)) as it:
        response = await it.ask(10, FindCoordinatorRequest(coordinator_keys=["a", "b", "c", "d", "a"]), 4)
        answers = [(each.key, each.error_code, each.node_id, each.host) for each in response.coordinators]
        found, denied = (OK, 0, "broker.example"), (DENIED, -1, "")
        assert answers == [("a", *denied), ("b", *found), ("c", *denied), ("d", *found), ("a", *denied)]
        response = await it.ask(10, FindCoordinatorRequest(key="a"), 3)
        assert (response.error_code, response.error_message) == (DENIED, "Group authorization failed.")
        assert (response.node_id, response.host, response.port) == (-1, "", -1)
        response = await it.ask(10, FindCoordinatorRequest(key_type=2, coordinator_keys=["a"]), 6)
        assert response.coordinators[0].error_code == ErrorCode.INVALID_REQUEST


# -- offsets ----------------------------------------------------------------------------------------------


async def commit(it: Guarded, *names: str) -> None:
    await it.ask(8, committing(*names), 8, ROOT)


def committing(*names: str) -> OffsetCommitRequest:
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    topics = [OffsetCommitRequestTopic(name=each, partitions=[part]) for each in names]
    return OffsetCommitRequest(group_id="g", topics=topics)


def errors(response: Any) -> dict[str, list[int]]:
    return {each.name: [part.error_code for part in each.partitions] for each in response.topics}


async def test_the_offsets_of_allowed_topics_are_committed() -> None:
    async with world(on("g"), topic("mine"), topic("gone")) as it:
        response = await it.ask(8, committing("other", "mine", "gone", "missing"), 8)
        assert errors(response) == {
            "mine": [OK],
            "gone": [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
            "other": [TOPIC_DENIED],
            "missing": [TOPIC_DENIED],
        }
        everything = OffsetFetchRequest(group_id="g", topics=None)
        assert set(errors(await it.ask(9, everything, 7, ROOT))) == {"mine"}


@pytest.mark.parametrize("version", [1, 2, 7])
async def test_offsets_of_one_group(version: int) -> None:
    async with world(topic("mine")) as it:
        await commit(it, "mine", "other")
        topics = [OffsetFetchRequestTopic(name=each, partition_indexes=[0]) for each in ("other", "mine")]
        wanted = OffsetFetchRequest(group_id="g", topics=topics)
        response = await it.ask(9, wanted, version)
        if version == 1:
            assert errors(response) == {"mine": [DENIED], "other": [DENIED]}
        else:
            assert (response.error_code, response.topics) == (DENIED, [])
        await it.allow(on("g", DESCRIBE))
        response = await it.ask(9, wanted, version)
        assert errors(response) == {"mine": [OK], "other": [TOPIC_DENIED]}
        denied = response.topics[1].partitions[0]
        assert (denied.committed_offset, denied.committed_leader_epoch, denied.metadata) == (-1, -1, "")
        if version > 1:
            response = await it.ask(9, OffsetFetchRequest(group_id="g", topics=None), version)
            assert errors(response) == {"mine": [OK]}


@pytest.mark.parametrize("version", [8, 10])
async def test_offsets_of_several_groups(version: int) -> None:
    async with world(on("g", DESCRIBE), on("h", DESCRIBE), topic("mine")) as it:
        await commit(it, "mine", "other")
        wanted = [
            OffsetFetchRequestTopics(name=name, topic_id=topic_id, partition_indexes=[0])
            for name, topic_id in (("other", OTHER), ("mine", MINE))
        ]
        groups = [("denied", wanted), ("g", wanted), ("h", wanted[:1]), ("also denied", None)]
        response = await it.ask(
            9,
            OffsetFetchRequest(
                groups=[OffsetFetchRequestGroup(group_id=name, topics=topics) for name, topics in groups]
            ),
            version,
        )
        answers = [
            (
                each.group_id,
                each.error_code,
                [(one.name or one.topic_id, one.partitions[0].error_code) for one in each.topics],
            )
            for each in response.groups
        ]
        mine, other = ("mine", "other") if version < 10 else (MINE, OTHER)
        assert answers == [
            ("denied", DENIED, []),
            ("g", OK, [(mine, OK), (other, TOPIC_DENIED)]),
            ("h", OK, [(other, TOPIC_DENIED)]),
            ("also denied", DENIED, []),
        ]


async def test_offsets_are_deleted_of_allowed_topics() -> None:
    async with world(on("g", DELETE), topic("mine")) as it:
        part = OffsetDeleteRequestPartition(partition_index=0)
        topics = [OffsetDeleteRequestTopic(name=each, partitions=[part]) for each in ("mine", "other")]
        wanted = OffsetDeleteRequest(group_id="g", topics=topics)
        response = await it.ask(47, wanted, 0)
        assert (response.error_code, response.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])
        await commit(it, "mine", "other")
        assert errors(await it.ask(47, wanted, 0)) == {"mine": [OK], "other": [TOPIC_DENIED]}


# -- transactions -----------------------------------------------------------------------------------------


async def test_offsets_of_allowed_topics_are_committed_in_a_transaction() -> None:
    xid = on("x", WRITE, ResourceType.TRANSACTIONAL_ID)
    async with guarded_broker() as it:
        there = await prepare(it.as_root)
        await make_topic(it.broker, "other")
        await it.allow(xid, on("g"), topic("t"))
        part = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=7)
        topics = [TxnOffsetCommitRequestTopic(name=each, partitions=[part]) for each in ("other", "t")]
        producer_id, epoch = there.producer
        wanted = TxnOffsetCommitRequest(
            transactional_id="x", group_id="g", producer_id=producer_id, producer_epoch=epoch, topics=topics
        )
        assert errors(await it.ask(28, wanted, 3)) == {"t": [OK], "other": [TOPIC_DENIED]}
        await it.take(xid)
        assert errors(await it.ask(28, wanted, 3)) == {"t": [53], "other": [53]}


async def test_commit_transactions_names_the_ids_that_are_denied() -> None:
    async with guarded_broker() as it:
        there = await prepare(it.as_root)
        await it.allow(on("g"), topic("t"), on(DRIVER, WRITE, ResourceType.TRANSACTIONAL_ID))
        response = await it.ask(20_000, decided(there), 0)
        assert (response.error_code, response.error_message) == (53, "Transactional Id authorization failed.")
        assert [(each.transactional_id, each.error_code) for each in response.refused] == [(ATTEMPT, 53)]
        request = decided(there)
        request.topics, request.group_id = [], ""
        await it.allow(on(ATTEMPT, WRITE, ResourceType.TRANSACTIONAL_ID))
        await it.take(on("g"), topic("t"))
        assert (await it.ask(20_000, request, 0)).error_code == OK


async def test_a_member_of_a_group_stays_one_only_with_its_right() -> None:
    async with world(on("g"), topic("t", DESCRIBE)) as it:
        await make_topic(it.broker, "t")
        joined = await it.ask(68, consuming("", 0, "g"), 0)
        assert joined.error_code == OK
        await it.take(on("g"))
        response = await it.ask(68, consuming(joined.member_id, joined.member_epoch, "g"), 0)
        assert response.error_code == DENIED
