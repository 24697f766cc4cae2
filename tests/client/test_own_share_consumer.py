"""`ShareConsumer`, alone and with acknowledgements inside transactions."""

import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from support.brokers.compaction_by_hand import CONFIGS, SETTINGS, compact

import semel
from semel.client import (
    AcknowledgeType,
    Admin,
    Client,
    ClientError,
    Consumer,
    ErrorCode,
    KafkaError,
    MustAbort,
    NewTopic,
    Producer,
    ProducerFenced,
    ShareConsumer,
    ShareRecord,
    TransactionalProducer,
    complete_transaction,
)
from semel.embedded import Embedded

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
JOBS, RESULTS, MANY, GROUP = "jobs", "results", "many", "workers"
LOCK_S = 30.0
"""How long a record is locked. Tests advance the clock of the broker to its end."""


@pytest.fixture
def broker() -> Iterator[Embedded]:
    with semel.embedded(settings={"transaction.two.phase.commit.enable": True}) as broker:
        yield broker


@pytest.fixture
def client(broker: Embedded) -> Iterator[Client]:
    with Client(broker.bootstrap_servers) as client:
        prepare(client)
        yield client


@pytest.fixture
def other(broker: Embedded) -> Iterator[Client]:
    """Another process."""
    with Client(broker.bootstrap_servers) as client:
        yield client


def prepare(client: Client) -> None:
    admin = Admin(client)
    admin.topics.create(NewTopic(JOBS), NewTopic(RESULTS), NewTopic(MANY, partitions=3))
    admin.configs.alter_group(GROUP, values={"share.auto.offset.reset": "earliest"})


def put(client: Client, count: int, topic: str = JOBS, partitions: int = 1) -> None:
    with Producer(client) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=number % partitions)


def taken(consumer: ShareConsumer, count: int, within_s: float = 30.0) -> list[ShareRecord]:
    """Poll until there are so many records."""
    records: list[ShareRecord] = []
    deadline = time.monotonic() + within_s
    while len(records) < count and time.monotonic() < deadline:
        records += consumer.poll(0.2)
    assert len(records) == count
    return records


def results(client: Client) -> list[bytes | None]:
    with Consumer(client, RESULTS) as consumer:
        return sorted(record.value for record in consumer.read_to_end())  # type: ignore[type-var]


def test_records_are_shared_acknowledged_and_never_come_back(client: Client, other: Client) -> None:
    put(client, 20)
    with ShareConsumer(client, GROUP, JOBS) as one, ShareConsumer(other, GROUP, JOBS) as two:
        mine = one.poll(30, max_records=6)
        assert 1 <= len(mine) <= 6
        rest = taken(two, 20 - len(mine))
        assert {each.value for each in (*mine, *rest)} == {b"%d" % number for number in range(20)}
        assert {each.deliveries for each in (*mine, *rest)} == {1}
        for each in mine:
            one.acknowledge(each)
        for each in rest:
            two.acknowledge(each)
        one.commit()
        two.commit()
    with ShareConsumer(client, GROUP, JOBS) as three:
        assert three.poll(0.5) == []


def test_a_released_record_comes_back_and_a_rejected_one_does_not(client: Client) -> None:
    put(client, 3)
    with ShareConsumer(client, GROUP, JOBS) as consumer:
        by_value = {each.value: each for each in taken(consumer, 3)}
        consumer.acknowledge(by_value[b"0"], RELEASE)
        consumer.acknowledge(by_value[b"1"], REJECT)
        consumer.acknowledge(by_value[b"2"])
        (again,) = taken(consumer, 1)
        assert (again.value, again.deliveries) == (b"0", 2)
        consumer.acknowledge(again)
        assert consumer.poll(0.3) == []


def test_what_is_not_acknowledged_goes_to_another_member_when_the_consumer_is_closed(client: Client) -> None:
    put(client, 4)
    with ShareConsumer(client, GROUP, JOBS) as consumer:
        first = taken(consumer, 4)[0]
        consumer.acknowledge(first)
    with ShareConsumer(client, GROUP, JOBS) as consumer:
        again = taken(consumer, 3)
        assert first.value not in {each.value for each in again}
        assert {each.deliveries for each in again} == {2}


