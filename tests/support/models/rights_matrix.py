"""The rights that each API needs, as data: a request, the needed rights, and the error without each of them.

The authorization tests send these requests to a broker in memory. They can also be sent to Apache Kafka with
the same ACLs: ``rights_requests.prepare`` creates the topics, groups and transactions they refer to by
requests alone, and nothing here depends on how a request is sent.
"""

from semel.wire.errors import ErrorCode
from semel.wire.messages import configs, fetch, metadata, placement, security, topics
from semel.wire.messages import transactions as txn
from support.models import rights_requests as ask
from support.models.rights import (
    ALTER,
    ALTER_CONFIGS,
    CLUSTER_ACTION,
    CREATE,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    ERROR,
    FETCHED,
    NAMED,
    PARTITION,
    PRODUCED,
    READ,
    RESULT,
    TOPIC_DENIED,
    WRITE,
    Case,
    Hidden,
    cluster,
    either,
    group,
    topic,
    xid,
)
from support.models.rights_matrix_groups import GROUPS, TRANSACTIONS
from support.models.rights_matrix_shares import SHARES
from support.models.rights_requests import NEW, G, T

LOG_DIR_NOT_FOUND = ErrorCode.LOG_DIR_NOT_FOUND
BROKER_ID_NOT_REGISTERED = ErrorCode.BROKER_ID_NOT_REGISTERED
UNSUPPORTED_VERSION = ErrorCode.UNSUPPORTED_VERSION

RECORDS = (
    Case("Produce", 0, 9, lambda w: ask.produced(), PRODUCED, (topic(WRITE),)),
    Case("Produce by id", 0, 13, lambda w: ask.produced(topic_id=w.topic_id), PRODUCED, (topic(WRITE),)),
    Case(
        "Produce in a transaction",
        0,
        9,
        lambda w: ask.produced(w.producer),
        PRODUCED,
        (xid(WRITE), topic(WRITE)),
    ),
    Case("Fetch", 1, 12, lambda w: ask.fetched(), FETCHED, (topic(READ),)),
    Case("Fetch by id", 1, 13, lambda w: ask.fetched(topic_id=w.topic_id), FETCHED, (topic(READ),)),
    Case(
        "Fetch by a replica",
        1,
        12,
        lambda w: ask.fetched(replica_id=1),
        FETCHED,
        (cluster(CLUSTER_ACTION, TOPIC_DENIED),),
        only_semel=True,
    ),
    Case(
        "Fetch by a replica with a state",
        1,
        15,
        lambda w: ask.fetched(topic_id=w.topic_id, replica_state=fetch.ReplicaState(replica_id=1)),
        FETCHED,
        (cluster(CLUSTER_ACTION, TOPIC_DENIED),),
        only_semel=True,
    ),
    Case("ListOffsets", 2, 5, lambda w: ask.listed(), PARTITION, (topic(DESCRIBE),)),
    Case(
        "OffsetForLeaderEpoch",
        23,
        3,
        lambda w: ask.epochs(),
        PARTITION,
        (either(topic(DESCRIBE), cluster(CLUSTER_ACTION)),),
    ),
    Case("DeleteRecords", 21, 2, lambda w: ask.emptied(), PARTITION, (topic(DELETE),)),
    Case(
        "DescribeProducers",
        61,
        0,
        lambda w: txn.DescribeProducersRequest(
            topics=[txn.ProducersTopicRequest(name=T, partition_indexes=[0])]
        ),
        PARTITION,
        (topic(READ),),
    ),
)

TOPICS = (
    Case("Metadata", 3, 9, lambda w: ask.named(), NAMED, (topic(DESCRIBE),)),
    Case("Metadata by id", 3, 12, ask.by_id, NAMED, (topic(DESCRIBE),)),
    Case(
        "Metadata of all",
        3,
        9,
        lambda w: ask.named(topics=None),
        "topics.*.name",
        (topic(DESCRIBE, error=Hidden(T)),),
    ),
    Case(
        "Metadata that creates",
        3,
        9,
        lambda w: ask.named(NEW, allow_auto_topic_creation=True),
        NAMED,
        (topic(DESCRIBE, NEW), either(topic(CREATE, NEW), cluster(CREATE))),
        only_semel=True,  # Kafka creates it after the response
    ),
    Case(
        "DescribeTopicPartitions",
        75,
        0,
        lambda w: metadata.DescribeTopicPartitionsRequest(topics=[metadata.PartitionsTopicRequest(name=T)]),
        NAMED,
        (topic(DESCRIBE),),
    ),
    Case(
        "DescribeTopicPartitions of all",
        75,
        0,
        lambda w: metadata.DescribeTopicPartitionsRequest(),
        "topics.*.name",
        (topic(DESCRIBE, error=Hidden(T)),),
    ),
    Case(
        "CreateTopics",
        19,
        5,
        lambda w: ask.created(),
        NAMED,
        (
            either(topic(CREATE, NEW), cluster(CREATE)),
            topic(DESCRIBE_CONFIGS, NEW, path="topics.0.topic_config_error_code")._replace(changes=True),
        ),
    ),
    Case(
        "DeleteTopics",
        20,
        5,
        lambda w: topics.DeleteTopicsRequest(topic_names=[T]),
        "responses.0.error_code",
        (either(topic(DELETE), cluster(DELETE)),),
    ),
    Case(
        "DeleteTopics by id",
        20,
        6,
        lambda w: topics.DeleteTopicsRequest(
            topics=[topics.DeleteTopicState(name=None, topic_id=w.topic_id)]
        ),
        "responses.0.error_code",
        (either(topic(DELETE), cluster(DELETE)),),
    ),
    Case(
        "CreatePartitions",
        37,
        3,
        lambda w: topics.CreatePartitionsRequest(
            topics=[topics.CreatePartitionsTopic(name=T, count=3, assignments=None)]
        ),
        RESULT,
        (topic(ALTER),),
    ),
    Case("DescribeConfigs", 32, 4, lambda w: ask.described(2, T), RESULT, (topic(DESCRIBE_CONFIGS),)),
    Case(
        "DescribeConfigs of a broker",
        32,
        4,
        lambda w: ask.described(4, ""),
        RESULT,
        (cluster(DESCRIBE_CONFIGS),),
    ),
    Case(
        "DescribeConfigs of a group",
        32,
        4,
        lambda w: ask.described(32, G),
        RESULT,
        (group(DESCRIBE_CONFIGS),),
    ),
    Case("AlterConfigs", 33, 2, lambda w: ask.altered(), "responses.0.error_code", (topic(ALTER_CONFIGS),)),
    *(
        Case(
            f"{api} of {what}",
            *(key, version),
            lambda w, make=make, kind=kind, name=name: make(kind, name),  # type: ignore[misc]  # defaults: mypy infers no such lambda
            "responses.0.error_code",
            (right,),
        )
        for api, key, version, make in (
            ("AlterConfigs", 33, 2, ask.altered),
            ("IncrementalAlterConfigs", 44, 1, ask.altered_in_part),
        )
        for what, kind, name, right in (
            ("all brokers", 4, "", cluster(ALTER_CONFIGS)),
            ("a group", 32, G, group(ALTER_CONFIGS)),
        )
    ),
    Case(
        "IncrementalAlterConfigs",
        44,
        1,
        lambda w: ask.altered_in_part(),
        "responses.0.error_code",
        (topic(ALTER_CONFIGS),),
    ),
)

