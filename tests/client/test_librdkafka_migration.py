"""A rolling upgrade of librdkafka consumers from the classic protocol to KIP-848, and back.

The exchange of confluent-kafka's own upgrade test: consumers are replaced one by one while a producer writes.
Every record is read, no consumer gets a fatal error, and the group's type is what tools should show. Commits
are synchronous and partitions are given up in order, so no record is read twice either.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import count

import pytest
from confluent_kafka import ConsumerGroupType, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from support.brokers.process import BrokerProcess
from support.clients.confluent import Fresh, Reader, create, done, produce
from support.clients.reading import WAIT_SECONDS
from support.waiting import until

PARTITIONS = 6
STRATEGIES = ["range", "roundrobin", "cooperative-sticky"]
REBALANCING = {KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS}
QUICK = (
    *("--set", "group.initial.rebalance.delay.ms=0"),
    *("--set", "group.min.session.timeout.ms=500"),
    *("--set", "group.consumer.min.heartbeat.interval.ms=200"),
    *("--set", "group.consumer.heartbeat.interval.ms=200"),
)


class Rolling:
    """A group whose members are replaced, and the records that they have read."""

    def __init__(self, bootstrap: str, fresh: Fresh, strategy: str) -> None:
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.topic = create(self.admin, fresh("topic"), PARTITIONS)
        self.group = fresh("group")
        self.strategy = strategy
        self.members: list[Reader] = []
        self.read: Counter[bytes] = Counter()
        self.sent: list[bytes] = []
        self._numbers = count()

    def start(self, protocol: str, **more: object) -> Reader:
        config = {"enable.auto.commit": False, **more}
        if protocol == "classic":
            config["partition.assignment.strategy"] = self.strategy
        else:
            config["group.protocol"] = protocol
        member = Reader(self.bootstrap, self.group, **config)
        member.consumer.subscribe([self.topic], on_revoke=lambda _, revoked: self._commit(member, revoked))
        self.members.append(member)
        return member

    def stop(self, member: Reader) -> None:
        until(lambda: self._take(member), WAIT_SECONDS, "a commit of what was read")
        self.members.remove(member)
        member.consumer.close()
        self._note(member)

    def _take(self, member: Reader) -> bool:
        """Read and commit. False if that must be tried again."""
        member.poll(0.02)
        try:
            self._commit(member, member.consumer.assignment())
        except KafkaException as error:
            # Cooperative members keep partitions in a rebalance. Before they hear of the new generation they
            # commit in the old one.
            if error.args[0].code() not in REBALANCING:
                raise
            return False
        self._note(member)
        return True

    def _commit(self, member: Reader, partitions: Iterable[TopicPartition]) -> None:
        ends = {(each.topic(), each.partition()): each.offset() + 1 for each in member.messages}  # type: ignore[operator]  # what was read has an offset
        owned = {(each.topic, each.partition) for each in partitions}
        offsets = [TopicPartition(*key, offset) for key, offset in ends.items() if key in owned]
        if offsets:
            member.consumer.commit(offsets=offsets, asynchronous=False)

    def _note(self, member: Reader) -> None:
        self.read.update(member.values)
        member.messages.clear()
        assert not [error for error in member.errors if error.fatal()], member.errors

    def send(self, each: int = 2) -> None:
        for partition in range(PARTITIONS):
            values = [f"{next(self._numbers)}".encode() for _ in range(each)]
            self.sent += values
            produce(self.bootstrap, self.topic, values, partition=partition)

    def settles(self) -> bool:
        """Every partition has one owner, every member has some, and every record was read."""
        for member in self.members:
            self._take(member)
        owned = [member.partitions for member in self.members]
        every = sorted(partition for some in owned for partition in some)
        return every == list(range(PARTITIONS)) and all(owned) and set(self.read) == set(self.sent)

    def check(self, kind: ConsumerGroupType) -> None:
        self.send()
        until(self.settles, WAIT_SECONDS, f"an even {kind.name.lower()} group of {len(self.members)}")
        described = done(self.admin.describe_consumer_groups([self.group]))[self.group]
        assert described.type == kind
        assert len(described.members) == len(self.members)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("migration") / "data", *QUICK) as broker:
        yield broker.bootstrap


@pytest.fixture
def rolling(quick: str, fresh: Fresh) -> Iterator[Callable[[str], Rolling]]:
    made: list[Rolling] = []

    def make(strategy: str) -> Rolling:
        made.append(Rolling(quick, fresh, strategy))
        return made[-1]

    yield make
    for each in made:
        for member in each.members:
            member.consumer.close()


@pytest.mark.parametrize(
    "strategy", ["range", *(pytest.param(each, marks=pytest.mark.slow) for each in STRATEGIES[1:])]
)
def test_a_rolling_upgrade_and_downgrade(rolling: Callable[[str], Rolling], strategy: str) -> None:
    group = rolling(strategy)
    first, second = group.start("classic"), group.start("classic")
    group.check(ConsumerGroupType.CLASSIC)
    third = group.start("consumer")
    group.check(ConsumerGroupType.CONSUMER)
    group.stop(first)
    group.check(ConsumerGroupType.CONSUMER)
    group.stop(second)
    fourth = group.start("consumer")
    group.check(ConsumerGroupType.CONSUMER)
    fifth = group.start("classic")
    group.check(ConsumerGroupType.CONSUMER)
    group.stop(third)
    group.check(ConsumerGroupType.CONSUMER)
    group.stop(fourth)
    group.check(ConsumerGroupType.CLASSIC)
    group.stop(fifth)
    assert max(group.read.values()) == 1


@pytest.mark.parametrize("strategy", [pytest.param("range", marks=pytest.mark.slow), "cooperative-sticky"])
def test_static_members_are_replaced_under_their_names(
    rolling: Callable[[str], Rolling], strategy: str
) -> None:
    group = rolling(strategy)
    names = ("one", "two")
    members = [group.start("classic", **{"group.instance.id": name}) for name in names]
    group.check(ConsumerGroupType.CLASSIC)
    for protocol, kind in (("consumer", ConsumerGroupType.CONSUMER), ("classic", ConsumerGroupType.CLASSIC)):
        for position, name in enumerate(names):
            group.stop(members[position])
            members[position] = group.start(protocol, **{"group.instance.id": name})
            group.check(kind if position else ConsumerGroupType.CONSUMER)
    assert max(group.read.values()) == 1