def test_a_lock_ends_unless_it_is_renewed(broker: Embedded, client: Client, other: Client) -> None:
    put(client, 2)
    with ShareConsumer(client, GROUP, JOBS) as one, ShareConsumer(other, GROUP, JOBS) as two:
        slow, lost = taken(one, 2)
        two.poll(0)
        broker.advance(LOCK_S / 2)
        one.renew(slow)
        broker.advance(LOCK_S / 2)
        (again,) = taken(two, 1)
        assert again.value == lost.value
        one.acknowledge(slow)
        one.commit()
        one.acknowledge(lost)
        with pytest.raises(KafkaError) as refused:
            one.commit()
        assert refused.value.code is ErrorCode.INVALID_RECORD_STATE
        with pytest.raises(KafkaError):
            one.renew(lost)


def test_markers_are_acknowledged_by_the_consumer_itself(client: Client) -> None:
    with TransactionalProducer(client, "p") as producer:
        for number in range(3):
            with producer.transaction():
                producer.send(JOBS, b"%d" % number, partition=0)
    with ShareConsumer(client, GROUP, JOBS) as consumer:
        for record in taken(consumer, 3):
            consumer.acknowledge(record)
        consumer.commit()
    put(client, 1)
    with ShareConsumer(client, GROUP, JOBS) as consumer:
        (record,) = taken(consumer, 1)
        assert record.offset == 6


def test_a_restart_of_the_connection_loses_what_is_held_and_nothing_else(client: Client) -> None:
    put(client, 4)
    with ShareConsumer(client, GROUP, JOBS) as consumer:
        held = taken(consumer, 4)
        client.close()
        consumer.acknowledge(held[0])
        with pytest.raises((KafkaError, ClientError)):
            consumer.commit()
        again = taken(consumer, 4)
        assert {each.deliveries for each in again} == {2}


# Inside transactions.


def work(producer: TransactionalProducer, jobs: list[ShareRecord]) -> None:
    for job in jobs:
        producer.send(RESULTS, job.value)


def test_a_commit_makes_results_and_acknowledgements_true_together(
    broker: Embedded, client: Client, other: Client
) -> None:
    put(client, 6)
    with ShareConsumer(client, GROUP, JOBS) as consumer, TransactionalProducer(client, "w") as producer:
        jobs = taken(consumer, 6)
        with producer.transaction():
            work(producer, jobs)
            producer.acknowledge(consumer, *jobs)
        assert results(other) == [b"%d" % number for number in range(6)]
        broker.advance(LOCK_S)
        assert consumer.poll(0.3) == [], "their locks would be over by now"


def test_an_abort_makes_the_records_available_and_the_results_invisible(
    client: Client, other: Client
) -> None:
    put(client, 6)
    with (
        ShareConsumer(client, GROUP, JOBS) as consumer,
        ShareConsumer(other, GROUP, JOBS) as another,
        TransactionalProducer(client, "w") as producer,
    ):
        jobs = taken(consumer, 6)
        with suppress(ZeroDivisionError), producer.transaction():
            work(producer, jobs)
            producer.acknowledge(consumer, *jobs)
            raise ZeroDivisionError
        again = taken(another, 6)
        assert {each.deliveries for each in again} == {2}
        with producer.transaction():
            work(producer, again)
            producer.acknowledge(another, *again)
        assert results(other) == [b"%d" % number for number in range(6)]
        assert consumer.poll(0.3) == []


def test_waiting_fetches_get_the_records_as_soon_as_a_transaction_aborts(
    client: Client, other: Client
) -> None:
    put(client, 1)
    with ShareConsumer(client, GROUP, JOBS) as consumer, TransactionalProducer(other, "w") as producer:
        (job,) = taken(consumer, 1)
        producer.begin()
        producer.acknowledge(consumer, job)
        producer.abort()
        started = time.monotonic()
        assert len(consumer.poll(30)) == 1
        assert time.monotonic() - started < 15


def test_only_one_of_two_workers_that_had_the_same_record_can_commit(
    broker: Embedded, client: Client, other: Client
) -> None:
    put(client, 1)
    with (
        ShareConsumer(client, GROUP, JOBS) as slow,
        ShareConsumer(other, GROUP, JOBS) as fast,
        TransactionalProducer(client, "slow") as slow_producer,
        TransactionalProducer(other, "fast") as fast_producer,
    ):
        (late,) = taken(slow, 1)
        slow_producer.begin()
        work(slow_producer, [late])
        fast.poll(0)
        broker.advance(LOCK_S)
        (job,) = taken(fast, 1)
        with fast_producer.transaction():
            work(fast_producer, [job])
            fast_producer.acknowledge(fast, job)
        with pytest.raises(MustAbort, match="does not hold one of them"):
            slow_producer.acknowledge(slow, late)
        with pytest.raises(MustAbort):
            slow_producer.commit()
        slow_producer.abort()
    assert results(client) == [b"0"]