CLUSTER = (
    Case(
        "DescribeCluster",
        60,
        0,
        lambda w: metadata.DescribeClusterRequest(include_cluster_authorized_operations=True),
        "cluster_authorized_operations",
        (cluster(DESCRIBE, 0),),
        allowed=1 << DESCRIBE,
    ),
    Case(
        "DescribeLogDirs",
        35,
        3,
        lambda w: topics.DescribeLogDirsRequest(topics=None),
        ERROR,
        (cluster(DESCRIBE),),
    ),
    Case(
        "ListPartitionReassignments",
        46,
        0,
        lambda w: placement.ListPartitionReassignmentsRequest(topics=None),
        ERROR,
        (cluster(DESCRIBE),),
    ),
    Case(
        "AlterReplicaLogDirs",
        34,
        2,
        lambda w: ask.moved_to("/no/such/directory"),
        "results.0.partitions.0.error_code",
        (cluster(ALTER),),
        allowed=LOG_DIR_NOT_FOUND,
    ),
    Case("ElectLeaders", 43, 2, lambda w: ask.elected(), ERROR, (cluster(ALTER),)),
    Case("AlterPartitionReassignments", 45, 1, lambda w: ask.cancelled(), ERROR, (cluster(ALTER),)),
    Case(
        "DescribeQuorum",
        55,
        2,
        lambda w: ask.quorum(),
        ERROR,
        (cluster(DESCRIBE),),
        allowed=UNSUPPORTED_VERSION,
    ),
    Case(
        "UnregisterBroker",
        64,
        0,
        lambda w: placement.UnregisterBrokerRequest(broker_id=999),
        ERROR,
        (cluster(ALTER),),
        allowed=BROKER_ID_NOT_REGISTERED,
    ),
    Case(
        "ListConfigResources",
        74,
        1,
        lambda w: configs.ListConfigResourcesRequest(resource_types=[16]),
        ERROR,
        (cluster(DESCRIBE_CONFIGS),),
    ),
    Case(
        "AddRaftVoter",
        80,
        0,
        lambda w: placement.AddRaftVoterRequest(voter_id=9, timeout_ms=1_000),
        ERROR,
        (cluster(ALTER),),
        allowed=UNSUPPORTED_VERSION,
    ),
    Case(
        "RemoveRaftVoter",
        81,
        0,
        lambda w: placement.RemoveRaftVoterRequest(voter_id=9),
        ERROR,
        (cluster(ALTER),),
        allowed=UNSUPPORTED_VERSION,
    ),
    Case("UpdateFeatures", 57, 1, lambda w: ask.featured(), ERROR, (cluster(ALTER),)),
    Case(
        "DescribeAcls",
        29,
        3,
        lambda w: security.DescribeAclsRequest(**ask.ACL_FILTER, **ask.NOBODY),
        ERROR,
        (cluster(DESCRIBE),),
    ),
    Case("CreateAcls", 30, 3, lambda w: ask.granted(), RESULT, (cluster(ALTER),)),
    Case("DeleteAcls", 31, 3, lambda w: ask.revoked(), "filter_results.0.error_code", (cluster(ALTER),)),
    Case("DescribeClientQuotas", 48, 1, lambda w: ask.limits(), ERROR, (cluster(DESCRIBE_CONFIGS),)),
    Case(
        "AlterClientQuotas",
        49,
        1,
        lambda w: ask.limited(),
        "entries.0.error_code",
        (cluster(ALTER_CONFIGS),),
    ),
    Case(
        "DescribeUserScramCredentials",
        50,
        0,
        lambda w: security.DescribeUserScramCredentialsRequest(users=None),
        ERROR,
        (cluster(DESCRIBE),),
    ),
    Case("AlterUserScramCredentials", 51, 0, lambda w: ask.user(), RESULT, (cluster(ALTER),)),
)

MATRIX = (*RECORDS, *TOPICS, *GROUPS, *TRANSACTIONS, *CLUSTER, *SHARES)
