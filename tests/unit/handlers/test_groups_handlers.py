"""Group requests through the handlers and a broker in memory, encoded and decoded in every version."""

import asyncio
from typing import Any

import pytest
from support.brokers.in_memory import broker_in_memory, make_topic, send
from support.models.group_rules import subscription
from support.waiting import LIMIT_SECONDS

from semel.broker.broker import Broker
from semel.core.groups import ConsumerGroup
from semel.core.groups.commands import REGEX_REFRESH_MS, DescribeGroup, Joined
from semel.core.topics import AddPartitions, DeleteTopic
from semel.core.types import ErrorCode
from semel.store.contract import StoreFull
from semel.wire.consumer_protocol import decode_assignment, encode_assignment
from semel.wire.messages import (
    IncrementalAlterConfigsAlterableConfig,
    IncrementalAlterConfigsAlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from semel.wire.messages.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    TopicPartitions,
)

JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE, LIST, DELETE, CONSUMER, CONSUMER_DESCRIBE = (
    11,
    12,
    13,
    14,
    15,
    16,
    42,
    68,
    69,
)
QUICK = {"group_initial_rebalance_delay_ms": 0}


def join_request(member_id: str = "", **fields: Any) -> JoinGroupRequest:
    protocols = [JoinGroupRequestProtocol(name="range", metadata=subscription("t"))]
    defaults: dict[str, Any] = {
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "protocols": protocols,
    }
    return JoinGroupRequest(
        group_id="g", member_id=member_id, protocol_type="consumer", **{**defaults, **fields}
    )


async def stable(broker: Broker, given: bytes = b"mine", **fields: Any) -> str:
    promised = await send(broker, JOIN, join_request(**fields))
    await rebalance(broker, promised.member_id, given, **fields)
    return str(promised.member_id)


async def rebalance(broker: Broker, member_id: str, given: bytes, **fields: Any) -> None:
    """Join and sync as the only member."""
    joined = await send(broker, JOIN, join_request(member_id, **fields))
    assert joined.error_code == ErrorCode.NONE
    assignments = [SyncGroupRequestAssignment(member_id=joined.member_id, assignment=given)]
    request = SyncGroupRequest(
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=assignments,
    )
    synced = await send(broker, SYNC, request)
    assert synced.assignment == given


@pytest.mark.parametrize("version", range(10))
async def test_join_in_every_version(version: int) -> None:
    async with broker_in_memory(**QUICK) as broker:
        joined = await send(broker, JOIN, join_request(), version)
        if version >= 4:
            assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
            joined = await send(broker, JOIN, join_request(joined.member_id), version)
        assert (joined.error_code, joined.generation_id) == (ErrorCode.NONE, 1)
        assert joined.member_id.startswith("test-")
        assert joined.leader == joined.member_id
        assert [each.member_id for each in joined.members] == [joined.member_id]
        assert joined.protocol_type == ("consumer" if version >= 7 else None)
        refused = await send(broker, JOIN, join_request("ghost"), version)
        assert (refused.error_code, refused.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "ghost")
        assert refused.protocol_name == (None if version >= 7 else "")


@pytest.mark.parametrize("version", range(6))
async def test_sync_heartbeat_and_leave_in_every_version(version: int) -> None:
    async with broker_in_memory(**QUICK) as broker:
        member_id = await stable(broker)
        request = SyncGroupRequest(
            group_id="g",
            generation_id=1,
            member_id=member_id,
            protocol_type="consumer",
            protocol_name="range",
        )
        synced = await send(broker, SYNC, request, version)
        assert synced.assignment == b"mine"
        assert synced.protocol_name == ("range" if version >= 5 else None)
        beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member_id)
        assert (await send(broker, HEARTBEAT, beat, min(version, 4))).error_code == ErrorCode.NONE
        leave = LeaveGroupRequest(
            group_id="g", member_id=member_id, members=[MemberIdentity(member_id=member_id)]
        )
        left = await send(broker, LEAVE, leave, version)
        again = await send(broker, LEAVE, leave, version)
        if version < 3:
            assert (left.error_code, again.error_code) == (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID)
        else:
            assert [each.error_code for each in left.members] == [ErrorCode.NONE]
            assert [each.error_code for each in again.members] == [ErrorCode.UNKNOWN_MEMBER_ID]


