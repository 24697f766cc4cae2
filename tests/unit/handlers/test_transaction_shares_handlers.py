"""TxnShareAcknowledge through the handlers and a broker in memory: what it answers, and what the end does."""

from typing import Any

import pytest
from support.brokers.in_memory import broker_in_memory, make_topic, send
from support.clients.share_members import Member, begun_to_wait, configure, produce, runs, values, world
from support.models.facts import kinds_of

from semel.broker.broker import Broker
from semel.core.types import ErrorCode, ShareKey
from semel.wire.messages import (
    AlterShareGroupOffsetsPartition,
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsTopic,
    DeleteGroupsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribeShareGroupOffsetsGroup,
    DescribeShareGroupOffsetsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ShareGroupHeartbeatRequest,
)

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
INIT, END = 22, 26
NONE = ErrorCode.NONE


async def init(broker: Broker) -> tuple[int, int]:
    request = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
    response = await send(broker, INIT, request, 5)
    assert response.error_code == NONE
    return response.producer_id, response.producer_epoch


async def end(broker: Broker, producer: tuple[int, int], *, commit: bool) -> ErrorCode:
    request = EndTxnRequest(
        transactional_id="x", producer_id=producer[0], producer_epoch=producer[1], committed=commit
    )
    return ErrorCode((await send(broker, END, request, 5)).error_code)


def errors(response: Any) -> list[int]:
    return [each.error_code for topic in response.responses for each in topic.partitions]


async def start_and_lag(broker: Broker) -> tuple[int, int]:
    request = DescribeShareGroupOffsetsRequest(
        groups=[DescribeShareGroupOffsetsGroup(group_id="g", topics=None)]
    )
    (group,) = (await send(broker, 90, request)).groups
    (each,) = group.topics[0].partitions
    return each.start_offset, each.lag


async def test_a_commit_settles_and_an_abort_frees() -> None:
    async with broker_in_memory() as broker:
        _, (a, b) = await world(broker, "a", "b")
        await produce(broker, "t", "1", "2", "3")
        producer = await init(broker)
        assert await a.acquired() == [(0, 2, 1)]
        answer = await a.acknowledge_in_transaction(producer, (0, 0, [ACCEPT]), (1, 2, [REJECT, ACCEPT]))
        assert (answer.error_code, errors(answer)) == (NONE, [NONE])
        assert await b.acquired() == []
        assert await start_and_lag(broker) == (0, 3), "pending records are in flight"
        assert await end(broker, producer, commit=False) is NONE
        again = await b.fetch()
        assert (runs(again), values(again)) == ([(0, 2, 2)], [b"1", b"2", b"3"])
        producer = await init(broker)
        await b.acknowledge_in_transaction(producer, (0, 2, [ACCEPT]))
        assert await end(broker, producer, commit=True) is NONE
        assert await start_and_lag(broker) == (3, 0)


@pytest.mark.parametrize("by", ["abort", "init"])
async def test_an_abort_wakes_fetches_that_wait(by: str) -> None:
    async with broker_in_memory() as broker:
        _, (a, b) = await world(broker, "a", "b")
        await produce(broker, "t", "1")
        producer = await init(broker)
        await a.acquired()
        await a.acknowledge_in_transaction(producer, (0, 0, [ACCEPT]))
        waiting = await begun_to_wait(broker, b.acquired(wait_ms=20_000))
        await (end(broker, producer, commit=False) if by == "abort" else init(broker))
        assert await waiting == [(0, 0, 2)]


async def test_the_end_of_the_session_does_not_free_pending_records() -> None:
    async with broker_in_memory() as broker:
        _, (a, b) = await world(broker, "a", "b")
        await produce(broker, "t", "1", "2")
        producer = await init(broker)
        await a.acquired()
        await a.acknowledge_in_transaction(producer, (0, 0, [ACCEPT]))
        for gone in broker.when_gone:
            gone(a.connection)
        assert await b.acquired(wait_ms=1_000) == [(1, 1, 2)]
        answer = await a.acknowledge_in_transaction(producer, (0, 0, [ACCEPT]))
        assert errors(answer) == [NONE], "a repeated request needs no session"
        assert await end(broker, producer, commit=True) is NONE
        assert (await start_and_lag(broker))[0] == 1


async def test_it_is_answered_before_it_is_flushed_and_the_end_flushes() -> None:
    async with broker_in_memory() as broker:
        _, (a,) = await world(broker, "a")
        await produce(broker, "t", "1")
        producer = await init(broker)
        await a.acquired()
        await a.acknowledge_in_transaction(producer, (0, 0, [ACCEPT]))
        assert ShareKey in kinds_of(broker._loop.unsynced.facts)
        await end(broker, producer, commit=True)
        assert not broker._loop.unsynced.facts


