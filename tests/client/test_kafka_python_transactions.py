"""Transactions by kafka-python: the scenarios of `test_confluent_transactions.py`.

It speaks EndTxn v3 and TxnOffsetCommit v3, and fetches in sessions.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError, ProducerFencedError
from kafka.structs import OffsetAndMetadata
from support.brokers.peer import PEER, Timed
from support.clients.client_transactions import (
    ADD_PARTITIONS,
    ONE_VISIBILITY,
    PARTITIONS,
    REQUESTS,
    SLOW_S,
    Found,
    check_second_was_aborted,
    numbered,
    time_out,
    values_of,
    visibility_configs,
)
from support.clients.kafka_python import Fresh, Reader, administrator, create, produce, reader
from support.clients.raw import RawClient
from support.clients.raw_transactions import Log, soon
from support.clients.reading import WAIT_SECONDS
from support.faults.proxy import Act, Proxy
from support.waiting import until


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    with administrator(bootstrap) as client:
        yield client


@pytest.fixture
def topic(admin: KafkaAdminClient, fresh: Fresh, visibility: str) -> str:
    """A topic with five partitions, of either visibility."""
    return create(admin, fresh("transactions"), PARTITIONS, **visibility_configs(visibility))


@pytest.fixture
def plain_topic(admin: KafkaAdminClient, fresh: Fresh) -> str:
    return create(admin, fresh("transactions"), PARTITIONS)


@contextmanager
def transactional(bootstrap: str, name: str, **config: Any) -> Iterator[KafkaProducer]:
    options = {"retry_backoff_ms": 20, "reconnect_backoff_ms": 20, "reconnect_backoff_max_ms": 100}
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=name, **{**options, **config})
    try:
        producer.init_transactions()
        yield producer
    finally:
        producer.close(WAIT_SECONDS)


def write(producer: KafkaProducer, topic: str, values: list[bytes], *, flush: bool = True) -> None:
    """Begin, and spread the values over all partitions."""
    producer.begin_transaction()
    for number, value in enumerate(values):
        producer.send(topic, value, partition=number % PARTITIONS)
    if flush:
        producer.flush(WAIT_SECONDS)


def end(producer: KafkaProducer, *, commit: bool) -> None:
    if commit:
        producer.commit_transaction()
    else:
        producer.abort_transaction()


def read_all(bootstrap: str, topic: str, isolation: str = "read_committed") -> Found:
    """Every record that can be read."""
    with reader(bootstrap, None, isolation_level=isolation) as each:
        partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        each.consumer.assign(partitions)
        each.consumer.seek_to_beginning()
        ends = each.consumer.end_offsets(partitions)

        def is_at_the_end() -> bool:
            each.poll(100)
            return all(each.consumer.position(which) >= end for which, end in ends.items())

        until(is_at_the_end, WAIT_SECONDS, "reading to the end")
        return sorted((record.partition, record.offset, record.value) for record in each.records)


def test_committed_and_aborted(bootstrap: str, topic: str, visibility: str, fresh: Fresh) -> None:
    with transactional(bootstrap, fresh("id")) as producer:
        write(producer, topic, numbered("first"), flush=False)
        producer.commit_transaction()
        write(producer, topic, numbered("second"))
        producer.abort_transaction()
        write(producer, topic, numbered("third"))
        producer.commit_transaction()
    committed = read_all(bootstrap, topic)
    everything = read_all(bootstrap, topic, "read_uncommitted")
    check_second_was_aborted(visibility, committed, everything)


def test_an_open_transaction_is_not_seen(bootstrap: str, topic: str, visibility: str, fresh: Fresh) -> None:
    """Readers stop before it; on journal topics they read past it. Its end shows it at once."""
    with transactional(bootstrap, fresh("id")) as producer:
        write(producer, topic, numbered("open"))
        for partition in range(PARTITIONS):
            produce(bootstrap, topic, [b"plain"], partition)
        plain = [b"plain"] * PARTITIONS
        assert values_of(read_all(bootstrap, topic)) == (plain if visibility == "journal" else [])
        producer.commit_transaction()
    assert values_of(read_all(bootstrap, topic)) == [*numbered("open"), *plain]


@ONE_VISIBILITY
@pytest.mark.parametrize("codec", ["gzip", "lz4", "snappy", "zstd"])
def test_compressed_batches(bootstrap: str, topic: str, fresh: Fresh, codec: str) -> None:
    with transactional(bootstrap, fresh("id"), compression_type=codec) as producer:
        for number in range(4):
            write(producer, topic, numbered(f"{'x' * 50}-{number}", 50))
            end(producer, commit=number % 2 == 0)
    expected = [*numbered(f"{'x' * 50}-0", 50), *numbered(f"{'x' * 50}-2", 50)]
    assert values_of(read_all(bootstrap, topic)) == expected


def test_fifty_in_a_row(bootstrap: str, topic: str, fresh: Fresh) -> None:
    """Back to back, every third one aborted: what is committed is readable when the call returns."""
    expected: list[bytes] = []
    with transactional(bootstrap, fresh("id")) as producer, RawClient(bootstrap) as raw:
        for number in range(50):
            values = numbered(f"{number:02}", PARTITIONS)
            is_commit = number % 3 != 0
            write(producer, topic, values, flush=False)
            end(producer, commit=is_commit)
            if is_commit:
                expected += values
                if not PEER:
                    assert Log(raw, topic).values()[-1] == values[0]
    assert values_of(read_all(bootstrap, topic)) == expected


# -- consume, transform, produce ----------------------------------------------------------------------------


def copy(source: Reader, producer: KafkaProducer, target: str, *, commit: bool) -> int:
    """Copy what is there, with the positions, in a transaction; how much it was."""
    batches = until(
        lambda: source.consumer.poll(timeout_ms=1_000, max_records=7), WAIT_SECONDS, "something to copy"
    )
    producer.begin_transaction()
    positions = {}
    for where, records in batches.items():
        for record in records:
            producer.send(target, record.value, partition=where.partition)
        positions[where] = OffsetAndMetadata(records[-1].offset + 1, "", -1)
    producer.send_offsets_to_transaction(positions, source.consumer.group_metadata())
    end(producer, commit=commit)
    return sum(len(records) for records in batches.values())


@ONE_VISIBILITY
def test_consume_transform_produce(bootstrap: str, plain_topic: str, topic: str, fresh: Fresh) -> None:
    values = numbered("value", 40)
    for index in range(PARTITIONS):
        produce(bootstrap, plain_topic, values[index::PARTITIONS], index)
    group = fresh("group")
    config = {"enable_auto_commit": False, "isolation_level": "read_committed"}
    partitions = [TopicPartition(plain_topic, index) for index in range(PARTITIONS)]
    with (
        transactional(bootstrap, fresh("id")) as producer,
        reader(bootstrap, group, plain_topic, **config) as source,
    ):
        copied = number = 0
        while copied < len(values):
            number += 1
            is_commit = number % 3 != 1
            count = copy(source, producer, topic, commit=is_commit)
            copied += count if is_commit else 0
            if not is_commit:
                for where in partitions:
                    source.consumer.seek(where, source.consumer.committed(where) or 0)
        assert [source.consumer.committed(where) for where in partitions] == [8] * PARTITIONS
    assert values_of(read_all(bootstrap, topic)) == values


# -- zombies, timeouts, and networks ------------------------------------------------------------------------


def test_a_zombie_is_fenced(bootstrap: str, topic: str, fresh: Fresh) -> None:
    name = fresh("id")
    with transactional(bootstrap, name) as zombie:
        write(zombie, topic, numbered("zombie"))
        with transactional(bootstrap, name) as heir:
            write(heir, topic, numbered("heir"))
            with pytest.raises(ProducerFencedError):
                zombie.commit_transaction()
            heir.commit_transaction()
    assert values_of(read_all(bootstrap, topic)) == numbered("heir")


@ONE_VISIBILITY
def test_two_instances_that_fence_each_other(bootstrap: str, topic: str, fresh: Fresh) -> None:
    """Six generations of one id: each aborts its predecessor's transaction and commits one of its own."""
    name = fresh("id")
    expected: list[bytes] = []

    def generation(number: int, before: KafkaProducer | None) -> None:
        with transactional(bootstrap, name) as instance:
            if before is not None:
                with pytest.raises(KafkaError):
                    end(before, commit=number % 2 == 0)
            write(instance, topic, numbered(f"{number}-kept", PARTITIONS))
            instance.commit_transaction()
            expected.extend(numbered(f"{number}-kept", PARTITIONS))
            if number < 6:
                write(instance, topic, numbered(f"{number}-lost", PARTITIONS))
                generation(number + 1, instance)

    generation(1, None)
    assert values_of(read_all(bootstrap, topic)) == expected


