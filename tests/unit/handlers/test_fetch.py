"""Fetch in all its versions, over a store in memory."""

import asyncio
from typing import Any

import pytest
from support.brokers.read_side import UNKNOWN_ID, Served
from support.stores.slow import ONE, TOPIC_ID, ZERO, offsets_in

from semel.core.types import ErrorCode
from semel.handlers.context import CloseConnection
from semel.store.contract import StoreFull
from semel.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

VERSIONS = range(4, 19)
BY_NAME, BY_ID = 12, 18


def asked(index: int = 0, offset: int = 0, **fields: Any) -> FetchPartition:
    return FetchPartition(
        **{"partition": index, "fetch_offset": offset, "partition_max_bytes": 1 << 20, **fields}
    )


def fetch(
    *partitions: FetchPartition, topic: str = "t", topic_id: bytes = TOPIC_ID, **fields: Any
) -> FetchRequest:
    topics = [FetchTopic(topic=topic, topic_id=topic_id, partitions=list(partitions))] if partitions else []
    return FetchRequest(**{"topics": topics, "max_wait_ms": 0, "min_bytes": 1, "session_epoch": -1, **fields})


def only(response: FetchResponse) -> PartitionData:
    (topic,) = response.responses
    (partition,) = topic.partitions
    return partition


@pytest.mark.parametrize("version", VERSIONS)
async def test_records_in_every_version(version: int) -> None:
    served = Served()
    served.reading.append(timestamps=[1, 2])
    served.reading.append(pad=7)
    response = await served.ask(fetch(asked(0)), version)
    assert (response.responses[0].topic, response.responses[0].topic_id) == (
        ("t", bytes(16)) if version < 13 else ("", TOPIC_ID)
    )
    data = only(response)
    assert offsets_in(data.records) == [0, 1, 2]
    assert (data.error_code, data.high_watermark, data.last_stable_offset) == (0, 3, 3)
    assert data.log_start_offset == (0 if version >= 5 else -1)
    assert data.preferred_read_replica == -1
    assert data.aborted_transactions is None
    data = only(await served.ask(fetch(asked(0), isolation_level=1), version))
    assert data.aborted_transactions == []


@pytest.mark.parametrize("version", [4, BY_NAME, 13, BY_ID])
async def test_unknown_topics_and_partitions(version: int) -> None:
    served = Served()
    request = fetch(asked(0), topic="u", topic_id=UNKNOWN_ID, max_wait_ms=60_000)
    data = only(await served.ask(request, version))
    expected = ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (data.error_code, data.high_watermark, data.last_stable_offset) == (expected, -1, -1)
    assert data.records == b""
    for index in (2, -1):
        data = only(await served.ask(fetch(asked(index), max_wait_ms=60_000), version))
        assert data.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", [BY_NAME, BY_ID])
async def test_a_topic_that_is_not_in_memory_is_looked_up(version: int) -> None:
    served = Served()
    served.catalog.is_cached = False
    assert only(await served.ask(fetch(asked(0)), version)).error_code == 0


@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (-1, ErrorCode.NONE),
        (0, ErrorCode.NONE),
        (1, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (-2, ErrorCode.NONE),
    ],
)
async def test_kip_320_leader_epochs(epoch: int, error: ErrorCode) -> None:
    served = Served()
    assert only(await served.ask(fetch(asked(0, current_leader_epoch=epoch)), BY_ID)).error_code == error


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_store_that_lost_bytes_is_another_error_in_old_versions(version: int) -> None:
    served = Served()
    served.reading.append()
    served.reading.shelf.gone.add(served.reading.shelf.rows[ZERO][0].location)
    error = only(await served.ask(fetch(asked(0)), version)).error_code
    assert error == (ErrorCode.NOT_LEADER_OR_FOLLOWER if version <= 5 else ErrorCode.KAFKA_STORAGE_ERROR)


