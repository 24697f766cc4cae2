"""The requests of the rights matrix, and the world they refer to, which is created by requests too."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from semel.wire.messages import (
    configs,
    fetch,
    groups,
    metadata,
    offsets,
    placement,
    produce,
    quotas,
    security,
    semel,
    shares,
    topics,
)
from semel.wire.messages import placement as quorums
from semel.wire.messages import transactions as txn
from semel.wire.records import Record, encode_batch

T, G, X = "t", "g", "x"
CLASSIC, CONSUMER, DRIVER, ATTEMPT, NEW = "classic", "consumer", "driver", "attempt", "new"
SHARE, IDLE_SHARE = "share", "idle-share"

Ask = Callable[[int, Any, int], Awaitable[Any]]
"""Sends a request of an API in a version, as a principal with all rights."""


class World(NamedTuple):
    """The topics, producers and members that the requests refer to."""

    topic_id: bytes
    producer: tuple[int, int]
    """The producer id and epoch of ``X``, whose transaction is open in ``T`` and in ``G``."""
    driver: tuple[int, int]
    attempt: tuple[int, int]
    classic_member: str
    consumer_member: str


def batch(producer: tuple[int, int] | None = None) -> bytes:
    if producer is None:
        return encode_batch([Record(0, 1_000, None, b"v")])
    return encode_batch(
        [Record(0, 1_000, None, b"v")],
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=0,
        transactional=True,
    )


# -- the world --------------------------------------------------------------------------------------------


async def prepare(ask: Ask) -> World:
    created = topics.CreateTopicsRequest(
        topics=[topics.CreatableTopic(name=T, num_partitions=2, replication_factor=1)]
    )
    topic_id = (await ask(19, created, 7)).topics[0].topic_id
    await ask(0, produced(), 9)
    await ask(8, committed(), 8)
    producer = await initialized(ask, X)
    await ask(24, added(*producer), 3)
    await ask(25, txn.AddOffsetsToTxnRequest(transactional_id=X, group_id=G, **of(producer)), 3)
    await shared(ask)
    driver = await initialized(ask, DRIVER)
    return World(
        topic_id,
        producer,
        driver,
        await begun(ask, driver),
        await joined(ask),
        (await ask(68, consuming("", 0), 0)).member_id,
    )


async def shared(ask: Ask) -> None:
    """Create two share groups: one with a member, starting at the first record, and one without members."""
    reset = configs.IncrementalAlterConfigsAlterableConfig(name="share.auto.offset.reset", value="earliest")
    resource = configs.IncrementalAlterConfigsAlterConfigsResource(
        resource_type=32, resource_name=SHARE, configs=[reset]
    )
    await ask(44, configs.IncrementalAlterConfigsRequest(resources=[resource]), 1)
    await ask(76, sharing("member", SHARE), 1)
    await ask(76, sharing("member", IDLE_SHARE), 1)
    await ask(76, sharing("member", IDLE_SHARE, -1), 1)


async def initialized(ask: Ask, name: str) -> tuple[int, int]:
    given = await ask(22, txn.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000), 4)
    assert given.error_code == 0
    return given.producer_id, given.producer_epoch


async def begun(ask: Ask, driver: tuple[int, int]) -> tuple[int, int]:
    given = await ask(20_001, attempted(ATTEMPT, driver), 0)
    return given.producer_id, given.producer_epoch


async def joined(ask: Ask) -> str:
    member = (await ask(11, joining(CLASSIC), 3)).member_id
    assignment = groups.SyncGroupRequestAssignment(member_id=member, assignment=b"all")
    await ask(14, syncing(member, [assignment]), 3)
    return str(member)


# -- requests ---------------------------------------------------------------------------------------------


def of(producer: tuple[int, int]) -> dict[str, Any]:
    return {"producer_id": producer[0], "producer_epoch": producer[1]}


def sharing(member: str, group: str, epoch: int = 0) -> shares.ShareGroupHeartbeatRequest:
    return shares.ShareGroupHeartbeatRequest(
        group_id=group, member_id=member, member_epoch=epoch, subscribed_topic_names=None if epoch else [T]
    )


def produced(producer: tuple[int, int] | None = None, **reference: Any) -> produce.ProduceRequest:
    part = produce.PartitionProduceData(index=0, records=batch(producer))
    data = produce.TopicProduceData(**(reference or {"name": T}), partition_data=[part])
    return produce.ProduceRequest(
        acks=-1, timeout_ms=1_000, topic_data=[data], transactional_id=X if producer else None
    )


def fetched(**fields: Any) -> fetch.FetchRequest:
    reference = {name: fields.pop(name) for name in ("topic_id",) if name in fields}
    part = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    wanted = fetch.FetchTopic(**(reference or {"topic": T}), partitions=[part])
    return fetch.FetchRequest(**{"topics": [wanted], "max_wait_ms": 0, "session_epoch": -1, **fields})


def listed() -> fetch.ListOffsetsRequest:
    part = fetch.ListOffsetsPartition(partition_index=0, timestamp=-1)
    return fetch.ListOffsetsRequest(replica_id=-1, topics=[fetch.ListOffsetsTopic(name=T, partitions=[part])])


def epochs() -> fetch.OffsetForLeaderEpochRequest:
    part = fetch.OffsetForLeaderPartition(partition=0, leader_epoch=0)
    return fetch.OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[fetch.OffsetForLeaderTopic(topic=T, partitions=[part])]
    )


def named(name: str = T, **fields: Any) -> metadata.MetadataRequest:
    return metadata.MetadataRequest(
        **{"topics": [metadata.MetadataRequestTopic(name=name)], "allow_auto_topic_creation": False, **fields}
    )


def by_id(w: World) -> metadata.MetadataRequest:
    return named(topics=[metadata.MetadataRequestTopic(name=None, topic_id=w.topic_id)])


def committed(**reference: Any) -> offsets.OffsetCommitRequest:
    part = offsets.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    wanted = offsets.OffsetCommitRequestTopic(**(reference or {"name": T}), partitions=[part])
    return offsets.OffsetCommitRequest(group_id=G, topics=[wanted])


def positions() -> offsets.OffsetFetchRequest:
    wanted = offsets.OffsetFetchRequestTopic(name=T, partition_indexes=[0])
    return offsets.OffsetFetchRequest(group_id=G, topics=[wanted])


def positions_of_groups(*wanted: offsets.OffsetFetchRequestTopics) -> offsets.OffsetFetchRequest:
    asked = offsets.OffsetFetchRequestGroup(group_id=G, topics=list(wanted) or None)
    return offsets.OffsetFetchRequest(groups=[asked])


def forgotten() -> offsets.OffsetDeleteRequest:
    part = offsets.OffsetDeleteRequestPartition(partition_index=0)
    return offsets.OffsetDeleteRequest(
        group_id=G, topics=[offsets.OffsetDeleteRequestTopic(name=T, partitions=[part])]
    )


def joining(name: str) -> groups.JoinGroupRequest:
    return groups.JoinGroupRequest(
        group_id=name,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=[groups.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


def syncing(member: str, assignments: Any = ()) -> groups.SyncGroupRequest:
    return groups.SyncGroupRequest(
        group_id=CLASSIC, generation_id=1, member_id=member, assignments=list(assignments)
    )


def consuming(member: str, epoch: int, name: str = CONSUMER) -> groups.ConsumerGroupHeartbeatRequest:
    return groups.ConsumerGroupHeartbeatRequest(
        group_id=name,
        member_id=member,
        member_epoch=epoch,
        rebalance_timeout_ms=30_000,
        subscribed_topic_names=[T],
        topic_partitions=[],
    )


def added(producer_id: int, epoch: int) -> txn.AddPartitionsToTxnRequest:
    return txn.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=X,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=[txn.AddPartitionsToTxnTopic(name=T, partitions=[0])],
    )


def added_by_broker(w: World) -> txn.AddPartitionsToTxnRequest:
    wanted = [txn.AddPartitionsToTxnTopic(name=T, partitions=[0])]
    return txn.AddPartitionsToTxnRequest(
        transactions=[txn.AddPartitionsToTxnTransaction(transactional_id=X, topics=wanted, **of(w.producer))]
    )


def pending(w: World) -> txn.TxnOffsetCommitRequest:
    part = txn.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    wanted = [txn.TxnOffsetCommitRequestTopic(name=T, partitions=[part])]
    return txn.TxnOffsetCommitRequest(transactional_id=X, group_id=G, topics=wanted, **of(w.producer))


def marked(w: World) -> txn.WriteTxnMarkersRequest:
    wanted = [txn.WritableTxnMarkerTopic(name=T, partition_indexes=[0])]
    return txn.WriteTxnMarkersRequest(
        markers=[txn.WritableTxnMarker(topics=wanted, coordinator_epoch=0, **of(w.producer))]
    )


def attempted(name: str, driver: tuple[int, int]) -> semel.BeginAttemptRequest:
    return semel.BeginAttemptRequest(
        transactional_id=name,
        driver_transactional_id=DRIVER,
        driver_producer_id=driver[0],
        driver_producer_epoch=driver[1],
    )


def decided(w: World) -> semel.CommitTransactionsRequest:
    part = semel.CommitTransactionsPartition(partition_index=0, committed_offset=1)
    return semel.CommitTransactionsRequest(
        transactional_id=DRIVER,
        transactions=[semel.CommitTransactionsTransaction(transactional_id=ATTEMPT, **of(w.attempt))],
        group_id=G,
        topics=[semel.CommitTransactionsTopic(name=T, partitions=[part])],
        **of(w.driver),
    )


def described(kind: int, name: str) -> configs.DescribeConfigsRequest:
    return configs.DescribeConfigsRequest(
        resources=[configs.DescribeConfigsResource(resource_type=kind, resource_name=name)]
    )


CHANGED = {
    2: ("retention.ms", "1000000"),
    4: ("message.max.bytes", "1048588"),
    32: ("consumer.session.timeout.ms", "50000"),
}
"""A config and a value for each type of resource."""


def altered(kind: int = 2, name: str = T) -> configs.AlterConfigsRequest:
    config, value = CHANGED[kind]
    wanted = [configs.AlterableConfig(name=config, value=value)]
    return configs.AlterConfigsRequest(
        resources=[configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=wanted)]
    )


def altered_in_part(kind: int = 2, name: str = T) -> configs.IncrementalAlterConfigsRequest:
    config, value = CHANGED[kind]
    wanted = [configs.IncrementalAlterConfigsAlterableConfig(name=config, value=value)]
    return configs.IncrementalAlterConfigsRequest(
        resources=[
            configs.IncrementalAlterConfigsAlterConfigsResource(
                resource_type=kind, resource_name=name, configs=wanted
            )
        ]
    )


def moved_to(path: str) -> placement.AlterReplicaLogDirsRequest:
    moved = [placement.AlterReplicaLogDirTopic(name=T, partitions=[0])]
    return placement.AlterReplicaLogDirsRequest(dirs=[placement.AlterReplicaLogDir(path=path, topics=moved)])


def cancelled() -> placement.AlterPartitionReassignmentsRequest:
    part = placement.ReassignablePartition(partition_index=0, replicas=None)
    return placement.AlterPartitionReassignmentsRequest(
        topics=[placement.ReassignableTopic(name=T, partitions=[part])]
    )


def elected() -> placement.ElectLeadersRequest:
    wanted = [placement.ElectionTopicPartitions(topic=T, partitions=[0])]
    return placement.ElectLeadersRequest(topic_partitions=wanted)


def quorum() -> quorums.DescribeQuorumRequest:
    part = quorums.QuorumPartitionRequest(partition_index=0)
    topic = quorums.QuorumTopicRequest(topic_name=T, partitions=[part])
    return quorums.DescribeQuorumRequest(topics=[topic])


def featured() -> configs.UpdateFeaturesRequest:
    update = configs.FeatureUpdateKey(feature="transaction.version", max_version_level=1, upgrade_type=2)
    return configs.UpdateFeaturesRequest(feature_updates=[update])


def created(name: str = NEW) -> topics.CreateTopicsRequest:
    return topics.CreateTopicsRequest(
        topics=[topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1)]
    )


def emptied() -> topics.DeleteRecordsRequest:
    part = topics.DeleteRecordsPartition(partition_index=0, offset=1)
    return topics.DeleteRecordsRequest(topics=[topics.DeleteRecordsTopic(name=T, partitions=[part])])


ACL: dict[str, Any] = {"principal": "User:bob", "host": "*", "operation": 3, "permission_type": 3}
ACL_FILTER: dict[str, Any] = {
    "resource_type_filter": 1,
    "pattern_type_filter": 1,
    "operation": 1,
    "permission_type": 1,
}
NOBODY: dict[str, Any] = {
    "resource_name_filter": None,
    "principal_filter": "User:nobody",
    "host_filter": None,
}


def granted() -> security.CreateAclsRequest:
    creation = security.AclCreation(resource_type=2, resource_name="u", **ACL)
    return security.CreateAclsRequest(creations=[creation])


def revoked() -> security.DeleteAclsRequest:
    return security.DeleteAclsRequest(filters=[security.DeleteAclsFilter(**ACL_FILTER, **NOBODY)])


def user() -> security.AlterUserScramCredentialsRequest:
    upsertion = security.ScramCredentialUpsertion(
        name="bob", mechanism=1, iterations=4_096, salt=b"salt" * 4, salted_password=b"p" * 32
    )
    return security.AlterUserScramCredentialsRequest(upsertions=[upsertion])


def limits() -> quotas.DescribeClientQuotasRequest:
    return quotas.DescribeClientQuotasRequest()


def limited() -> quotas.AlterClientQuotasRequest:
    entity = [quotas.AlterClientQuotasEntity(entity_type="user", entity_name="bob")]
    change = quotas.AlterClientQuotasOp(key="producer_byte_rate", value=1_000.0)
    return quotas.AlterClientQuotasRequest(
        entries=[quotas.AlterClientQuotasEntry(entity=entity, ops=[change])]
    )
