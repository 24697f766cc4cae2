"""Transactions: producer ids, the requests of a transaction, markers, and administration.

InitProducerId gives a producer its id and epoch and fences its predecessor. A transaction consists of
AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit and EndTxn. From EndTxn 5 and TxnOffsetCommit 5 on the
client uses transaction version 2 (KIP-890): partitions and groups need not be added beforehand, and every end
bumps the epoch.
DescribeProducers, DescribeTransactions and ListTransactions are for administrators.
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
)


@request(ApiKey.INIT_PRODUCER_ID, versions="0-6", flexible=2)
class InitProducerIdRequest(Request):
    """A producer requests its id; 3 can keep id and epoch, 6 adds two-phase commit (not stable)."""

    transactional_id: str | None = string(nullable=True)
    transaction_timeout_ms: int = int32()
    producer_id: int = int64(versions="3+", default=-1)
    producer_epoch: int = int16(versions="3+", default=-1)
    enable2_pc: bool = boolean(versions="6+")
    keep_prepared_txn: bool = boolean(versions="6+")


@response(ApiKey.INIT_PRODUCER_ID, versions="0-6", flexible=2)
class InitProducerIdResponse(Response):
    """The id and the epoch; 6 adds those of a prepared transaction."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16()
    ongoing_txn_producer_id: int = int64(versions="6+", default=-1)
    ongoing_txn_producer_epoch: int = int16(versions="6+", default=-1)


@struct
class AddPartitionsToTxnTopic:
    name: str = string()
    partitions: list[int] = array("int32")


@struct
class AddPartitionsToTxnTransaction:
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    verify_only: bool = boolean()
    topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic)


@request(ApiKey.ADD_PARTITIONS_TO_TXN, versions="0-5", flexible=3)
class AddPartitionsToTxnRequest(Request):
    """Partitions that a transaction will write to; from 4 on only between brokers, in batches."""

    v3_and_below_transactional_id: str = string(versions="0-3")
    v3_and_below_producer_id: int = int64(versions="0-3")
    v3_and_below_producer_epoch: int = int16(versions="0-3")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, versions="0-3")
    transactions: list[AddPartitionsToTxnTransaction] = array(AddPartitionsToTxnTransaction, versions="4+")


@struct
class AddPartitionsToTxnPartitionResult:
    partition_index: int = int32()
    partition_error_code: int = int16()


@struct
class AddPartitionsToTxnTopicResult:
    name: str = string()
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = array(AddPartitionsToTxnPartitionResult)


@struct
class AddPartitionsToTxnResult:
    transactional_id: str = string()
    topic_results: list[AddPartitionsToTxnTopicResult] = array(AddPartitionsToTxnTopicResult)


@response(ApiKey.ADD_PARTITIONS_TO_TXN, versions="0-5", flexible=3)
class AddPartitionsToTxnResponse(Response):
    """Whether each partition was added; from 4 on for each transaction."""

    throttle_time_ms: int = int32()
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = array(
        AddPartitionsToTxnTopicResult, versions="0-3"
    )
    error_code: int = int16(versions="4+")
    results_by_transaction: list[AddPartitionsToTxnResult] = array(AddPartitionsToTxnResult, versions="4+")


@request(ApiKey.ADD_OFFSETS_TO_TXN, versions="0-4", flexible=3)
class AddOffsetsToTxnRequest(Request):
    """A group whose offsets a transaction will commit."""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    group_id: str = string()


@response(ApiKey.ADD_OFFSETS_TO_TXN, versions="0-4", flexible=3)
class AddOffsetsToTxnResponse(Response):
    """Whether the group was added."""

    throttle_time_ms: int = int32()
    error_code: int = int16()


@struct
class TxnOffsetCommitRequestPartition:
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(versions="2+", default=-1)
    committed_metadata: str | None = string(nullable=True)


@struct
class TxnOffsetCommitRequestTopic:
    name: str = string()
    partitions: list[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition)


@request(ApiKey.TXN_OFFSET_COMMIT, versions="0-5", flexible=3)
class TxnOffsetCommitRequest(Request):
    """Offsets as part of a transaction; 3 adds the member, 5 needs no AddOffsetsToTxn."""

    transactional_id: str = string()
    group_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    generation_id: int = int32(versions="3+", default=-1)
    member_id: str = string(versions="3+")
    group_instance_id: str | None = string(versions="3+", nullable=True, default=None)
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic)


@struct
class TxnOffsetCommitResponsePartition:
    partition_index: int = int32()
    error_code: int = int16()


@struct
class TxnOffsetCommitResponseTopic:
    name: str = string()
    partitions: list[TxnOffsetCommitResponsePartition] = array(TxnOffsetCommitResponsePartition)


@response(ApiKey.TXN_OFFSET_COMMIT, versions="0-5", flexible=3)
class TxnOffsetCommitResponse(Response):
    """Whether each offset was accepted."""

    throttle_time_ms: int = int32()
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic)