async def test_what_is_flushed_at_once_is_flushed() -> None:
    async with broker_in_memory(semel_durability="always") as broker:
        _, (a,) = await world(broker, "a")
        await produce(broker, "t", "1")
        producer = await init(broker)
        await a.acquired()
        await a.acknowledge_in_transaction(producer, (0, 0, [ACCEPT]))
        assert not broker._loop.unsynced.facts


@pytest.mark.parametrize(
    "fields",
    [{"group_id": ""}, {"member_id": ""}, {"member_id": "m" * 37}, {"transactional_id": ""}],
    ids=["group", "member", "long member", "transactional id"],
)
async def test_invalid_requests(fields: dict[str, str]) -> None:
    async with broker_in_memory() as broker:
        _, (a,) = await world(broker, "a")
        answer = await a.acknowledge_in_transaction((0, 0), (0, 0, [ACCEPT]), **fields)
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert answer.error_message


@pytest.mark.parametrize(
    "batches",
    [
        [],
        [(0, 0, [RELEASE])],
        [(0, 0, [RENEW])],
        [(0, 0, [5])],
        [(0, 0, [-1])],
        [(0, 0, [])],
        [(1, 0, [ACCEPT])],
        [(0, 2, [ACCEPT, ACCEPT])],
        [(1, 1, [ACCEPT]), (0, 0, [ACCEPT])],
        [(-5, 0, [ACCEPT])],
    ],
)
async def test_invalid_batches_change_nothing(batches: list[tuple[int, int, list[int]]]) -> None:
    async with broker_in_memory() as broker:
        _, (a,) = await world(broker, "a")
        await produce(broker, "t", "1", "2", "3")
        producer = await init(broker)
        await a.acquired()
        answer = await a.acknowledge_in_transaction(producer, *batches)
        assert errors(answer) in ([ErrorCode.INVALID_REQUEST], [ErrorCode.INVALID_RECORD_STATE])
        assert await end(broker, producer, commit=True) is ErrorCode.INVALID_TXN_STATE, "nothing has begun"
        assert errors(await a.acknowledge((0, 2, [ACCEPT]))) == [NONE]


async def test_who_may_not_acknowledge() -> None:
    async with broker_in_memory() as broker:
        topic, (a, b) = await world(broker, "a", "b")
        await produce(broker, "t", "1")
        producer = await init(broker)
        await a.acquired()
        wanted = (0, 0, [ACCEPT])
        assert errors(await b.acknowledge_in_transaction(producer, wanted)) == [
            ErrorCode.INVALID_RECORD_STATE
        ]
        old = (producer[0], producer[1] + 1)
        assert errors(await a.acknowledge_in_transaction(old, wanted)) == [ErrorCode.PRODUCER_FENCED]
        other = (producer[0] + 1, 0)
        expected = [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
        assert errors(await a.acknowledge_in_transaction(other, wanted)) == expected
        assert errors(await a.acknowledge_in_transaction(producer, wanted, transactional_id="y")) == expected
        stranger = Member(broker, "a", topic, 9)
        stranger.principal = "User:stranger"
        answer = await stranger.acknowledge_in_transaction(producer, wanted)
        assert answer.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        nowhere = Member(broker, "a", topic.but(topic_id=b"?" * 16), 1)
        assert errors(await nowhere.acknowledge_in_transaction(producer, wanted)) == [
            ErrorCode.UNKNOWN_TOPIC_ID
        ]
        unshared = Member(broker, "a", await make_topic(broker, "u"), 1)
        assert errors(await unshared.acknowledge_in_transaction(producer, wanted)) == [
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ]


async def test_moving_offsets_and_deleting_do_not_break_the_end() -> None:
    async with broker_in_memory() as broker:
        _, (a,) = await world(broker, "a")
        await produce(broker, "t", "1", "2")
        for what in ("offsets", "group", "topic"):
            if what == "group":
                await configure(broker, share_auto_offset_reset="earliest")
            a.epoch = 0
            await a.join()
            producer = await init(broker)
            assert await a.acquired()
            assert errors(await a.acknowledge_in_transaction(producer, (0, 1, [ACCEPT]))) == [NONE]
            leave = ShareGroupHeartbeatRequest(group_id="g", member_id="a", member_epoch=-1)
            assert (await a.ask(76, leave, 1)).error_code == NONE
            if what == "offsets":
                part = AlterShareGroupOffsetsPartition(partition_index=0, start_offset=0)
                topics = [AlterShareGroupOffsetsTopic(topic_name="t", partitions=[part])]
                request: Any = AlterShareGroupOffsetsRequest(group_id="g", topics=topics)
                assert (await send(broker, 91, request)).error_code == NONE
            elif what == "group":
                answer = await send(broker, 42, DeleteGroupsRequest(groups_names=["g"]))
                assert answer.results[0].error_code == NONE
            else:
                answer = await send(broker, 20, DeleteTopicsRequest(topics=[DeleteTopicState(name="t")]))
                assert answer.responses[0].error_code == NONE
            assert await end(broker, producer, commit=True) is NONE
