"""Transactions by aiokafka: the scenarios of `test_confluent_transactions.py`.

It speaks the oldest versions of all requests (InitProducerId, EndTxn and TxnOffsetCommit v0), so positions
come without a member, and a fenced producer hears INVALID_PRODUCER_EPOCH.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, ProducerFenced
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
from support.clients.raw import RawClient, batch
from support.clients.raw_transactions import Log
from support.faults.proxy import Act, Proxy
from support.waiting import until_async

from semel.wire.compression import Codec

Fresh = Callable[[str], str]
WAIT_SECONDS = 30.0


async def create(bootstrap: str, name: str, **configs: str) -> str:
    """A topic with five partitions."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        answer = await admin.create_topics([NewTopic(name, PARTITIONS, 1, topic_configs=configs)])
        assert [(each[0], each[1]) for each in answer.topic_errors] == [(name, 0)]
    finally:
        await admin.close()
    return name


@pytest.fixture
def topic(bootstrap: str, fresh: Fresh, visibility: str) -> str:
    """A topic with five partitions, of either visibility."""
    return asyncio.run(create(bootstrap, fresh("transactions"), **visibility_configs(visibility)))


@pytest.fixture
def plain_topic(bootstrap: str, fresh: Fresh) -> str:
    return asyncio.run(create(bootstrap, fresh("transactions")))


@asynccontextmanager
async def transactional(bootstrap: str, name: str, **config: Any) -> AsyncIterator[AIOKafkaProducer]:
    options = {"retry_backoff_ms": 20, **config}
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name, **options)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def write(producer: AIOKafkaProducer, topic: str, values: list[bytes]) -> None:
    """Begin, spread the values over all partitions, and wait until the broker has them."""
    await producer.begin_transaction()
    sent = [
        await producer.send(topic, value, partition=number % PARTITIONS)
        for number, value in enumerate(values)
    ]
    await asyncio.gather(*sent)


async def end(producer: AIOKafkaProducer, *, commit: bool) -> None:
    await (producer.commit_transaction() if commit else producer.abort_transaction())


async def produce(bootstrap: str, topic: str, values: list[bytes], partition: int = 0) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for value in values:
            await producer.send_and_wait(topic, value, partition=partition)


async def read_all(bootstrap: str, topic: str, isolation: str = "read_committed") -> Found:
    """Every record that can be read."""
    found: Found = []
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation) as consumer:
        partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning()
        ends = await consumer.end_offsets(partitions)
        # end_offsets knows no isolation: what is open ends before it.
        with RawClient(bootstrap) as raw:
            if isolation == "read_committed":
                ends = {where: Log(raw, topic, where.partition).stable for where in partitions}

        async def is_at_the_end() -> bool:
            for where, records in (await consumer.getmany(timeout_ms=100)).items():
                found.extend((where.partition, record.offset, record.value) for record in records)
            positions = {where: await consumer.position(where) for where in partitions}
            return all(positions[where] >= last for where, last in ends.items())

        await until_async(is_at_the_end, WAIT_SECONDS, "reading to the end")
    return sorted(found)


async def test_committed_and_aborted(bootstrap: str, topic: str, visibility: str, fresh: Fresh) -> None:
    async with transactional(bootstrap, fresh("id")) as producer:
        await write(producer, topic, numbered("first"))
        await producer.commit_transaction()
        await write(producer, topic, numbered("second"))
        await producer.abort_transaction()
        async with producer.transaction():
            for number, value in enumerate(numbered("third")):
                await producer.send(topic, value, partition=number % PARTITIONS)
    committed = await read_all(bootstrap, topic)
    everything = await read_all(bootstrap, topic, "read_uncommitted")
    check_second_was_aborted(visibility, committed, everything)


async def test_an_open_transaction_is_not_seen(
    bootstrap: str, topic: str, visibility: str, fresh: Fresh
) -> None:
    """Readers stop before it; on journal topics they read past it. Its end shows it at once."""
    async with transactional(bootstrap, fresh("id")) as producer:
        await write(producer, topic, numbered("open"))
        for partition in range(PARTITIONS):
            await produce(bootstrap, topic, [b"plain"], partition)
        plain = [b"plain"] * PARTITIONS
        assert values_of(await read_all(bootstrap, topic)) == (plain if visibility == "journal" else [])
        await producer.commit_transaction()
    if PEER:
        await until_async(lambda: is_settled(bootstrap, topic), what="the markers")
    assert values_of(await read_all(bootstrap, topic)) == [*numbered("open"), *plain]


