"""Configs: DescribeConfigs and AlterConfigs on topics and groups, and on the cluster for brokers."""

from collections import Counter
from typing import Any, Final, TypeAlias

from semel.core.dynamic_configs import BROKER
from semel.core.dynamic_configs import GROUP as GROUP_CONFIGS
from semel.core.security.acls import CLUSTER_NAME, Operation, ResourceType
from semel.core.types import ErrorCode
from semel.handlers.authorization.access import (
    CLUSTER,
    CLUSTER_DENIED,
    GROUP,
    GROUP_DENIED,
    MESSAGES,
    TOPIC,
    TOPIC_DENIED,
    Access,
    Guard,
    except_for,
)
from semel.handlers.configs import BROKER_LOGGER, CLIENT_METRICS
from semel.handlers.configs import TOPIC as TOPIC_CONFIGS
from semel.wire.api_key import ApiKey
from semel.wire.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    IncrementalAlterConfigsAlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
)

_DENIED: Final[dict[int, tuple[ResourceType, ErrorCode]]] = {
    TOPIC_CONFIGS: (TOPIC, TOPIC_DENIED),
    GROUP_CONFIGS: (GROUP, GROUP_DENIED),
    BROKER: (CLUSTER, CLUSTER_DENIED),
    BROKER_LOGGER: (CLUSTER, CLUSTER_DENIED),
    CLIENT_METRICS: (CLUSTER, CLUSTER_DENIED),
}
"""By type of config resource: the ACL resource to check, and the error. The handler refuses other types."""


def _error(access: Access, operation: Operation, kind: int, name: str) -> ErrorCode:
    if kind not in _DENIED:
        return ErrorCode.NONE
    resource_type, error = _DENIED[kind]
    may = access.may(operation, resource_type, CLUSTER_NAME if resource_type is CLUSTER else name)
    return ErrorCode.NONE if may else error


async def describe_configs(access: Access, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """DescribeConfigs on each resource."""
    errors = [
        _error(access, Operation.DESCRIBE_CONFIGS, each.resource_type, each.resource_name)
        for each in request.resources
    ]
    denied = [each for each, error in zip(request.resources, errors, strict=True) if error]
    request.resources = except_for(request.resources, denied)
    response: DescribeConfigsResponse = await access.pass_on(request)
    response.results += [
        DescribeConfigsResult(
            error_code=error,
            error_message=MESSAGES[error],
            resource_type=each.resource_type,
            resource_name=each.resource_name,
        )
        for each, error in zip(denied, filter(None, errors), strict=True)
    ]
    return response


Alteration: TypeAlias = AlterConfigsRequest | IncrementalAlterConfigsRequest
_SHOWN_AS: Final[dict[type[Alteration], Any]] = {
    AlterConfigsRequest: AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest: IncrementalAlterConfigsAlterConfigsResourceResponse,
}
"""The entry of a resource in the response, whose fields are the same for both requests."""


async def alter_configs(access: Access, request: Alteration) -> Any:
    """AlterConfigs on each resource. Repeated resources stay in the request: the handler refuses them."""
    times = Counter((each.resource_type, each.resource_name) for each in request.resources)
    denied: dict[tuple[int, str], ErrorCode] = {}
    for (kind, name), count in times.items():
        error = _error(access, Operation.ALTER_CONFIGS, kind, name) if count == 1 else ErrorCode.NONE
        if error:
            denied[kind, name] = error
    resources: list[Any] = request.resources
    resources[:] = [each for each in resources if (each.resource_type, each.resource_name) not in denied]
    response = await access.pass_on(request)
    response.responses += [
        _SHOWN_AS[type(request)](
            error_code=error, error_message=MESSAGES[error], resource_type=kind, resource_name=name
        )
        for (kind, name), error in denied.items()
    ]
    return response


GUARDS: dict[int, Guard] = {
    ApiKey.DESCRIBE_CONFIGS: describe_configs,
    ApiKey.ALTER_CONFIGS: alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: alter_configs,
}
