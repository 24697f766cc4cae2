"""SASL authentication, ACLs, the SCRAM credentials of users, and delegation tokens.

Authentication is the choice of a mechanism, then as many rounds as the mechanism needs. The mechanism defines
the content of the rounds; here it is bytes, which are never logged. Semel has no delegation tokens (KIP-48);
their requests are declared because tools send them.
"""

from semel.wire.api_key import ApiKey
from semel.wire.schema import (
    Request,
    Response,
    array,
    bytes_,
    int8,
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


@request(ApiKey.SASL_HANDSHAKE, versions="0-1", flexible=None)
class SaslHandshakeRequest(Request):
    """The client's mechanism; version 0 is followed by raw tokens, version 1 by SaslAuthenticate."""

    mechanism: str = string()


@response(ApiKey.SASL_HANDSHAKE, versions="0-1", flexible=None)
class SaslHandshakeResponse(Response):
    """Whether the mechanism is enabled, and the enabled mechanisms."""

    error_code: int = int16()
    mechanisms: list[str] = array("string")


@request(ApiKey.SASL_AUTHENTICATE, versions="0-2", flexible=2)
class SaslAuthenticateRequest(Request):
    """The client's message of one round."""

    auth_bytes: bytes = bytes_()


@response(ApiKey.SASL_AUTHENTICATE, versions="0-2", flexible=2)
class SaslAuthenticateResponse(Response):
    """The broker's message of that round; 1 adds the lifetime of the session."""

    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    auth_bytes: bytes = bytes_()
    session_lifetime_ms: int = int64(versions="1+")


@request(ApiKey.DESCRIBE_ACLS, versions="1-3", flexible=2)
class DescribeAclsRequest(Request):
    """A filter for ACLs; 3 adds the resource type USER."""

    resource_type_filter: int = int8()
    resource_name_filter: str | None = string(nullable=True)
    pattern_type_filter: int = int8(default=3)
    principal_filter: str | None = string(nullable=True)
    host_filter: str | None = string(nullable=True)
    operation: int = int8()
    permission_type: int = int8()


@struct
class AclDescription:
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


@struct
class DescribeAclsResource:
    resource_type: int = int8()
    resource_name: str = string()
    pattern_type: int = int8(default=3)
    acls: list[AclDescription] = array(AclDescription)


@response(ApiKey.DESCRIBE_ACLS, versions="1-3", flexible=2)
class DescribeAclsResponse(Response):
    """The ACLs that match, by resource."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    resources: list[DescribeAclsResource] = array(DescribeAclsResource)


@struct
class AclCreation:
    resource_type: int = int8()
    resource_name: str = string()
    resource_pattern_type: int = int8(default=3)
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


@request(ApiKey.CREATE_ACLS, versions="1-3", flexible=2)
class CreateAclsRequest(Request):
    """ACLs to add."""

    creations: list[AclCreation] = array(AclCreation)


@struct
class AclCreationResult:
    error_code: int = int16()
    error_message: str | None = string(nullable=True)


@response(ApiKey.CREATE_ACLS, versions="1-3", flexible=2)
class CreateAclsResponse(Response):
    """A result for each ACL, in the order of the request."""

    throttle_time_ms: int = int32()
    results: list[AclCreationResult] = array(AclCreationResult)


@struct
class DeleteAclsFilter:
    resource_type_filter: int = int8()
    resource_name_filter: str | None = string(nullable=True)
    pattern_type_filter: int = int8(default=3)
    principal_filter: str | None = string(nullable=True)
    host_filter: str | None = string(nullable=True)
    operation: int = int8()
    permission_type: int = int8()


@request(ApiKey.DELETE_ACLS, versions="1-3", flexible=2)
class DeleteAclsRequest(Request):
    """Filters for the ACLs to remove."""

    filters: list[DeleteAclsFilter] = array(DeleteAclsFilter)


@struct
class DeleteAclsMatchingAcl:
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    resource_type: int = int8()
    resource_name: str = string()
    pattern_type: int = int8(default=3)
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


@struct
class DeleteAclsFilterResult:
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    matching_acls: list[DeleteAclsMatchingAcl] = array(DeleteAclsMatchingAcl)


@response(ApiKey.DELETE_ACLS, versions="1-3", flexible=2)
class DeleteAclsResponse(Response):
    """The ACLs removed by each filter."""

    throttle_time_ms: int = int32()
    filter_results: list[DeleteAclsFilterResult] = array(DeleteAclsFilterResult)


@struct
class UserName:
    name: str = string()


@request(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, versions="0", flexible=0)
class DescribeUserScramCredentialsRequest(Request):
    """Users to describe, null or empty for all."""

    users: list[UserName] | None = array(UserName, nullable=True)


@struct
class CredentialInfo:
    mechanism: int = int8()
    iterations: int = int32()


@struct
class DescribeUserScramCredentialsResult:
    user: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    credential_infos: list[CredentialInfo] = array(CredentialInfo)


@response(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, versions="0", flexible=0)
class DescribeUserScramCredentialsResponse(Response):
    """The mechanisms and iterations of each user, without secrets."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    results: list[DescribeUserScramCredentialsResult] = array(DescribeUserScramCredentialsResult)


@struct
class ScramCredentialDeletion:
    name: str = string()
    mechanism: int = int8()


@struct
class ScramCredentialUpsertion:
    name: str = string()
    mechanism: int = int8()
    iterations: int = int32()
    salt: bytes = bytes_()
    salted_password: bytes = bytes_()


@request(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, versions="0", flexible=0)
class AlterUserScramCredentialsRequest(Request):
    """Credentials to remove, and to add or replace. A salted password is as secret as the password."""

    deletions: list[ScramCredentialDeletion] = array(ScramCredentialDeletion)
    upsertions: list[ScramCredentialUpsertion] = array(ScramCredentialUpsertion)


@struct
class AlterUserScramCredentialsResult:
    user: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable=True)


@response(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, versions="0", flexible=0)
class AlterUserScramCredentialsResponse(Response):
    """A result for each user."""

    throttle_time_ms: int = int32()
    results: list[AlterUserScramCredentialsResult] = array(AlterUserScramCredentialsResult)
