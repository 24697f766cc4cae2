"""Share groups through the handlers and a broker in memory: sessions, delivery, waits, offsets, configs."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.brokers.in_memory import broker_in_memory, make_topic, send
from support.clients.share_members import (
    GROUP,
    Member,
    begun_to_wait,
    configure,
    produce,
    runs,
    values,
    world,
)
from support.waiting import until_async

from semel.broker.broker import Broker
from semel.config import Settings
from semel.core.shares.commands import Acquire
from semel.core.types import Command, ErrorCode
from semel.handlers.share_partitions import ShareSessions, sessions_of
from semel.wire.messages import (
    AlterShareGroupOffsetsPartition,
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsTopic,
    DeleteGroupsRequest,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsTopic,
    DescribeShareGroupOffsetsGroup,
    DescribeShareGroupOffsetsRequest,
    ForgottenShareTopic,
    IncrementalAlterConfigsRequest,
    ListGroupsRequest,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
)
from semel.wire.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsAlterableConfig,
    IncrementalAlterConfigsAlterConfigsResource,
)

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
BROKER = 4


async def test_records_are_shared_acknowledged_and_gone() -> None:
    async with broker_in_memory() as broker:
        _, (a, b) = await world(broker, "a", "b")
        await produce(broker, "t", "1", "2", "3")
        await produce(broker, "t", "4", "5")
        first = await a.fetch(max_records=2)
        assert runs(first) == [(0, 2, 1)]
        assert values(first) == [b"1", b"2", b"3"]
        second = await b.fetch()
        assert values(second) == [b"4", b"5"]
        assert await a.acquired((0, 1, [ACCEPT]), (2, 2, [RELEASE])) == [(2, 2, 2)]
        assert await b.acquired((3, 4, [ACCEPT])) == []
        answer = await a.acknowledge((2, 2, [REJECT]))
        assert answer.responses[0].partitions[0].error_code == ErrorCode.NONE
        assert answer.acquisition_lock_timeout_ms == 30_000
        offsets = await send(
            broker,
            90,
            DescribeShareGroupOffsetsRequest(
                groups=[DescribeShareGroupOffsetsGroup(group_id="g", topics=None)]
            ),
        )
        (partition,) = offsets.groups[0].topics[0].partitions
        assert (partition.start_offset, partition.lag) == (5, 0)


async def test_a_group_begins_at_the_end_unless_it_is_configured() -> None:
    async with broker_in_memory() as broker:
        topic = await make_topic(broker, "t")
        await produce(broker, "t", "old")
        a = Member(broker, "a", topic)
        await a.join()
        assert await a.acquired() == []
        await produce(broker, "t", "new")
        assert values(await a.fetch()) == [b"new"]


async def test_a_group_begins_some_time_ago() -> None:
    async with broker_in_memory() as broker:
        topic = await make_topic(broker, "t")
        assert await configure(broker, share_auto_offset_reset="by_duration:PT1H") == [ErrorCode.NONE]
        await produce(broker, "t", "of 1970")
        a = Member(broker, "a", topic)
        await a.join()
        assert await a.acquired() == []
        await produce(broker, "t", "next")
        assert values(await a.fetch()) == [b"next"]


async def test_a_fetch_waits_for_new_records() -> None:
    async with broker_in_memory() as broker:
        _, (a,) = await world(broker, "a")
        waiting = await begun_to_wait(broker, a.fetch(wait_ms=30_000))
        await produce(broker, "t", "x")
        assert values(await waiting) == [b"x"]


async def test_a_fetch_waits_for_records_that_others_release() -> None:
    async with broker_in_memory() as broker:
        _, (a, b) = await world(broker, "a", "b")
        await produce(broker, "t", "x", "y")
        await a.acquired()
        waiting = await begun_to_wait(broker, b.fetch(wait_ms=30_000))
        await a.acknowledge((0, 0, [RELEASE]))
        assert values(await waiting) == [b"x"]


async def test_a_lock_that_is_over_wakes_a_fetch() -> None:
    async with broker_in_memory() as broker:
        _, (a, b) = await world(broker, "a", "b")
        assert await configure(broker, share_record_lock_duration_ms="20000") == [ErrorCode.NONE]
        await produce(broker, "t", "x")
        assert await a.acquired() == [(0, 0, 1)]
        waiting = await begun_to_wait(broker, b.fetch(wait_ms=30_000))
        await broker.advance(20_000)
        assert runs(await waiting) == [(0, 0, 2)]
        answer = await a.acknowledge((0, 0, [ACCEPT]))
        assert answer.responses[0].partitions[0].error_code == ErrorCode.INVALID_RECORD_STATE


async def test_the_end_of_a_connection_releases_its_records() -> None:
    async with broker_in_memory() as broker:
        _, (a, b) = await world(broker, "a", "b")
        await produce(broker, "t", "x")
        assert await a.acquired() == [(0, 0, 1)]
        waiting = await begun_to_wait(broker, b.fetch(wait_ms=30_000))
        broker.connection_gone(a.connection)
        assert runs(await waiting) == [(0, 0, 2)]
        assert len(sessions_of(broker)) == 1
        assert (await a.fetch()).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


async def test_a_fetch_that_still_waits_does_not_take_back_what_its_session_has_released() -> None:
    async with broker_in_memory() as broker:
        _, (a, b) = await world(broker, "a", "b")
        await produce(broker, "t", "x")
        assert await a.acquired() == [(0, 0, 1)]
        waiting = await begun_to_wait(broker, a.fetch(wait_ms=30_000))
        broker.connection_gone(a.connection)
        assert runs(await waiting) == []
        assert await b.acquired() == [(0, 0, 2)]


async def test_the_last_request_of_a_session_releases_what_is_left() -> None:
    async with broker_in_memory() as broker:
        _, (a, b) = await world(broker, "a", "b")
        await produce(broker, "t", "x", "y")
        await a.acquired()
        answer = await a.acknowledge((0, 0, [ACCEPT]), epoch=-1)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.NONE
        assert await b.acquired() == [(1, 1, 2)]


async def test_epochs_of_a_session() -> None:
    async with broker_in_memory() as broker:
        _, (a,) = await world(broker, "a")
        a.epoch = 1
        assert (await a.fetch()).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        a.epoch = 0
        assert (await a.fetch((0, 0, [ACCEPT]))).error_code == ErrorCode.INVALID_REQUEST
        assert (await a.acknowledge(epoch=0)).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        await a.acquired()
        a.epoch = 7
        assert (await a.fetch()).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        a.epoch = 0
        await a.acquired()
        a.name = "x" * 37
        assert (await a.fetch()).error_code == ErrorCode.INVALID_REQUEST


async def test_a_new_session_of_a_member_keeps_what_it_has_acquired() -> None:
    async with broker_in_memory() as broker:
        _, (a,) = await world(broker, "a")
        await produce(broker, "t", "x")
        await a.acquired()
        a.epoch = 0
        assert await a.acquired() == []
        assert await a.acquired((0, 0, [ACCEPT])) == []
        answer = await a.acknowledge((0, 0, [ACCEPT]))
        assert answer.responses[0].partitions[0].error_code == ErrorCode.NONE


async def test_sessions_are_bounded() -> None:
    async with broker_in_memory(group_share_max_share_sessions=1) as broker:
        _, (a, b) = await world(broker, "a", "b")
        await a.acquired()
        assert (await b.fetch()).error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
        broker.connection_gone(a.connection)
        await b.acquired()


async def test_requests_of_a_session_may_overlap() -> None:
    """A request may add partitions while an older one of the session is served on another connection."""
    async with broker_in_memory() as broker:
        topic, (a,) = await world(broker, "a", partitions=2)
        await produce(broker, "t", "x")
        (run,) = await a.acquired()
        slow = asyncio.create_task(a.fetch((run[0], run[1], [ACCEPT]), wait_ms=200))
        other = Member(broker, "a", topic, connection=2)
        other.epoch = a.epoch + 1
        added = ShareFetchTopic(topic_id=topic.topic_id, partitions=[ShareFetchPartition(partition_index=1)])
        await asyncio.sleep(0)
        request = ShareFetchRequest(
            group_id="g", member_id="a", share_session_epoch=other.epoch, min_bytes=1, topics=[added]
        )
        assert (await other.ask(78, request)).error_code == ErrorCode.NONE
        assert (await slow).error_code == ErrorCode.NONE


def test_a_session_cannot_grow_beyond_its_part() -> None:
    """Also by partitions that it forgets again: the member may hold records of them."""
    sessions = ShareSessions(10, 100)
    topic_id = bytes(16)
    turn = sessions.begin(("g", "a"), 1, "User:a", [(topic_id, 0)])
    assert turn.error is ErrorCode.NONE
    many = [(topic_id, index) for index in range(1, 11)]
    refused = sessions.go_on(("g", "a"), 1, "User:a", many, [])
    assert refused.error is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert sessions.go_on(("g", "a"), 1, "User:a", many[:9], many[:9]).error is ErrorCode.NONE
    refused = sessions.go_on(("g", "a"), 2, "User:a", many[9:], [])
    assert refused.error is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert sessions.begin(("g", "b"), 2, "User:b", many).error is ErrorCode.NONE
    too_many = [*many, (topic_id, 99)]
    assert sessions.begin(("g", "c"), 3, "User:c", too_many).error is ErrorCode.SHARE_SESSION_LIMIT_REACHED


def test_a_session_that_is_begun_again_counts_each_partition_once() -> None:
    sessions = ShareSessions(1, 100)
    places = [(bytes(16), index) for index in range(10)]
    first = sessions.begin(("g", "a"), 1, "User:a", places).session
    assert first is not None
    assert sessions.begin(("g", "a"), 2, "User:a", places, first.shares).error is ErrorCode.NONE
    too_many = [*places[:5], *((bytes(16), index) for index in range(20, 27))]
    refused = sessions.begin(("g", "a"), 3, "User:a", too_many)
    assert refused.error is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert sessions.go_on(("g", "a"), 1, "User:a", [], []).error is ErrorCode.NONE, "the older one goes on"
    other = [(bytes(16), index) for index in range(30, 40)]
    assert sessions.begin(("g", "a"), 4, "User:a", other).error is ErrorCode.NONE, "nothing else is locked"


async def test_a_connection_that_is_closed_while_records_are_acquired_leaves_no_locks() -> None:
    async with broker_in_memory() as broker:
        _, (a, b) = await world(broker, "a", "b")
        b.connection = 2
        await a.acquired()
        await produce(broker, "t", "x")
        submit = broker.submit
        closed: list[None] = []

        def submit_and_close(commands: Sequence[Command[Any]], *more: Any) -> Any:
            found = submit(commands, *more)
            if isinstance(commands[0], Acquire) and not closed:
                closed.append(None)
                broker.connection_gone(a.connection)
            return found

        broker.submit = submit_and_close  # type: ignore[assignment, method-assign]  # patched
        await a.fetch()
        assert closed
        assert await b.acquired() == [(0, 0, 2)]


async def test_a_quota_that_is_used_up_ends_a_fetch() -> None:
    async with broker_in_memory() as broker:
        _, (a,) = await world(broker, "a")
        await produce(broker, "t", "x")
        tried: list[int] = []

        class UsedUp:
            is_idle = False

            def fetch_bytes_max(self) -> int:
                return 1 << 20

            def may_send(self, size: int) -> bool:
                tried.append(size)
                return False

        a.throttle = UsedUp()
        assert runs(await a.fetch(wait_ms=5_000)) == []
        assert len(tried) == 1


async def test_a_forgotten_partition_is_not_fetched() -> None:
    async with broker_in_memory() as broker:
        topic, (a,) = await world(broker, "a")
        await a.acquired()
        await produce(broker, "t", "x")
        forgotten = [ForgottenShareTopic(topic_id=topic.topic_id, partitions=[0])]
        assert await a.acquired(forgotten_topics_data=forgotten) == []


async def test_locks_are_renewed_without_fetching() -> None:
    async with broker_in_memory() as broker:
        _, (a,) = await world(broker, "a")
        await produce(broker, "t", "x", "y")
        await a.acquired(max_records=1, share_acquire_mode=1)
        refused = await a.fetch((0, 0, [RENEW]), is_renew_ack=True)
        assert refused.error_code == ErrorCode.INVALID_REQUEST, "its limits are not 0"
        renewed = await a.fetch((0, 0, [RENEW]), is_renew_ack=True, min_bytes=0, max_records=0, max_bytes=0)
        assert renewed.responses[0].partitions[0].acknowledge_error_code == ErrorCode.NONE
        assert runs(renewed) == []
        await configure(broker, share_renew_acknowledge_enable="false")
        answer = await a.acknowledge((0, 0, [RENEW]), is_renew_ack=True)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.INVALID_RECORD_STATE


@pytest.mark.parametrize(
    "acks",
    [
        [(1, 0, [ACCEPT])],
        [(0, 1, [ACCEPT]), (1, 2, [ACCEPT])],
        [(0, 1, [])],
        [(0, 2, [ACCEPT, ACCEPT])],
        [(0, 0, [5])],
        [(0, 0, [-1])],
        [(0, 0, [RENEW])],
    ],
)
async def test_acknowledgements_that_are_invalid(acks: list[tuple[int, int, list[int]]]) -> None:
    async with broker_in_memory() as broker:
        _, (a,) = await world(broker, "a")
        await produce(broker, "t", "x", "y", "z")
        await a.acquired()
        answer = await a.acknowledge(*acks)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.INVALID_REQUEST


async def test_partitions_that_do_not_exist() -> None:
    async with broker_in_memory() as broker:
        topic, (a,) = await world(broker, "a")
        a.topic = topic.but(topic_id=b"another topic id")
        response = await a.fetch()
        assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        stranger = Member(broker, "s", await make_topic(broker, "u"), 9)
        response = await stranger.fetch()
        assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_groups_are_described_listed_and_deleted() -> None:
    async with broker_in_memory() as broker:
        _, (a,) = await world(broker, "a", partitions=2)
        described = (await send(broker, 77, ShareGroupDescribeRequest(group_ids=["g", "h"]))).groups
        assert (described[0].group_state, described[0].assignor_name) == ("Stable", "simple")
        (member,) = described[0].members
        assert member.assignment.topic_partitions[0].partitions == [0, 1]
        assert described[1].error_code == ErrorCode.GROUP_ID_NOT_FOUND
        (listed,) = (await send(broker, 16, ListGroupsRequest(types_filter=["Share"]))).groups
        assert (listed.group_id, listed.group_type, listed.protocol_type) == ("g", "share", "share")
        delete = DeleteGroupsRequest(groups_names=["g"])
        assert (await send(broker, 42, delete)).results[0].error_code == ErrorCode.NON_EMPTY_GROUP
        left = ShareGroupHeartbeatRequest(group_id="g", member_id="a", member_epoch=-1)
        assert (await a.ask(76, left, 1)).member_epoch == -1
        assert (await send(broker, 42, delete)).results[0].error_code == ErrorCode.NONE
        assert (await send(broker, 16, ListGroupsRequest())).groups == []


async def test_altering_nothing_makes_no_group() -> None:
    async with broker_in_memory(semel_groups_max=1) as broker:
        await make_topic(broker, "t")

        def request(group_id: str, topic: str) -> AlterShareGroupOffsetsRequest:
            partitions = [AlterShareGroupOffsetsPartition(partition_index=0, start_offset=1)]
            topics = [AlterShareGroupOffsetsTopic(topic_name=topic, partitions=partitions)]
            return AlterShareGroupOffsetsRequest(group_id=group_id, topics=topics)

        assert (await send(broker, 91, request("g", "no"))).error_code == ErrorCode.NONE
        assert (await send(broker, 16, ListGroupsRequest(), 5)).groups == []
        assert (await send(broker, 91, request("g", "t"))).error_code == ErrorCode.NONE
        await broker.count()
        refused = await send(broker, 91, request("h", "t"))
        assert refused.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_offsets_are_altered_and_deleted() -> None:
    async with broker_in_memory() as broker:
        _, (a,) = await world(broker, "a")
        await produce(broker, "t", "0", "1", "2")
        partitions = [
            AlterShareGroupOffsetsPartition(partition_index=index, start_offset=1) for index in (0, 5)
        ]
        alter = AlterShareGroupOffsetsRequest(
            group_id="g",
            topics=[
                AlterShareGroupOffsetsTopic(topic_name="t", partitions=partitions),
                AlterShareGroupOffsetsTopic(topic_name="no", partitions=partitions),
            ],
        )
        assert (await send(broker, 91, alter)).error_code == ErrorCode.NON_EMPTY_GROUP
        await a.ask(76, ShareGroupHeartbeatRequest(group_id="g", member_id="a", member_epoch=-1), 1)
        altered = (await send(broker, 91, alter)).responses
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [each.error_code for each in altered[0].partitions] == [ErrorCode.NONE, missing]
        assert [each.error_code for each in altered[1].partitions] == [missing, missing]
        await a.join()
        assert values(await a.fetch()) == [b"1", b"2"]
        await a.ask(76, ShareGroupHeartbeatRequest(group_id="g", member_id="a", member_epoch=-1), 1)
        topics = [DeleteShareGroupOffsetsTopic(topic_name=name) for name in ("t", "no")]
        deleted = await send(broker, 92, DeleteShareGroupOffsetsRequest(group_id="g", topics=topics))
        assert [each.error_code for each in deleted.responses] == [ErrorCode.NONE, missing]


async def test_configs_of_groups_are_described_and_checked() -> None:
    async with broker_in_memory() as broker:
        assert await configure(broker, share_delivery_count_limit="1") == [ErrorCode.INVALID_CONFIG]
        assert await configure(broker, share_unheard_of="1") == [ErrorCode.INVALID_CONFIG]
        assert await configure(broker, share_auto_offset_reset="by_duration:P") == [ErrorCode.INVALID_CONFIG]
        assert await configure(broker, share_delivery_count_limit="3") == [ErrorCode.NONE]
        resource = DescribeConfigsResource(resource_type=GROUP, resource_name="g")
        (result,) = (await send(broker, 32, DescribeConfigsRequest(resources=[resource]))).results
        shown = {each.name: (each.value, each.config_source) for each in result.configs}
        assert shown["share.delivery.count.limit"] == ("3", 8)
        assert shown["share.auto.offset.reset"] == ("latest", 5)
        assert shown["share.record.lock.duration.ms"] == ("30000", 5)


async def test_settings_of_brokers_hold_at_once_for_groups_that_set_nothing() -> None:
    async with broker_in_memory() as broker:
        _, (a,) = await world(broker, "a")
        assert (await a.join()).heartbeat_interval_ms == 5_000
        for name, value in (
            ("group.share.heartbeat.interval.ms", "7000"),
            ("group.share.record.lock.duration.ms", "20000"),
        ):
            step = IncrementalAlterConfigsAlterableConfig(name=name, value=value)
            resource = IncrementalAlterConfigsAlterConfigsResource(
                resource_type=BROKER, resource_name="", configs=[step]
            )
            request = IncrementalAlterConfigsRequest(resources=[resource])
            assert (await send(broker, 44, request)).responses[0].error_code == ErrorCode.NONE
        assert (await a.join()).heartbeat_interval_ms == 7_000
        assert (await a.fetch()).acquisition_lock_timeout_ms == 20_000
        assert await configure(broker, share_record_lock_duration_ms="40000") == [ErrorCode.NONE]
        assert (await a.fetch()).acquisition_lock_timeout_ms == 40_000


async def test_members_that_died_with_the_broker_time_out_as_their_group_is_configured(
    tmp_path: Path,
) -> None:
    async def is_empty() -> bool:
        (group,) = (await send(broker, 77, ShareGroupDescribeRequest(group_ids=["g"]), 1)).groups
        state: str = group.group_state
        return state == "Empty"

    broker = await Broker.open(Settings(), tmp_path)
    await world(broker, "a")
    assert await configure(broker, share_session_timeout_ms="60000") == [ErrorCode.NONE]
    await broker.close()
    broker = await Broker.open(Settings(), tmp_path)
    try:
        await broker.advance(0)  # The time of members that were there before begins to count.
        await broker.advance(50_000)  # longer than the default
        assert not await is_empty()
        await broker.advance(10_000)
        await until_async(is_empty)
    finally:
        await broker.close()
