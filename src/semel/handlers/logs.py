"""DeleteRecords, DescribeLogDirs: the data on disk.

The data directory takes the place of Kafka's log directories. All partitions share chunks, so the size of a
partition is the bytes of its batches, not of files.
"""

import asyncio
import shutil
from pathlib import Path

from semel.broker.broker import Broker
from semel.core.log.partition import RecordsDeleted
from semel.core.types import ErrorCode, PartitionKey, Topic
from semel.handlers.context import Handler, RequestContext
from semel.handlers.leadership import leadership_error
from semel.handlers.rights import CLUSTER_DENIED, DELETE, DESCRIBE, TOPIC_DENIED, rights_of
from semel.store.contract import LedgerDamaged, StoreRefused
from semel.wire import messages as wire
from semel.wire.api_key import ApiKey

UNKNOWN_BYTES = -1


async def delete_records(
    broker: Broker, request: wire.DeleteRecordsRequest, context: RequestContext
) -> wire.DeleteRecordsResponse:
    """DeleteRecords v0–v2: delete everything below an offset; -1 is the high watermark.

    Behaviour: bounded by the high watermark, not by open transactions. A topic that is only compacted is
        POLICY_VIOLATION. A partition that another broker leads is NOT_LEADER_OR_FOLLOWER. The low watermark
        in the answer is the new log start offset.
    Versions:  v2 flexible.
    """
    rights = rights_of(broker, request, context)
    allowed, refused = rights.split(request.topics, lambda each: rights.topic(DELETE, each.name))
    response = wire.DeleteRecordsResponse()
    wanted: dict[tuple[PartitionKey, int], list[wire.DeleteRecordsPartitionResult]] = {}
    for each in allowed:
        topic = await broker.catalog.topic(each.name)
        result = wire.DeleteRecordsTopicResult(name=each.name)
        response.topics.append(result)
        for part in each.partitions:
            error = _deletion_error(broker, topic, part.partition_index)
            answer = wire.DeleteRecordsPartitionResult(
                partition_index=part.partition_index, low_watermark=-1, error_code=error
            )
            result.partitions.append(answer)
            if topic is not None and not error:
                key = PartitionKey(topic.topic_id, part.partition_index)
                wanted.setdefault((key, part.offset), []).append(answer)
    # Submitted together, so that they share a commit.
    answers = await asyncio.gather(*(_delete(broker, key, offset) for key, offset in wanted))
    for waiting, deleted in zip(wanted.values(), answers, strict=True):
        for answer in waiting:
            answer.error_code, answer.low_watermark = deleted.error, deleted.low_watermark
    response.topics += map(_denied, refused)
    return response


def _denied(topic: wire.DeleteRecordsTopic) -> wire.DeleteRecordsTopicResult:
    return wire.DeleteRecordsTopicResult(
        name=topic.name,
        partitions=[
            wire.DeleteRecordsPartitionResult(
                partition_index=each.partition_index, low_watermark=-1, error_code=TOPIC_DENIED
            )
            for each in topic.partitions
        ],
    )


def _deletion_error(broker: Broker, topic: Topic | None, index: int) -> ErrorCode:
    if topic is None or not 0 <= index < topic.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    limits = broker.catalog.limits(topic)
    if limits.compacts and not limits.deletes:
        return ErrorCode.POLICY_VIOLATION
    return leadership_error(broker, PartitionKey(topic.topic_id, index))


async def _delete(broker: Broker, partition: PartitionKey, offset: int) -> RecordsDeleted:
    if offset < -1:
        return RecordsDeleted(ErrorCode.OFFSET_OUT_OF_RANGE)
    try:
        return await broker.delete_records(partition, offset)
    except StoreRefused:
        return RecordsDeleted(ErrorCode.KAFKA_STORAGE_ERROR)


async def describe_log_dirs(
    broker: Broker, request: wire.DescribeLogDirsRequest, context: RequestContext
) -> wire.DescribeLogDirsResponse:
    """DescribeLogDirs v1–v5: the data directory, and how many bytes each partition has in it.

    Behaviour: one directory. A broker in memory reports it as "memory", with an unknown size. Topics and
        partitions that do not exist are left out, as are partitions that another broker leads: clients ask
        every broker and combine the responses.
    Versions:  v2 flexible · v3 error code · v4 bytes of the volume · v5 cordoned directories (there are
        none).
    """
    if not rights_of(broker, request, context).cluster(DESCRIBE):
        return wire.DescribeLogDirsResponse(error_code=CLUSTER_DENIED)
    wanted: list[tuple[Topic, list[int]]] = []
    if request.topics is None:
        wanted = [(topic, list(range(topic.partitions))) for topic in await broker.catalog.all()]
    else:
        for each in request.topics:
            topic = await broker.catalog.topic(each.topic)
            if topic is not None:
                named = dict.fromkeys(each.partitions)
                wanted.append((topic, [index for index in named if 0 <= index < topic.partitions]))
    total_bytes, usable_bytes = _volume(broker.directory)
    result = wire.DescribeLogDirsResult(
        log_dir=broker.directory, total_bytes=total_bytes, usable_bytes=usable_bytes
    )
    for topic, indexes in wanted:
        sizes = [
            wire.DescribeLogDirsPartition(partition_index=index, partition_size=size)
            for index in indexes
            if broker.ownership.leads(key := PartitionKey(topic.topic_id, index))
            if (size := await _size(broker, key)) is not None
        ]
        if sizes:
            result.topics.append(wire.DescribeLogDirsTopic(name=topic.name, partitions=sizes))
    return wire.DescribeLogDirsResponse(results=[result])


async def _size(broker: Broker, key: PartitionKey) -> int | None:
    try:
        partition = await broker.reads.partition(key)
    except LedgerDamaged:
        return None
    return None if partition is None else partition.size_bytes


def _volume(directory: str) -> tuple[int, int]:
    """Total and free bytes of the volume; unknown if there is no directory."""
    if not Path(directory).is_dir():
        return UNKNOWN_BYTES, UNKNOWN_BYTES
    usage = shutil.disk_usage(directory)
    return usage.total, usage.free


HANDLERS: dict[int, Handler] = {
    ApiKey.DELETE_RECORDS: delete_records,
    ApiKey.DESCRIBE_LOG_DIRS: describe_log_dirs,
}
