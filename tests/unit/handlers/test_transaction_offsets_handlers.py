"""TxnOffsetCommit in every version, and what OffsetFetch says meanwhile."""

from typing import Any

import pytest
from support.brokers.in_memory import broker_in_memory, make_topic
from support.clients.transactional import Transactional, position, send

from semel.broker.broker import Broker
from semel.core.types import ErrorCode
from semel.handlers.context import CloseConnection
from semel.store.contract import StoreFull
from semel.wire.messages.groups import JoinGroupRequest, JoinGroupRequestProtocol
from semel.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)

UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT


async def begun(broker: Broker, **fields: Any) -> Transactional:
    producer = Transactional(broker, **fields)
    assert await producer.init() == ErrorCode.NONE
    return producer


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
async def test_82_83_offsets_count_when_the_transaction_commits(version: int, commit: bool) -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a")
        producer = await begun(broker)
        if version < 5:
            assert await producer.add_offsets("g") == ErrorCode.NONE
        assert await producer.commit_offsets("g", "a", offset=7, version=version) == [ErrorCode.NONE]
        assert await position(broker, "g", "a", stable=True) == (UNSTABLE, -1)
        assert await position(broker, "g", "a", stable=False) == (ErrorCode.NONE, -1)
        ended = await producer.end(commit=commit, version=5 if version >= 5 else 4)
        assert ended.error_code == ErrorCode.NONE
        assert await position(broker, "g", "a", stable=True) == (ErrorCode.NONE, 7 if commit else -1)


@pytest.mark.parametrize("version", [7, 8, 9])
async def test_83_a_fetch_of_everything_is_unstable_too(version: int) -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a", 2)
        parts = [OffsetCommitRequestPartition(partition_index=index, committed_offset=3) for index in (0, 1)]
        plain = OffsetCommitRequest(
            group_id="g", topics=[OffsetCommitRequestTopic(name="a", partitions=parts)]
        )
        await send(broker, plain, 8)
        producer = await begun(broker)
        await producer.commit_offsets("g", "a", 1, version=5)
        for stable, expected in ((True, [(0, 3), (UNSTABLE, -1)]), (False, [(0, 3), (0, 3)])):
            request = OffsetFetchRequest(
                group_id="g",
                topics=None,
                groups=[OffsetFetchRequestGroup(group_id="g", topics=None)],
                require_stable=stable,
            )
            response = await send(broker, request, version)
            [topic] = response.topics if version < 8 else response.groups[0].topics
            assert [(part.error_code, part.committed_offset) for part in topic.partitions] == expected


async def test_83_the_old_form_of_the_fetch_knows_stability() -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a", 2)
        producer = await begun(broker)
        await producer.commit_offsets("g", "a", 1, version=5)
        request = OffsetFetchRequest(
            group_id="g",
            topics=[OffsetFetchRequestTopic(name="a", partition_indexes=[0, 1])],
            require_stable=True,
        )
        [topic] = (await send(broker, request, 7)).topics
        assert [part.error_code for part in topic.partitions] == [ErrorCode.NONE, UNSTABLE]


@pytest.mark.parametrize(
    ("version", "error"),
    [
        (0, ErrorCode.INVALID_TXN_STATE),
        (3, ErrorCode.INVALID_TXN_STATE),
        (4, ErrorCode.TRANSACTION_ABORTABLE),
        (5, ErrorCode.NONE),
    ],
)
async def test_86_a_group_that_was_not_added(version: int, error: ErrorCode) -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a")
        producer = await begun(broker)
        assert await producer.commit_offsets("g", "a", version=version) == [error]


async def test_a_group_need_not_be_added_if_nobody_verifies() -> None:
    async with broker_in_memory(transaction_partition_verification_enable=False) as broker:
        await make_topic(broker, "a")
        producer = await begun(broker)
        assert await producer.commit_offsets("g", "a", version=3) == [ErrorCode.NONE]
        assert (await producer.end()).error_code == ErrorCode.NONE
        assert await position(broker, "g", "a", stable=True) == (ErrorCode.NONE, 7)


async def test_what_is_unknown_is_refused_by_itself() -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a", 2)
        producer = await begun(broker)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await producer.commit_offsets("g", "a", 1, 2, -1, version=5) == [0, unknown, unknown]
        assert await producer.commit_offsets("g", "missing", version=5) == [unknown]
        assert await producer.commit_offsets("", "a", 0, 9, version=5) == [
            ErrorCode.INVALID_GROUP_ID,
            unknown,
        ]


async def test_89_a_long_note_is_refused_by_itself() -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a")
        producer = await begun(broker)
        assert await producer.commit_offsets("g", "a", version=5, metadata="x" * 4_097) == [
            ErrorCode.OFFSET_METADATA_TOO_LARGE
        ]
        assert await producer.commit_offsets("g", "a", version=5, metadata="x" * 4_096) == [ErrorCode.NONE]


@pytest.mark.parametrize("version", [3, 5])
async def test_84_85_a_member_that_is_named_is_checked(version: int) -> None:
    async with broker_in_memory(group_initial_rebalance_delay_ms=0) as broker:
        await make_topic(broker, "a")
        joined = await send(
            broker,
            JoinGroupRequest(
                group_id="g",
                session_timeout_ms=10_000,
                rebalance_timeout_ms=10_000,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\0\0\0\0\0")],
            ),
            3,
        )
        producer = await begun(broker)
        await producer.add_offsets("g")
        await producer.add_offsets("other")
        generation = joined.generation_id

        async def commit(group_id: str = "g", **fields: Any) -> int:
            [error] = await producer.commit_offsets(group_id, "a", version=version, **fields)
            return error

        assert await commit(generation_id=generation, member_id=joined.member_id) == ErrorCode.NONE
        assert await commit() == ErrorCode.NONE, "who names no member is taken"
        old = await commit(generation_id=generation - 1, member_id=joined.member_id)
        assert old == ErrorCode.ILLEGAL_GENERATION
        stranger = await commit(generation_id=generation, member_id="stranger")
        assert stranger == ErrorCode.UNKNOWN_MEMBER_ID
        assert await commit("other", generation_id=5, member_id="m") == ErrorCode.ILLEGAL_GENERATION
        assert await commit("other") == ErrorCode.NONE


@pytest.mark.parametrize("version", [0, 3, 5])
async def test_91_a_zombie_is_told_of_its_epoch(version: int) -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a")
        zombie = await begun(broker)
        await begun(broker)
        assert await zombie.commit_offsets("g", "a", version=version) == [ErrorCode.INVALID_PRODUCER_EPOCH]


async def test_late_offsets_of_an_old_connection_close_it() -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a")
        producer = await begun(broker, connection=2)
        await producer.add_offsets("g")
        assert await producer.commit_offsets("g", "a", version=3) == [ErrorCode.NONE]
        producer.connection = 1
        with pytest.raises(CloseConnection):
            await producer.commit_offsets("g", "a", version=3)


async def test_a_full_disk_may_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_in_memory(semel_durability="always") as broker:
        await make_topic(broker, "a")
        producer = await begun(broker)

        async def full(*_: object, **__: object) -> None:
            raise StoreFull

        monkeypatch.setattr(broker.store, "commit", full)
        assert await producer.commit_offsets("g", "a", version=5) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
