"""The committed offsets of consumer groups: commit, fetch, delete.

Offsets that are part of a transaction are committed with TxnOffsetCommit (see `transactions`). With
`require_stable`, OffsetFetch returns no offset that an open transaction may still change. The newest versions
name topics by id and serve members of both group protocols.
"""

from semel.wire.api_key import ApiKey
from semel.wire.schema import (
    Request,
    Response,
    array,
    boolean,
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
class OffsetCommitRequestPartition:
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(versions="6+", default=-1)
    committed_metadata: str | None = string(nullable=True)


@struct
class OffsetCommitRequestTopic:
    name: str = string(versions="2-9")
    topic_id: bytes = uuid(versions="10+")
    partitions: list[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition)


@request(ApiKey.OFFSET_COMMIT, versions="2-10", flexible=8)
class OffsetCommitRequest(Request):
    """The offsets that a group commits; 6 adds leader epochs, 8 is flexible, 10 has topic ids."""

    group_id: str = string()
    generation_id_or_member_epoch: int = int32(default=-1)
    member_id: str = string()
    retention_time_ms: int = int64(versions="2-4", default=-1)
    group_instance_id: str | None = string(versions="7+", nullable=True, default=None)
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic)


@struct
class OffsetCommitResponsePartition:
    partition_index: int = int32()
    error_code: int = int16()


@struct
class OffsetCommitResponseTopic:
    name: str = string(versions="2-9")
    topic_id: bytes = uuid(versions="10+")
    partitions: list[OffsetCommitResponsePartition] = array(OffsetCommitResponsePartition)


@response(ApiKey.OFFSET_COMMIT, versions="2-10", flexible=8)
class OffsetCommitResponse(Response):
    """Whether each offset was committed."""

    throttle_time_ms: int = int32(versions="3+")
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic)


@struct
class OffsetFetchRequestTopic:
    name: str = string()
    partition_indexes: list[int] = array("int32")


@struct
class OffsetFetchRequestTopics:
    name: str = string(versions="8-9")
    topic_id: bytes = uuid(versions="10+")
    partition_indexes: list[int] = array("int32")


@struct
class OffsetFetchRequestGroup:
    group_id: str = string()
    member_id: str | None = string(versions="9+", nullable=True, default=None)
    member_epoch: int = int32(versions="9+", default=-1)
    topics: list[OffsetFetchRequestTopics] | None = array(OffsetFetchRequestTopics, nullable=True)


@request(ApiKey.OFFSET_FETCH, versions="1-10", flexible=6)
class OffsetFetchRequest(Request):
    """A group and the partitions to fetch offsets of; 7 can require stable offsets, 8 has many groups."""

    group_id: str = string(versions="1-7")
    topics: list[OffsetFetchRequestTopic] | None = array(
        OffsetFetchRequestTopic, versions="1-7", nullable="2+"
    )
    groups: list[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, versions="8+")
    require_stable: bool = boolean(versions="7+")


@struct
class OffsetFetchResponsePartition:
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(versions="5+", default=-1)
    metadata: str | None = string(nullable=True)
    error_code: int = int16()


@struct
class OffsetFetchResponseTopic:
    name: str = string()
    partitions: list[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition)


@struct
class OffsetFetchResponsePartitions:
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(default=-1)
    metadata: str | None = string(nullable=True)
    error_code: int = int16()


@struct
class OffsetFetchResponseTopics:
    name: str = string(versions="8-9")
    topic_id: bytes = uuid(versions="10+")
    partitions: list[OffsetFetchResponsePartitions] = array(OffsetFetchResponsePartitions)


@struct
class OffsetFetchResponseGroup:
    group_id: str = string()
    topics: list[OffsetFetchResponseTopics] = array(OffsetFetchResponseTopics)
    error_code: int = int16()


@response(ApiKey.OFFSET_FETCH, versions="1-10", flexible=6)
class OffsetFetchResponse(Response):
    """The committed offsets: of one group up to version 7, by group from 8 on."""

    throttle_time_ms: int = int32(versions="3+")
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, versions="1-7")
    error_code: int = int16(versions="2-7")
    groups: list[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, versions="8+")


@struct
class OffsetDeleteRequestPartition:
    partition_index: int = int32()


@struct
class OffsetDeleteRequestTopic:
    name: str = string()
    partitions: list[OffsetDeleteRequestPartition] = array(OffsetDeleteRequestPartition)


@request(ApiKey.OFFSET_DELETE, versions="0-0", flexible=None)
class OffsetDeleteRequest(Request):
    """Committed offsets to delete."""

    group_id: str = string()
    topics: list[OffsetDeleteRequestTopic] = array(OffsetDeleteRequestTopic)


@struct
class OffsetDeleteResponsePartition:
    partition_index: int = int32()
    error_code: int = int16()


@struct
class OffsetDeleteResponseTopic:
    name: str = string()
    partitions: list[OffsetDeleteResponsePartition] = array(OffsetDeleteResponsePartition)


@response(ApiKey.OFFSET_DELETE, versions="0-0", flexible=None)
class OffsetDeleteResponse(Response):
    """Whether each offset was deleted."""

    error_code: int = int16()
    throttle_time_ms: int = int32()
    topics: list[OffsetDeleteResponseTopic] = array(OffsetDeleteResponseTopic)
