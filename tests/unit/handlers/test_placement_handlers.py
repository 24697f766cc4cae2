"""What tools ask about leaders, replicas and the quorum, and what is true of them here."""

from pathlib import Path
from typing import Any

import pytest
from support.brokers.in_memory import broker_in_memory, make_topic, send

from semel.broker.broker import Broker
from semel.broker.ownership import Leader
from semel.config import Settings
from semel.core.types import ErrorCode
from semel.handlers.configs import BROKER_LOGGER, CLIENT_METRICS, TOPIC
from semel.wire.messages import APIS
from semel.wire.messages.configs import (
    IncrementalAlterConfigsAlterableConfig,
    IncrementalAlterConfigsAlterConfigsResource,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
)
from semel.wire.messages.placement import (
    AddRaftVoterRequest,
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    DescribeQuorumRequest,
    ElectionTopicPartitions,
    ElectLeadersRequest,
    QuorumPartitionRequest,
    QuorumTopicRequest,
    ReassignablePartition,
    ReassignableTopic,
    RemoveRaftVoterRequest,
    UnregisterBrokerRequest,
)
from semel.wire.messages.security import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)

MOVE_DIRECTORY, ELECT, REASSIGN, QUORUM, UNREGISTER, LIST_CONFIGS, ADD_VOTER, REMOVE_VOTER = (
    *(34, 43, 45),
    *(55, 64, 74, 80, 81),
)
BROKER, GROUP = 4, 32


def versions(key: int) -> range:
    return range(APIS[key].min_version, APIS[key].max_version + 1)


@pytest.mark.parametrize("version", versions(ELECT))
async def test_no_election_is_needed(version: int) -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a", partitions=2)
        wanted = [
            ElectionTopicPartitions(topic="a", partitions=[0, 1, 2]),
            ElectionTopicPartitions(topic="missing", partitions=[0]),
        ]
        answer = await send(broker, ELECT, ElectLeadersRequest(topic_partitions=wanted), version)
        assert answer.error_code == ErrorCode.NONE
        found = {
            (topic.topic, each.partition_id): each.error_code
            for topic in answer.replica_election_results
            for each in topic.partition_result
        }
        assert found == {
            ("a", 0): ErrorCode.ELECTION_NOT_NEEDED,
            ("a", 1): ErrorCode.ELECTION_NOT_NEEDED,
            ("a", 2): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("missing", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        everything = await send(broker, ELECT, ElectLeadersRequest(topic_partitions=None), version)
        assert (everything.error_code, everything.replica_election_results) == (ErrorCode.NONE, [])


async def test_an_unknown_kind_of_election_is_refused() -> None:
    async with broker_in_memory() as broker:
        request = ElectLeadersRequest(election_type=2, topic_partitions=[])
        assert (await send(broker, ELECT, request)).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("kind", "error"),
    [(0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE), (1, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)],
)
async def test_a_partition_without_a_leader_gets_one_by_itself(
    monkeypatch: pytest.MonkeyPatch, kind: int, error: ErrorCode
) -> None:
    """In a cluster, between the end of a lease and its next owner."""
    async with broker_in_memory() as broker:
        await make_topic(broker, "a")
        monkeypatch.setattr(broker.ownership, "leader", lambda partition: Leader(-1, 0))
        wanted = [ElectionTopicPartitions(topic="a", partitions=[0])]
        request = ElectLeadersRequest(election_type=kind, topic_partitions=wanted)
        (topic,) = (await send(broker, ELECT, request)).replica_election_results
        assert [each.error_code for each in topic.partition_result] == [error]
        assert error.retriable


@pytest.mark.parametrize("version", versions(REASSIGN))
async def test_a_partition_stays_where_it_is(version: int) -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a", partitions=5)

        def part(index: int, replicas: list[int] | None) -> ReassignablePartition:
            return ReassignablePartition(partition_index=index, replicas=replicas)

        parts = [part(0, [0]), part(1, [1]), part(2, [0, 1]), part(3, None), part(4, []), part(5, [0])]
        request = AlterPartitionReassignmentsRequest(
            topics=[
                ReassignableTopic(name="a", partitions=parts),
                ReassignableTopic(name="missing", partitions=[part(0, [0])]),
            ]
        )
        answer = await send(broker, REASSIGN, request, version)
        assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
        assert answer.allow_replication_factor_change
        of_a, of_missing = answer.responses
        assert [each.error_code for each in of_a.partitions] == [
            ErrorCode.NONE,
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert "semel cluster drain" in of_a.partitions[1].error_message
        assert "exactly one replica" in of_a.partitions[2].error_message
        assert [each.error_code for each in of_missing.partitions] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


@pytest.mark.parametrize("version", versions(MOVE_DIRECTORY))
async def test_all_partitions_are_in_the_one_directory(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await Broker.open(Settings(), tmp_path)
    try:
        await make_topic(broker, "a")

        async def moved(path: str, index: int = 0, name: str = "a") -> list[int]:
            topic = AlterReplicaLogDirTopic(name=name, partitions=[index])
            request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=[topic])])
            (result,) = (await send(broker, MOVE_DIRECTORY, request, version)).results
            assert result.topic_name == name
            return [each.error_code for each in result.partitions]

        assert await moved(str(tmp_path)) == [ErrorCode.NONE]
        assert await moved("/elsewhere") == [ErrorCode.LOG_DIR_NOT_FOUND]
        assert await moved(str(tmp_path), 1) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await moved(str(tmp_path), 0, "missing") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        monkeypatch.setattr(broker.ownership, "leads", lambda partition: False)
        assert await moved(str(tmp_path)) == [ErrorCode.REPLICA_NOT_AVAILABLE]
    finally:
        await broker.close()


