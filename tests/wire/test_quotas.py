"""Quotas over a real connection: the answer tells the wait, then the connection is muted (KIP-219)."""

import time
from collections.abc import Iterator

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from support.clients.raw import RawClient

import semel
from semel.client import Admin, Client, ErrorCode, KafkaError, NewTopic, Producer
from semel.client.admin.quotas import QuotaEntity
from semel.wire.messages import (
    CreatableTopic,
    CreateTopicsRequest,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    MetadataRequest,
)

RATE = 24_000.0
BATCH = 50_000
RECORDS = 40
"""More than the windows allow a consumer at once, also if a busy machine needs long to read them."""


@pytest.fixture
def broker() -> Iterator[semel.Embedded]:
    with semel.embedded() as broker:
        yield broker


@pytest.fixture
def admin(broker: semel.Embedded) -> Iterator[Admin]:
    with Client(broker.bootstrap_servers, client_id="administrator") as client:
        Admin(client).topics.create(NewTopic("t", 1))
        yield Admin(client)


def fetch(offset: int) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1)
    topics = [FetchTopic(topic="t", partitions=[partition])]
    return FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1, topics=topics)


def test_a_producer_that_sends_too_much_waits(broker: semel.Embedded, admin: Admin) -> None:
    admin.quotas.alter(QuotaEntity(client_id="greedy"), {"producer_byte_rate": RATE})
    with Client(broker.bootstrap_servers, client_id="greedy") as client, Producer(client) as producer:
        started = time.monotonic()
        for _ in range(6):
            producer.send("t", bytes(BATCH))
            producer.flush()
        waited = time.monotonic() - started
    # What was sent before the last answer, less what ten seconds of the windows allow at once.
    assert waited > 5 * BATCH / RATE - 10
    with Client(broker.bootstrap_servers, client_id="modest") as client, Producer(client) as producer:
        producer.send("t", bytes(BATCH))


def test_a_consumer_beyond_its_quota_gets_an_empty_answer_and_is_muted(
    broker: semel.Embedded, admin: Admin
) -> None:
    with Client(broker.bootstrap_servers) as client, Producer(client) as producer:
        for _ in range(RECORDS):
            producer.send("t", bytes(BATCH))
            producer.flush()
    admin.quotas.alter(QuotaEntity(client_id="reader"), {"consumer_byte_rate": 2 * RATE})
    with RawClient(broker.bootstrap_servers, client_id="reader", timeout_seconds=60) as raw:
        offset, throttled, started = 0, None, 0.0
        while throttled is None and offset < RECORDS:
            started = time.monotonic()
            answer = raw.ask(fetch(offset), 11)
            if answer.throttle_time_ms and not answer.responses:
                throttled = answer.throttle_time_ms
            offset += sum(len(each.partitions) for each in answer.responses)
        assert throttled is not None
        raw.ask(MetadataRequest(topics=[]), 9)
        assert time.monotonic() - started > throttled / 1000 - 0.2, "the connection was muted"


def test_topics_beyond_the_mutation_rate_are_refused(broker: semel.Embedded, admin: Admin) -> None:
    admin.quotas.alter(QuotaEntity(client_id="maker"), {"controller_mutation_rate": 1.0})
    with RawClient(broker.bootstrap_servers, client_id="maker") as raw:
        topics = [CreatableTopic(name=f"n{n}", num_partitions=5, replication_factor=1) for n in range(5)]
        answer = raw.ask(CreateTopicsRequest(topics=topics, timeout_ms=1_000), 6)
    errors = [each.error_code for each in answer.topics]
    assert errors[0] == ErrorCode.NONE
    assert errors[-1] == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert answer.throttle_time_ms > 0
    made = {each.name for each in admin.topics.all()}
    assert made & {each.name for each in topics} == {
        each.name for each, error in zip(topics, errors, strict=True) if not error
    }


def test_quotas_are_seen_by_tools(broker: semel.Embedded, admin: Admin) -> None:
    entity = QuotaEntity(user="ann", client_id="app")
    admin.quotas.alter(entity, {"producer_byte_rate": 1024.0, "request_percentage": 50.0})
    (found,) = admin.quotas.list()
    assert found.entity == entity
    assert found.limits == {"producer_byte_rate": 1024.0, "request_percentage": 50.0}
    admin.quotas.alter(entity, {}, remove=["producer_byte_rate", "request_percentage"])
    assert not admin.quotas.list()
    with pytest.raises(KafkaError, match="INVALID"):
        admin.quotas.alter(entity, {"no_such_rate": 1.0})


def test_librdkafka_is_told_and_slows_down(broker: semel.Embedded, admin: Admin) -> None:
    admin.quotas.alter(QuotaEntity(client_id="rdkafka"), {"producer_byte_rate": RATE})
    told: list[confluent_kafka.ThrottleEvent] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "client.id": "rdkafka",
            "throttle_cb": told.append,
            "linger.ms": 0,
        }
    )
    for _ in range(6):
        producer.produce("t", bytes(BATCH))
        assert producer.flush(30) == 0
    producer.poll(0.1)
    assert told
    assert max(each.throttle_time for each in told) > 0
    assert "t" in AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=10).topics
