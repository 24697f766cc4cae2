"""APIs that are always refused, each with its answer: no broker of Semel has what they are about.

- Delegation tokens (KIP-48). The answers are those of a Kafka broker without a secret key for tokens.
- The metadata quorum: the ledger holds the metadata, and every broker of a cluster uses it. Brokers join a
  cluster when they start and leave it when they stop. Tools know the answers from Kafka clusters without a
  quorum, or whose quorum cannot change.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from semel.broker.broker import Broker
from semel.broker.commit.pending_commands import resolved
from semel.core.security.acls import Operation
from semel.core.types import ErrorCode
from semel.handlers.context import Handler, RequestContext
from semel.handlers.rights import ALTER, CLUSTER_DENIED, DESCRIBE, MESSAGES, rights_of
from semel.wire import messages as wire
from semel.wire.api_key import ApiKey
from semel.wire.schema import Request, Response

NO_QUORUM: Final = (
    "There is no metadata quorum: the metadata is in the ledger, which all brokers use. 'semel cluster "
    "status' lists the brokers of a cluster."
)
NO_TOKENS: Final = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
NEVER: Final = -1

Answer: TypeAlias = Callable[[Any, RequestContext], Response]  # Any: the request of its API


def _no_token(request: wire.CreateDelegationTokenRequest, context: RequestContext) -> Response:
    kind, _, name = context.principal.partition(":")
    return wire.CreateDelegationTokenResponse(
        error_code=NO_TOKENS,
        principal_type=request.owner_principal_type or kind,
        principal_name=request.owner_principal_name or name,
        token_requester_principal_type=kind,
        token_requester_principal_name=name,
        issue_timestamp_ms=NEVER,
        expiry_timestamp_ms=NEVER,
        max_timestamp_ms=NEVER,
    )


def _always(answer: Answer, documentation: str) -> Handler:
    def handler(broker: Broker, request: Request, context: RequestContext) -> Awaitable[Response]:
        return resolved(answer(request, context))

    handler.__doc__ = documentation
    return handler


def _without_quorum(
    response: type[wire.DescribeQuorumResponse | wire.AddRaftVoterResponse | wire.RemoveRaftVoterResponse],
    operation: Operation,
    documentation: str,
) -> Handler:
    """The handler of an API that needs a right on the cluster before it is refused for lack of a quorum."""

    def handler(broker: Broker, request: Request, context: RequestContext) -> Awaitable[Response]:
        if rights_of(broker, request, context).cluster(operation):
            return resolved(response(error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=NO_QUORUM))
        return resolved(response(error_code=CLUSTER_DENIED, error_message=MESSAGES[CLUSTER_DENIED]))

    handler.__doc__ = documentation
    return handler


HANDLERS: dict[int, Handler] = {
    ApiKey.CREATE_DELEGATION_TOKEN: _always(
        _no_token, "CreateDelegationToken v1–v3: DELEGATION_TOKEN_AUTH_DISABLED."
    ),
    ApiKey.RENEW_DELEGATION_TOKEN: _always(
        lambda *_: wire.RenewDelegationTokenResponse(error_code=NO_TOKENS, expiry_timestamp_ms=NEVER),
        "RenewDelegationToken v1–v2: DELEGATION_TOKEN_AUTH_DISABLED.",
    ),
    ApiKey.EXPIRE_DELEGATION_TOKEN: _always(
        lambda *_: wire.ExpireDelegationTokenResponse(error_code=NO_TOKENS, expiry_timestamp_ms=NEVER),
        "ExpireDelegationToken v1–v2: DELEGATION_TOKEN_AUTH_DISABLED.",
    ),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: _always(
        lambda *_: wire.DescribeDelegationTokenResponse(error_code=NO_TOKENS),
        "DescribeDelegationToken v1–v3: DELEGATION_TOKEN_AUTH_DISABLED.",
    ),
    ApiKey.DESCRIBE_QUORUM: _without_quorum(
        wire.DescribeQuorumResponse,
        DESCRIBE,
        "DescribeQuorum v0–v2: UNSUPPORTED_VERSION. As in Kafka, the response names no topics then.",
    ),
    ApiKey.ADD_RAFT_VOTER: _without_quorum(
        wire.AddRaftVoterResponse, ALTER, "AddRaftVoter v0–v1: UNSUPPORTED_VERSION."
    ),
    ApiKey.REMOVE_RAFT_VOTER: _without_quorum(
        wire.RemoveRaftVoterResponse, ALTER, "RemoveRaftVoter v0: UNSUPPORTED_VERSION."
    ),
}