def test_a_rejected_record_is_given_up_by_the_commit(client: Client) -> None:
    put(client, 2)
    with ShareConsumer(client, GROUP, JOBS) as consumer, TransactionalProducer(client, "w") as producer:
        good, bad = sorted(taken(consumer, 2), key=lambda each: each.value or b"")
        with producer.transaction():
            producer.acknowledge(consumer, good)
            producer.acknowledge(consumer, bad, accept=False)
        assert consumer.poll(0.5) == []


def test_a_new_producer_of_the_id_frees_the_records_of_the_old_one(client: Client, other: Client) -> None:
    put(client, 1)
    with ShareConsumer(client, GROUP, JOBS) as consumer, ShareConsumer(other, GROUP, JOBS) as another:
        zombie = TransactionalProducer(client, "w")
        zombie.begin()
        (job,) = taken(consumer, 1)
        work(zombie, [job])
        zombie.flush()
        zombie.acknowledge(consumer, job)
        with TransactionalProducer(other, "w") as producer:
            again = taken(another, 1)
            with producer.transaction():
                work(producer, again)
                producer.acknowledge(another, *again)
            with pytest.raises(ProducerFenced):
                zombie.commit()
    assert results(client) == [b"0"]


def test_a_prepared_transaction_holds_its_records_until_it_is_completed(
    broker: Embedded, client: Client, other: Client
) -> None:
    put(client, 2)
    with ShareConsumer(client, GROUP, JOBS) as consumer:
        producer = TransactionalProducer(client, "w", two_phase=True)
        producer.begin()
        jobs = taken(consumer, 2)
        work(producer, jobs)
        producer.acknowledge(consumer, *jobs)
        prepared = producer.prepare()
        assert prepared is not None
        broker.advance(LOCK_S)
        assert consumer.poll(0.3) == []
        assert complete_transaction(other, prepared, commit=True)
        assert consumer.poll(0.3) == []
    assert results(client) == [b"0", b"1"]


def test_a_transaction_of_acknowledgements_alone_is_ended(client: Client) -> None:
    put(client, 2)
    with ShareConsumer(client, GROUP, JOBS) as consumer, TransactionalProducer(client, "w") as producer:
        jobs = taken(consumer, 2)
        producer.begin()
        producer.acknowledge(consumer, jobs[0])
        producer.commit()
        producer.begin()
        producer.acknowledge(consumer, jobs[1])
        producer.abort()
        (again,) = taken(consumer, 1)
        assert again.value == jobs[1].value


def test_transactions_of_version_1_cannot_acknowledge(client: Client) -> None:
    put(client, 1)
    with (
        ShareConsumer(client, GROUP, JOBS) as consumer,
        TransactionalProducer(client, "w", version_max=1) as producer,
    ):
        producer.begin()
        with pytest.raises(MustAbort, match="version 2"):
            producer.acknowledge(consumer, *taken(consumer, 1))
        producer.abort()


def test_without_extensions_nothing_is_sent() -> None:
    settings = {"semel.extensions.enable": False}
    with semel.embedded(settings=settings) as broker, Client(broker.bootstrap_servers) as client:
        prepare(client)
        put(client, 1)
        with ShareConsumer(client, GROUP, JOBS) as consumer, TransactionalProducer(client, "w") as producer:
            producer.begin()
            with pytest.raises(MustAbort, match="on Semel"):
                producer.acknowledge(consumer, *taken(consumer, 1))
            producer.abort()


def test_several_partitions_and_topics_are_in_one_transaction(client: Client) -> None:
    put(client, 9, MANY, partitions=3)
    put(client, 2)
    with (
        ShareConsumer(client, GROUP, [MANY, JOBS]) as consumer,
        TransactionalProducer(client, "w") as producer,
    ):
        for ends in (producer.abort, producer.commit):
            jobs = taken(consumer, 11)
            producer.begin()
            producer.acknowledge(consumer, *jobs)
            work(producer, jobs)
            ends()
        assert consumer.poll(0.5) == []
    assert len(results(client)) == 11


