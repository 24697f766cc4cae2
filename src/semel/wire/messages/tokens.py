"""Delegation tokens (KIP-48). Semel has none; the requests are declared because tools send them."""

from semel.wire.api_key import ApiKey
from semel.wire.schema import (
    Request,
    Response,
    array,
    bytes_,
    int16,
    int32,
    int64,
    request,
    response,
    string,
    struct,
)


@struct
class CreatableRenewers:
    principal_type: str = string()
    principal_name: str = string()


@request(ApiKey.CREATE_DELEGATION_TOKEN, versions="1-3", flexible=2)
class CreateDelegationTokenRequest(Request):
    """A token for a principal; 2 is flexible, 3 can name another owner."""

    owner_principal_type: str | None = string(versions="3+", nullable=True)
    owner_principal_name: str | None = string(versions="3+", nullable=True)
    renewers: list[CreatableRenewers] = array(CreatableRenewers)
    max_lifetime_ms: int = int64()


@response(ApiKey.CREATE_DELEGATION_TOKEN, versions="1-3", flexible=2)
class CreateDelegationTokenResponse(Response):
    """The token; 2 is flexible, 3 adds its requester."""

    error_code: int = int16()
    principal_type: str = string()
    principal_name: str = string()
    token_requester_principal_type: str = string(versions="3+")
    token_requester_principal_name: str = string(versions="3+")
    issue_timestamp_ms: int = int64()
    expiry_timestamp_ms: int = int64()
    max_timestamp_ms: int = int64()
    token_id: str = string()
    hmac: bytes = bytes_()
    throttle_time_ms: int = int32()


@request(ApiKey.RENEW_DELEGATION_TOKEN, versions="1-2", flexible=2)
class RenewDelegationTokenRequest(Request):
    """A token to renew, and for how long; 2 is flexible."""

    hmac: bytes = bytes_()
    renew_period_ms: int = int64()


@response(ApiKey.RENEW_DELEGATION_TOKEN, versions="1-2", flexible=2)
class RenewDelegationTokenResponse(Response):
    """How long it is valid; 2 is flexible."""

    error_code: int = int16()
    expiry_timestamp_ms: int = int64()
    throttle_time_ms: int = int32()


@request(ApiKey.EXPIRE_DELEGATION_TOKEN, versions="1-2", flexible=2)
class ExpireDelegationTokenRequest(Request):
    """A token to expire, and when; 2 is flexible."""

    hmac: bytes = bytes_()
    expiry_time_period_ms: int = int64()


@response(ApiKey.EXPIRE_DELEGATION_TOKEN, versions="1-2", flexible=2)
class ExpireDelegationTokenResponse(Response):
    """How long it is valid; 2 is flexible."""

    error_code: int = int16()
    expiry_timestamp_ms: int = int64()
    throttle_time_ms: int = int32()


@struct
class DescribeDelegationTokenOwner:
    principal_type: str = string()
    principal_name: str = string()


@request(ApiKey.DESCRIBE_DELEGATION_TOKEN, versions="1-3", flexible=2)
class DescribeDelegationTokenRequest(Request):
    """The tokens of some owners, None for all; 2 is flexible."""

    owners: list[DescribeDelegationTokenOwner] | None = array(DescribeDelegationTokenOwner, nullable=True)


@struct
class DescribedDelegationTokenRenewer:
    principal_type: str = string()
    principal_name: str = string()


@struct
class DescribedDelegationToken:
    principal_type: str = string()
    principal_name: str = string()
    token_requester_principal_type: str = string(versions="3+")
    token_requester_principal_name: str = string(versions="3+")
    issue_timestamp: int = int64()
    expiry_timestamp: int = int64()
    max_timestamp: int = int64()
    token_id: str = string()
    hmac: bytes = bytes_()
    renewers: list[DescribedDelegationTokenRenewer] = array(DescribedDelegationTokenRenewer)


@response(ApiKey.DESCRIBE_DELEGATION_TOKEN, versions="1-3", flexible=2)
class DescribeDelegationTokenResponse(Response):
    """The tokens; 2 is flexible, 3 adds their requesters."""

    error_code: int = int16()
    tokens: list[DescribedDelegationToken] = array(DescribedDelegationToken)
    throttle_time_ms: int = int32()
