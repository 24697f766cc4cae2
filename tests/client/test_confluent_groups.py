"""Groups of confluent-kafka (librdkafka): members that come, go, die, and outlive the broker.

librdkafka alone has cooperative rebalancing (KIP-429), static members (KIP-345) and the new group protocol
(KIP-848) in Python.
"""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from support.brokers.peer import Timed
from support.brokers.process import BrokerProcess
from support.clients.confluent import MANUAL, Fresh, Reader, create, done, produce, reader, shared
from support.clients.reading import WAIT_SECONDS
from support.waiting import until


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def check_shared(bootstrap: str, topic: str, first: Reader, second: Reader) -> None:
    """Each of two members reads two of four partitions."""
    for partition in range(4):
        produce(bootstrap, topic, [b"shared-%d" % partition], partition=partition)
    until(lambda: len(first.poll()) + len(second.poll()) >= 4, WAIT_SECONDS, "reading")
    assert len(first.messages) == len(second.messages) == 2


def check_taken_over(bootstrap: str, topic: str, first: Reader) -> None:
    """The member that is left reads all of four partitions."""
    until(lambda: first.partitions == {0, 1, 2, 3}, WAIT_SECONDS, "taking over")
    for partition in range(4):
        produce(bootstrap, topic, [b"taken-%d" % partition], partition=partition)
    first.read(6)
    assert sorted(first.values)[2:] == [b"taken-%d" % partition for partition in range(4)]


def test_two_members_share_and_take_over(bootstrap: str, admin: AdminClient, fresh: Fresh) -> None:
    topic, group = create(admin, fresh("shared"), 4), fresh("group")
    with reader(bootstrap, group, topic) as first:
        until(lambda: first.partitions == {0, 1, 2, 3}, WAIT_SECONDS, "all partitions for one")
        with reader(bootstrap, group, topic, **MANUAL) as second:
            until(lambda: shared(first, second, 4), WAIT_SECONDS, "sharing")
            check_shared(bootstrap, topic, first, second)
            second.consumer.commit(asynchronous=False)
        check_taken_over(bootstrap, topic, first)
        assert not first.errors


