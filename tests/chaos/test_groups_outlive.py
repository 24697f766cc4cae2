"""Groups outlive the broker: who lives goes on in the same generation, who died is found out in time.

With real clients this is in ``tests/client/test_confluent_groups.py``. Here is what a client library hides:
that there was no rebalance.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.brokers.process import BrokerProcess
from support.clients.raw import RawClient
from support.clients.raw_groups import ClassicMember, ConsumerMember, commit_offset
from support.waiting import until

import semel
from semel.wire.errors import ErrorCode
from semel.wire.messages import ConsumerGroupDescribeRequest, DescribeGroupsRequest

AT_ONCE = ("--set", "group.initial.rebalance.delay.ms=0")
HOUR_MS = 3_600_000


@pytest.mark.parametrize("end", [BrokerProcess.kill, BrokerProcess.stop])
def test_members_go_on_in_the_same_generation(tmp_path: Path, end: Callable[[BrokerProcess], object]) -> None:
    with BrokerProcess(tmp_path / "data", *AT_ONCE) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("t", 3)
            classic = ClassicMember(client, "classic")
            consumer = ConsumerMember(client, "consumer", "t")
            assert consumer.epoch > 0
            assert commit_offset(client, "offsets", "t", 5) == ErrorCode.NONE
        for _ in range(2):
            end(broker)
            broker.start()
            with RawClient(broker.bootstrap) as client:
                # The second one asserts that the epoch is the one it had, the first sends its generation.
                assert classic.heartbeat(client) == ErrorCode.NONE
                assert consumer.heartbeat(client) == ErrorCode.NONE
                (group,) = client.ask(DescribeGroupsRequest(groups=["classic"]), 5).groups
                assert (group.group_state, len(group.members)) == ("Stable", 1)
                assert group.members[0].member_assignment == b"mine"
                (group,) = client.ask(ConsumerGroupDescribeRequest(group_ids=["consumer"]), 0).groups
                assert (group.group_state, group.group_epoch) == ("Stable", consumer.epoch)
                (member,) = group.members
                assert sorted(member.assignment.topic_partitions[0].partitions) == [0, 1, 2]


def test_members_that_died_with_the_broker_are_lost_in_time(tmp_path: Path) -> None:
    """Nobody touches their groups after the start, and their sessions end all the same."""
    with BrokerProcess(tmp_path / "data", *AT_ONCE) as broker, RawClient(broker.bootstrap) as client:
        client.create_topic("t")
        classic = ClassicMember(client, "classic", session_timeout_ms=HOUR_MS // 2)
        ConsumerMember(client, "consumer", "t")
        broker.kill()
    settings = {"group.initial.rebalance.delay.ms": 0}
    with semel.embedded(tmp_path / "data", settings=settings) as embedded:
        embedded.advance(HOUR_MS / 1000)
        with RawClient(embedded.bootstrap_servers) as client:
            (group,) = client.ask(DescribeGroupsRequest(groups=["classic"]), 5).groups
            assert (group.group_state, group.members) == ("Empty", [])
            (group,) = client.ask(ConsumerGroupDescribeRequest(group_ids=["consumer"]), 0).groups
            assert (group.group_state, group.members) == ("Empty", [])
            assert classic.heartbeat(client) == ErrorCode.UNKNOWN_MEMBER_ID
            until(lambda: ClassicMember(client, "classic").heartbeat() == ErrorCode.NONE, what="joining anew")
