"""Semel's private APIs, for pipelines and queue workers.

Their keys are far above Kafka's, and above those that vendors of other brokers use. A broker that serves them
announces it in ApiVersions in two ways: they are in the list of APIs, and the feature
`semel.commit.transactions` identifies them as Semel's. A client sends them only if it finds both (ADR 0026).

CommitTransactions commits several transactions and the offsets of a group, all or nothing. BeginAttempt is
InitProducerId for a transaction that belongs to a *run*, which is identified by the producer id and epoch
that a driver got for its own transactional id. TxnShareAcknowledge is ShareAcknowledge inside a transaction
(ADR 0048).
"""

from semel.wire.api_key import ApiKey
from semel.wire.messages.produce import NodeEndpoint
from semel.wire.messages.shares import ShareAcknowledgeTopic, ShareAcknowledgeTopicResponse
from semel.wire.schema import Request, Response, array, int16, int32, int64, request, response, string, struct

#: Keys from here on are Semel's own.
FIRST_OWN_KEY = 20_000
#: The feature that identifies these keys as Semel's.
COMMIT_TRANSACTIONS = "semel.commit.transactions"


@struct
class CommitTransactionsTransaction:
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()


@struct
class CommitTransactionsPartition:
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(default=-1)
    committed_metadata: str | None = string(nullable=True)


@struct
class CommitTransactionsTopic:
    name: str = string()
    partitions: list[CommitTransactionsPartition] = array(CommitTransactionsPartition)


@request(ApiKey.COMMIT_TRANSACTIONS, versions="0", flexible=0)
class CommitTransactionsRequest(Request):
    """Transactions that the driver commits, together with offsets of a group."""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    transactions: list[CommitTransactionsTransaction] = array(CommitTransactionsTransaction)
    group_id: str = string()
    topics: list[CommitTransactionsTopic] = array(CommitTransactionsTopic)


@struct
class CommitTransactionsRefusal:
    transactional_id: str = string()
    error_code: int = int16()


@response(ApiKey.COMMIT_TRANSACTIONS, versions="0", flexible=0)
class CommitTransactionsResponse(Response):
    """Whether everything was committed. If not, nothing was; `refused` names transactions that prevent it."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)
    refused: list[CommitTransactionsRefusal] = array(CommitTransactionsRefusal)


@request(ApiKey.BEGIN_ATTEMPT, versions="0", flexible=0)
class BeginAttemptRequest(Request):
    """Assign a task attempt of a run its producer id and epoch, and open its transaction."""

    transactional_id: str = string()
    driver_transactional_id: str = string()
    driver_producer_id: int = int64()
    driver_producer_epoch: int = int16()
    transaction_version: int = int16(default=2)


@response(ApiKey.BEGIN_ATTEMPT, versions="0", flexible=0)
class BeginAttemptResponse(Response):
    """The producer id and epoch to write with."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16(default=-1)


@request(ApiKey.TXN_SHARE_ACKNOWLEDGE, versions="0", flexible=0)
class TxnShareAcknowledgeRequest(Request):
    """A member of a share group acknowledges acquired records when a transaction commits."""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    group_id: str = string()
    member_id: str = string()
    topics: list[ShareAcknowledgeTopic] = array(ShareAcknowledgeTopic)


@response(ApiKey.TXN_SHARE_ACKNOWLEDGE, versions="0", flexible=0)
class TxnShareAcknowledgeResponse(Response):
    """Whether the acknowledgements of each partition are in the transaction."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)
    responses: list[ShareAcknowledgeTopicResponse] = array(ShareAcknowledgeTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint)