def is_balanced(members: list[Reader], count: int) -> bool:
    """Every member has the same number of partitions, and together they have all."""
    parts = [member.partitions for member in members]
    return {len(part) for part in parts} == {count // len(members)} and len(set.union(*parts)) == count


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_every_assignment_strategy(bootstrap: str, admin: AdminClient, fresh: Fresh, strategy: str) -> None:
    topic, group = create(admin, fresh("strategy"), 6), fresh("group")
    config = {"partition.assignment.strategy": strategy}
    with ExitStack() as stack:
        members = [stack.enter_context(reader(bootstrap, group, topic, **config)) for _ in range(3)]
        until(lambda: is_balanced(members, 6), WAIT_SECONDS, "two partitions for each of three")
        members.pop().consumer.close()
        until(lambda: is_balanced(members, 6), WAIT_SECONDS, "three partitions for each of two")
        assert not [error for member in members for error in member.errors]


def test_cooperative_members_keep_what_they_have(bootstrap: str, admin: AdminClient, fresh: Fresh) -> None:
    """KIP-429: when a second member comes, the first gives up two of four partitions and never the others."""
    topic, group = create(admin, fresh("cooperative"), 4), fresh("group")
    config = {"partition.assignment.strategy": "cooperative-sticky"}
    revoked: list[int] = []
    first = Reader(bootstrap, group, **config)
    first.consumer.subscribe(
        [topic], on_revoke=lambda _, parts: revoked.extend(each.partition for each in parts)
    )
    until(lambda: len(first.partitions) == 4, WAIT_SECONDS, "all partitions for one")
    with reader(bootstrap, group, topic, **config) as second:
        until(lambda: shared(first, second, 4), WAIT_SECONDS, "sharing")
        assert len(revoked) == 2
        assert set(revoked) == second.partitions
    first.consumer.close()


def test_a_static_member_comes_back_without_a_rebalance(
    bootstrap: str, admin: AdminClient, fresh: Fresh
) -> None:
    """KIP-345: it leaves without saying so, and has the same partitions when it is back in time."""
    topic, group = create(admin, fresh("static"), 4), fresh("group")
    config = {"session.timeout.ms": 10_000}
    rebalances: list[object] = []
    first = Reader(bootstrap, group, **config, **{"group.instance.id": "one"})
    first.consumer.subscribe([topic], on_assign=lambda *_: rebalances.append(1))
    with reader(bootstrap, group, topic, **config, **{"group.instance.id": "two"}) as second:
        until(lambda: shared(first, second, 4), WAIT_SECONDS, "sharing")
        before = second.partitions
        count = len(rebalances)
        second.consumer.close()
        with reader(bootstrap, group, topic, **config, **{"group.instance.id": "two"}) as again:
            until(lambda: again.partitions == before, WAIT_SECONDS, "coming back")
            produce(bootstrap, topic, [b"kept"], partition=min(before))
            assert again.read(1) == [b"kept"]
            first.poll()
            assert len(rebalances) == count
            described = done(admin.describe_consumer_groups([group]))[group]
            assert sorted(each.group_instance_id for each in described.members) == ["one", "two"]
    first.consumer.close()


def test_a_static_member_is_fenced_by_its_successor(bootstrap: str, topic: str, fresh: Fresh) -> None:
    config = {"group.instance.id": "only", "session.timeout.ms": 10_000}
    group = fresh("group")
    first = Reader(bootstrap, group, **config)
    first.consumer.subscribe([topic])
    until(lambda: len(first.partitions) == 3, WAIT_SECONDS, "joining")
    with reader(bootstrap, group, topic, **config) as second:
        until(lambda: len(second.partitions) == 3, WAIT_SECONDS, "taking over")

        def fenced() -> bool:
            errors = [each.error() for each in first.consumer.consume(10, 0.1) if each.error()] + first.errors
            return any(each.code() == KafkaError._FATAL or each.fatal() for each in errors)

        until(fenced, WAIT_SECONDS, "fencing")
    first.consumer.close()


def test_consumer_protocol_two_members_share_and_take_over(
    bootstrap: str, admin: AdminClient, fresh: Fresh
) -> None:
    """KIP-848, behaviour of the new group protocol with a real client."""
    topic, group = create(admin, fresh("consumer"), 4), fresh("group")
    config = {"group.protocol": "consumer", **MANUAL}
    with reader(bootstrap, group, topic, **config) as first:
        until(lambda: first.partitions == {0, 1, 2, 3}, WAIT_SECONDS, "all partitions for one")
        with reader(bootstrap, group, topic, **config) as second:
            until(lambda: shared(first, second, 4), WAIT_SECONDS, "sharing")
            check_shared(bootstrap, topic, first, second)
            described = done(admin.describe_consumer_groups([group]))[group]
            assert described.type is ConsumerGroupType.CONSUMER
            assert described.state is ConsumerGroupState.STABLE
            assert len(described.members) == 2
            second.consumer.commit(asynchronous=False)
        check_taken_over(bootstrap, topic, first)
        first.consumer.commit(asynchronous=False)
        assert not first.errors
    with reader(bootstrap, group, topic, **config) as last:
        until(lambda: last.partitions == {0, 1, 2, 3}, WAIT_SECONDS, "coming back")
        produce(bootstrap, topic, [b"after"])
        assert last.read(1) == [b"after"]


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_consumer_protocol_assignors(bootstrap: str, admin: AdminClient, fresh: Fresh, assignor: str) -> None:
    topic, group = create(admin, fresh("consumer"), 6), fresh("group")
    config = {"group.protocol": "consumer", "group.remote.assignor": assignor}
    with ExitStack() as stack:
        members = [stack.enter_context(reader(bootstrap, group, topic, **config)) for _ in range(3)]
        until(lambda: is_balanced(members, 6), WAIT_SECONDS, "two partitions for each of three")


def test_consumer_protocol_follows_new_topics_of_a_pattern(timed: Timed, fresh: Fresh) -> None:
    """The broker looks for them every three seconds."""
    prefix, bootstrap = fresh("pattern"), timed.address
    admin = AdminClient({"bootstrap.servers": bootstrap})
    create(admin, f"{prefix}-1")
    with reader(bootstrap, fresh("group"), f"^{prefix}-.*", **{"group.protocol": "consumer"}) as each:
        until(lambda: len(each.partitions) == 1, WAIT_SECONDS, "the first topic")
        create(admin, f"{prefix}-2", 2)
        timed.passes(3)
        produce(bootstrap, f"{prefix}-2", [b"second"], partition=1)
        assert each.read(1) == [b"second"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_committed_offsets_survive_the_consumer(
    bootstrap: str, topic: str, fresh: Fresh, admin: AdminClient, protocol: str
) -> None:
    group = fresh("group")
    produce(bootstrap, topic, [b"%d" % number for number in range(10)])
    config = {"enable.auto.commit": False, "group.protocol": protocol}
    with reader(bootstrap, group, topic, **config) as first:
        first.read(10)
        part = TopicPartition(topic, 0, 6, metadata="a note")
        first.consumer.commit(offsets=[part], asynchronous=False)
        stored = first.consumer.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], WAIT_SECONDS)
        assert [(each.offset, each.error) for each in stored] == [(6, None), (-1001, None)]
        assert stored[0].metadata == "a note"
    with reader(bootstrap, group, topic, **config) as second:
        assert second.read(4) == [b"6", b"7", b"8", b"9"]


