"""State is loaded when it is touched and forgotten when there is too much of it; nobody can tell.

A broker that may keep fifty entities of each kind in memory serves several times as many, before and after a
restart. ``SEMEL_ENTITIES`` says how many; the start must not get slower with them.
"""

import os
from collections.abc import Iterator

import pytest
from support.brokers.process import BrokerProcess
from support.clients.raw import RawClient, batch
from support.clients.raw_groups import ClassicMember, commit_offset, join_request

from semel.wire.errors import ErrorCode
from semel.wire.messages import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    MetadataRequest,
    MetadataRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

MANY = int(os.environ.get("SEMEL_ENTITIES", "160"))
KEPT = 50
OPTIONS = (
    *("--set", f"semel.entities.max={KEPT}"),
    *("--set", "group.initial.rebalance.delay.ms=0"),
    *("--set", "log.retention.check.interval.ms=200"),
    *("--set", "log.retention.ms=-1"),
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("entities") / "data", *OPTIONS) as broker:
        with RawClient(broker.bootstrap) as client:
            for number in range(MANY):
                client.create_topic(f"t{number}")
        yield broker


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap) as client:
        yield client


def produce_to_all(client: RawClient, topics: list[str]) -> list[tuple[int, int]]:
    """One request for all of them; error and offset of each."""
    data = [
        TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch())])
        for topic in topics
    ]
    answer = client.ask(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=data), 9)
    parts = [each.partition_responses[0] for each in answer.responses]
    return [(part.error_code, part.base_offset) for part in parts]


def test_one_request_for_more_topics_than_are_kept(client: RawClient) -> None:
    """A topic that was looked up first may be forgotten when the last one is found, and still is a topic."""
    topics = [f"t{number}" for number in range(MANY)]
    before = [client.fetch(topic).high_watermark for topic in topics]
    assert produce_to_all(client, topics) == [(ErrorCode.NONE, offset) for offset in before]
    asked = [MetadataRequestTopic(name=topic) for topic in topics]
    answer = client.ask(MetadataRequest(topics=asked), 9)
    assert {topic.error_code for topic in answer.topics} == {ErrorCode.NONE}


def fetch_all(topics: list[str], offsets: list[int], max_wait_ms: int = 0) -> FetchRequest:
    wanted = [
        FetchTopic(
            topic=topic,
            partitions=[FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 16)],
        )
        for topic, offset in zip(topics, offsets, strict=True)
    ]
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, topics=wanted)


def test_a_fetch_of_more_partitions_than_are_kept_is_woken(broker: BrokerProcess, client: RawClient) -> None:
    topics = [f"t{number}" for number in range(MANY)]
    client.produce("t0", batch())
    ends = [client.fetch(topic).high_watermark for topic in topics]
    answer = client.ask(fetch_all(topics, [0] * MANY), 11)
    assert {part.error_code for topic in answer.responses for part in topic.partitions} == {ErrorCode.NONE}
    with RawClient(broker.bootstrap) as waiting:
        waiting.send(fetch_all(topics, ends, max_wait_ms=14_000), 11)
        # Not a race: whether the fetch waits already or looks afterwards, it sees the record.
        client.produce("t3", batch())
        assert waiting.receive_frame() is not None


def test_a_duplicate_is_known_after_its_producer_was_forgotten(client: RawClient) -> None:
    """Behaviour 15, across eviction."""
    producers = [client.new_producer() for _ in range(MANY)]
    first = [
        client.produce(f"t{number % 7}", batch(0, producer_id=producer, producer_epoch=0)).base_offset
        for number, producer in enumerate(producers)
    ]
    for number, producer in enumerate(producers):
        again = client.produce(f"t{number % 7}", batch(0, producer_id=producer, producer_epoch=0))
        assert (again.error_code, again.base_offset) == (ErrorCode.NONE, first[number])
        gap = client.produce(f"t{number % 7}", batch(5, producer_id=producer, producer_epoch=0))
        assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def committed(client: RawClient, group: str, topic: str) -> int:
    topics = [OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)])
    offset: int = client.ask(request, 8).groups[0].topics[0].partitions[0].committed_offset
    return offset


def test_offsets_of_many_groups(client: RawClient) -> None:
    for number in range(MANY):
        assert commit_offset(client, f"g{number}", "t1", number) == ErrorCode.NONE
    assert [committed(client, f"g{number}", "t1") for number in range(MANY)] == list(range(MANY))


def test_groups_with_members_are_kept_and_one_too_many_waits(client: RawClient) -> None:
    """A session cannot leave memory while somebody counts on it: a group beyond the limit has to wait."""
    members = [ClassicMember(client, f"m{number}") for number in range(KEPT)]
    assert client.ask(join_request("one-too-many"), 3).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    for number in range(MANY):
        commit_offset(client, f"n{number}", "t1", number)
    assert {member.heartbeat() for member in members} == {ErrorCode.NONE}


def test_a_restart_loads_nothing_and_knows_everything(broker: BrokerProcess) -> None:
    """Runs last in this file: the others have filled the ledger."""
    with RawClient(broker.bootstrap) as client:
        producer = client.new_producer()
        record = batch(0, producer_id=producer, producer_epoch=0)
        first = client.produce("t9", record).base_offset
        ends = [client.fetch(f"t{number}").high_watermark for number in range(MANY)]
        commit_offset(client, "g", "t9", 77)
    broker.kill()
    broker.start()
    with RawClient(broker.bootstrap) as client:
        assert client.produce("t9", record).base_offset == first
        assert [client.fetch(f"t{number}").high_watermark for number in range(MANY)] == ends
        assert committed(client, "g", "t9") == 77
        assert client.new_producer() > producer
