"""Produce opens batches: what is damaged inside stays out of the log, and the record at fault is named."""

import asyncio
from typing import Any

import pytest
from support.brokers.in_memory import broker_in_memory, make_topic
from support.clients.transactional import committed, produce_request, produced, send

from semel.broker import broker as broker_module
from semel.broker.broker import Broker
from semel.core.types import ErrorCode
from semel.handlers import produce
from semel.handlers.produce import EFFORT_MAX, PARTITIONS_AT_ONCE, SMALL_BATCH_BYTES
from semel.store.contract import StoreRefused
from semel.wire.batch import HEADER_BYTES, seal
from semel.wire.compression import compress
from semel.wire.invalid_records import NAMED_MAX
from semel.wire.messages import ProduceRequest
from semel.wire.records import Codec, Record, decode_batch, encode_batch, read_header
from semel.wire.validating import with_max_timestamp

TOPIC = "t"


def good(count: int = 3, *, codec: Codec = Codec.NONE, size: int = 1, **fields: Any) -> bytes:
    records = [Record(0, 1_000 + at, b"k", b"v" * size) for at in range(count)]
    return encode_batch(records, codec=codec, **fields)


def counting(batch: bytes, count: int) -> bytes:
    """The batch with another count of records in its header, and as many offsets."""
    header = read_header(batch)._replace(record_count=count, last_offset_delta=count - 1)
    return seal(header, batch[HEADER_BYTES:])


def poison() -> dict[str, tuple[bytes, int]]:
    """Batches with right headers and checksums, and the record that is wrong; -1 for the batch itself."""
    three = good()
    header, payload = read_header(three), three[HEADER_BYTES:]
    size = len(payload) // 3
    lz4 = header._replace(attributes=int(Codec.LZ4))
    frames = compress(Codec.LZ4, payload[:size]), compress(Codec.LZ4, payload[size:])
    packed = {
        codec.name: (seal(header._replace(attributes=int(codec)), b"garbage that calls itself packed"), -1)
        for codec in Codec
        if codec
    }
    return {
        "100 records over three": (counting(three, 100), 3),
        "2^31 - 1 records over three": (counting(three, 2**31 - 1), 3),
        "two records counted of three": (counting(three, 2), -1),
        "the first record twice": (seal(header, payload[:size] + payload[:size] + payload[-size:]), 1),
        "a length too long": (seal(header, payload[: 2 * size] + b"\x7e" + payload[2 * size + 1 :]), 2),
        "100 packed records over three": (counting(good(codec=Codec.LZ4), 100), 3),
        "two frames of lz4": (seal(lz4, frames[0] + frames[1]), -1),
        "a large one": (counting(good(EFFORT_MAX + 1), EFFORT_MAX + 2), EFFORT_MAX + 1),
        **packed,
    }


async def answer(broker: Broker, batch: bytes, version: int = 9) -> Any:
    (part,) = await produced(broker, produce_request({(TOPIC, 0): batch}, None), version)
    return part


@pytest.mark.parametrize("name", poison())
async def test_poison_is_refused_and_named(name: str) -> None:
    batch, index = poison()[name]
    async with broker_in_memory() as broker:
        topic = await make_topic(broker, TOPIC)
        refused = await answer(broker, batch)
        assert (refused.error_code, refused.base_offset) == (ErrorCode.INVALID_RECORD, -1)
        named = [(each.batch_index, each.batch_index_error_message) for each in refused.record_errors]
        assert named == ([(index, refused.error_message)] if index >= 0 else [])
        assert refused.error_message
        assert (await answer(broker, batch, version=7)).error_code == ErrorCode.INVALID_RECORD
        assert (await answer(broker, good())).base_offset == 0
        assert len(decode_batch((await committed(broker, topic)).records)) == 3


@pytest.mark.parametrize(
    ("validated", "refused"),
    [("all", {0, 1}), ("uncompressed", {0}), ("none", set())],
    ids=lambda each: str(each),
)
@pytest.mark.parametrize("is_topic", [False, True])
async def test_what_is_opened_is_a_setting(validated: str, refused: set[int], is_topic: bool) -> None:
    batches = counting(good(), 100), counting(good(codec=Codec.GZIP), 100)
    async with broker_in_memory(semel_validate_records="none" if is_topic else validated) as broker:
        configs: dict[str, Any] = {"semel_validate_records": validated} if is_topic else {}
        await make_topic(broker, TOPIC, **configs)
        answers = [await answer(broker, batch) for batch in batches]
        assert {at for at, each in enumerate(answers) if each.error_code} == refused


