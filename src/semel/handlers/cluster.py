"""DescribeCluster, FindCoordinator: the nodes, and the coordinators of groups and transactions.

There is one node, which has every role. Clients get the address of the listener that they connected to.
"""

from typing import Final

from semel.broker.broker import Broker
from semel.core.types import ErrorCode
from semel.handlers.context import Handler, RequestContext
from semel.wire.messages.metadata import (
    Coordinator,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

CLUSTER_OPERATIONS: Final = sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))
"""All operations, because there is no access control; one bit per operation, numbered as in Kafka."""
_ENDPOINT_BROKERS, _ENDPOINT_CONTROLLERS = 1, 2
_COORDINATOR_KINDS: Final = frozenset({0, 1})
"""Groups and transactional ids. There are no share groups."""


async def describe_cluster(
    broker: Broker, request: DescribeClusterRequest, context: RequestContext
) -> DescribeClusterResponse:
    """DescribeCluster v0–v2: the cluster's id and its nodes.

    Behaviour: there are no separate controllers, so a request for them is MISMATCHED_ENDPOINT_TYPE.
    Versions:  v1 endpoint types · v2 fenced brokers (there are none).
    """
    if request.endpoint_type == _ENDPOINT_CONTROLLERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="This is a broker; there are no separate controllers.",
            endpoint_type=_ENDPOINT_BROKERS,
        )
    if request.endpoint_type != _ENDPOINT_BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"Unsupported endpoint type {request.endpoint_type}.",
            endpoint_type=_ENDPOINT_BROKERS,
        )
    host, port = broker.endpoints[context.listener]
    response = DescribeClusterResponse(
        cluster_id=broker.cluster_id,
        controller_id=broker.node_id,
        brokers=[DescribeClusterBroker(broker_id=broker.node_id, host=host, port=port)],
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response


async def find_coordinator(
    broker: Broker, request: FindCoordinatorRequest, context: RequestContext
) -> FindCoordinatorResponse:
    """FindCoordinator v0–v6: the coordinator of a group or a transactional id.

    Behaviour: always this node. There are no share groups, so their key type is INVALID_REQUEST.
    Versions:  v1 transactional ids · v3 flexible · v4 several keys at once · v6 share groups.
    Differs:   never COORDINATOR_NOT_AVAILABLE on first use: no internal topic has to be created first.
    """
    host, port = broker.endpoints[context.listener]
    answer = Coordinator(node_id=broker.node_id, host=host, port=port, error_message=None)
    if request.key_type not in _COORDINATOR_KINDS:
        answer = Coordinator(
            node_id=-1,
            port=-1,
            error_code=ErrorCode.INVALID_REQUEST,
            error_message=f"Unknown coordinator type {request.key_type}.",
        )
    if context.version >= 4:
        response = FindCoordinatorResponse()
        async for some in broker.slices.over(request.coordinator_keys):
            response.coordinators += [
                Coordinator(
                    key=key,
                    node_id=answer.node_id,
                    host=answer.host,
                    port=answer.port,
                    error_code=answer.error_code,
                    error_message=answer.error_message,
                )
                for key in some
            ]
        return response
    return FindCoordinatorResponse(
        error_code=answer.error_code,
        error_message=answer.error_message,
        node_id=answer.node_id,
        host=answer.host,
        port=answer.port,
    )


HANDLERS: dict[int, Handler] = {10: find_coordinator, 60: describe_cluster}
