"""DescribeQuorum, AddRaftVoter, RemoveRaftVoter, UnregisterBroker.

Semel has no metadata quorum: the ledger holds the metadata, and every broker of a cluster uses it. Brokers
join a cluster when they start and leave it when they stop, without registration. The responses say so.
"""

from typing import Final

from semel.broker.broker import Broker
from semel.core.types import ErrorCode
from semel.handlers.context import Handler, RequestContext
from semel.handlers.rights import ALTER, CLUSTER_DENIED, DESCRIBE, MESSAGES, rights_of
from semel.wire.api_key import ApiKey
from semel.wire.messages.quorum import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)

NO_QUORUM: Final = (
    "There is no metadata quorum: the metadata is in the ledger, which all brokers use. 'semel cluster "
    "status' lists the brokers of a cluster."
)


async def describe_quorum(
    broker: Broker, request: DescribeQuorumRequest, context: RequestContext
) -> DescribeQuorumResponse:
    """DescribeQuorum v0–v2: there is no quorum.

    Behaviour: UNSUPPORTED_VERSION, which tools know from Kafka clusters without a quorum. Voters and a leader
        would be a fiction: no majority of brokers is needed for anything. As in Kafka, an error of the whole
        request names no topics.
    Versions:  v2 error messages.
    """
    if not rights_of(broker, request, context).cluster(DESCRIBE):
        return DescribeQuorumResponse(error_code=CLUSTER_DENIED, error_message=MESSAGES[CLUSTER_DENIED])
    return DescribeQuorumResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=NO_QUORUM)


async def add_raft_voter(
    broker: Broker, request: AddRaftVoterRequest, context: RequestContext
) -> AddRaftVoterResponse:
    """AddRaftVoter v0–v1: UNSUPPORTED_VERSION, as in a Kafka cluster whose quorum cannot change.

    Behaviour: always refused; there is no quorum.
    Versions:  v1 when to answer.
    """
    if not rights_of(broker, request, context).cluster(ALTER):
        return AddRaftVoterResponse(error_code=CLUSTER_DENIED, error_message=MESSAGES[CLUSTER_DENIED])
    return AddRaftVoterResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=NO_QUORUM)


async def remove_raft_voter(
    broker: Broker, request: RemoveRaftVoterRequest, context: RequestContext
) -> RemoveRaftVoterResponse:
    """RemoveRaftVoter v0: UNSUPPORTED_VERSION, as in a Kafka cluster whose quorum cannot change.

    Behaviour: always refused; there is no quorum.
    Versions:  v0.
    """
    if not rights_of(broker, request, context).cluster(ALTER):
        return RemoveRaftVoterResponse(error_code=CLUSTER_DENIED, error_message=MESSAGES[CLUSTER_DENIED])
    return RemoveRaftVoterResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=NO_QUORUM)


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
    ApiKey.DESCRIBE_QUORUM: describe_quorum,
    ApiKey.UNREGISTER_BROKER: unregister_broker,
    ApiKey.ADD_RAFT_VOTER: add_raft_voter,
    ApiKey.REMOVE_RAFT_VOTER: remove_raft_voter,
}
