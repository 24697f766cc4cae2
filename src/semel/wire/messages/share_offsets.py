"""The offsets of share groups (KIP-932): describe, alter and delete them."""

from semel.wire.api_key import ApiKey
from semel.wire.schema import (
    Request,
    Response,
    array,
    int16,
    int32,
    int64,
    request,
    response,
    string,
    struct,
    uuid,
)


@struct
class DescribeShareGroupOffsetsTopic:
    topic_name: str = string()
    partitions: list[int] = array("int32")


@struct
class DescribeShareGroupOffsetsGroup:
    group_id: str = string()
    topics: list[DescribeShareGroupOffsetsTopic] | None = array(DescribeShareGroupOffsetsTopic, nullable=True)


@request(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, versions="0-1", flexible=0)
class DescribeShareGroupOffsetsRequest(Request):
    """Share groups and topics to describe; null for all topics of a group."""

    groups: list[DescribeShareGroupOffsetsGroup] = array(DescribeShareGroupOffsetsGroup)


@struct
class DescribedShareGroupOffsetsPartition:
    partition_index: int = int32()
    start_offset: int = int64()
    leader_epoch: int = int32()
    lag: int = int64(versions="1+", default=-1)
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)


@struct
class DescribedShareGroupOffsetsTopic:
    topic_name: str = string()
    topic_id: bytes = uuid()
    partitions: list[DescribedShareGroupOffsetsPartition] = array(DescribedShareGroupOffsetsPartition)


@struct
class DescribedShareGroupOffsetsGroup:
    group_id: str = string()
    topics: list[DescribedShareGroupOffsetsTopic] = array(DescribedShareGroupOffsetsTopic)
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)


@response(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, versions="0-1", flexible=0)
class DescribeShareGroupOffsetsResponse(Response):
    """The start offset of each share-partition; 1 adds its lag (KIP-1226)."""

    throttle_time_ms: int = int32()
    groups: list[DescribedShareGroupOffsetsGroup] = array(DescribedShareGroupOffsetsGroup)


@struct
class AlterShareGroupOffsetsPartition:
    partition_index: int = int32()
    start_offset: int = int64()


@struct
class AlterShareGroupOffsetsTopic:
    topic_name: str = string()
    partitions: list[AlterShareGroupOffsetsPartition] = array(AlterShareGroupOffsetsPartition)


@request(ApiKey.ALTER_SHARE_GROUP_OFFSETS, versions="0", flexible=0)
class AlterShareGroupOffsetsRequest(Request):
    """Set the start offsets of a share group without members."""

    group_id: str = string()
    topics: list[AlterShareGroupOffsetsTopic] = array(AlterShareGroupOffsetsTopic)


@struct
class AlteredShareGroupOffsetsPartition:
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)


@struct
class AlteredShareGroupOffsetsTopic:
    topic_name: str = string()
    topic_id: bytes = uuid()
    partitions: list[AlteredShareGroupOffsetsPartition] = array(AlteredShareGroupOffsetsPartition)


@response(ApiKey.ALTER_SHARE_GROUP_OFFSETS, versions="0", flexible=0)
class AlterShareGroupOffsetsResponse(Response):
    """Whether each start offset was set."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)
    responses: list[AlteredShareGroupOffsetsTopic] = array(AlteredShareGroupOffsetsTopic)


@struct
class DeleteShareGroupOffsetsTopic:
    topic_name: str = string()


@request(ApiKey.DELETE_SHARE_GROUP_OFFSETS, versions="0", flexible=0)
class DeleteShareGroupOffsetsRequest(Request):
    """Topics to delete the offsets of, in a share group without members."""

    group_id: str = string()
    topics: list[DeleteShareGroupOffsetsTopic] = array(DeleteShareGroupOffsetsTopic)


@struct
class DeletedShareGroupOffsetsTopic:
    topic_name: str = string()
    topic_id: bytes = uuid()
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)


@response(ApiKey.DELETE_SHARE_GROUP_OFFSETS, versions="0", flexible=0)
class DeleteShareGroupOffsetsResponse(Response):
    """Whether the offsets of each topic were deleted."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)
    responses: list[DeletedShareGroupOffsetsTopic] = array(DeletedShareGroupOffsetsTopic)
