"""Produce to topics that are compacted: every record needs a key."""

import pytest
from support.brokers.in_memory import broker_in_memory, make_topic
from support.clients.transactional import Transactional, produce_request, produced
from support.stores.compacting import keyed

from semel.core.topics import AlterTopic
from semel.core.types import ErrorCode
from semel.wire.batch import HEADER_BYTES, seal
from semel.wire.records import Codec, read_header

GOOD = keyed(("a", "1"), ("", None))
KEYLESS = keyed(("a", "1"), (None, "2"))


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete , compact"])
@pytest.mark.parametrize("codec", list(Codec))
async def test_a_record_without_a_key_is_refused_with_its_batch(policy: str, codec: Codec) -> None:
    async with broker_in_memory() as broker:
        topic = await make_topic(broker, "table", 2, cleanup_policy=policy)
        await make_topic(broker, "plain")
        keyless = keyed(("a", "1" * 5_000), (None, "2"), codec=codec)
        parts = {("table", 0): keyless, ("plain", 0): keyless, ("table", 1): keyed(("a", "1"), codec=codec)}
        request = produce_request(parts, None)
        refused, *taken = await produced(broker, request, 9)
        assert (refused.error_code, refused.base_offset) == (ErrorCode.INVALID_RECORD, -1)
        assert "without a key" in refused.error_message
        assert [(each.error_code, each.base_offset) for each in taken] == [(ErrorCode.NONE, 0)] * 2
        by_id = produce_request({("table", 0): keyless}, None)
        by_id.topic_data[0].topic_id = topic.topic_id
        assert (await produced(broker, by_id, 13))[0].error_code == ErrorCode.INVALID_RECORD


async def test_a_policy_counts_from_when_it_is_set() -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "table")
        for policy, error in (("compact", ErrorCode.INVALID_RECORD), ("delete", ErrorCode.NONE)):
            await broker.ask(AlterTopic("table", (("cleanup.policy", 0, policy),)))
            (answer,) = await produced(broker, produce_request({("table", 0): KEYLESS}, None), 9)
            assert answer.error_code == error


async def test_what_cannot_be_read_is_refused_too() -> None:
    header = read_header(GOOD)
    damaged = {
        "inside": (seal(header, b"\x7e" + GOOD[HEADER_BYTES + 1 :]), ErrorCode.INVALID_RECORD),
        "checksum": (KEYLESS[:-1] + b"\x02", ErrorCode.CORRUPT_MESSAGE),
        "cut off": (KEYLESS[:-1], ErrorCode.INVALID_RECORD),
        "no batch": (b"", ErrorCode.INVALID_RECORD),
        "not compressed": (
            seal(header._replace(attributes=int(Codec.GZIP)), GOOD[HEADER_BYTES:]),
            ErrorCode.INVALID_RECORD,
        ),
    }
    async with broker_in_memory() as broker:
        await make_topic(broker, "table", cleanup_policy="compact")
        for name, (data, error) in damaged.items():
            (answer,) = await produced(broker, produce_request({("table", 0): data}, None), 9)
            assert answer.error_code == error, name
        (answer,) = await produced(broker, produce_request({("table", 0): GOOD}, None), 9)
        assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 0)


async def test_in_a_transaction_it_is_the_same() -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "table", cleanup_policy="compact")
        producer = Transactional(broker)
        await producer.init()
        assert (await producer.write("table", version=12)).error_code == ErrorCode.INVALID_RECORD
