"""Transactional batches through the Produce handler, in every version that may carry them."""

import pytest
from support.brokers.in_memory import broker_in_memory, make_topic
from support.clients.transactional import Transactional, batch, committed, produce_request, produced, send

from semel.core.types import ErrorCode
from semel.handlers.context import CloseConnection
from semel.wire.batch import is_transactional
from semel.wire.messages.transactions import DescribeTransactionsRequest
from semel.wire.records import marker

UNAUTHORIZED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def errors(answers: list[object]) -> list[int]:
    return [each.error_code for each in answers]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("version", "error"),
    [
        (3, ErrorCode.INVALID_TXN_STATE),
        (10, ErrorCode.INVALID_TXN_STATE),
        (11, ErrorCode.TRANSACTION_ABORTABLE),
        (12, ErrorCode.NONE),
    ],
)
async def test_61_a_partition_that_was_not_added(version: int, error: ErrorCode) -> None:
    async with broker_in_memory() as broker:
        topic = await make_topic(broker, "a")
        producer = Transactional(broker)
        await producer.init()
        answer = await producer.write("a", version=version)
        assert answer.error_code == error
        if error:
            assert answer.base_offset == -1
            assert (await committed(broker, topic)).high_watermark == 0


async def test_48_all_partitions_of_a_request_join_in_one_step() -> None:
    async with broker_in_memory() as broker:
        topic = await make_topic(broker, "a", 3)
        producer = Transactional(broker)
        await producer.init()
        sent = batch(producer_id=producer.producer_id, producer_epoch=0, base_sequence=0)
        late = batch(producer_id=producer.producer_id, producer_epoch=0, base_sequence=7)
        request = produce_request({("a", 0): sent, ("a", 1): sent, ("a", 2): late}, "t")
        answers = await produced(broker, request, 12)
        assert errors(answers) == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
        described = await send(broker, DescribeTransactionsRequest(transactional_ids=["t"]), 0)
        assert [list(each.partitions) for each in described.transaction_states[0].topics] == [[0, 1, 2]]
        assert (await producer.end(version=5)).error_code == ErrorCode.NONE
        ends = [(await committed(broker, topic, index)).high_watermark for index in range(3)]
        assert ends == [2, 2, 0], "a record and a marker where something was written"


async def test_65_without_verification_the_first_generation_need_not_add() -> None:
    async with broker_in_memory(transaction_partition_verification_enable=False) as broker:
        await make_topic(broker, "a")
        producer = Transactional(broker)
        await producer.init()
        assert (await producer.write("a", version=9)).error_code == ErrorCode.NONE


@pytest.mark.parametrize("version", [3, 9, 12, 13])
async def test_a_zombie_is_told_of_its_epoch_never_that_it_is_fenced(version: int) -> None:
    async with broker_in_memory() as broker:
        topic = await make_topic(broker, "a")
        zombie, successor = Transactional(broker), Transactional(broker)
        await zombie.init()
        await successor.init()
        parts = {("a", 0): batch(producer_id=zombie.producer_id, producer_epoch=0, base_sequence=0)}
        request = produce_request(parts, "t")
        for data in request.topic_data:
            data.topic_id = topic.topic_id
        assert errors(await produced(broker, request, version)) == [ErrorCode.INVALID_PRODUCER_EPOCH]


async def test_69_one_transactional_batch_without_an_id_and_nothing_is_taken() -> None:
    async with broker_in_memory() as broker:
        topic = await make_topic(broker, "a", 2)
        plain = batch(transactional=False)
        transactional = batch(producer_id=7, producer_epoch=0, base_sequence=0)
        for second in (
            {("a", 1): transactional},
            {("missing", 0): transactional},
            {("a", 1): marker(7, 0, True, 0, 1_000)},
        ):
            request = produce_request({("a", 0): plain, **second}, None)
            assert errors(await produced(broker, request, 9)) == [UNAUTHORIZED, UNAUTHORIZED]
        assert (await committed(broker, topic)).high_watermark == 0
        request = produce_request({("a", 0): plain, ("missing", 0): plain}, None)
        assert errors(await produced(broker, request, 9)) == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_whether_bytes_begin_with_a_transactional_batch() -> None:
    assert is_transactional(batch(producer_id=7, producer_epoch=0, base_sequence=0))
    assert is_transactional(marker(7, 0, True, 0, 1_000))
    assert not is_transactional(batch(transactional=False))
    assert not is_transactional(b"")
    old = bytearray(marker(7, 0, True, 0, 1_000))
    old[16] = 1
    assert not is_transactional(old)


