"""Client quotas: list them, and change some of their limits.

An entity is named by types (user, client-id, ip) and names; the name null stands for the default.
"""

from semel.wire.api_key import ApiKey
from semel.wire.schema import (
    Request,
    Response,
    array,
    boolean,
    float64,
    int8,
    int16,
    int32,
    request,
    response,
    string,
    struct,
)


@struct
class DescribeClientQuotasComponent:
    entity_type: str = string()
    match_type: int = int8()
    match: str | None = string(nullable=True)


@request(ApiKey.DESCRIBE_CLIENT_QUOTAS, versions="0-1", flexible=1)
class DescribeClientQuotasRequest(Request):
    """A filter: entities that match all components, and with `strict` have no other components."""

    components: list[DescribeClientQuotasComponent] = array(DescribeClientQuotasComponent)
    strict: bool = boolean()


@struct
class DescribeClientQuotasEntity:
    entity_type: str = string()
    entity_name: str | None = string(nullable=True)


@struct
class DescribeClientQuotasValue:
    key: str = string()
    value: float = float64()


@struct
class DescribeClientQuotasEntry:
    entity: list[DescribeClientQuotasEntity] = array(DescribeClientQuotasEntity)
    values: list[DescribeClientQuotasValue] = array(DescribeClientQuotasValue)


@response(ApiKey.DESCRIBE_CLIENT_QUOTAS, versions="0-1", flexible=1)
class DescribeClientQuotasResponse(Response):
    """The quotas, or null if there is an error."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    entries: list[DescribeClientQuotasEntry] | None = array(DescribeClientQuotasEntry, nullable=True)


@struct
class AlterClientQuotasEntity:
    entity_type: str = string()
    entity_name: str | None = string(nullable=True)


@struct
class AlterClientQuotasOp:
    key: str = string()
    value: float = float64()
    remove: bool = boolean()


@struct
class AlterClientQuotasEntry:
    entity: list[AlterClientQuotasEntity] = array(AlterClientQuotasEntity)
    ops: list[AlterClientQuotasOp] = array(AlterClientQuotasOp)


@request(ApiKey.ALTER_CLIENT_QUOTAS, versions="0-1", flexible=1)
class AlterClientQuotasRequest(Request):
    """The limits to set and to remove for each entity."""

    entries: list[AlterClientQuotasEntry] = array(AlterClientQuotasEntry)
    validate_only: bool = boolean()


@struct
class AlterClientQuotasResult:
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    entity: list[AlterClientQuotasEntity] = array(AlterClientQuotasEntity)


@response(ApiKey.ALTER_CLIENT_QUOTAS, versions="0-1", flexible=1)
class AlterClientQuotasResponse(Response):
    """Whether each entity was changed."""

    throttle_time_ms: int = int32()
    entries: list[AlterClientQuotasResult] = array(AlterClientQuotasResult)
