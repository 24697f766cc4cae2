"""A small, blocking client for Semel and every other broker that speaks Kafka's protocol.

    from semel.client import Admin, Client, Consumer, Producer

    with Client("127.0.0.1:9092") as client:
        Admin(client).topics.create("greetings")
        with Producer(client) as producer:
            producer.send("greetings", b"hello")
        with Consumer(client, "greetings") as consumer:
            print(consumer.poll())

`Client` knows the cluster and sends requests; the three others use it. All of them belong to one thread and
start none. Errors are `KafkaError` (a broker refused; it has a `code`) and `ClientError` (no answer came).

Where to read on: `connection` for one socket, `cluster` for routing, `producer` and `batches`, `consumer`,
`fetching` and `membership`, and `topics`, `configs`, `group_admin` behind `admin`.
"""

from semel.client.admin import Admin
from semel.client.batches import Delivered, Delivery
from semel.client.cluster import Client, ClusterInfo, Node, PartitionInfo, TopicInfo
from semel.client.configs import ConfigOperation, ConfigValue, ResourceType
from semel.client.connection import Connection
from semel.client.consumer import Consumer, Start
from semel.client.errors import (
    BrokerUnreachable,
    ClientError,
    ConnectionLost,
    ErrorCode,
    KafkaError,
    ProtocolError,
    RequestTimedOut,
    UnsupportedRequest,
)
from semel.client.fetching import ConsumedRecord, FetchLimits
from semel.client.group_admin import GroupInfo, GroupListing, MemberInfo
from semel.client.group_offsets import CommittedOffset
from semel.client.offsets import EARLIEST, LATEST, MAX_TIMESTAMP, Isolation, OffsetAt, Partition
from semel.client.producer import Producer
from semel.client.topics import CreatedTopic, NewTopic
from semel.wire.compression import Codec
from semel.wire.records import Header

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "Admin",
    "BrokerUnreachable",
    "Client",
    "ClientError",
    "ClusterInfo",
    "Codec",
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
    "FetchLimits",
    "GroupInfo",
    "GroupListing",
    "Header",
    "Isolation",
    "KafkaError",
    "MemberInfo",
    "NewTopic",
    "Node",
    "OffsetAt",
    "Partition",
    "PartitionInfo",
    "Producer",
    "ProtocolError",
    "RequestTimedOut",
    "ResourceType",
    "Start",
    "TopicInfo",
    "UnsupportedRequest",
]
