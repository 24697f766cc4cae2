"""Rights on topics while records are written and read: parts of requests, sessions, changed rights."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.brokers.guarded import ROOT, Guarded, guarded_broker
from support.brokers.in_memory import make_topic
from support.models.rights import READ, WRITE, Right
from support.models.rights_requests import batch
from support.waiting import until_async

from semel.broker.commit.pending_commands import Promise
from semel.core.security.acls import CLUSTER_NAME, Operation, ResourceType
from semel.core.types import ErrorCode, PartitionKey
from semel.handlers import produce
from semel.handlers.context import CloseConnection
from semel.handlers.produce import PARTITIONS_AT_ONCE
from semel.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ReplicaState
from semel.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from semel.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    DescribeTransactionsRequest,
    InitProducerIdRequest,
    TransactionState,
)

OK, DENIED, ID_DENIED = ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED, 53
MINE, OTHER = b"mine............", b"other..........."
UNKNOWN = b"unknown........."


def on(name: str, operation: Operation = READ) -> Right:
    return Right(operation, ResourceType.TOPIC, name)


@asynccontextmanager
async def two_topics(*operations: Operation, **settings: Any) -> AsyncIterator[Guarded]:
    """The topics ``mine`` and ``other``, and rights on the first."""
    async with guarded_broker(**settings) as it:
        await make_topic(it.broker, "mine", 2)
        await make_topic(it.broker, "other", 2)
        await it.allow(*(on("mine", each) for each in operations))
        yield it


# -- Produce ----------------------------------------------------------------------------------------------


def producing(*topics: Any, acks: int = -1, partitions: int = 1, **fields: Any) -> ProduceRequest:
    data = [
        TopicProduceData(
            **({"name": each} if isinstance(each, str) else {"topic_id": each}),
            partition_data=[
                PartitionProduceData(index=index, records=batch(fields.get("producer")))
                for index in range(partitions)
            ],
        )
        for each in topics
    ]
    fields.pop("producer", None)
    return ProduceRequest(acks=acks, timeout_ms=1_000, topic_data=data, **fields)


def produced(response: ProduceResponse) -> dict[Any, list[int]]:
    return {
        each.name or each.topic_id: [part.error_code for part in each.partition_responses]
        for each in response.responses
    }


async def high_watermark(it: Guarded, topic_id: bytes = MINE) -> int:
    partition = await it.broker.reads.partition(PartitionKey(topic_id, 0))
    return 0 if partition is None else partition.high_watermark


@pytest.mark.parametrize(("version", "topic"), [(9, "mine"), (13, MINE)])
async def test_an_allowed_produce_is_the_handlers_own_promise(version: int, topic: Any) -> None:
    async with two_topics(WRITE) as it:
        await it.ask(0, producing(topic), version)
        answer = it.start(0, producing(topic), version)
        assert isinstance(answer, Promise)
        assert answer.first is None
        assert produced(await answer) == {topic: [OK]}


@pytest.mark.parametrize(("version", "topics"), [(9, ("other", "mine")), (13, (OTHER, MINE))])
@pytest.mark.parametrize("is_cached", [True, False])
async def test_the_allowed_topics_of_a_produce_are_written(
    version: int, topics: Any, is_cached: bool
) -> None:
    async with two_topics(WRITE) as it:
        if not is_cached:
            it.broker.catalog.clear()
        response = await it.ask(0, producing(*topics), version)
        assert produced(response) == {topics[1]: [OK], topics[0]: [DENIED]}
        refused = response.responses[1].partition_responses[0]
        assert (refused.base_offset, refused.log_append_time_ms, refused.log_start_offset) == (-1, -1, -1)
        assert (refused.error_message, refused.record_errors) == (None, [])
        assert (await high_watermark(it), await high_watermark(it, OTHER)) == (1, 0)


@pytest.mark.parametrize(("version", "topic"), [(9, "mine"), (13, MINE)])
async def test_a_right_that_is_gone_when_the_batches_are_validated(
    version: int, topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cluster, topics are forgotten when rights are taken away, so the names of the first look count."""
    monkeypatch.setattr(produce, "EFFORT_MAX", 0)
    async with two_topics(WRITE) as it:
        validate = it.broker.beside
        assert produced(await it.ask(0, producing(topic), version)) == {topic: [OK]}

        async def meanwhile(work: Any) -> Any:
            result = await validate(work)
            await it.take(on("mine", WRITE))
            it.broker.catalog.clear()
            return result

        monkeypatch.setattr(it.broker, "beside", meanwhile)
        assert produced(await it.ask(0, producing(topic), version)) == {topic: [DENIED]}
        assert await high_watermark(it) == 1