@request(ApiKey.END_TXN, versions="0-5", flexible=3)
class EndTxnRequest(Request):
    """Commit or abort a transaction; from 5 on every end bumps the epoch."""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    committed: bool = boolean()


@response(ApiKey.END_TXN, versions="0-5", flexible=3)
class EndTxnResponse(Response):
    """The outcome; 5 adds the id and the epoch to continue with."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(versions="5+", default=-1)
    producer_epoch: int = int16(versions="5+", default=-1)


@struct
class WritableTxnMarkerTopic:
    name: str = string()
    partition_indexes: list[int] = array("int32")


@struct
class WritableTxnMarker:
    producer_id: int = int64()
    producer_epoch: int = int16()
    transaction_result: bool = boolean()
    topics: list[WritableTxnMarkerTopic] = array(WritableTxnMarkerTopic)
    coordinator_epoch: int = int32()
    transaction_version: int = int8(versions="2+")


@request(ApiKey.WRITE_TXN_MARKERS, versions="1-2", flexible=1)
class WriteTxnMarkersRequest(Request):
    """Markers for the ends of transactions, between brokers; 2 adds the transaction version."""

    markers: list[WritableTxnMarker] = array(WritableTxnMarker)


@struct
class WritableTxnMarkerPartitionResult:
    partition_index: int = int32()
    error_code: int = int16()


@struct
class WritableTxnMarkerTopicResult:
    name: str = string()
    partitions: list[WritableTxnMarkerPartitionResult] = array(WritableTxnMarkerPartitionResult)


@struct
class WritableTxnMarkerResult:
    producer_id: int = int64()
    topics: list[WritableTxnMarkerTopicResult] = array(WritableTxnMarkerTopicResult)


@response(ApiKey.WRITE_TXN_MARKERS, versions="1-2", flexible=1)
class WriteTxnMarkersResponse(Response):
    """Whether each marker was written. It has no throttle time."""

    markers: list[WritableTxnMarkerResult] = array(WritableTxnMarkerResult)


@struct
class ProducersTopicRequest:
    name: str = string()
    partition_indexes: list[int] = array("int32")


@request(ApiKey.DESCRIBE_PRODUCERS, versions="0-0", flexible=0)
class DescribeProducersRequest(Request):
    """The producers of these partitions."""

    topics: list[ProducersTopicRequest] = array(ProducersTopicRequest)


@struct
class ProducerState:
    producer_id: int = int64()
    producer_epoch: int = int32()
    last_sequence: int = int32(default=-1)
    last_timestamp: int = int64(default=-1)
    coordinator_epoch: int = int32()
    current_txn_start_offset: int = int64(default=-1)


@struct
class PartitionResponse:
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)
    active_producers: list[ProducerState] = array(ProducerState)


@struct
class TopicResponse:
    name: str = string()
    partitions: list[PartitionResponse] = array(PartitionResponse)


@response(ApiKey.DESCRIBE_PRODUCERS, versions="0-0", flexible=0)
class DescribeProducersResponse(Response):
    """The producers of each partition; their epoch has four bytes here."""

    throttle_time_ms: int = int32()
    topics: list[TopicResponse] = array(TopicResponse)


@request(ApiKey.DESCRIBE_TRANSACTIONS, versions="0-0", flexible=0)
class DescribeTransactionsRequest(Request):
    """Transactional ids to describe."""

    transactional_ids: list[str] = array("string")


@struct
class TopicData:
    topic: str = string()
    partitions: list[int] = array("int32")


@struct
class TransactionState:
    error_code: int = int16()
    transactional_id: str = string()
    transaction_state: str = string()
    transaction_timeout_ms: int = int32()
    transaction_start_time_ms: int = int64(default=-1)
    producer_id: int = int64()
    producer_epoch: int = int16()
    topics: list[TopicData] = array(TopicData)


@response(ApiKey.DESCRIBE_TRANSACTIONS, versions="0-0", flexible=0)
class DescribeTransactionsResponse(Response):
    """State, producer, start time and partitions of each transaction."""

    throttle_time_ms: int = int32()
    transaction_states: list[TransactionState] = array(TransactionState)


@request(ApiKey.LIST_TRANSACTIONS, versions="0-2", flexible=0)
class ListTransactionsRequest(Request):
    """Filters for transactional ids: state and producer; 1 adds duration, 2 a pattern."""

    state_filters: list[str] = array("string")
    producer_id_filters: list[int] = array("int64")
    duration_filter: int = int64(versions="1+", default=-1)
    transactional_id_pattern: str | None = string(versions="2+", nullable=True, default=None)


@struct
class ListTransactionsTransactionState:
    transactional_id: str = string()
    producer_id: int = int64()
    transaction_state: str = string()


@response(ApiKey.LIST_TRANSACTIONS, versions="0-2", flexible=0)
class ListTransactionsResponse(Response):
    """The transactional ids with producer id and state."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    unknown_state_filters: list[str] = array("string")
    transaction_states: list[ListTransactionsTransactionState] = array(ListTransactionsTransactionState)
