"""A member that says goodbye and hangs up has left, also if the broker was held up meanwhile.

librdkafka closes its connections right behind the goodbye. Were that lost, the partitions of the member would
have no reader until its session is over.
"""

import time
from collections.abc import Iterator

import pytest
from support.clients.raw import RawClient
from support.clients.raw_groups import ClassicMember, ConsumerMember
from support.waiting import until

import semel
from semel.wire.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    LeaveGroupRequest,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
)
from semel.wire.messages.groups import MemberIdentity
from semel.wire.schema import Request

HELD_UP_SECONDS = 0.3


@pytest.fixture
def broker() -> Iterator[semel.Embedded]:
    with semel.embedded() as broker:
        yield broker


def say_last(broker: semel.Embedded, client: RawClient, *requests: Request, version: int) -> None:
    """The broker finds the requests and the end of the connection at the same time."""
    assert broker._loop is not None
    broker._loop.call_soon_threadsafe(time.sleep, HELD_UP_SECONDS)
    for each in requests:
        client.send(each, version)
    client.close()


@pytest.mark.parametrize("beats", [False, True])
def test_a_classic_member(broker: semel.Embedded, beats: bool) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        member = ClassicMember(client, "g")
        beat = HeartbeatRequest(group_id="g", generation_id=member.generation, member_id=member.member_id)
        leaving = MemberIdentity(member_id=member.member_id)
        goodbye = LeaveGroupRequest(group_id="g", members=[leaving])
        say_last(broker, client, *[beat] * beats, goodbye, version=4)
    with RawClient(broker.bootstrap_servers) as client:
        until(lambda: not client.ask(DescribeGroupsRequest(groups=["g"]), 5).groups[0].members, 5)


@pytest.mark.parametrize("beats", [False, True])
def test_a_member_of_the_consumer_protocol(broker: semel.Embedded, beats: bool) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        client.create_topic("t")
        member = ConsumerMember(client, "g", "t")
        beat, goodbye = (
            ConsumerGroupHeartbeatRequest(group_id="g", member_id=member.member_id, member_epoch=epoch)
            for epoch in (member.epoch, -1)
        )
        say_last(broker, client, *[beat] * beats, goodbye, version=0)
    with RawClient(broker.bootstrap_servers) as client:
        until(lambda: not client.ask(ConsumerGroupDescribeRequest(group_ids=["g"]), 0).groups[0].members, 5)


@pytest.mark.parametrize("beats", [False, True])
def test_a_member_of_a_share_group(broker: semel.Embedded, beats: bool) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        client.create_topic("t")
        hello = ShareGroupHeartbeatRequest(
            group_id="g", member_id="member", member_epoch=0, subscribed_topic_names=["t"]
        )
        epoch = client.ask(hello, 1).member_epoch
        beat, goodbye = (
            ShareGroupHeartbeatRequest(group_id="g", member_id="member", member_epoch=each)
            for each in (epoch, -1)
        )
        say_last(broker, client, *[beat] * beats, goodbye, version=1)
    with RawClient(broker.bootstrap_servers) as client:
        until(lambda: not client.ask(ShareGroupDescribeRequest(group_ids=["g"]), 1).groups[0].members, 5)