async def test_an_unknown_id_is_the_handlers_matter() -> None:
    async with two_topics(WRITE) as it:
        assert produced(await it.ask(0, producing(UNKNOWN), 13)) == {UNKNOWN: [ErrorCode.UNKNOWN_TOPIC_ID]}


async def test_a_topic_that_may_not_be_written_is_denied_whether_it_exists_or_not() -> None:
    async with two_topics(WRITE) as it:
        assert produced(await it.ask(0, producing("other", "missing"), 9)) == {
            "other": [DENIED],
            "missing": [DENIED],
        }


async def test_a_denied_produce_without_answer_closes_the_connection_and_writes_the_rest() -> None:
    async with two_topics(WRITE) as it:
        with pytest.raises(CloseConnection, match="acks=0"):
            await it.start(0, producing("other", "mine", acks=0), 9)
        assert await high_watermark(it) == 1
        with pytest.raises(CloseConnection, match="acks=0"):
            await it.start(0, producing("mine", acks=0, producer=(1, 0), transactional_id="x"), 9)
        assert await it.start(0, producing("mine", acks=0), 9) is None
        assert await high_watermark(it) == 2


async def test_a_transactional_batch_needs_its_id_and_others_do_not() -> None:
    async with two_topics(WRITE) as it:
        transactional = producing("mine", "other", producer=(1, 0), transactional_id="x")
        response = await it.ask(0, transactional, 9)
        assert produced(response) == {"mine": [ID_DENIED], "other": [ID_DENIED]}
        # An id that is not used needs no right, as on Kafka.
        plain = producing("mine", transactional_id="x")
        assert produced(await it.ask(0, plain, 9)) == {"mine": [OK]}


async def test_transactional_batches_without_an_id_are_all_refused_even_on_denied_topics() -> None:
    async with two_topics(WRITE) as it:
        request = producing("mine", "other", producer=(1, 0))
        assert produced(await it.ask(0, request, 9)) == {"mine": [ID_DENIED], "other": [ID_DENIED]}


async def test_a_produce_that_the_handler_encodes_itself_gets_its_denied_topics() -> None:
    async with two_topics(WRITE) as it:
        await make_topic(it.broker, "wide", PARTITIONS_AT_ONCE + 1)
        await it.allow(on("wide", WRITE))
        request = producing("wide", "other", partitions=PARTITIONS_AT_ONCE + 1)
        answers = produced(await it.ask(0, request, 9))
        assert set(answers["wide"]) == {OK}
        assert set(answers["other"]) == {DENIED}


# -- AddPartitionsToTxn -----------------------------------------------------------------------------------


async def test_a_denied_transaction_is_described_with_nothing_but_its_id() -> None:
    async with two_topics() as it:
        response = await it.ask(65, DescribeTransactionsRequest(transactional_ids=["x"]), 0)
        denied = TransactionState(transactional_id="x", error_code=ID_DENIED, transaction_start_time_ms=0)
        assert response.transaction_states == [denied]