async def test_a_join_waits_for_the_other_member() -> None:
    async with broker_in_memory(**QUICK) as broker:
        first = await stable(broker)
        promised = await send(broker, JOIN, join_request())
        second = asyncio.create_task(send(broker, JOIN, join_request(promised.member_id)))
        beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=first)
        # Requests are decided in the order in which they came, so this one finds the rebalance under way.
        await asyncio.sleep(0)
        assert (await send(broker, HEARTBEAT, beat)).error_code == ErrorCode.REBALANCE_IN_PROGRESS
        assert not second.done()
        rejoined = await send(broker, JOIN, join_request(first))
        joined = await second
        assert joined.generation_id == rejoined.generation_id == 2
        assert len(rejoined.members) == 2


async def test_time_ends_a_wait_without_any_request() -> None:
    async with (
        broker_in_memory(group_initial_rebalance_delay_ms=50) as broker,
        asyncio.timeout(LIMIT_SECONDS),
    ):
        await stable(broker)


async def test_a_full_disk_makes_clients_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_in_memory(**QUICK) as broker:

        async def refuse(*_: Any, **__: Any) -> int:
            raise StoreFull

        monkeypatch.setattr(broker.store, "commit", refuse)
        joined = await send(broker, JOIN, join_request(), 3)
        assert joined.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        request = consumer_request("a", 0)
        assert (await send(broker, CONSUMER, request)).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("version", range(7))
async def test_describe_in_every_version(version: int) -> None:
    async with broker_in_memory(**QUICK) as broker:
        member_id = await stable(broker)
        request = DescribeGroupsRequest(groups=["g", "none"], include_authorized_operations=True)
        group, none = (await send(broker, DESCRIBE, request, version)).groups
        assert (group.group_state, group.protocol_type, group.protocol_data) == (
            "Stable",
            "consumer",
            "range",
        )
        (member,) = group.members
        assert (member.member_id, member.client_id, member.client_host) == (member_id, "test", "/127.0.0.1")
        assert (member.member_metadata, member.member_assignment) == (subscription("t"), b"mine")
        assert none.group_state == "Dead"
        assert none.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE)


@pytest.mark.parametrize("version", range(6))
async def test_list_in_every_version(version: int) -> None:
    async with broker_in_memory(**QUICK) as broker:
        await make_topic(broker, "t", 2)
        await stable(broker)
        await send(broker, CONSUMER, consumer_request("a", 0, group_id="k"))
        listed = (await send(broker, LIST, ListGroupsRequest(), version)).groups
        assert [(each.group_id, each.protocol_type) for each in listed] == [
            ("g", "consumer"),
            ("k", "consumer"),
        ]
        if version >= 4:
            assert [each.group_state for each in listed] == ["Stable", "Stable"]
            none = await send(broker, LIST, ListGroupsRequest(states_filter=["Empty"]), version)
            assert none.groups == []
        if version >= 5:
            assert [each.group_type for each in listed] == ["classic", "consumer"]
            some = await send(broker, LIST, ListGroupsRequest(types_filter=["Consumer"]), version)
            assert [each.group_id for each in some.groups] == ["k"]


@pytest.mark.parametrize("version", range(3))
async def test_delete_in_every_version(version: int) -> None:
    async with broker_in_memory(**QUICK) as broker:
        member_id = await stable(broker)
        request = DeleteGroupsRequest(groups_names=["g", "none"])
        refused = (await send(broker, DELETE, request, version)).results
        assert [each.error_code for each in refused] == [
            ErrorCode.NON_EMPTY_GROUP,
            ErrorCode.GROUP_ID_NOT_FOUND,
        ]
        await send(broker, LEAVE, LeaveGroupRequest(group_id="g", member_id=member_id), 0)
        assert (await send(broker, DELETE, request, version)).results[0].error_code == ErrorCode.NONE
        assert (await send(broker, LIST, ListGroupsRequest())).groups == []


# The consumer protocol.


def consumer_request(
    member_id: str, epoch: int, group_id: str = "g", **fields: Any
) -> ConsumerGroupHeartbeatRequest:
    if epoch == 0:
        defaults = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["t"], "topic_partitions": []}
        fields = {**defaults, **fields}
    fields.setdefault("topic_partitions", None)
    return ConsumerGroupHeartbeatRequest(group_id=group_id, member_id=member_id, member_epoch=epoch, **fields)


