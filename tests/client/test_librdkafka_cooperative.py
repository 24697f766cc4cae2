"""What librdkafka's test of cooperative rebalancing (0113) expects of a broker (KIP-429).

A member that keeps a partition is never told to give it up, whatever else changes: members that come and go,
topics that are added to the subscription or taken from it, topics and partitions that come and go.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from support.clients.confluent import Fresh, create, done, produce
from support.clients.reading import WAIT_SECONDS
from support.waiting import until

Parts = set[tuple[str, int]]


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


class Member:
    """A cooperative member that notes what it is given, what it gives up and what it loses."""

    def __init__(self, bootstrap: str, group: str, **config: Any) -> None:
        self.given: list[Parts] = []
        self.revoked: list[Parts] = []
        self.lost: list[Parts] = []
        self.values: list[bytes] = []
        self.errors: list[int] = []
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": 30_000,
                "heartbeat.interval.ms": 200,
                "topic.metadata.refresh.interval.ms": 300,
                "log_level": 0,
                **config,
            }
        )

    def subscribe(self, *topics: str) -> None:
        self.consumer.subscribe(
            list(topics),
            on_assign=lambda _, parts: self.given.append(_set(parts)),
            on_revoke=lambda _, parts: self.revoked.append(_set(parts)),
            on_lost=lambda _, parts: self.lost.append(_set(parts)),
        )

    def poll(self) -> None:
        for message in self.consumer.consume(100, 0.05):
            if (error := message.error()) is not None:
                self.errors.append(error.code())
            else:
                self.values.append(message.value() or b"")

    @property
    def parts(self) -> Parts:
        return _set(self.consumer.assignment())


def _set(parts: list[TopicPartition]) -> Parts:
    return {(each.topic, each.partition) for each in parts}


def of(topic: str, count: int) -> Parts:
    return {(topic, number) for number in range(count)}


@contextmanager
def closing(*members: Member) -> Iterator[None]:
    try:
        yield
    finally:
        for member in members:
            member.consumer.close()


def polled(check: Callable[[], bool], what: str, *members: Member) -> None:
    """Poll all members until it is so."""

    def check_after_polling() -> bool:
        for member in members:
            member.poll()
        return check()

    until(check_after_polling, WAIT_SECONDS, what)


def test_partitions_are_assigned_and_taken_by_hand(bootstrap: str, admin: AdminClient, fresh: Fresh) -> None:
    """Incremental assignment without a group protocol: the broker only sees fetches."""
    topics = [create(admin, fresh("hand"), 1) for _ in range(2)]
    for number, topic in enumerate(topics):
        produce(bootstrap, topic, [b"%d" % number] * 3)
    member = Member(bootstrap, fresh("group"))
    one, two = (TopicPartition(topic, 0, 0) for topic in topics)
    with closing(member):
        member.consumer.incremental_assign([one])
        polled(lambda: member.values == [b"0"] * 3, "the first topic", member)
        member.consumer.incremental_unassign([one])
        assert member.parts == set()
        member.poll()
        assert len(member.values) == 3
        member.consumer.incremental_assign([two])
        polled(lambda: member.values[3:] == [b"1"] * 3, "the second topic", member)
        member.consumer.incremental_assign([one])
        assert len(member.parts) == 2
        polled(lambda: member.values[6:] == [b"0"] * 3, "the first topic again", member)
        member.consumer.unassign()
        assert member.parts == set()


def test_a_member_that_comes_takes_one_partition_and_leaves_the_other(
    bootstrap: str, admin: AdminClient, fresh: Fresh
) -> None:
    topic, group = create(admin, fresh("two"), 2), fresh("group")
    first, second = Member(bootstrap, group), Member(bootstrap, group)
    with closing(first, second):
        first.subscribe(topic)
        polled(lambda: first.parts == of(topic, 2), "both partitions", first)
        second.subscribe(topic)
        polled(lambda: len(first.parts) == len(second.parts) == 1, "one each", first, second)
        assert first.parts | second.parts == of(topic, 2)
        assert first.revoked == [second.parts]
        assert second.revoked == []
        for number in range(2):
            produce(bootstrap, topic, [b"x"] * 5, partition=number)
        polled(lambda: len(first.values) == len(second.values) == 5, "five messages each", first, second)
    assert (first.lost, second.lost) == ([], [])
    # The rest is revoked when they are closed.
    assert len(first.revoked) == 2
    assert len(second.revoked) == 1


def test_a_topic_is_added_to_the_subscription_and_taken_from_it(
    bootstrap: str, admin: AdminClient, fresh: Fresh
) -> None:
    one, two = create(admin, fresh("one"), 2), create(admin, fresh("two"), 2)
    member = Member(bootstrap, fresh("group"))
    with closing(member):
        member.subscribe(one)
        polled(lambda: member.parts == of(one, 2), "the first topic", member)
        member.subscribe(one, two)
        polled(lambda: member.parts == of(one, 2) | of(two, 2), "both topics", member)
        assert member.revoked == []
        member.subscribe(two)
        polled(lambda: member.parts == of(two, 2), "the second topic", member)
        assert member.revoked == [of(one, 2)]
        member.consumer.unsubscribe()
        polled(lambda: not member.parts, "nothing", member)
        assert member.revoked[1:] == [of(two, 2)]
        member.subscribe(one)
        polled(lambda: member.parts == of(one, 2), "the first topic again", member)
        assert member.lost == []


def test_partitions_of_a_deleted_topic_are_given_up(bootstrap: str, admin: AdminClient, fresh: Fresh) -> None:
    one, two = create(admin, fresh("kept"), 1), create(admin, fresh("deleted"), 1)
    member = Member(bootstrap, fresh("group"))
    with closing(member):
        member.subscribe(one, two)
        polled(lambda: member.parts == of(one, 1) | of(two, 1), "both topics", member)
        done(admin.delete_topics([two]))
        polled(lambda: member.parts == of(one, 1), "the topic that is left", member)
        assert member.revoked + member.lost == [of(two, 1)]


def test_partitions_that_are_added_come_without_a_revocation(
    bootstrap: str, admin: AdminClient, fresh: Fresh
) -> None:
    topic, group = create(admin, fresh("grows"), 2), fresh("group")
    first, second = Member(bootstrap, group), Member(bootstrap, group)
    with closing(first, second):
        first.subscribe(topic)
        second.subscribe(topic)
        polled(lambda: len(first.parts) == len(second.parts) == 1, "one each", first, second)
        before = (list(first.revoked), list(second.revoked))
        done(admin.create_partitions([NewPartitions(topic, 4)]))
        polled(lambda: len(first.parts) == len(second.parts) == 2, "two each", first, second)
        assert first.parts | second.parts == of(topic, 4)
        assert (first.revoked, second.revoked) == before


def test_topics_of_a_pattern_come_and_go(bootstrap: str, admin: AdminClient, fresh: Fresh) -> None:
    word = fresh("pattern")
    member = Member(bootstrap, fresh("group"))
    with closing(member):
        member.subscribe(f"^{word}-.*")
        one = create(admin, f"{word}-1", 1)
        polled(lambda: member.parts == of(one, 1), "the first topic", member)
        two = create(admin, f"{word}-2", 2)
        polled(lambda: member.parts == of(one, 1) | of(two, 2), "both topics", member)
        assert member.revoked == []
        done(admin.delete_topics([one]))
        polled(lambda: member.parts == of(two, 2), "the second topic", member)
        assert member.revoked + member.lost == [of(one, 1)]


def test_commits_during_a_rebalance_are_kept(bootstrap: str, admin: AdminClient, fresh: Fresh) -> None:
    """A member commits again and again while another joins: what it had committed stays."""
    topic, group = create(admin, fresh("commits"), 4), fresh("group")
    for number in range(4):
        produce(bootstrap, topic, [b"x"] * 50, partition=number)
    manual = {"enable.auto.commit": False}
    first, second = Member(bootstrap, group, **manual), Member(bootstrap, group, **manual)
    refused: list[int] = []
    with closing(first, second):
        first.subscribe(topic)
        polled(lambda: len(first.values) == 200, "all messages", first)
        first.consumer.commit(asynchronous=False)
        second.subscribe(topic)

        def commits() -> bool:
            kept = [TopicPartition(*part, 50) for part in first.parts]
            try:
                first.consumer.commit(offsets=kept, asynchronous=False)
            except KafkaException as error:
                refused.append(error.args[0].code())
            return len(first.parts) == len(second.parts) == 2

        polled(commits, "two each", first, second)
        # Kafka answers commits between two generations with these; the member tries again.
        passing = {KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION}
        assert set(refused) <= passing
        committed = first.consumer.committed([TopicPartition(topic, number) for number in range(4)], 20)
        assert [each.offset for each in committed] == [50] * 4
        assert second.values == []


def test_a_member_that_does_not_poll_loses_its_partitions_and_comes_back(
    bootstrap: str, admin: AdminClient, fresh: Fresh
) -> None:
    topic, group = create(admin, fresh("slow"), 2), fresh("group")
    slow = Member(bootstrap, group, **{"max.poll.interval.ms": 2_000, "session.timeout.ms": 2_000})
    other = Member(bootstrap, group)
    with closing(slow, other):
        slow.subscribe(topic)
        polled(lambda: slow.parts == of(topic, 2), "both partitions", slow)
        other.subscribe(topic)
        # Only the other one polls: it gets everything when the interval of the first is over.
        polled(lambda: other.parts == of(topic, 2), "both partitions for the other", other)
        polled(lambda: bool(slow.lost), "the loss", slow)
        # It learns first that it has to give up one, and then that it is too late.
        assert set().union(*slow.revoked, *slow.lost) == of(topic, 2)
        assert KafkaError._MAX_POLL_EXCEEDED in slow.errors
        polled(lambda: len(slow.parts) == len(other.parts) == 1, "one each", slow, other)
        assert other.lost == []
