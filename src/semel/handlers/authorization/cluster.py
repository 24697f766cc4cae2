"""The APIs that need a right on the cluster and are refused as a whole: ACLs, users, quotas and others."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from semel.broker.promise import resolved
from semel.core.security.acls import Operation
from semel.handlers.authorization.access import CLUSTER_DENIED, MESSAGES, Access, Guard
from semel.wire.messages.configs import UpdateFeaturesResponse
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
from semel.wire.messages.topics import (
    DescribeLogDirsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)

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
    29: _guard(Operation.DESCRIBE, _acls),
    30: _guard(Operation.ALTER, _created_acls),
    31: _guard(Operation.ALTER, _deleted_acls),
    35: _guard(Operation.DESCRIBE, _log_dirs),
    46: _guard(Operation.DESCRIBE, _reassignments),
    48: _guard(Operation.DESCRIBE_CONFIGS, _quotas),
    49: _guard(Operation.ALTER_CONFIGS, _altered_quotas),
    50: _guard(Operation.DESCRIBE, _users),
    51: _guard(Operation.ALTER, _altered_users),
    57: _guard(Operation.ALTER, _features),
}