@pytest.mark.parametrize("version", versions(QUORUM))
async def test_there_is_no_quorum(version: int) -> None:
    async with broker_in_memory() as broker:
        asked = QuorumTopicRequest(
            topic_name="__cluster_metadata", partitions=[QuorumPartitionRequest(partition_index=0)]
        )
        answer = await send(broker, QUORUM, DescribeQuorumRequest(topics=[asked]), version)
        assert (answer.error_code, answer.topics) == (ErrorCode.UNSUPPORTED_VERSION, [])
        assert not ErrorCode(answer.error_code).retriable, "a tool would ask again until its time is over"
        assert version < 2 or "no metadata quorum" in answer.error_message


async def test_voters_cannot_be_added_or_removed() -> None:
    async with broker_in_memory() as broker:
        for key, request in (
            (ADD_VOTER, AddRaftVoterRequest(cluster_id=None, voter_id=1)),
            (REMOVE_VOTER, RemoveRaftVoterRequest(cluster_id=None, voter_id=1)),
        ):
            for version in versions(key):
                answer = await send(broker, key, request, version)
                assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
                assert "no metadata quorum" in answer.error_message


@pytest.mark.parametrize(
    ("node_id", "error", "says"),
    [(0, ErrorCode.INVALID_REQUEST, "is running"), (1, ErrorCode.BROKER_ID_NOT_REGISTERED, "not in the")],
)
async def test_brokers_are_not_registered(node_id: int, error: ErrorCode, says: str) -> None:
    async with broker_in_memory() as broker:
        answer = await send(broker, UNREGISTER, UnregisterBrokerRequest(broker_id=node_id))
        assert answer.error_code == error
        assert says in answer.error_message


async def test_config_resources_are_listed_by_their_kinds() -> None:
    """KIP-1142; version 0 asks for the resources of client metrics (KIP-714)."""
    async with broker_in_memory() as broker:
        await make_topic(broker, "a")
        await make_topic(broker, "b")
        config = IncrementalAlterConfigsAlterableConfig(name="consumer.session.timeout.ms", value="50000")
        resource = IncrementalAlterConfigsAlterConfigsResource(
            resource_type=GROUP, resource_name="g", configs=[config]
        )
        await send(broker, 44, IncrementalAlterConfigsRequest(resources=[resource]))

        async def listed(*kinds: int, version: int = 1) -> Any:
            request = ListConfigResourcesRequest(resource_types=list(kinds))
            answer = await send(broker, LIST_CONFIGS, request, version)
            assert answer.error_code == ErrorCode.NONE
            return {(each.resource_type, each.resource_name) for each in answer.config_resources}

        topics, brokers, groups = {(TOPIC, "a"), (TOPIC, "b")}, {(BROKER, "0")}, {(GROUP, "g")}
        assert await listed() == topics | brokers | groups
        assert await listed(TOPIC, GROUP) == topics | groups
        assert await listed(BROKER) == brokers
        assert await listed(BROKER_LOGGER, CLIENT_METRICS) == set()
        assert await listed(version=0) == set()
        answer = await send(broker, LIST_CONFIGS, ListConfigResourcesRequest(resource_types=[TOPIC, 99]))
        assert (answer.error_code, answer.config_resources) == (ErrorCode.UNSUPPORTED_VERSION, [])


@pytest.mark.parametrize(
    ("key", "request_"),
    [
        (38, CreateDelegationTokenRequest(owner_principal_type=None, owner_principal_name=None)),
        (39, RenewDelegationTokenRequest(hmac=b"x")),
        (40, ExpireDelegationTokenRequest(hmac=b"x")),
        (41, DescribeDelegationTokenRequest(owners=None)),
    ],
)
async def test_there_are_no_delegation_tokens(key: int, request_: Any) -> None:
    async with broker_in_memory() as broker:
        for version in versions(key):
            answer = await send(broker, key, request_, version)
            assert answer.error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