async def test_a_compacted_topic_opens_batches_whatever_is_set() -> None:
    async with broker_in_memory(semel_validate_records="none") as broker:
        await make_topic(broker, TOPIC, cleanup_policy="compact")
        keyless = encode_batch([Record(0, 1_000, key, b"v") for key in (b"k", None, b"k", None)])
        refused = await answer(broker, keyless)
        assert refused.error_code == ErrorCode.INVALID_RECORD
        assert [each.batch_index for each in refused.record_errors] == [1, 3]
        assert all("without a key" in each.batch_index_error_message for each in refused.record_errors)
        assert refused.error_message.startswith("2 of 4 records cannot be appended. The first is record 1:")


async def test_a_response_names_a_bounded_number_of_records_and_one_of_every_batch() -> None:
    """The names of all batches of a request share the limit: a response is not larger for more batches."""
    keyless = encode_batch([Record(0, 1_000, None, b"v")] * (NAMED_MAX - 1))
    async with broker_in_memory() as broker:
        await make_topic(broker, TOPIC, cleanup_policy="compact", partitions=4)
        request = produce_request({(TOPIC, index): keyless for index in range(4)}, None)
        parts = await produced(broker, request, 9)
        assert [len(each.record_errors) for each in parts] == [NAMED_MAX - 1, 1, 1, 1]
        assert {each.error_code for each in parts} == {ErrorCode.INVALID_RECORD}


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
async def test_content_has_a_limit(codec: Codec) -> None:
    """It is a setting, and a topic that allows larger batches allows as much content."""
    batch = good(200, codec=codec, size=1_000)
    async with broker_in_memory(semel_batch_content_max_bytes=100_000) as broker:
        await make_topic(broker, TOPIC, max_message_bytes="100000")
        assert (await answer(broker, batch)).error_code == ErrorCode.INVALID_RECORD
        await make_topic(broker, "larger", max_message_bytes="1000000")
        (taken,) = await produced(broker, produce_request({("larger", 0): batch}, None), 9)
        assert taken.error_code == ErrorCode.NONE


async def test_every_timestamp_counts_not_only_those_of_the_header() -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, TOPIC, message_timestamp_before_max_ms="10000")
        now = broker.time_of_day()
        for odd in (now - 20_000, now + 7_200_000):
            records = [Record(0, each, b"k", b"v") for each in (now, odd, now, -1)]
            batch = encode_batch(records)
            hidden = with_max_timestamp(batch, read_header(batch)._replace(max_timestamp=now))
            refused = await answer(broker, hidden)
            assert refused.error_code == ErrorCode.INVALID_TIMESTAMP
            assert [each.batch_index for each in refused.record_errors] == [1]


async def test_a_max_timestamp_that_is_wrong_is_corrected() -> None:
    """As Kafka does: a search by time goes by it."""
    batch = good()
    wrong = with_max_timestamp(batch, read_header(batch)._replace(max_timestamp=5))
    async with broker_in_memory() as broker:
        topic = await make_topic(broker, TOPIC)
        assert (await answer(broker, wrong)).error_code == ErrorCode.NONE
        stored = bytes((await committed(broker, topic)).records)
        assert read_header(stored).max_timestamp == 1_002
        assert [each.timestamp for each in decode_batch(stored)] == [1_000, 1_001, 1_002]


async def test_batches_that_a_thread_validates_keep_the_order_of_their_requests() -> None:
    """Large and small ones of one idempotent producer, begun as a connection begins them."""
    async with broker_in_memory() as broker:
        await make_topic(broker, TOPIC)
        numbers: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}
        sequence = 0
        for large in (True, False, True, True, False):
            codec, count = (Codec.ZSTD, 4_000) if large else (Codec.NONE, 2)
            noise = [Record(0, 1_000, None, str(hash((at, sequence))).encode()) for at in range(count)]
            batch = encode_batch(noise, codec=codec, base_sequence=sequence, **numbers)
            assert not large or len(batch) > SMALL_BATCH_BYTES
            taken = await answer(broker, batch)
            assert (taken.error_code, taken.base_offset) == (ErrorCode.NONE, sequence)
            sequence += count