@pytest.mark.parametrize("version", range(2))
async def test_consumer_heartbeats_in_every_version(version: int) -> None:
    async with broker_in_memory(**QUICK) as broker:
        topic = await make_topic(broker, "t", 3)
        joined = await send(broker, CONSUMER, consumer_request("a", 0), version)
        assert (joined.error_code, joined.member_id, joined.member_epoch) == (ErrorCode.NONE, "a", 1)
        (assigned,) = joined.assignment.topic_partitions
        assert (assigned.topic_id, assigned.partitions) == (topic.topic_id, [0, 1, 2])
        beat = await send(broker, CONSUMER, consumer_request("a", 1, topic_partitions=[assigned]), version)
        assert (beat.error_code, beat.assignment) == (ErrorCode.NONE, None)
        nameless = await send(broker, CONSUMER, consumer_request("", 0), version)
        if version == 0:
            assert nameless.error_code == ErrorCode.NONE
            assert nameless.member_id
        else:
            assert nameless.error_code == ErrorCode.INVALID_REQUEST


async def test_a_new_partition_and_a_new_topic_are_noticed() -> None:
    async with broker_in_memory(**QUICK) as broker:
        await make_topic(broker, "t", 1)
        joined = await send(broker, CONSUMER, consumer_request("a", 0, subscribed_topic_names=["t", "u"]))
        await broker.ask(AddPartitions("t", 2))
        grown = await send(broker, CONSUMER, consumer_request("a", joined.member_epoch))
        assert grown.assignment.topic_partitions[0].partitions == [0, 1]
        await make_topic(broker, "u", 1)
        more = await send(broker, CONSUMER, consumer_request("a", grown.member_epoch))
        assert len(more.assignment.topic_partitions) == 2
        await broker.ask(DeleteTopic("t"))
        less = await send(
            broker,
            CONSUMER,
            consumer_request("a", more.member_epoch, topic_partitions=more.assignment.topic_partitions),
        )
        assert [each.partitions for each in less.assignment.topic_partitions] == [[0]]


async def test_regular_expressions(monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_in_memory(**QUICK) as broker:
        orders = await make_topic(broker, "orders", 1)
        await make_topic(broker, "other", 1)
        request = consumer_request("a", 0, subscribed_topic_names=None, subscribed_topic_regex="ord.*")
        joined = await send(broker, CONSUMER, request)
        assert [each.topic_id for each in joined.assignment.topic_partitions] == [orders.topic_id]
        await make_topic(broker, "ordinary", 1)
        clock = broker.clock.now
        monkeypatch.setattr(broker.clock, "now", lambda: clock() + REGEX_REFRESH_MS)
        more = await send(broker, CONSUMER, consumer_request("a", 1))
        assert len(more.assignment.topic_partitions) == 2
        request = consumer_request("b", 0, subscribed_topic_names=None, subscribed_topic_regex="(")
        refused = await send(broker, CONSUMER, request)
        assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
        assert "`(`" in refused.error_message


@pytest.mark.parametrize("version", range(2))
async def test_consumer_describe_in_every_version(version: int) -> None:
    async with broker_in_memory(**QUICK) as broker:
        topic = await make_topic(broker, "t", 2)
        await send(broker, CONSUMER, consumer_request("a", 0, group_id="k", rack_id="r"))
        await send(broker, CONSUMER, consumer_request("b", 0, group_id="k"))
        await stable(broker)
        request = ConsumerGroupDescribeRequest(group_ids=["k", "g", "none"])
        group, classic, none = (await send(broker, CONSUMER_DESCRIBE, request, version)).groups
        assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Reconciling", 2, 2)
        assert group.assignor_name == "uniform"
        member = group.members[0]
        assert (member.member_id, member.rack_id, member.client_host) == ("a", "r", "/127.0.0.1")
        (assigned,) = member.assignment.topic_partitions
        assert (assigned.topic_name, assigned.topic_id, assigned.partitions) == ("t", topic.topic_id, [0, 1])
        assert member.target_assignment.topic_partitions[0].partitions == [0]
        assert member.member_type == (1 if version >= 1 else -1)
        assert classic.error_code == none.error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_owned_partitions_are_understood() -> None:
    async with broker_in_memory(**QUICK) as broker:
        topic = await make_topic(broker, "t", 2)
        await send(broker, CONSUMER, consumer_request("a", 0))
        await send(broker, CONSUMER, consumer_request("b", 0))
        owned = [TopicPartitions(topic_id=topic.topic_id, partitions=[0, 1])]
        told = await send(broker, CONSUMER, consumer_request("a", 1, topic_partitions=owned))
        assert told.assignment.topic_partitions[0].partitions == [0]
        owned = [TopicPartitions(topic_id=topic.topic_id, partitions=[0])]
        assert (
            await send(broker, CONSUMER, consumer_request("a", 1, topic_partitions=owned))
        ).member_epoch == 2


def test_an_error_has_no_generation() -> None:
    assert Joined(ErrorCode.UNKNOWN_MEMBER_ID, "a").generation == -1


# Between the protocols.


async def migrated(broker: Broker) -> str:
    """A classic group in its first generation that a consumer member has joined; the classic member."""
    await make_topic(broker, "t", 4)
    member_id = await stable(broker, encode_assignment({"t": [0, 1, 2, 3]}))
    answer = await send(broker, CONSUMER, consumer_request("n", 0), 1)
    assert answer.error_code == ErrorCode.NONE
    return member_id


@pytest.mark.parametrize("version", range(10))
async def test_a_classic_member_goes_on_in_a_consumer_group(version: int) -> None:
    async with broker_in_memory(**QUICK) as broker:
        member_id = await migrated(broker)
        beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member_id)
        assert (await send(broker, HEARTBEAT, beat)).error_code == ErrorCode.REBALANCE_IN_PROGRESS
        joined = await send(broker, JOIN, join_request(member_id), version)
        assert (joined.error_code, joined.leader, joined.members) == (ErrorCode.NONE, "", [])
        assert joined.protocol_name == "range"
        request = SyncGroupRequest(
            group_id="g",
            generation_id=joined.generation_id,
            member_id=member_id,
            protocol_type="consumer",
            protocol_name="range",
        )
        synced = await send(broker, SYNC, request, min(version, 5))
        assert synced.error_code == ErrorCode.NONE
        kept = decode_assignment(synced.assignment)["t"]
        (group,) = (
            await send(broker, CONSUMER_DESCRIBE, ConsumerGroupDescribeRequest(group_ids=["g"]), 1)
        ).groups
        assert {each.member_id: each.member_type for each in group.members} == {member_id: 0, "n": 1}
        answer = await send(broker, CONSUMER, consumer_request("n", joined.generation_id), 1)
        (topic,) = answer.assignment.topic_partitions
        assert sorted([*kept, *topic.partitions]) == [0, 1, 2, 3]