def test_acknowledging_no_records_acknowledges_nothing(client: Client) -> None:
    """A poll that returned nothing must not acknowledge what earlier ones returned."""
    put(client, 1)
    with ShareConsumer(client, GROUP, JOBS) as consumer, TransactionalProducer(client, "w") as producer:
        (job,) = taken(consumer, 1)
        with producer.transaction():
            producer.acknowledge(consumer, *consumer.poll(0.1))
        consumer.acknowledge(job, RELEASE)
        (again,) = taken(consumer, 1)
        assert again.value == job.value


# Several deliveries of one record.


def work_for(producer: TransactionalProducer, calls: list[tuple[ShareConsumer, list[ShareRecord]]]) -> None:
    with producer.transaction():
        for consumer, jobs in calls:
            for job in jobs:
                producer.send(RESULTS, job.value)
            producer.acknowledge(consumer, *jobs)


@pytest.mark.parametrize("is_one_call", [True, False])
def test_a_record_that_was_delivered_twice_has_one_result(
    broker: Embedded, client: Client, other: Client, is_one_call: bool
) -> None:
    """A worker gathers jobs over several polls, and the lock of the first is over meanwhile."""
    put(client, 1)
    with ShareConsumer(client, GROUP, JOBS) as consumer, TransactionalProducer(other, "w") as producer:
        jobs = taken(consumer, 1)
        broker.advance(LOCK_S)
        jobs += taken(consumer, 1)
        assert [each.deliveries for each in jobs] == [1, 2]
        calls = [jobs] if is_one_call else [[each] for each in jobs]
        with pytest.raises(MustAbort, match="does not hold"):
            work_for(producer, [(consumer, each) for each in calls])
    assert results(other) == []


def test_two_consumers_of_one_producer_have_one_result(
    broker: Embedded, client: Client, other: Client
) -> None:
    put(client, 1)
    with (
        ShareConsumer(client, GROUP, JOBS) as slow,
        ShareConsumer(other, GROUP, JOBS) as fast,
        TransactionalProducer(client, "w") as producer,
    ):
        (late,) = taken(slow, 1)
        broker.advance(LOCK_S)
        (job,) = taken(fast, 1)
        with pytest.raises(MustAbort, match="does not hold"):
            work_for(producer, [(fast, [job]), (slow, [late])])
    assert results(other) == []


def test_a_topic_that_was_deleted_and_created_again_is_another(client: Client, other: Client) -> None:
    put(client, 1)
    with ShareConsumer(client, GROUP, JOBS) as consumer:
        (old,) = taken(consumer, 1)
        Admin(other).topics.delete(JOBS)
        Admin(other).topics.create(NewTopic(JOBS))
        other.forget_topic(JOBS)
        put(other, 1)
        (new,) = taken(consumer, 1)
        assert (old.offset, old.partition) == (new.offset, new.partition)
        consumer.acknowledge(old)
        with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_ID"):
            consumer.commit()
        consumer.acknowledge(new)
        consumer.commit()


def test_records_can_be_renewed_beside_the_marker_of_a_transaction(
    broker: Embedded, client: Client, other: Client
) -> None:
    """The marker is an acquired offset, too, and acknowledgements of a partition count as a whole."""
    with TransactionalProducer(other, "p") as producer, producer.transaction():
        producer.send(JOBS, b"0", partition=0)
    with ShareConsumer(client, GROUP, JOBS) as consumer:
        (job,) = taken(consumer, 1)
        for _ in range(3):
            broker.advance(LOCK_S / 2)
            consumer.renew(job)
        consumer.acknowledge(job)
        consumer.commit()


def test_a_compacted_topic_is_delivered_to_its_end() -> None:
    """More offsets are gone than records can be in flight (share.partition.max.record.locks)."""
    with semel.embedded(settings=SETTINGS) as broker, Client(broker.bootstrap_servers) as client:
        Admin(client).topics.create(NewTopic(JOBS, configs={**CONFIGS, "segment.bytes": "1048576"}))
        Admin(client).configs.alter_group(GROUP, values={"share.auto.offset.reset": "earliest"})
        with Producer(client, batch_bytes=4096) as producer:
            for number in range(2_500):
                producer.send(JOBS, b"%d" % number, key=b"same", partition=0)
        compact(broker)
        with Producer(client) as producer:
            producer.send(JOBS, b"last", key=b"other", partition=0)
        with ShareConsumer(client, GROUP, JOBS) as consumer:
            assert [each.value for each in taken(consumer, 2)] == [b"2499", b"last"]