async def is_settled(bootstrap: str, topic: str) -> bool:
    with RawClient(bootstrap) as raw:
        return all(Log(raw, topic, index).is_settled for index in range(PARTITIONS))


@ONE_VISIBILITY
@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
async def test_compressed_batches(bootstrap: str, topic: str, fresh: Fresh, codec: Codec) -> None:
    async with transactional(bootstrap, fresh("id"), compression_type=codec.name.lower()) as producer:
        for number in range(4):
            await write(producer, topic, numbered(f"{'x' * 50}-{number}", 50))
            await end(producer, commit=number % 2 == 0)
    expected = [*numbered(f"{'x' * 50}-0", 50), *numbered(f"{'x' * 50}-2", 50)]
    assert values_of(await read_all(bootstrap, topic)) == expected


async def test_fifty_in_a_row(bootstrap: str, topic: str, fresh: Fresh) -> None:
    """Back to back, every third one aborted: what is committed is readable when the call returns."""
    expected: list[bytes] = []
    with RawClient(bootstrap) as raw:
        async with transactional(bootstrap, fresh("id")) as producer:
            for number in range(50):
                values = numbered(f"{number:02}", PARTITIONS)
                is_commit = number % 3 != 0
                await write(producer, topic, values)
                await end(producer, commit=is_commit)
                if is_commit:
                    expected += values
                    if not PEER:
                        assert Log(raw, topic).values()[-1] == values[0]
    if PEER:
        await until_async(lambda: is_settled(bootstrap, topic), what="the markers")
    assert values_of(await read_all(bootstrap, topic)) == expected


# -- consume, transform, produce ----------------------------------------------------------------------------


@asynccontextmanager
async def member(bootstrap: str, group: str, topic: str) -> AsyncIterator[AIOKafkaConsumer]:
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        session_timeout_ms=30_000,
        heartbeat_interval_ms=200,
        retry_backoff_ms=50,
    )
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


async def copy(
    source: AIOKafkaConsumer, producer: AIOKafkaProducer, target: str, group: str, *, commit: bool
) -> int:
    """Copy what is there, with the positions, in a transaction; how much it was."""
    batches = await until_async(
        lambda: source.getmany(timeout_ms=500, max_records=7), WAIT_SECONDS, "something to copy"
    )
    await producer.begin_transaction()
    positions = {}
    for where, records in batches.items():
        for record in records:
            await producer.send(target, record.value, partition=where.partition)
        positions[where] = records[-1].offset + 1
    await producer.send_offsets_to_transaction(positions, group)
    await end(producer, commit=commit)
    return sum(len(records) for records in batches.values())


@ONE_VISIBILITY
async def test_consume_transform_produce(bootstrap: str, plain_topic: str, topic: str, fresh: Fresh) -> None:
    values = numbered("value", 40)
    for index in range(PARTITIONS):
        await produce(bootstrap, plain_topic, values[index::PARTITIONS], index)
    group = fresh("group")
    partitions = [TopicPartition(plain_topic, index) for index in range(PARTITIONS)]
    async with (
        transactional(bootstrap, fresh("id")) as producer,
        member(bootstrap, group, plain_topic) as source,
    ):
        copied = number = 0
        while copied < len(values):
            number += 1
            is_commit = number % 3 != 1
            count = await copy(source, producer, topic, group, commit=is_commit)
            copied += count if is_commit else 0
            if not is_commit:
                for where in partitions:
                    source.seek(where, await source.committed(where) or 0)

        async def is_committed() -> bool:
            return [await source.committed(where) for where in partitions] == [8] * PARTITIONS

        if PEER:
            await until_async(is_committed, what="the positions")
        assert await is_committed()
    assert values_of(await read_all(bootstrap, topic)) == values


# -- zombies, timeouts, and networks ------------------------------------------------------------------------