def test_auto_commit_on_close(bootstrap: str, topic: str, fresh: Fresh) -> None:
    group = fresh("group")
    produce(bootstrap, topic, [b"%d" % number for number in range(5)])
    with reader(bootstrap, group, topic) as first:
        first.read(5)
    produce(bootstrap, topic, [b"5"])
    with reader(bootstrap, group, topic) as second:
        assert second.read(1) == [b"5"]


DYING = """
import sys
from confluent_kafka import Consumer
bootstrap, group, protocol, topic = sys.argv[1:]
config = {"bootstrap.servers": bootstrap, "group.id": group, "group.protocol": protocol}
if protocol == "classic":
    config |= {"session.timeout.ms": 2000, "heartbeat.interval.ms": 200}
consumer = Consumer(config)
consumer.subscribe([topic], on_assign=lambda _, parts: parts and print(len(parts), flush=True))
while True:
    consumer.poll(0.1)
"""


def set_session(admin: AdminClient, group: str, milliseconds: int) -> None:
    """Set the session timeout of the consumer protocol; members of the classic one bring their own."""
    entry = ConfigEntry(
        "consumer.session.timeout.ms", str(milliseconds), incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    done(admin.incremental_alter_configs([resource]))


@pytest.mark.parametrize("protocol", [pytest.param("classic", marks=pytest.mark.slow), "consumer"])
def test_the_partitions_of_a_member_that_died_are_taken_over(
    bootstrap: str, admin: AdminClient, fresh: Fresh, protocol: str
) -> None:
    """It does not say goodbye, so the coordinator finds out by the session timeout."""
    topic, group = create(admin, fresh("dying"), 4), fresh("group")
    set_session(admin, group, 2_000)
    with reader(bootstrap, group, topic, **{"group.protocol": protocol}) as survivor:
        until(lambda: len(survivor.partitions) == 4, WAIT_SECONDS, "joining")
        command = [sys.executable, "-c", DYING, bootstrap, group, protocol, topic]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as dying:
            try:
                until(lambda: len(survivor.partitions) == 2, WAIT_SECONDS, "sharing")
                assert dying.stdout is not None
                assert dying.stdout.readline() in ("1\n", "2\n")
            finally:
                dying.kill()
        until(lambda: len(survivor.partitions) == 4, WAIT_SECONDS, "taking over")
        assert not survivor.errors


TRANSPORT = {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT}
"""What librdkafka says while there is no broker; not an answer of one."""


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("how", [pytest.param("stop", marks=pytest.mark.slow), "kill"])
def test_a_group_carries_on_when_the_broker_was_restarted(
    tmp_path: Path, fresh: Fresh, protocol: str, how: str
) -> None:
    options = ["--set", "group.initial.rebalance.delay.ms=0", "--set", "group.min.session.timeout.ms=500"]
    options += ["--set", "group.consumer.heartbeat.interval.ms=200"]
    config = {"group.protocol": protocol, "reconnect.backoff.max.ms": 200, "reconnect.backoff.ms": 50}
    config |= MANUAL
    if protocol == "classic":
        config |= {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 200}
    with BrokerProcess(tmp_path / "data", *options) as broker, ExitStack() as stack:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        topic, group = create(admin, fresh("restarted"), 4), fresh("group")
        members = [stack.enter_context(reader(broker.bootstrap, group, topic, **config)) for _ in range(2)]
        one, two = members
        until(lambda: shared(one, two, 4), WAIT_SECONDS, "sharing")

        def send(word: str) -> None:
            for partition in range(4):
                value = f"{word}-{partition}".encode()
                produce(broker.bootstrap, topic, [value], partition=partition)

        def read() -> list[bytes]:
            for member in members:
                member.poll()
            return sorted(value for member in members for value in member.values)

        send("before")
        until(lambda: len(read()) == 4, WAIT_SECONDS, "reading before")
        for member in members:
            member.consumer.commit(asynchronous=False)
        getattr(broker, how)()
        broker.start()
        send("later")
        until(lambda: len(read()) >= 8, WAIT_SECONDS, "reading afterwards")
        assert read() == sorted(f"{word}-{at}".encode() for word in ("before", "later") for at in range(4))
        until(lambda: shared(one, two, 4), WAIT_SECONDS, "sharing afterwards")
        for member in members:
            member.consumer.commit(asynchronous=False)
            assert {error.code() for error in member.errors} <= TRANSPORT
