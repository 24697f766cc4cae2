"""``kafka-transactions.sh`` and related tools on all brokers: what an administrator sees and ends."""

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from support.clients.confluent import create, done, reader
from support.clients.raw_transactions import RawProducer
from support.clients.routed import raw_client
from support.servers.postgres import why_not
from support.waiting import until

from peers.brokers import Broker, run_cluster, run_semel
from peers.tools import Tools
from semel.wire.errors import ErrorCode
from semel.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

VERIFICATION = "transaction.partition.verification.enable"
Run = Callable[..., AbstractContextManager[Broker]]
needs_postgres = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@pytest.fixture
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def new_name(word: str) -> str:
    return f"{word}-{uuid.uuid4().hex[:8]}"


def open_transaction(bootstrap: str, topic: str, transactional_id: str) -> Producer:
    """A librdkafka producer with one record in an open transaction."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "log_level": 0}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    # The oldest possible time: the tools examine records that are older than any transaction may be.
    producer.produce(topic, b"open", partition=0, timestamp=1)
    assert producer.flush(30) == 0
    return producer


def committed(bootstrap: str, topic: str, last: bytes) -> list[bytes]:
    """Return what a read_committed reader gets, up to and including the last value."""
    with reader(bootstrap, new_name("group"), topic, **{"isolation.level": "read_committed"}) as each:
        until(lambda: each.poll() and each.values[-1] == last, what=f"reading {last!r}")
        return each.values


def test_list_describe_and_describe_producers(broker: Broker, tools: Tools, admin: AdminClient) -> None:
    topic = create(admin, new_name("shown"), 2)
    transactional_id = new_name("id")
    producer = open_transaction(broker.bootstrap, topic, transactional_id)
    (listed,) = [row for row in tools.transactions("list") if row["TransactionalId"] == transactional_id]
    assert listed["TransactionState"] == "Ongoing"
    pattern = ("--transactional-id-pattern", f"{transactional_id[:-1]}.*")
    assert tools.transactions("list", *pattern) == [listed]
    assert tools.transactions("list", *pattern, "--duration-filter", "600000") == []

    (described,) = tools.transactions("describe", "--transactional-id", transactional_id)
    assert described["TransactionState"] == "Ongoing"
    assert described["TopicPartitions"] == f"{topic}-0"
    assert described["ProducerId"] == listed["ProducerId"]

    (active,) = tools.transactions("describe-producers", "--topic", topic, "--partition", "0")
    assert active["ProducerId"] == listed["ProducerId"]
    assert active["CurrentTransactionStartOffset"] == "0"
    assert active["LastSequence"] == "0"

    producer.commit_transaction(30)
    (after,) = tools.transactions("describe", "--transactional-id", transactional_id)
    assert after["TransactionState"] == "CompleteCommit"
    (active,) = tools.transactions("describe-producers", "--topic", topic, "--partition", "0")
    assert active["CurrentTransactionStartOffset"] == "None"


def test_a_terminated_transaction_is_aborted_and_its_producer_fenced(
    broker: Broker, tools: Tools, admin: AdminClient
) -> None:
    topic = create(admin, new_name("terminated"))
    transactional_id = new_name("id")
    producer = open_transaction(broker.bootstrap, topic, transactional_id)
    tools.run("TransactionsCommand", "forceTerminateTransaction", "--transactionalId", transactional_id)
    with pytest.raises(KafkaException) as caught:
        producer.commit_transaction(30)
    assert caught.value.args[0].fatal()
    successor = open_transaction(broker.bootstrap, topic, transactional_id)
    successor.produce(topic, b"after", partition=0)
    successor.commit_transaction(30)
    assert committed(broker.bootstrap, topic, b"after") == [b"open", b"after"]


def test_a_transaction_is_aborted_in_one_partition(broker: Broker, tools: Tools, admin: AdminClient) -> None:
    topic = create(admin, new_name("aborted"))
    opened = open_transaction(broker.bootstrap, topic, new_name("id"))
    place = ("--topic", topic, "--partition", "0")
    tools.run("TransactionsCommand", "abort", *place, "--start-offset", "0")
    (active,) = tools.transactions("describe-producers", *place)
    assert active["CurrentTransactionStartOffset"] == "None"
    plain = Producer({"bootstrap.servers": broker.bootstrap})
    plain.produce(topic, b"plain", partition=0)
    assert plain.flush(30) == 0
    assert committed(broker.bootstrap, topic, b"plain") == [b"plain"]
    # The producer still owns the rest of the transaction.
    opened.abort_transaction(30)


def test_an_open_transaction_does_not_hang(broker: Broker, tools: Tools, admin: AdminClient) -> None:
    topic = create(admin, new_name("old"))
    opened = open_transaction(broker.bootstrap, topic, new_name("id"))
    assert tools.transactions("find-hanging", "--topic", topic) == []
    opened.abort_transaction(30)


def write_past_the_coordinator(bootstrap: str, topic: str) -> int:
    """Write in a transaction that was never opened, with an old timestamp; return the error code."""
    with raw_client(bootstrap) as client:
        producer = RawProducer(client, new_name("id"))
        records = producer.batch(b"hanging", sequence=0, timestamp=1)
        part = PartitionProduceData(index=0, records=records)
        answer = client.ask(
            ProduceRequest(
                transactional_id=producer.transactional_id,
                acks=-1,
                timeout_ms=10_000,
                topic_data=[TopicProduceData(name=topic, partition_data=[part])],
            ),
            9,
        )
        error: int = answer.responses[0].partition_responses[0].error_code
        return error


def test_apache_kafka_can_be_made_to_hang(kafka_broker: Broker, kafka_jars: str) -> None:
    """Without verification a late write opens a transaction that its coordinator does not know."""
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap})
    tools = Tools(kafka_jars, kafka_broker.bootstrap)
    topic = create(admin, new_name("hanging"))
    _verify(admin, "false")
    try:
        until(
            lambda: write_past_the_coordinator(kafka_broker.direct, topic) == ErrorCode.NONE, what="a write"
        )
    finally:
        _verify(admin, "true")
    (found,) = tools.transactions("find-hanging", "--topic", topic)
    assert found["StartOffset"] == "0"
    tools.run("TransactionsCommand", "abort", "--topic", topic, "--partition", "0", "--start-offset", "0")
    assert tools.transactions("find-hanging", "--topic", topic) == []


@pytest.mark.parametrize("run", [run_semel, pytest.param(run_cluster, marks=needs_postgres)])
def test_semel_cannot_be_made_to_hang(run: Run, kafka_jars: str, tmp_path: Path) -> None:
    """In Semel, a write joins the transaction in the decision that appends it, verified or not."""
    with run(tmp_path, **{VERIFICATION: "false"}) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        topic = create(admin, new_name("hanging"))
        assert write_past_the_coordinator(broker.direct, topic) == ErrorCode.NONE
        assert Tools(kafka_jars, broker.bootstrap).transactions("find-hanging", "--topic", topic) == []


def _verify(admin: AdminClient, value: str) -> None:
    entry = ConfigEntry(VERIFICATION, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    done(admin.incremental_alter_configs([resource]))