async def test_the_policy_holds_when_it_is_changed() -> None:
    async with broker_in_memory(**QUICK) as broker:
        await migrated(broker)
        config = IncrementalAlterConfigsAlterableConfig(
            name="group.consumer.migration.policy", config_operation=0, value="upgrade"
        )
        resource = IncrementalAlterConfigsAlterConfigsResource(
            resource_type=4, resource_name="0", configs=[config]
        )
        changed = await send(broker, 44, IncrementalAlterConfigsRequest(resources=[resource]))
        assert changed.responses[0].error_code == ErrorCode.NONE
        await send(broker, CONSUMER, consumer_request("n", -1), 1)
        listed = (await send(broker, LIST, ListGroupsRequest(), 5)).groups
        assert [each.group_type for each in listed] == ["consumer"]


async def test_a_rebalance_that_completes_while_the_first_heartbeat_looks_topics_up() -> None:
    """The classic member owns partitions of a topic that was not looked up. Nobody else gets them."""
    async with broker_in_memory(**QUICK) as broker:
        await make_topic(broker, "t", 2)
        await make_topic(broker, "u", 4)
        member_id = await stable(broker, encode_assignment({"t": [0, 1]}))
        look_up = broker.catalog.topics
        looked: list[Any] = []

        async def rebalance_once(names: Any) -> Any:
            found = await look_up(names)
            if not looked:
                looked.append(names)
                both = [JoinGroupRequestProtocol(name="range", metadata=subscription("t", "u"))]
                given = encode_assignment({"t": [0, 1], "u": [0, 1, 2, 3]})
                await rebalance(broker, member_id, given, protocols=both)
            return found

        broker.catalog.topics = rebalance_once  # type: ignore[method-assign]
        answer = await send(broker, CONSUMER, consumer_request("n", 0), 1)
        assert (answer.error_code, answer.assignment.topic_partitions) == (ErrorCode.NONE, [])
        assert list(looked[0]) == ["t"]
        described = await broker.ask(DescribeGroup("g"))
        assert isinstance(described, ConsumerGroup)
        assert len(described.members[member_id].assigned) == 6


async def test_a_member_id_is_never_too_long_to_join_with() -> None:
    async with broker_in_memory(**QUICK) as broker:
        static = {"group_instance_id": "i" * 1_000}
        joined = await send(broker, JOIN, join_request(**static))
        again = await send(broker, JOIN, join_request(joined.member_id, **static))
        assert (joined.error_code, again.error_code) == (ErrorCode.NONE, ErrorCode.NONE)