def test_a_transaction_that_takes_too_long_is_aborted(timed: Timed, visibility: str, fresh: Fresh) -> None:
    """The broker ends it, the producer hears of it, and the next instance goes on."""
    name, bootstrap = fresh("id"), timed.address
    with administrator(bootstrap) as admin:
        topic = create(admin, fresh("transactions"), PARTITIONS, **visibility_configs(visibility))
    with transactional(bootstrap, name, transaction_timeout_ms=SLOW_S * 1000) as slow:
        write(slow, topic, numbered("slow"))
        produce(bootstrap, topic, [b"behind"])
        time_out(timed, name)
        assert values_of(read_all(bootstrap, topic)) == [b"behind"]
        with pytest.raises(KafkaError):
            slow.commit_transaction()
        with transactional(bootstrap, name) as heir:
            write(heir, topic, numbered("heir"))
            heir.commit_transaction()
    assert values_of(read_all(bootstrap, topic)) == [b"behind", *numbered("heir")]


@ONE_VISIBILITY
@pytest.mark.parametrize("api_key", REQUESTS)
def test_a_connection_that_breaks_in_the_middle(
    bootstrap: str, proxy: Proxy, plain_topic: str, topic: str, fresh: Fresh, api_key: int
) -> None:
    """Whichever request is lost on the way, and then its answer: the client asks again, and goes on."""
    produce(bootstrap, plain_topic, numbered("read", 3))
    rules = [proxy.on(api_key, Act.CUT), proxy.on(api_key, Act.CUT_ANSWER)]
    where = TopicPartition(plain_topic, 0)
    with (
        reader(bootstrap, fresh("group"), plain_topic, enable_auto_commit=False) as source,
        transactional(proxy.bootstrap, fresh("id")) as producer,
    ):
        source.read(3)
        for number in range(3):
            write(producer, topic, numbered(f"{number}", PARTITIONS))
            positions = {where: OffsetAndMetadata(number + 1, "", -1)}
            producer.send_offsets_to_transaction(positions, source.consumer.group_metadata())
            end(producer, commit=number != 1)
        assert [len(rule.caught) for rule in rules] == [1, 1]
        soon(lambda: source.consumer.committed(where) == 3)
    expected = [*numbered("0", PARTITIONS), *numbered("2", PARTITIONS)]
    assert values_of(read_all(bootstrap, topic)) == expected


@ONE_VISIBILITY
def test_all_connections_break_between_the_first_request_and_the_end(
    bootstrap: str, proxy: Proxy, topic: str, fresh: Fresh
) -> None:
    with transactional(proxy.bootstrap, fresh("id")) as producer:
        for number in range(6):
            write(producer, topic, numbered(f"{number}", PARTITIONS))
            proxy.cut_all()
            end(producer, commit=number % 3 != 0)
    assert proxy.count(ADD_PARTITIONS) >= 6
    expected = [value for number in range(6) if number % 3 for value in numbered(f"{number}", PARTITIONS)]
    assert values_of(read_all(bootstrap, topic)) == expected