async def test_one_denied_topic_keeps_the_others_out_of_a_transaction() -> None:
    async with two_topics(WRITE) as it:
        await it.allow(Right(WRITE, ResourceType.TRANSACTIONAL_ID, "x"), on("missing", WRITE))
        given = await it.ask(22, InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1_000), 4)
        names = ("mine", "other", "missing", "__consumer_offsets")
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="x",
            v3_and_below_producer_id=given.producer_id,
            v3_and_below_producer_epoch=given.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=each, partitions=[0, 9]) for each in names],
        )
        response = await it.ask(24, request, 3)
        answers = {
            each.name: [part.partition_error_code for part in each.results_by_partition]
            for each in response.results_by_topic_v3_and_below
        }
        assert answers == {
            "mine": [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
            "other": [DENIED, DENIED],
            "missing": [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2,
            "__consumer_offsets": [DENIED, DENIED],
        }


# -- Fetch ------------------------------------------------------------------------------------------------


def fetching(
    *topics: Any, epoch: int = -1, session: int = 0, wait_ms: int = 0, **fields: Any
) -> FetchRequest:
    part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    wanted = [
        FetchTopic(**({"topic": each} if isinstance(each, str) else {"topic_id": each}), partitions=[part])
        for each in topics
    ]
    return FetchRequest(
        topics=wanted, session_epoch=epoch, session_id=session, max_wait_ms=wait_ms, min_bytes=1, **fields
    )


def fetched(response: FetchResponse) -> dict[Any, tuple[int, bool]]:
    return {
        each.topic or each.topic_id: (part.error_code, bool(part.records))
        for each in response.responses
        for part in each.partitions
    }


async def filled(it: Guarded) -> None:
    await it.ask(0, producing("mine", "other"), 9, ROOT)


async def parked(it: Guarded) -> None:
    async def is_parked() -> int:
        return it.broker.metrics.parked_fetches

    await until_async(is_parked)


@pytest.mark.parametrize(("version", "mine", "other"), [(12, "mine", "other"), (18, MINE, OTHER)])
async def test_a_session_follows_the_rights(version: int, mine: Any, other: Any) -> None:
    async with two_topics(READ) as it:
        await filled(it)
        response = await it.ask(1, fetching(mine, other, epoch=0), version)
        session = response.session_id
        assert session
        assert fetched(response) == {mine: (OK, True), other: (DENIED, False)}
        response = await it.ask(1, fetching(session=session, epoch=1), version)
        assert fetched(response)[other] == (DENIED, False), "in every answer, not only in the first"
        await it.allow(on("other"))
        response = await it.ask(1, fetching(session=session, epoch=2), version)
        assert fetched(response)[other] == (OK, True)
        await it.take(on("other"), on("mine"))
        response = await it.ask(1, fetching(session=session, epoch=3), version)
        assert fetched(response) == {mine: (DENIED, False), other: (DENIED, False)}
        denied = response.responses[0].partitions[0]
        assert (denied.high_watermark, denied.last_stable_offset, denied.log_start_offset) == (-1, -1, -1)


async def test_a_waiting_fetch_returns_nothing_that_may_not_be_read_any_more() -> None:
    async with two_topics(READ) as it:
        waiting = asyncio.ensure_future(it.ask(1, fetching("mine", wait_ms=20_000), 12))
        await parked(it)
        await it.take(on("mine"))
        await filled(it)
        assert fetched(await waiting) == {"mine": (DENIED, False)}


async def test_a_denied_topic_does_not_end_the_wait_for_others() -> None:
    async with two_topics(READ) as it:
        waiting = asyncio.ensure_future(it.ask(1, fetching("mine", "other", wait_ms=20_000), 12))
        await parked(it)
        await filled(it)
        assert fetched(await waiting) == {"mine": (OK, True), "other": (DENIED, False)}
        # If there are no others, there is nothing to wait for.
        assert fetched(await it.ask(1, fetching("other", wait_ms=20_000), 12)) == {"other": (DENIED, False)}


async def test_unknown_topics_and_denied_ones_look_the_same_by_name() -> None:
    async with two_topics(READ) as it:
        answers = fetched(await it.ask(1, fetching("other", "missing"), 12))
        assert answers == {"other": (DENIED, False), "missing": (DENIED, False)}
        answers = fetched(await it.ask(1, fetching(UNKNOWN), 18))
        assert answers == {UNKNOWN: (ErrorCode.UNKNOWN_TOPIC_ID, False)}


@pytest.mark.parametrize("version", [12, 18])
async def test_cve_2018_1288_a_client_cannot_fetch_as_a_replica(version: int) -> None:
    replica: dict[str, Any] = {"replica_id": 2}
    topics: list[Any] = ["mine", "other"]
    if version >= 15:
        replica, topics = {"replica_state": ReplicaState(replica_id=2)}, [MINE, UNKNOWN]
    async with two_topics(READ) as it:
        await filled(it)
        response = await it.ask(1, fetching(*topics, **replica), version)
        assert fetched(response) == dict.fromkeys(topics, (DENIED, False))
        await it.allow(Right(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME))
        response = await it.ask(1, fetching(*topics, **replica), version)
        assert fetched(response)[topics[0]] == (OK, True)


async def test_a_super_user_gets_the_handlers_own_answer() -> None:
    async with two_topics() as it:
        answer = it.start(0, producing("mine"), 9, ROOT)
        assert isinstance(answer, Promise)
        assert produced(await answer) == {"mine": [OK]}
        assert produced(await it.start(0, producing("mine"), 9)) == {"mine": [DENIED]}
