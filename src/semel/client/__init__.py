"""A small, blocking client for Semel and every other broker that speaks Kafka's protocol.

    from semel.client import Admin, Client, Consumer, Producer

    with Client("127.0.0.1:9092") as client:
        Admin(client).topics.create("greetings")
        with Producer(client) as producer:
            producer.send("greetings", b"hello")
        with Consumer(client, "greetings") as consumer:
            print(consumer.poll())

`Client` knows the cluster and sends requests; the other classes use it. Each belongs to one thread and starts
none. Errors are `KafkaError` (a broker refused the request; it has a `code`) and `ClientError` (there was no
answer).

`TransactionalProducer` writes records and offsets in transactions. Any process can end a transaction that it
has prepared (`end_transaction`, `complete_transaction`). Its errors are `TransactionError`s, whose class says
what to do. `CommitOrderConsumer` reads transactions in commit order. `ShareConsumer` is a member of a share
group; `TransactionalProducer.acknowledge` acknowledges its records in a transaction.

Use `Client(..., security=Security.of({...}))` for brokers with TLS or SASL.

The rooms: `net` for connections, authentication and routing; `produce`, `consume` and `shares`; `admin` for
topics, configs, groups, transactions, users, ACLs and quotas.
"""

from semel.client.admin.admin import Admin
from semel.client.admin.configs import ConfigOperation, ConfigValue, ResourceType
from semel.client.admin.group_offsets import CommittedOffset, GroupMetadata
from semel.client.admin.groups import GroupInfo, GroupListing, MemberInfo
from semel.client.admin.topics import CreatedTopic, NewTopic
from semel.client.admin.transactions import (
    FencedProducer,
    ProducerDescription,
    TransactionDescription,
    TransactionListing,
)
from semel.client.consume.commit_order import CommitOrderConsumer
from semel.client.consume.commit_order_log import CommitOrderPosition
from semel.client.consume.consumer import Consumer, Start
from semel.client.consume.fetch import ConsumedRecord, FetchLimits
from semel.client.consume.offsets import EARLIEST, LATEST, MAX_TIMESTAMP, Isolation, OffsetAt, Partition
from semel.client.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    ClientError,
    ConnectionLost,
    ErrorCode,
    KafkaError,
    MustAbort,
    OutcomeUnknown,
    ProducerFailed,
    ProducerFenced,
    ProtocolError,
    RequestTimedOut,
    TransactionAborted,
    TransactionError,
    TransactionMisuse,
    UnsupportedRequest,
)
from semel.client.net.cluster import Client, ClusterInfo, Node, PartitionInfo, TopicInfo
from semel.client.net.connection import Connection
from semel.client.net.security import Security
from semel.client.produce.batches import Delivered, Delivery
from semel.client.produce.prepared import PreparedTransaction, complete_transaction, end_transaction
from semel.client.produce.producer import Producer
from semel.client.produce.transactional_producer import TransactionalProducer
from semel.client.shares.consumer import ShareConsumer
from semel.client.shares.session import AcknowledgeType, ShareRecord
from semel.wire.batch import ProducerIdAndEpoch
from semel.wire.compression import Codec
from semel.wire.records import Header

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "AcknowledgeType",
    "Admin",
    "AuthenticationFailed",
    "BrokerUnreachable",
    "Client",
    "ClientError",
    "ClusterInfo",
    "Codec",
    "CommitOrderConsumer",
    "CommitOrderPosition",
    "CommittedOffset",
    "ConfigOperation",
    "ConfigValue",
    "Connection",
    "ConnectionLost",
    "ConsumedRecord",
    "Consumer",
    "CreatedTopic",
    "Delivered",
    "Delivery",
    "ErrorCode",
    "FencedProducer",
    "FetchLimits",
    "GroupInfo",
    "GroupListing",
    "GroupMetadata",
    "Header",
    "Isolation",
    "KafkaError",
    "MemberInfo",
    "MustAbort",
    "NewTopic",
    "Node",
    "OffsetAt",
    "OutcomeUnknown",
    "Partition",
    "PartitionInfo",
    "PreparedTransaction",
    "Producer",
    "ProducerDescription",
    "ProducerFailed",
    "ProducerFenced",
    "ProducerIdAndEpoch",
    "ProtocolError",
    "RequestTimedOut",
    "ResourceType",
    "Security",
    "ShareConsumer",
    "ShareRecord",
    "Start",
    "TopicInfo",
    "TransactionAborted",
    "TransactionDescription",
    "TransactionError",
    "TransactionListing",
    "TransactionMisuse",
    "TransactionalProducer",
    "UnsupportedRequest",
    "complete_transaction",
    "end_transaction",
]
