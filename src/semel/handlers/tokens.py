"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken, DescribeDelegationToken.

Delegation tokens (KIP-48) are not supported. The responses are those of a Kafka broker without a secret key
for tokens.
"""

from typing import Final

from semel.broker.broker import Broker
from semel.core.types import ErrorCode
from semel.handlers.context import Handler, RequestContext
from semel.wire.api_key import ApiKey
from semel.wire.messages.tokens import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

DISABLED: Final = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
NEVER: Final = -1


async def create_delegation_token(
    broker: Broker, request: CreateDelegationTokenRequest, context: RequestContext
) -> CreateDelegationTokenResponse:
    """CreateDelegationToken v1–v3: DELEGATION_TOKEN_AUTH_DISABLED.

    Behaviour: always refused.
    Versions:  v2 flexible · v3 owners.
    """
    kind, _, name = context.principal.partition(":")
    return CreateDelegationTokenResponse(
        error_code=DISABLED,
        principal_type=request.owner_principal_type or kind,
        principal_name=request.owner_principal_name or name,
        token_requester_principal_type=kind,
        token_requester_principal_name=name,
        issue_timestamp_ms=NEVER,
        expiry_timestamp_ms=NEVER,
        max_timestamp_ms=NEVER,
    )


async def renew_delegation_token(
    broker: Broker, request: RenewDelegationTokenRequest, context: RequestContext
) -> RenewDelegationTokenResponse:
    """RenewDelegationToken v1–v2: DELEGATION_TOKEN_AUTH_DISABLED.

    Behaviour: always refused.
    Versions:  v2 flexible.
    """
    return RenewDelegationTokenResponse(error_code=DISABLED, expiry_timestamp_ms=NEVER)


async def expire_delegation_token(
    broker: Broker, request: ExpireDelegationTokenRequest, context: RequestContext
) -> ExpireDelegationTokenResponse:
    """ExpireDelegationToken v1–v2: DELEGATION_TOKEN_AUTH_DISABLED.

    Behaviour: always refused.
    Versions:  v2 flexible.
    """
    return ExpireDelegationTokenResponse(error_code=DISABLED, expiry_timestamp_ms=NEVER)


async def describe_delegation_token(
    broker: Broker, request: DescribeDelegationTokenRequest, context: RequestContext
) -> DescribeDelegationTokenResponse:
    """DescribeDelegationToken v1–v3: DELEGATION_TOKEN_AUTH_DISABLED.

    Behaviour: always refused.
    Versions:  v2 flexible · v3 the requester of a token.
    """
    return DescribeDelegationTokenResponse(error_code=DISABLED)


HANDLERS: dict[int, Handler] = {
    ApiKey.CREATE_DELEGATION_TOKEN: create_delegation_token,
    ApiKey.RENEW_DELEGATION_TOKEN: renew_delegation_token,
    ApiKey.EXPIRE_DELEGATION_TOKEN: expire_delegation_token,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: describe_delegation_token,
}
