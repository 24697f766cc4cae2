"""DescribeCluster, UnregisterBroker, FindCoordinator: the nodes, and which of them coordinates what.

Every node has every role. Clients get the addresses of the listener that they connected to; a node without
that listener is hidden from them.
"""

from typing import Final

from semel.broker.broker import Broker
from semel.core.types import ErrorCode
from semel.handlers.context import Handler, RequestContext
from semel.handlers.leadership import controller, reachable
from semel.handlers.rights import (
    ALTER,
    CLUSTER,
    CLUSTER_DENIED,
    DESCRIBE,
    GROUP,
    GROUP_DENIED,
    ID_DENIED,
    MESSAGES,
    TRANSACTIONAL_ID,
    RequestRights,
    rights_of,
)
from semel.wire.api_key import ApiKey
from semel.wire.messages.metadata import (
    Coordinator,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from semel.wire.messages.placement import UnregisterBrokerRequest, UnregisterBrokerResponse

_ENDPOINT_BROKERS, _ENDPOINT_CONTROLLERS = 1, 2
_KEY_TYPES: Final = {0: (GROUP, GROUP_DENIED), 1: (TRANSACTIONAL_ID, ID_DENIED)}
"""Groups and transactional ids. There is no share coordinator (key type 2)."""
SEVERAL_KEYS: Final = 4
"""The version from which FindCoordinator has several keys."""


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
    response = DescribeClusterResponse(
        cluster_id=broker.cluster_id,
        controller_id=controller(broker, context),
        brokers=[
            DescribeClusterBroker(broker_id=node.node_id, host=host, port=port, rack=node.rack)
            for node, (host, port) in reachable(broker.ownership.nodes(), context)
        ],
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = cluster_operations(rights_of(broker, request, context))
    return response


def cluster_operations(rights: RequestRights) -> int:
    """The allowed operations on the cluster; none if it may not be described."""
    return rights.operations(CLUSTER) if rights.cluster(DESCRIBE) else 0


async def find_coordinator(
    broker: Broker, request: FindCoordinatorRequest, context: RequestContext
) -> FindCoordinatorResponse:
    """FindCoordinator v0–v6: the coordinator of a group or a transactional id.

    Behaviour: the node that owns the id. COORDINATOR_NOT_AVAILABLE while no node owns it, or if the owner
        lacks the client's listener. There is no share coordinator, so its key type is INVALID_REQUEST.
    Versions:  v1 transactional ids · v3 flexible · v4 several keys at once · v6 share groups.
    Differs:   never COORDINATOR_NOT_AVAILABLE on first use, because no internal topic has to be created.
    """
    denied = _denied(rights_of(broker, request, context), request, context.version)
    if context.version >= SEVERAL_KEYS:
        response = FindCoordinatorResponse()
        async for some in broker.slices.over(request.coordinator_keys):
            response.coordinators += [
                denied.get(key) or _coordinator(broker, request, context, key) for key in some
            ]
        return response
    answer = denied.get(request.key) or _coordinator(broker, request, context, request.key)
    return FindCoordinatorResponse(
        error_code=answer.error_code,
        error_message=answer.error_message,
        node_id=answer.node_id,
        host=answer.host,
        port=answer.port,
    )


def _denied(rights: RequestRights, request: FindCoordinatorRequest, version: int) -> dict[str, Coordinator]:
    """The answers for keys that may not be described."""
    if rights.are_all or request.key_type not in _KEY_TYPES:
        return {}
    resource_type, error = _KEY_TYPES[request.key_type]
    keys = request.coordinator_keys if version >= SEVERAL_KEYS else [request.key]
    _, refused = rights.split(dict.fromkeys(keys), lambda key: rights.may(DESCRIBE, resource_type, key))
    message = "" if version >= SEVERAL_KEYS else MESSAGES[error]
    return {
        key: Coordinator(key=key, error_code=error, error_message=message, node_id=-1, port=-1)
        for key in refused
    }


def _coordinator(
    broker: Broker, request: FindCoordinatorRequest, context: RequestContext, key: str
) -> Coordinator:
    if request.key_type not in _KEY_TYPES:
        error, message = ErrorCode.INVALID_REQUEST, f"Unknown coordinator type {request.key_type}."
    else:
        node = broker.ownership.node(broker.ownership.coordinator(key))
        endpoint = None if node is None else node.endpoint(context.listener)
        if node is not None and endpoint is not None:
            host, port = endpoint
            return Coordinator(key=key, node_id=node.node_id, host=host, port=port, error_message=None)
        error, message = ErrorCode.COORDINATOR_NOT_AVAILABLE, "The coordinator is not available."
    return Coordinator(key=key, node_id=-1, port=-1, error_code=error, error_message=message)


async def unregister_broker(
    broker: Broker, request: UnregisterBrokerRequest, context: RequestContext
) -> UnregisterBrokerResponse:
    """UnregisterBroker v0: always refused; brokers leave the cluster when they stop.

    Behaviour: INVALID_REQUEST for a live broker, BROKER_ID_NOT_REGISTERED for any other.
    Versions:  v0.
    Differs:   Kafka remembers brokers that were stopped until they are unregistered.
    """
    if not rights_of(broker, request, context).cluster(ALTER):
        return UnregisterBrokerResponse(error_code=CLUSTER_DENIED, error_message=MESSAGES[CLUSTER_DENIED])
    if broker.ownership.node(request.broker_id) is None:
        message = f"Broker {request.broker_id} is not in the cluster; brokers leave it when they stop."
        return UnregisterBrokerResponse(error_code=ErrorCode.BROKER_ID_NOT_REGISTERED, error_message=message)
    message = f"Broker {request.broker_id} is running. Stop it: it leaves the cluster by itself."
    return UnregisterBrokerResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=message)


HANDLERS: dict[int, Handler] = {
    ApiKey.FIND_COORDINATOR: find_coordinator,
    ApiKey.DESCRIBE_CLUSTER: describe_cluster,
    ApiKey.UNREGISTER_BROKER: unregister_broker,
}