@pytest.mark.parametrize("version", [4, 6, BY_NAME, BY_ID])
async def test_on_a_full_disk_a_reader_is_told_to_come_again(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served()
    served.reading.append(timestamps=[1])

    async def no_room(*_: object, **__: object) -> None:
        raise StoreFull("no room for what was committed")

    monkeypatch.setattr(served.reads, "fetch", no_room)
    data = only(await served.ask(fetch(asked(0)), version))
    told = ErrorCode.NOT_LEADER_OR_FOLLOWER if version < 6 else ErrorCode.KAFKA_STORAGE_ERROR
    assert (data.error_code, data.partition_index) == (told, 0)
    monkeypatch.undo()
    assert offsets_in(only(await served.ask(fetch(asked(0)), version)).records) == [0]


async def test_an_isolation_level_that_does_not_exist_closes_the_connection() -> None:
    with pytest.raises(CloseConnection):
        await Served().ask(fetch(asked(0), isolation_level=2), BY_ID)


@pytest.mark.parametrize("limit", [-1, 0, 2**31 - 1, -(2**31)])
async def test_any_limit_gives_at_least_one_batch(limit: int) -> None:
    served = Served()
    served.reading.append()
    request = fetch(asked(0, partition_max_bytes=limit), max_bytes=limit, min_bytes=2**31 - 1, max_wait_ms=-1)
    assert offsets_in(only(await served.ask(request, BY_ID)).records) == [0]


@pytest.mark.parametrize("version", [BY_NAME, BY_ID])
async def test_a_fetch_waits_for_records(version: int) -> None:
    served = Served()
    task = asyncio.create_task(served.ask(fetch(asked(0), asked(1), max_wait_ms=60_000), version))
    await served.reading.until_parked()
    served.reading.append(ONE)
    (topic,) = (await task).responses
    assert [offsets_in(data.records) for data in topic.partitions] == [[], [0]]


class TestSessions:
    async def test_kip_227_only_what_is_new_is_answered(self) -> None:
        served = Served()
        served.reading.append(ZERO)
        first = await served.ask(fetch(asked(0), asked(1), session_epoch=0), BY_ID)
        assert [data.partition_index for data in first.responses[0].partitions] == [0, 1]
        session = {"session_id": first.session_id}

        response = await served.ask(fetch(asked(0, offset=1), session_epoch=1, **session), BY_ID)
        assert (response.session_id, response.error_code, response.responses) == (first.session_id, 0, [])

        served.reading.append(ONE)
        response = await served.ask(fetch(session_epoch=2, **session), BY_ID)
        assert only(response).partition_index == 1
        assert offsets_in(only(response).records) == [0]
        # The client did not say that it moved on, so it gets the same again.
        response = await served.ask(fetch(session_epoch=3, **session), BY_ID)
        assert offsets_in(only(response).records) == [0]

        served.reading.append(ZERO)
        forget = [ForgottenTopic(topic_id=TOPIC_ID, partitions=[1])]
        response = await served.ask(fetch(session_epoch=4, forgotten_topics_data=forget, **session), BY_ID)
        assert only(response).partition_index == 0
        assert offsets_in(only(response).records) == [1]

    async def test_an_incremental_fetch_waits_for_all_partitions_of_its_session(self) -> None:
        served = Served()
        session = (await served.ask(fetch(asked(0), asked(1), session_epoch=0), BY_NAME)).session_id
        request = fetch(session_id=session, session_epoch=1, max_wait_ms=60_000)
        task = asyncio.create_task(served.ask(request, BY_NAME))
        await served.reading.until_parked()
        served.reading.append(ONE)
        assert only(await task).partition_index == 1

    async def test_errors_of_a_session_are_errors_of_the_whole_answer(self) -> None:
        served = Served()
        session = (await served.ask(fetch(asked(0), session_epoch=0), BY_NAME)).session_id
        for fields, version, error in (
            ({"session_id": session + 1, "session_epoch": 1}, BY_NAME, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
            ({"session_id": session, "session_epoch": 5}, BY_NAME, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
            ({"session_id": session, "session_epoch": 1}, BY_ID, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
        ):
            response = await served.ask(fetch(**fields), version)
            assert (response.error_code, response.session_id, response.responses) == (error, 0, [])

    async def test_an_error_is_told_until_it_is_over(self) -> None:
        served = Served()
        session = (await served.ask(fetch(asked(0), session_epoch=0), BY_ID)).session_id
        topics, served.catalog.topics = served.catalog.topics, []
        for epoch in (1, 2):
            response = await served.ask(fetch(session_id=session, session_epoch=epoch), BY_ID)
            assert only(response).error_code == ErrorCode.UNKNOWN_TOPIC_ID
        served.catalog.topics = topics
        response = await served.ask(fetch(session_id=session, session_epoch=3), BY_ID)
        assert only(response).error_code == ErrorCode.NONE

    async def test_brokers_do_not_share_sessions(self) -> None:
        session = (await Served().ask(fetch(asked(0), session_epoch=0), BY_ID)).session_id
        response = await Served().ask(fetch(session_id=session, session_epoch=1), BY_ID)
        assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