async def test_a_bomb_does_not_stop_the_event_loop() -> None:
    header = read_header(good(codec=Codec.GZIP))
    bomb = seal(header, compress(Codec.GZIP, bytes(30 << 20)))
    assert len(bomb) > SMALL_BATCH_BYTES
    async with broker_in_memory() as broker:
        await make_topic(broker, TOPIC)
        turns = 0
        asked = asyncio.create_task(answer(broker, bomb))
        while not asked.done():
            turns += 1
            await asyncio.sleep(0)
        assert asked.result().error_code == ErrorCode.INVALID_RECORD
        assert turns > 100, "the loop turned while a thread unpacked"


async def test_a_request_with_many_batches_takes_turns_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch in a slice here. The neighbour has one batch and waits for one slice, not for the request."""
    monkeypatch.setattr(produce, "SLICE_SECONDS", 0)
    monkeypatch.setattr(broker_module, "VALIDATION_THREADS", 1)
    packed = good(4_000, codec=Codec.ZSTD, size=300)
    async with broker_in_memory() as broker:
        await make_topic(broker, TOPIC, partitions=60)
        request = produce_request({(TOPIC, index): packed for index in range(60)}, None)
        slices, beside, begun = 0, broker.beside, asyncio.Event()

        async def counting_slices(work: Any) -> Any:
            nonlocal slices
            slices += 1
            begun.set()
            return await beside(work)

        monkeypatch.setattr(broker, "beside", counting_slices)
        many = asyncio.create_task(produced(broker, request, 9))
        await begun.wait()
        noise = [Record(0, 1_000, None, str(hash(at)).encode()) for at in range(4_000)]
        assert (await answer(broker, encode_batch(noise, codec=Codec.ZSTD))).error_code == ErrorCode.NONE
        assert not many.done()
        assert {each.error_code for each in await many} == {ErrorCode.NONE}
        assert slices >= 60


async def test_very_many_partitions_are_written_in_several_commits() -> None:
    """In their order, each with its own outcome, and with turns for others."""
    count = 2 * PARTITIONS_AT_ONCE + 500
    async with broker_in_memory() as broker:
        await make_topic(broker, TOPIC, partitions=count)
        commits, batch, poisoned = broker.metrics.flushes, good(), counting(good(), 100)
        bad = {7, PARTITIONS_AT_ONCE, count - 1}
        request = produce_request(
            {(TOPIC, index): poisoned if index in bad else batch for index in range(count)}, None
        )
        parts = await produced(broker, request, 9)
        assert [each.index for each in parts] == list(range(count))
        assert {each.index for each in parts if each.error_code} == bad
        assert broker.metrics.flushes - commits == 3
        assert [each.base_offset for each in await produced(broker, request, 9) if not each.error_code] == [
            3
        ] * (count - len(bad))


async def test_very_many_partitions_may_be_tried_again_if_the_store_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = PARTITIONS_AT_ONCE + 1
    async with broker_in_memory() as broker:
        await make_topic(broker, TOPIC, partitions=count)

        async def away(*_: object, **__: object) -> None:
            raise StoreRefused("the object store does not answer")

        monkeypatch.setattr(broker.store, "commit", away)
        request = produce_request({(TOPIC, index): good() for index in range(count)}, None)
        answers = {each.error_code for each in await produced(broker, request, 9)}
        assert answers == {ErrorCode.KAFKA_STORAGE_ERROR}


async def test_a_small_batch_with_much_in_it_is_taken() -> None:
    """Too much to unpack on the event loop, and nothing wrong with it."""
    batch = good(1, codec=Codec.ZSTD, size=1_000_000)
    assert len(batch) < SMALL_BATCH_BYTES
    async with broker_in_memory() as broker:
        await make_topic(broker, TOPIC)
        assert (await answer(broker, batch)).error_code == ErrorCode.NONE


async def test_the_broker_stamps_large_batches_too() -> None:
    async with broker_in_memory() as broker:
        topic = await make_topic(broker, TOPIC, message_timestamp_type="LogAppendTime")
        before = broker.time_of_day()
        taken = await answer(broker, good(EFFORT_MAX + 1))
        assert before <= taken.log_append_time_ms <= broker.time_of_day()
        stored = (await committed(broker, topic)).records
        assert {each.timestamp for each in decode_batch(stored)} == {taken.log_append_time_ms}


async def test_nobody_waits_for_an_answer_to_poison_without_acks() -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, TOPIC)
        request: ProduceRequest = produce_request({(TOPIC, 0): counting(good(), 100)}, None, acks=0)
        assert "acks=0" in str(await send(broker, request, 9))
