"""Produce: record batches from a client to the leader of their partitions.

The records of a partition are bytes that this declaration does not decode: a view into the frame when a
request is decoded, passed by reference when one is encoded. Up to version 11, a partition must be added to a
transaction before Produce writes to it; from version 12 on, Produce adds it.
"""

from semel.wire.api_key import ApiKey
from semel.wire.schema import (
    Buffer,
    Request,
    Response,
    array,
    int16,
    int32,
    int64,
    nested,
    records,
    request,
    response,
    string,
    struct,
    uuid,
)


@struct
class PartitionProduceData:
    index: int = int32()
    records: Buffer | None = records()


@struct
class TopicProduceData:
    name: str = string(versions="3-12")
    topic_id: bytes = uuid(versions="13+")
    partition_data: list[PartitionProduceData] = array(PartitionProduceData)


@request(ApiKey.PRODUCE, versions="3-13", flexible=9)
class ProduceRequest(Request):
    """Record batches to append; 9 is flexible, 12 adds partitions to transactions, 13 has topic ids."""

    transactional_id: str | None = string(nullable=True, default=None)
    acks: int = int16()
    timeout_ms: int = int32()
    topic_data: list[TopicProduceData] = array(TopicProduceData)


@struct
class BatchIndexAndErrorMessage:
    batch_index: int = int32()
    batch_index_error_message: str | None = string(nullable=True, default=None)


@struct
class LeaderIdAndEpoch:
    leader_id: int = int32(default=-1)
    leader_epoch: int = int32(default=-1)


@struct
class PartitionProduceResponse:
    index: int = int32()
    error_code: int = int16()
    base_offset: int = int64()
    log_append_time_ms: int = int64(default=-1)
    log_start_offset: int = int64(versions="5+", default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = array(BatchIndexAndErrorMessage, versions="8+")
    error_message: str | None = string(versions="8+", nullable=True, default=None)
    current_leader: LeaderIdAndEpoch = nested(LeaderIdAndEpoch, versions="10+", tag=0)


@struct
class TopicProduceResponse:
    name: str = string(versions="3-12")
    topic_id: bytes = uuid(versions="13+")
    partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse)


@struct
class NodeEndpoint:
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable=True, default=None)


@response(ApiKey.PRODUCE, versions="3-13", flexible=9)
class ProduceResponse(Response):
    """The offsets of the batches; 5 adds the log start offset, 8 errors of records, 10 the current leader."""

    responses: list[TopicProduceResponse] = array(TopicProduceResponse)
    throttle_time_ms: int = int32()
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, versions="10+", tag=0)
