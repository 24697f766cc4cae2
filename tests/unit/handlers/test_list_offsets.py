"""ListOffsets and OffsetForLeaderEpoch in all their versions."""

import pytest
from support.brokers.read_side import Served

from semel.core.types import ErrorCode
from semel.handlers.context import CloseConnection
from semel.wire.messages.fetch import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochEpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

VERSIONS = range(1, 12)


async def listed(
    served: Served,
    timestamp: int,
    version: int = 11,
    *,
    index: int = 0,
    topic: str = "t",
    epoch: int = -1,
    isolation: int = 0,
) -> ListOffsetsPartitionResponse:
    partition = ListOffsetsPartition(partition_index=index, timestamp=timestamp, current_leader_epoch=epoch)
    topics = [ListOffsetsTopic(name=topic, partitions=[partition])]
    response = await served.ask(ListOffsetsRequest(topics=topics, isolation_level=isolation), version)
    ((answer,),) = (each.partitions for each in response.topics)
    assert response.topics[0].name == topic
    assert answer.partition_index == index
    return answer  # type: ignore[no-any-return]


@pytest.mark.parametrize("version", VERSIONS)
async def test_latest_earliest_and_a_time_in_every_version(version: int) -> None:
    served = Served()
    for timestamp in (100, 200, 300):
        served.reading.append(timestamps=[timestamp])
    served.reading.delete_below(1)
    epoch = 0 if version >= 4 else -1
    for timestamp, expected in ((-1, (-1, 3)), (-2, (-1, 1)), (250, (300, 2))):
        answer = await listed(served, timestamp, version)
        assert (answer.error_code, answer.timestamp, answer.offset) == (0, *expected)
        assert answer.leader_epoch == epoch
    answer = await listed(served, 301, version)
    assert (answer.error_code, answer.timestamp, answer.offset, answer.leader_epoch) == (0, -1, -1, -1)


@pytest.mark.parametrize(
    ("timestamp", "first", "expected"),
    [(-3, 7, (300, 0)), (-4, 8, (-1, 0)), (-5, 9, (-1, -1)), (-6, 11, (-1, -1)), (-7, 99, None)],
)
async def test_special_timestamps_need_their_version(
    timestamp: int, first: int, expected: tuple[int, int] | None
) -> None:
    served = Served()
    served.reading.append(timestamps=[300])
    for version in VERSIONS:
        answer = await listed(served, timestamp, version)
        if version < first:
            assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
            assert (answer.timestamp, answer.offset) == (-1, -1)
        else:
            assert answer.error_code == ErrorCode.NONE
            assert (answer.timestamp, answer.offset) == expected


async def test_behaviours_9_and_10_read_committed() -> None:
    served = Served()
    served.reading.append(timestamps=[100])
    served.reading.append(timestamps=[200], opens_transaction=True)
    assert (await listed(served, -1, isolation=1)).offset == 1
    assert (await listed(served, -1, isolation=0)).offset == 2
    answer = await listed(served, 150, isolation=1)
    assert (answer.error_code, answer.timestamp, answer.offset) == (0, -1, -1)
    # Version 1 has no isolation and sees everything.
    assert (await listed(served, -1, 1, isolation=1)).offset == 2


async def test_unknown_partitions_and_leader_epochs() -> None:
    served = Served()
    for where in ({"index": 2}, {"index": -1}, {"topic": "u"}):
        answer = await listed(served, -1, **where)
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await listed(served, -1, epoch=0)).error_code == ErrorCode.NONE
    assert (await listed(served, -1, epoch=1)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert (await listed(served, -1, epoch=-2)).error_code == ErrorCode.FENCED_LEADER_EPOCH
    with pytest.raises(CloseConnection):
        await listed(served, -1, isolation=7)


async def test_a_partition_that_is_named_twice_is_an_invalid_request() -> None:
    served = Served()
    one, two = (ListOffsetsPartition(partition_index=index, timestamp=-1) for index in (0, 1))
    topics = [
        ListOffsetsTopic(name="t", partitions=[one, two]),
        ListOffsetsTopic(name="t", partitions=[one]),
    ]
    response = await served.ask(ListOffsetsRequest(topics=topics), 11)
    errors = [answer.error_code for topic in response.topics for answer in topic.partitions]
    assert errors == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE, ErrorCode.INVALID_REQUEST]


async def ended(
    served: Served,
    leader_epoch: int,
    version: int = 4,
    *,
    index: int = 0,
    current: int = -1,
    topic: str = "t",
) -> OffsetForLeaderEpochEpochEndOffset:
    partition = OffsetForLeaderPartition(
        partition=index, current_leader_epoch=current, leader_epoch=leader_epoch
    )
    topics = [OffsetForLeaderTopic(topic=topic, partitions=[partition])]
    response = await served.ask(OffsetForLeaderEpochRequest(topics=topics), version)
    ((answer,),) = (each.partitions for each in response.topics)
    return answer  # type: ignore[no-any-return]


@pytest.mark.parametrize("version", [2, 3, 4])
async def test_kip_320_the_only_epoch_ends_at_the_high_watermark(version: int) -> None:
    served = Served()
    served.reading.append(timestamps=[1, 2])
    served.reading.append(opens_transaction=True)
    answer = await ended(served, 0, version)
    assert (answer.error_code, answer.partition, answer.leader_epoch, answer.end_offset) == (0, 0, 0, 3)
    for unknown in (-1, 1, 7):
        answer = await ended(served, unknown, version)
        assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, -1, -1)
    assert (await ended(served, 0, version, current=3)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    for where in ({"index": 5}, {"topic": "u"}):
        answer = await ended(served, 0, version, **where)
        assert (answer.error_code, answer.end_offset) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
