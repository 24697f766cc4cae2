"""ACLs, and the SCRAM credentials of users."""

from semel.wire.api_key import ApiKey
from semel.wire.schema import (
    Request,
    Response,
    array,
    bytes_,
    int8,
    int16,
    int32,
    request,
    response,
    string,
    struct,
)


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