async def test_a_zombie_is_fenced(bootstrap: str, topic: str, fresh: Fresh) -> None:
    name = fresh("id")
    async with transactional(bootstrap, name) as zombie:
        await write(zombie, topic, numbered("zombie"))
        async with transactional(bootstrap, name) as heir:
            await write(heir, topic, numbered("heir"))
            with pytest.raises(ProducerFenced):
                await zombie.commit_transaction()
            await heir.commit_transaction()
    assert values_of(await read_all(bootstrap, topic)) == numbered("heir")


@ONE_VISIBILITY
async def test_two_instances_that_fence_each_other(bootstrap: str, topic: str, fresh: Fresh) -> None:
    """Six generations of one id: each aborts its predecessor's transaction and commits one of its own."""
    name = fresh("id")
    expected: list[bytes] = []

    async def generation(number: int, before: AIOKafkaProducer | None) -> None:
        async with transactional(bootstrap, name) as instance:
            if before is not None:
                with pytest.raises(KafkaError):
                    await end(before, commit=number % 2 == 0)
            await write(instance, topic, numbered(f"{number}-kept", PARTITIONS))
            await instance.commit_transaction()
            expected.extend(numbered(f"{number}-kept", PARTITIONS))
            if number < 6:
                await write(instance, topic, numbered(f"{number}-lost", PARTITIONS))
                await generation(number + 1, instance)

    await generation(1, None)
    assert values_of(await read_all(bootstrap, topic)) == expected


async def test_a_transaction_that_takes_too_long_is_aborted(
    timed: Timed, visibility: str, fresh: Fresh
) -> None:
    """The broker ends it, the producer hears of it, and the next instance goes on."""
    name, bootstrap = fresh("id"), timed.address
    topic = await create(bootstrap, fresh("transactions"), **visibility_configs(visibility))
    async with transactional(bootstrap, name, transaction_timeout_ms=SLOW_S * 1000) as slow:
        await write(slow, topic, numbered("slow"))
        await produce(bootstrap, topic, [b"behind"])
        await asyncio.to_thread(time_out, timed, name)
        assert values_of(await read_all(bootstrap, topic)) == [b"behind"]
        with pytest.raises(KafkaError):
            await slow.commit_transaction()
        async with transactional(bootstrap, name) as heir:
            await write(heir, topic, numbered("heir"))
            await heir.commit_transaction()
    assert values_of(await read_all(bootstrap, topic)) == [b"behind", *numbered("heir")]


@pytest.mark.parametrize("api_key", REQUESTS)
async def test_a_connection_that_breaks_in_the_middle(
    bootstrap: str, proxy: Proxy, plain_topic: str, fresh: Fresh, api_key: int
) -> None:
    """Whichever request is lost on the way, and then its answer: the client asks again, and goes on."""
    with RawClient(bootstrap) as raw:
        raw.produce(plain_topic, batch(count=3))
    target = await create(bootstrap, fresh("target"))
    group = fresh("group")
    rules = [proxy.on(api_key, Act.CUT), proxy.on(api_key, Act.CUT_ANSWER)]
    where = TopicPartition(plain_topic, 0)
    async with transactional(proxy.bootstrap, fresh("id")) as producer:
        for number in range(3):
            await write(producer, target, numbered(f"{number}", PARTITIONS))
            await producer.send_offsets_to_transaction({where: number + 1}, group)
            await end(producer, commit=number != 1)
    assert [len(rule.caught) for rule in rules] == [1, 1]
    async with member(bootstrap, group, plain_topic) as source:

        async def is_committed() -> bool:
            return bool(await source.committed(where) == 3)

        await until_async(is_committed, what="the position")
    expected = [*numbered("0", PARTITIONS), *numbered("2", PARTITIONS)]
    assert values_of(await read_all(bootstrap, target)) == expected


@ONE_VISIBILITY
async def test_all_connections_break_between_the_first_request_and_the_end(
    bootstrap: str, proxy: Proxy, topic: str, fresh: Fresh
) -> None:
    async with transactional(proxy.bootstrap, fresh("id")) as producer:
        for number in range(6):
            await write(producer, topic, numbered(f"{number}", PARTITIONS))
            proxy.cut_all()
            await end(producer, commit=number % 3 != 0)
    assert proxy.count(ADD_PARTITIONS) >= 6
    expected = [value for number in range(6) if number % 3 for value in numbered(f"{number}", PARTITIONS)]
    assert values_of(await read_all(bootstrap, topic)) == expected
