"""Transactions of `semel.client` on a real broker, in both generations of the protocol.

SEMEL_PEER names another broker to run them against (see `conftest`). What only Semel has is in
`test_own_two_phase.py`.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.brokers.peer import PEER, Timed
from support.clients.client_transactions import SLOW_S, time_out
from support.faults.proxy import Act, Proxy

from semel.client import (
    LATEST,
    Admin,
    Client,
    Consumer,
    ErrorCode,
    Isolation,
    KafkaError,
    MustAbort,
    NewTopic,
    PreparedTransaction,
    Producer,
    ProducerFenced,
    TransactionAborted,
    TransactionalProducer,
    end_transaction,
)
from semel.client.admin.group_offsets import fetch_offsets
from semel.client.admin.transactions import (
    describe_transactions,
    fence_producer,
    list_transactions,
)
from semel.client.produce.transactional_producer import State
from semel.wire.messages import EndTxnRequest

Fresh = Callable[[str], str]


@pytest.fixture(params=[1, 2])
def version(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.fixture
def producer(client: Client, fresh: Fresh, version: int) -> Iterator[TransactionalProducer]:
    with TransactionalProducer(client, fresh("id"), version_max=version) as made:
        assert made.version == version
        yield made


def read(client: Client, topic: str, isolation: str = "read_committed") -> list[bytes]:
    with Consumer(client, topic, isolation=isolation) as consumer:
        return sorted(record.value or b"" for record in consumer.read_to_end())


def check_read(client: Client, topic: str, expected: list[bytes], isolation: str = "read_committed") -> None:
    """Here what a commit has answered is visible. Kafka answers before that, so a peer gets some time."""
    deadline = time.monotonic() + (10 if PEER else 0)
    while (found := read(client, topic, isolation)) != expected and time.monotonic() < deadline:
        pass
    assert found == expected


def hold_open(producer: TransactionalProducer, topic: str, value: bytes, partition: int = 0) -> None:
    producer.begin()
    producer.send(topic, value, partition=partition)
    producer.flush()


def test_committed_records_are_read_and_aborted_ones_are_not(
    client: Client, topic: str, producer: TransactionalProducer
) -> None:
    for number in range(6):
        producer.begin()
        for partition in range(3):
            producer.send(topic, b"%d" % number, partition=partition)
        if number % 3:
            producer.commit()
        else:
            producer.flush()
            producer.abort()
    check_read(client, topic, sorted([b"1", b"2", b"4", b"5"] * 3))
    assert len(read(client, topic, "read_uncommitted")) == 18


def test_an_open_transaction_is_not_read(client: Client, topic: str, producer: TransactionalProducer) -> None:
    """Behaviours 1, 2, 5, 9: it holds back what is behind it, too."""
    hold_open(producer, topic, b"open")
    with Producer(client) as plain:
        plain.send(topic, b"plain", partition=0)
    check_read(client, topic, [])
    check_read(client, topic, [b"open", b"plain"], "read_uncommitted")
    topics = Admin(client).topics
    assert topics.offsets({(topic, 0): LATEST}, Isolation.READ_COMMITTED)[topic, 0].offset == 0
    producer.commit()
    check_read(client, topic, [b"open", b"plain"])


def test_many_batches_and_a_large_transaction(client: Client, topic: str, version: int, fresh: Fresh) -> None:
    with TransactionalProducer(client, fresh("id"), batch_bytes=2_000, version_max=version) as producer:
        for _ in range(2):
            with producer.transaction():
                for number in range(1_000):
                    producer.send(topic, b"%d" % number, key=b"%d" % number)
    check_read(client, topic, sorted(b"%d" % (n // 2) for n in range(2_000)))


def test_offsets_count_with_the_records(
    client: Client, topic: str, producer: TransactionalProducer, fresh: Fresh
) -> None:
    """Behaviours 82, 83: pending offsets are no offsets yet, and a stable answer waits for them."""
    group, key = fresh("group"), (topic, 0)
    with producer.transaction():
        producer.send_offsets({key: 5}, group)
    assert fetch_offsets(client, group, [key])[key].offset == 5
    producer.begin()
    producer.send_offsets({key: 7}, group)
    with pytest.raises(KafkaError) as caught:
        fetch_offsets(client, group, [key], stable_within_s=0)
    assert caught.value.code is ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert fetch_offsets(client, group, [key], require_stable=False)[key].offset == 5
    producer.abort()
    assert fetch_offsets(client, group, [key])[key].offset == 5
    with producer.transaction():
        producer.send_offsets({key: 9}, group)
    assert fetch_offsets(client, group, [key])[key].offset == 9


def test_consume_transform_produce(
    client: Client, bootstrap: str, topic: str, producer: TransactionalProducer, fresh: Fresh
) -> None:
    """Every third transaction is aborted and its input read again; each record comes out once."""
    out, group = fresh("out"), fresh("group")
    Admin(client).topics.create(NewTopic(out, partitions=2, replication_factor=1))
    with Producer(client) as plain:
        for number in range(60):
            plain.send(topic, b"%d" % number)
    done = tries = 0
    while done < 60:
        # A consumer of its own for each turn, as after a crash: only the committed offsets are left.
        with (
            Client(bootstrap, timeout_s=20) as other,
            Consumer(other, topic, group_id=group, auto_commit=False) as consumer,
        ):
            records = consumer.poll(10.0, max_records=7)
            producer.begin()
            for record in records:
                producer.send(out, b"<%s>" % (record.value or b""))
            producer.send_offsets(consumer.positions(), consumer.group_metadata())
            tries += 1
            if tries % 3 == 0:
                producer.abort()
            else:
                producer.commit()
                done += len(records)
    check_read(client, out, sorted(b"<%d>" % number for number in range(60)))


def test_a_consumer_that_lost_its_partitions_commits_nothing(
    client: Client, topic: str, producer: TransactionalProducer, fresh: Fresh
) -> None:
    """Behaviour 84: the group knows no such member."""
    group = fresh("group")
    with Consumer(client, topic, group_id=group, auto_commit=False) as consumer:
        consumer.poll(0.5)
        while not consumer.assignment:
            consumer.poll(0.1)
        metadata = consumer.group_metadata()
    producer.begin()
    with pytest.raises(MustAbort):
        producer.send_offsets({(topic, 0): 3}, metadata)
    producer.abort()
    with producer.transaction():
        producer.send(topic, b"after")
    check_read(client, topic, [b"after"])


def test_a_member_waits_for_offsets_that_are_about_to_change(
    client: Client, bootstrap: str, topic: str, producer: TransactionalProducer, fresh: Fresh
) -> None:
    """What the transaction has read must not be read again by whoever comes next."""
    group = fresh("group")
    with Producer(client) as plain:
        for number in range(4):
            plain.send(topic, b"%d" % number, partition=0)
    producer.begin()
    producer.send_offsets({(topic, 0): 3}, group)
    with (
        Client(bootstrap, timeout_s=20) as other,
        Consumer(other, topic, group_id=group, auto_commit=False) as consumer,
    ):
        while not consumer.assignment:
            assert consumer.poll(0.1) == []
        assert consumer.poll(0.3) == []
        producer.commit()
        assert [record.value for record in consumer.poll(10.0)] == [b"3"]


def test_a_newer_producer_fences_the_older_and_aborts_what_it_left(
    client: Client, topic: str, version: int, fresh: Fresh
) -> None:
    """Behaviours 28, 29."""
    name = fresh("id")
    zombie = TransactionalProducer(client, name, version_max=version)
    hold_open(zombie, topic, b"zombie")
    with TransactionalProducer(client, name, version_max=version) as newer, newer.transaction():
        newer.send(topic, b"newer", partition=0)
    with pytest.raises(ProducerFenced):
        zombie.commit()
    with pytest.raises(ProducerFenced):
        zombie.begin()
    check_read(client, topic, [b"newer"])


def test_a_zombie_cannot_write(client: Client, topic: str, version: int, fresh: Fresh) -> None:
    name = fresh("id")
    zombie = TransactionalProducer(client, name, version_max=version)
    hold_open(zombie, topic, b"zombie")
    fence_producer(client, name)
    zombie.send(topic, b"late", partition=0)
    with pytest.raises(MustAbort):
        zombie.flush()
    with pytest.raises(ProducerFenced):
        zombie.abort()
    check_read(client, topic, [])


def test_after_a_timeout_the_producer_goes_on(timed: Timed, version: int) -> None:
    """Behaviour 57, and the same in version 1."""
    options: Any = {"transaction_timeout_ms": SLOW_S * 1000, "version_max": version}
    with Client(timed.address) as client:
        Admin(client).topics.create(NewTopic("t", 1))
        with TransactionalProducer(client, "id", **options) as producer:
            hold_open(producer, "t", b"slow")
            time_out(timed, "id")
            with pytest.raises(TransactionAborted, match=f"{SLOW_S * 1000} ms"):
                producer.commit()
            with producer.transaction():
                producer.send("t", b"next")
        check_read(client, "t", [b"next"])


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_an_end_that_was_answered_stands_when_the_broker_is_gone_right_after_it(
    client: Client, bootstrap: str, topic: str, version: int, fresh: Fresh, end: str
) -> None:
    with Proxy(bootstrap) as proxy, Client(proxy.bootstrap, timeout_s=20) as other:
        producer = TransactionalProducer(other, fresh("id"), version_max=version)
        hold_open(producer, topic, b"v")
        proxy.on(EndTxnRequest.api_key, Act.LAST)
        getattr(producer, end)()
        assert producer.state is State.READY
        producer.begin()
        assert producer.version == version
    check_read(client, topic, [b"v"] if end == "commit" else [])


def test_another_process_ends_a_prepared_transaction(
    client: Client, bootstrap: str, topic: str, version: int, fresh: Fresh
) -> None:
    notes: list[str] = []
    for _ in range(2):
        writer = TransactionalProducer(client, fresh("id"), version_max=version)
        writer.begin()
        for partition in range(3):
            writer.send(topic, b"%d" % len(notes), partition=partition)
        notes.append(str(writer.prepare()))
        writer.close()
    with Client(bootstrap, timeout_s=20) as other:
        for note, commit in zip(notes, (True, False), strict=True):
            prepared = PreparedTransaction.parse(note)
            pair = (prepared.transactional_id, prepared.producer_id, prepared.epoch)
            for _ in range(2):  # to ask again is no error
                end_transaction(other, *pair, commit=commit, version=version)
            if not commit:
                with pytest.raises(TransactionAborted):
                    end_transaction(other, *pair, commit=True, version=version)
    check_read(client, topic, [b"0"] * 3)


def test_the_pair_of_a_fenced_producer_ends_nothing(
    client: Client, topic: str, version: int, fresh: Fresh
) -> None:
    name = fresh("id")
    writer = TransactionalProducer(client, name, version_max=version)
    hold_open(writer, topic, b"old")
    prepared = writer.prepare()
    assert prepared is not None
    fence_producer(client, name)
    with pytest.raises(ProducerFenced):
        end_transaction(client, name, prepared.producer_id, prepared.epoch, commit=True, version=version)
    check_read(client, topic, [])


def test_what_tools_see(client: Client, topic: str, producer: TransactionalProducer) -> None:
    """Behaviours 99, 100."""
    name, start = producer.transactional_id, Admin(client).transactions
    assert start.describe(name).state == "Empty"
    hold_open(producer, topic, b"open", partition=1)
    identity = producer.identity
    found = start.describe(name)
    assert (found.state, found.partitions) == ("Ongoing", ((topic, 1),))
    assert (found.producer_id, found.epoch) == identity
    assert found.open_for_ms() is not None
    assert not found.is_two_phase
    (writer,) = start.producers(topic)[1]
    assert (writer.producer_id, writer.epoch) == identity
    assert (writer.last_sequence, writer.transaction_start_offset) == (0, 0)
    assert [each.transactional_id for each in list_transactions(client, ["Ongoing"], pattern=name)] == [name]
    assert list_transactions(client, producer_ids=[identity.producer_id])[0].state == "Ongoing"
    assert list_transactions(client, ["CompleteCommit"], pattern=name) == []
    assert list_transactions(client, older_than_ms=3_600_000, pattern=name) == []
    with pytest.raises(ValueError, match="Nonsense"):
        list_transactions(client, ["Nonsense"])
    with pytest.raises(KafkaError) as caught:
        list_transactions(client, pattern="(")
    assert caught.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    producer.commit()
    check_read(client, topic, [b"open"])
    assert start.describe(name).state == "CompleteCommit"
    assert start.producers(topic, [1])[1][0].transaction_start_offset == -1
    assert describe_transactions(client, [name + "-unknown"]) == {}


def test_an_administrator_ends_what_blocks_a_partition(
    client: Client, topic: str, producer: TransactionalProducer
) -> None:
    """Behaviour 101."""
    hold_open(producer, topic, b"open")
    transactions = Admin(client).transactions
    (writer,) = transactions.producers(topic, [0])[0]
    with Producer(client) as plain:
        plain.send(topic, b"plain", partition=0)
    transactions.abort(topic, 0, writer.producer_id, writer.epoch, writer.coordinator_epoch)
    check_read(client, topic, [b"plain"])
