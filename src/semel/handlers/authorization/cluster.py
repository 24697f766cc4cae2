"""The APIs that need a right on the cluster and are refused as a whole: ACLs, users, quotas and others."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from semel.broker.commit.promise import resolved
from semel.core.security.acls import Operation
from semel.handlers.authorization.access import CLUSTER_DENIED, MESSAGES, Access, Guard
from semel.wire.api_key import ApiKey
from semel.wire.messages.configs import ListConfigResourcesResponse, UpdateFeaturesResponse
from semel.wire.messages.placement import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    PartitionElectionResult,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
)
from semel.wire.messages.quorum import (
    AddRaftVoterResponse,
    DescribeQuorumResponse,
    RemoveRaftVoterResponse,
    UnregisterBrokerResponse,
)
from semel.wire.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterClientQuotasResult,
    DescribeClientQuotasResponse,
)
from semel.wire.messages.security import (
    AclCreationResult,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from semel.wire.messages.topics import DescribeLogDirsResponse

MESSAGE: Final = MESSAGES[CLUSTER_DENIED]

Refuse = Callable[[Any], Any]
"""Makes the response of a request that is refused."""


def _guard(operation: Operation, refuse: Refuse) -> Guard:
    return partial(_on_cluster, operation, refuse)


def _on_cluster(operation: Operation, refuse: Refuse, access: Access, request: Any) -> Awaitable[Any]:
    if access.may_cluster(operation):
        return access.pass_on(request)
    return resolved(refuse(request))


def _log_dirs(request: Any) -> DescribeLogDirsResponse:
    return DescribeLogDirsResponse(error_code=CLUSTER_DENIED)


def _reassignments(request: ListPartitionReassignmentsRequest) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(
        error_code=CLUSTER_DENIED,
        error_message=MESSAGE,
        topics=[
            OngoingTopicReassignment(
                name=topic.name,
                partitions=[
                    OngoingPartitionReassignment(partition_index=each) for each in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ],
    )


def _moved_directories(request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(
                topic_name=topic.name,
                partitions=[
                    AlterReplicaLogDirPartitionResult(partition_index=index, error_code=CLUSTER_DENIED)
                    for index in topic.partitions
                ],
            )
            for each in request.dirs
            for topic in each.topics
        ]
    )


def _elections(request: ElectLeadersRequest) -> ElectLeadersResponse:
    refused: dict[str, Any] = {"error_code": CLUSTER_DENIED, "error_message": MESSAGE}
    return ElectLeadersResponse(
        error_code=CLUSTER_DENIED,
        replica_election_results=[
            ReplicaElectionResult(
                topic=each.topic,
                partition_result=[
                    PartitionElectionResult(partition_id=index, **refused) for index in each.partitions
                ],
            )
            for each in request.topic_partitions or ()
        ],
    )


def _moved(request: AlterPartitionReassignmentsRequest) -> AlterPartitionReassignmentsResponse:
    refused: dict[str, Any] = {"error_code": CLUSTER_DENIED, "error_message": MESSAGE}
    return AlterPartitionReassignmentsResponse(
        **refused,
        responses=[
            ReassignableTopicResponse(
                name=each.name,
                partitions=[
                    ReassignablePartitionResponse(partition_index=part.partition_index, **refused)
                    for part in each.partitions
                ],
            )
            for each in request.topics
        ],
    )


def _quorum(request: Any) -> DescribeQuorumResponse:
    return DescribeQuorumResponse(error_code=CLUSTER_DENIED, error_message=MESSAGE)


def _unregistered(request: Any) -> UnregisterBrokerResponse:
    return UnregisterBrokerResponse(error_code=CLUSTER_DENIED, error_message=MESSAGE)


def _added_voter(request: Any) -> AddRaftVoterResponse:
    return AddRaftVoterResponse(error_code=CLUSTER_DENIED, error_message=MESSAGE)


def _removed_voter(request: Any) -> RemoveRaftVoterResponse:
    return RemoveRaftVoterResponse(error_code=CLUSTER_DENIED, error_message=MESSAGE)


def _resources(request: Any) -> ListConfigResourcesResponse:
    return ListConfigResourcesResponse(error_code=CLUSTER_DENIED)


def _features(request: Any) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(error_code=CLUSTER_DENIED, error_message=MESSAGE)


def _acls(request: Any) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=CLUSTER_DENIED, error_message=MESSAGE)


def _created_acls(request: CreateAclsRequest) -> CreateAclsResponse:
    refused = AclCreationResult(error_code=CLUSTER_DENIED, error_message=MESSAGE)
    return CreateAclsResponse(results=[refused] * len(request.creations))


def _deleted_acls(request: DeleteAclsRequest) -> DeleteAclsResponse:
    refused = DeleteAclsFilterResult(error_code=CLUSTER_DENIED, error_message=MESSAGE)
    return DeleteAclsResponse(filter_results=[refused] * len(request.filters))


def _users(request: DescribeUserScramCredentialsRequest) -> DescribeUserScramCredentialsResponse:
    refused = DescribeUserScramCredentialsResult(error_code=CLUSTER_DENIED, error_message=None)
    return DescribeUserScramCredentialsResponse(
        error_code=CLUSTER_DENIED, error_message=None, results=[refused] * len(request.users or ())
    )


def _altered_users(request: AlterUserScramCredentialsRequest) -> AlterUserScramCredentialsResponse:
    names = {each.name for each in request.deletions} | {each.name for each in request.upsertions}
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(user=each, error_code=CLUSTER_DENIED, error_message=MESSAGE)
            for each in sorted(names)
        ]
    )


def _quotas(request: Any) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_code=CLUSTER_DENIED, error_message=None, entries=None)


def _altered_quotas(request: AlterClientQuotasRequest) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        entries=[
            AlterClientQuotasResult(error_code=CLUSTER_DENIED, error_message=MESSAGE, entity=each.entity)
            for each in request.entries
        ]
    )


GUARDS: dict[int, Guard] = {
    ApiKey.DESCRIBE_ACLS: _guard(Operation.DESCRIBE, _acls),
    ApiKey.CREATE_ACLS: _guard(Operation.ALTER, _created_acls),
    ApiKey.DELETE_ACLS: _guard(Operation.ALTER, _deleted_acls),
    ApiKey.ALTER_REPLICA_LOG_DIRS: _guard(Operation.ALTER, _moved_directories),
    ApiKey.DESCRIBE_LOG_DIRS: _guard(Operation.DESCRIBE, _log_dirs),
    ApiKey.ELECT_LEADERS: _guard(Operation.ALTER, _elections),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _guard(Operation.ALTER, _moved),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _guard(Operation.DESCRIBE, _reassignments),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _guard(Operation.DESCRIBE_CONFIGS, _quotas),
    ApiKey.ALTER_CLIENT_QUOTAS: _guard(Operation.ALTER_CONFIGS, _altered_quotas),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _guard(Operation.DESCRIBE, _users),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _guard(Operation.ALTER, _altered_users),
    ApiKey.DESCRIBE_QUORUM: _guard(Operation.DESCRIBE, _quorum),
    ApiKey.UPDATE_FEATURES: _guard(Operation.ALTER, _features),
    ApiKey.UNREGISTER_BROKER: _guard(Operation.ALTER, _unregistered),
    ApiKey.LIST_CONFIG_RESOURCES: _guard(Operation.DESCRIBE_CONFIGS, _resources),
    ApiKey.ADD_RAFT_VOTER: _guard(Operation.ALTER, _added_voter),
    ApiKey.REMOVE_RAFT_VOTER: _guard(Operation.ALTER, _removed_voter),
}
