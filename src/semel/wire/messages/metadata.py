"""Discovery, which a client starts with: API versions, brokers, topics, leaders, coordinators.

ApiVersions is the first request on a connection, and must be answered even when its version is unknown.
Metadata and DescribeTopicPartitions return the leader of each partition, FindCoordinator the coordinator of a
group or a transactional id, DescribeCluster the members of the cluster.
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
    nested,
    request,
    response,
    string,
    struct,
    uuid,
)


@request(ApiKey.API_VERSIONS, versions="0-4", flexible=3)
class ApiVersionsRequest(Request):
    """The versions that this broker supports; 3 adds the name and version of the client, and is flexible."""

    client_software_name: str = string(versions="3+")
    client_software_version: str = string(versions="3+")


@struct
class ApiVersion:
    api_key: int = int16()
    min_version: int = int16()
    max_version: int = int16()


@struct
class SupportedFeatureKey:
    name: str = string()
    min_version: int = int16()
    max_version: int = int16()


@struct
class FinalizedFeatureKey:
    name: str = string()
    max_version_level: int = int16()
    min_version_level: int = int16()


@response(ApiKey.API_VERSIONS, versions="0-4", flexible=3)
class ApiVersionsResponse(Response):
    """The versions of each API; 3 adds the features. Its header is never flexible."""

    error_code: int = int16()
    api_keys: list[ApiVersion] = array(ApiVersion)
    throttle_time_ms: int = int32(versions="1+")
    supported_features: list[SupportedFeatureKey] = array(SupportedFeatureKey, versions="3+", tag=0)
    finalized_features_epoch: int = int64(versions="3+", tag=1, default=-1)
    finalized_features: list[FinalizedFeatureKey] = array(FinalizedFeatureKey, versions="3+", tag=2)
    zk_migration_ready: bool = boolean(versions="3+", tag=3)


@struct
class MetadataRequestTopic:
    topic_id: bytes = uuid(versions="10+")
    name: str | None = string(nullable="10+")


@request(ApiKey.METADATA, versions="0-13", flexible=9)
class MetadataRequest(Request):
    """Brokers, and topics by name or id; 1 distinguishes all topics (null) from none, 10 adds topic ids."""

    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, nullable="1+")
    allow_auto_topic_creation: bool = boolean(versions="4+", default=True)
    include_cluster_authorized_operations: bool = boolean(versions="8-10")
    include_topic_authorized_operations: bool = boolean(versions="8+")


@struct
class MetadataResponseBroker:
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(versions="1+", nullable=True, default=None)


@struct
class MetadataResponsePartition:
    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(versions="7+", default=-1)
    replica_nodes: list[int] = array("int32")
    isr_nodes: list[int] = array("int32")
    offline_replicas: list[int] = array("int32", versions="5+")


@struct
class MetadataResponseTopic:
    error_code: int = int16()
    name: str | None = string(nullable="12+")
    topic_id: bytes = uuid(versions="10+")
    is_internal: bool = boolean(versions="1+")
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition)
    topic_authorized_operations: int = int32(versions="8+", default=-2147483648)


@response(ApiKey.METADATA, versions="0-13", flexible=9)
class MetadataResponse(Response):
    """Brokers, topics, partitions and their leaders; 7 adds leader epochs, 10 topic ids, 13 an error code."""

    throttle_time_ms: int = int32(versions="3+")
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker)
    cluster_id: str | None = string(versions="2+", nullable=True, default=None)
    controller_id: int = int32(versions="1+", default=-1)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic)
    cluster_authorized_operations: int = int32(versions="8-10", default=-2147483648)
    error_code: int = int16(versions="13+")


@request(ApiKey.FIND_COORDINATOR, versions="0-6", flexible=3)
class FindCoordinatorRequest(Request):
    """The coordinator of a group or a transactional id; from 4 on many keys at once."""

    key: str = string(versions="0-3")
    key_type: int = int8(versions="1+")
    coordinator_keys: list[str] = array("string", versions="4+")


@struct
class Coordinator:
    key: str = string()
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True)


@response(ApiKey.FIND_COORDINATOR, versions="0-6", flexible=3)
class FindCoordinatorResponse(Response):
    """The coordinators: one up to version 3, a list from 4 on."""

    throttle_time_ms: int = int32(versions="1+")
    error_code: int = int16(versions="0-3")
    error_message: str | None = string(versions="1-3", nullable=True)
    node_id: int = int32(versions="0-3")
    host: str = string(versions="0-3")
    port: int = int32(versions="0-3")
    coordinators: list[Coordinator] = array(Coordinator, versions="4+")


@request(ApiKey.DESCRIBE_CLUSTER, versions="0-2", flexible=0)
class DescribeClusterRequest(Request):
    """The members of the cluster; 1 can ask for controllers, 2 for fenced brokers."""

    include_cluster_authorized_operations: bool = boolean()
    endpoint_type: int = int8(versions="1+", default=1)
    include_fenced_brokers: bool = boolean(versions="2+")


@struct
class DescribeClusterBroker:
    broker_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable=True, default=None)
    is_fenced: bool = boolean(versions="2+")


@response(ApiKey.DESCRIBE_CLUSTER, versions="0-2", flexible=0)
class DescribeClusterResponse(Response):
    """The id, the controller and the brokers of the cluster."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)
    endpoint_type: int = int8(versions="1+", default=1)
    cluster_id: str = string()
    controller_id: int = int32(default=-1)
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker)
    cluster_authorized_operations: int = int32(default=-2147483648)


@struct
class PartitionsTopicRequest:
    name: str = string()


@struct
class Cursor:
    topic_name: str = string()
    partition_index: int = int32()


@request(ApiKey.DESCRIBE_TOPIC_PARTITIONS, versions="0-0", flexible=0)
class DescribeTopicPartitionsRequest(Request):
    """Topics and their partitions, page by page."""

    topics: list[PartitionsTopicRequest] = array(PartitionsTopicRequest)
    response_partition_limit: int = int32(default=2000)
    cursor: Cursor | None = nested(Cursor, nullable=True, default=None)


@struct
class DescribeTopicPartitionsResponsePartition:
    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(default=-1)
    replica_nodes: list[int] = array("int32")
    isr_nodes: list[int] = array("int32")
    eligible_leader_replicas: list[int] | None = array("int32", nullable=True, default=None)
    last_known_elr: list[int] | None = array("int32", nullable=True, default=None)
    offline_replicas: list[int] = array("int32")


@struct
class DescribeTopicPartitionsResponseTopic:
    error_code: int = int16()
    name: str | None = string(nullable=True)
    topic_id: bytes = uuid()
    is_internal: bool = boolean()
    partitions: list[DescribeTopicPartitionsResponsePartition] = array(
        DescribeTopicPartitionsResponsePartition
    )
    topic_authorized_operations: int = int32(default=-2147483648)


@response(ApiKey.DESCRIBE_TOPIC_PARTITIONS, versions="0-0", flexible=0)
class DescribeTopicPartitionsResponse(Response):
    """A page of topics, and the cursor of the next page."""

    throttle_time_ms: int = int32()
    topics: list[DescribeTopicPartitionsResponseTopic] = array(DescribeTopicPartitionsResponseTopic)
    next_cursor: Cursor | None = nested(Cursor, nullable=True, default=None)
