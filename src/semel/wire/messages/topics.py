"""Administration of topics: create and delete them, add partitions, delete records, describe their storage.

Semel's DescribeLogDirs reports a single directory. Requests that move replicas are in `placement`.
"""

from semel.wire.api_key import ApiKey
from semel.wire.schema import (
    Request,
    Response,
    array,
    boolean,
    int8,
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
class CreatableReplicaAssignment:
    partition_index: int = int32()
    broker_ids: list[int] = array("int32")


@struct
class CreatableTopicConfig:
    name: str = string()
    value: str | None = string(nullable=True)


@struct
class CreatableTopic:
    name: str = string()
    num_partitions: int = int32()
    replication_factor: int = int16()
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment)
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig)


@request(ApiKey.CREATE_TOPICS, versions="2-7", flexible=5)
class CreateTopicsRequest(Request):
    """Topics to create; 4 may leave partitions and replication to the broker, 5 is flexible."""

    topics: list[CreatableTopic] = array(CreatableTopic)
    timeout_ms: int = int32(default=60000)
    validate_only: bool = boolean()


@struct
class CreatableTopicConfigs:
    name: str = string()
    value: str | None = string(nullable=True)
    read_only: bool = boolean()
    config_source: int = int8(default=-1)
    is_sensitive: bool = boolean()


@struct
class CreatableTopicResult:
    name: str = string()
    topic_id: bytes = uuid(versions="7+")
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    topic_config_error_code: int = int16(versions="5+", tag=0)
    num_partitions: int = int32(versions="5+", default=-1)
    replication_factor: int = int16(versions="5+", default=-1)
    configs: list[CreatableTopicConfigs] | None = array(CreatableTopicConfigs, versions="5+", nullable=True)


@response(ApiKey.CREATE_TOPICS, versions="2-7", flexible=5)
class CreateTopicsResponse(Response):
    """Whether each topic was created; 5 adds its configuration, 7 its id."""

    throttle_time_ms: int = int32()
    topics: list[CreatableTopicResult] = array(CreatableTopicResult)


@struct
class DeleteTopicState:
    name: str | None = string(nullable=True, default=None)
    topic_id: bytes = uuid()


@request(ApiKey.DELETE_TOPICS, versions="1-6", flexible=4)
class DeleteTopicsRequest(Request):
    """Topics to delete: by name up to version 5, by name or id from 6 on."""

    topic_names: list[str] = array("string", versions="1-5")
    topics: list[DeleteTopicState] = array(DeleteTopicState, versions="6+")
    timeout_ms: int = int32()


@struct
class DeletableTopicResult:
    name: str | None = string(nullable="6+")
    topic_id: bytes = uuid(versions="6+")
    error_code: int = int16()
    error_message: str | None = string(versions="5+", nullable=True, default=None)


@response(ApiKey.DELETE_TOPICS, versions="1-6", flexible=4)
class DeleteTopicsResponse(Response):
    """Whether each topic was deleted; 5 adds a message to the error, 6 the id."""

    throttle_time_ms: int = int32()
    responses: list[DeletableTopicResult] = array(DeletableTopicResult)


@struct
class CreatePartitionsAssignment:
    broker_ids: list[int] = array("int32")


@struct
class CreatePartitionsTopic:
    name: str = string()
    count: int = int32()
    assignments: list[CreatePartitionsAssignment] | None = array(CreatePartitionsAssignment, nullable=True)


@request(ApiKey.CREATE_PARTITIONS, versions="0-3", flexible=2)
class CreatePartitionsRequest(Request):
    """The new number of partitions of each topic."""

    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic)
    timeout_ms: int = int32()
    validate_only: bool = boolean()


@struct
class CreatePartitionsTopicResult:
    name: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)


@response(ApiKey.CREATE_PARTITIONS, versions="0-3", flexible=2)
class CreatePartitionsResponse(Response):
    """Whether the partitions of each topic were created."""

    throttle_time_ms: int = int32()
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult)


@struct
class DeleteRecordsPartition:
    partition_index: int = int32()
    offset: int = int64()


@struct
class DeleteRecordsTopic:
    name: str = string()
    partitions: list[DeleteRecordsPartition] = array(DeleteRecordsPartition)


@request(ApiKey.DELETE_RECORDS, versions="0-2", flexible=2)
class DeleteRecordsRequest(Request):
    """The offset before which to delete the records of each partition."""

    topics: list[DeleteRecordsTopic] = array(DeleteRecordsTopic)
    timeout_ms: int = int32()


@struct
class DeleteRecordsPartitionResult:
    partition_index: int = int32()
    low_watermark: int = int64()
    error_code: int = int16()


@struct
class DeleteRecordsTopicResult:
    name: str = string()
    partitions: list[DeleteRecordsPartitionResult] = array(DeleteRecordsPartitionResult)


@response(ApiKey.DELETE_RECORDS, versions="0-2", flexible=2)
class DeleteRecordsResponse(Response):
    """The new log start offset of each partition."""

    throttle_time_ms: int = int32()
    topics: list[DeleteRecordsTopicResult] = array(DeleteRecordsTopicResult)


@struct
class DescribableLogDirTopic:
    topic: str = string()
    partitions: list[int] = array("int32")


@request(ApiKey.DESCRIBE_LOG_DIRS, versions="1-5", flexible=2)
class DescribeLogDirsRequest(Request):
    """Partitions to describe, null for all."""

    topics: list[DescribableLogDirTopic] | None = array(DescribableLogDirTopic, nullable=True)


@struct
class DescribeLogDirsPartition:
    partition_index: int = int32()
    partition_size: int = int64()
    offset_lag: int = int64()
    is_future_key: bool = boolean()


@struct
class DescribeLogDirsTopic:
    name: str = string()
    partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition)


@struct
class DescribeLogDirsResult:
    error_code: int = int16()
    log_dir: str = string()
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic)
    total_bytes: int = int64(versions="4+", default=-1)
    usable_bytes: int = int64(versions="4+", default=-1)
    is_cordoned: bool = boolean(versions="5+")


@response(ApiKey.DESCRIBE_LOG_DIRS, versions="1-5", flexible=2)
class DescribeLogDirsResponse(Response):
    """Sizes by directory; 3 adds an error code, 4 the size of the volume, 5 cordoned directories."""

    throttle_time_ms: int = int32()
    error_code: int = int16(versions="3+")
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult)