async def test_a_client_cannot_write_a_marker() -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a")
        producer = Transactional(broker)
        await producer.init()
        parts = {("a", 0): marker(producer.producer_id, 0, True, 0, 1_000)}
        answers = await produced(broker, produce_request(parts, "t"), 12)
        assert errors(answers) == [ErrorCode.INVALID_RECORD]


async def test_batches_of_two_producers_in_one_request_are_refused() -> None:
    async with broker_in_memory() as broker:
        topic = await make_topic(broker, "a", 3)
        producer = Transactional(broker)
        await producer.init()
        mine = batch(producer_id=producer.producer_id, producer_epoch=0, base_sequence=0)
        other = batch(producer_id=producer.producer_id, producer_epoch=1, base_sequence=0)
        plain = batch(transactional=False)
        unmapped = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        request = produce_request({("a", 0): mine, ("a", 1): other, ("a", 2): plain}, "t")
        assert errors(await produced(broker, request, 12)) == [unmapped] * 3
        assert (await committed(broker, topic, 2)).high_watermark == 0
        request = produce_request({("a", 0): mine, ("a", 2): plain}, "t")
        assert errors(await produced(broker, request, 12)) == [0, 0]


async def test_a_transaction_needs_a_producer_id() -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a")
        await Transactional(broker).init()
        answers = await produced(broker, produce_request({("a", 0): batch()}, "t"), 12)
        assert errors(answers) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]


@pytest.mark.parametrize("version", [11, 12])
async def test_journal_topics_give_offsets_at_the_commit(version: int) -> None:
    async with broker_in_memory() as broker:
        topic = await make_topic(broker, "a", semel_visibility="journal")
        producer = Transactional(broker)
        await producer.init()
        if version < 12:
            await producer.add("a")
        answer = await producer.write("a", version=version)
        assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, -1)
        again = batch(producer_id=producer.producer_id, producer_epoch=0, base_sequence=0)
        [repeated] = await produced(broker, produce_request({("a", 0): again}, "t"), version)
        assert (repeated.error_code, repeated.base_offset) == (ErrorCode.NONE, -1)
        plain = produce_request({("a", 0): batch(transactional=False)}, None)
        assert [each.base_offset for each in await produced(broker, plain, 9)] == [0]
        assert (await committed(broker, topic)).last_stable_offset == 1, "readers wait for nobody"
        await producer.end(version=5 if version >= 12 else 4)
        part = await committed(broker, topic)
        assert (part.last_stable_offset, part.high_watermark) == (2, 2)
        assert not part.aborted_transactions


async def test_26_acks_0_and_1_in_a_transaction() -> None:
    async with broker_in_memory() as broker:
        topic = await make_topic(broker, "a")
        producer = Transactional(broker)
        await producer.init()
        await producer.add("a")
        for sequence, acks in enumerate((1, 0)):
            records = batch(producer_id=producer.producer_id, producer_epoch=0, base_sequence=sequence)
            answer = await send(broker, produce_request({("a", 0): records}, "t", acks=acks), 9)
            assert (answer is None) == (acks == 0)
        await producer.end()
        assert (await committed(broker, topic)).high_watermark == 3


async def test_acks_0_with_an_error_closes_the_connection() -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a")
        producer = Transactional(broker)
        await producer.init()
        records = batch(producer_id=producer.producer_id, producer_epoch=0, base_sequence=0)
        answer = await send(broker, produce_request({("a", 0): records}, "t", acks=0), 9)
        assert isinstance(answer, CloseConnection)
