"""Configs of resources, such as topics and brokers: read them, replace them all, or change some of them.

AlterConfigs replaces all configs of a resource and exists for old tools; IncrementalAlterConfigs changes only
the configs that it names. UpdateFeatures raises or lowers the level of a feature such as
`transaction.version`.
"""

from semel.wire.api_key import ApiKey
from semel.wire.schema import (
    Request,
    Response,
    array,
    boolean,
    int8,
    int16,
    int32,
    request,
    response,
    string,
    struct,
)


@struct
class DescribeConfigsResource:
    resource_type: int = int8()
    resource_name: str = string()
    configuration_keys: list[str] | None = array("string", nullable=True)


@request(ApiKey.DESCRIBE_CONFIGS, versions="1-4", flexible=4)
class DescribeConfigsRequest(Request):
    """The resources to describe; 3 can request documentation of the configs."""

    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource)
    include_synonyms: bool = boolean()
    include_documentation: bool = boolean(versions="3+")


@struct
class DescribeConfigsSynonym:
    name: str = string()
    value: str | None = string(nullable=True)
    source: int = int8()


@struct
class DescribeConfigsResourceResult:
    name: str = string()
    value: str | None = string(nullable=True)
    read_only: bool = boolean()
    config_source: int = int8(default=-1)
    is_sensitive: bool = boolean()
    synonyms: list[DescribeConfigsSynonym] = array(DescribeConfigsSynonym)
    config_type: int = int8(versions="3+")
    documentation: str | None = string(versions="3+", nullable=True)


@struct
class DescribeConfigsResult:
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    resource_type: int = int8()
    resource_name: str = string()
    configs: list[DescribeConfigsResourceResult] = array(DescribeConfigsResourceResult)


@response(ApiKey.DESCRIBE_CONFIGS, versions="1-4", flexible=4)
class DescribeConfigsResponse(Response):
    """The configs with their sources; 3 adds type and documentation."""

    throttle_time_ms: int = int32()
    results: list[DescribeConfigsResult] = array(DescribeConfigsResult)


@struct
class AlterableConfig:
    name: str = string()
    value: str | None = string(nullable=True)


@struct
class AlterConfigsResource:
    resource_type: int = int8()
    resource_name: str = string()
    configs: list[AlterableConfig] = array(AlterableConfig)


@request(ApiKey.ALTER_CONFIGS, versions="0-2", flexible=2)
class AlterConfigsRequest(Request):
    """The new configs of some resources, which replace all configs that are set."""

    resources: list[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = boolean()


@struct
class AlterConfigsResourceResponse:
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    resource_type: int = int8()
    resource_name: str = string()


@response(ApiKey.ALTER_CONFIGS, versions="0-2", flexible=2)
class AlterConfigsResponse(Response):
    """Whether each resource was changed."""

    throttle_time_ms: int = int32()
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)


@struct
class IncrementalAlterConfigsAlterableConfig:
    name: str = string()
    config_operation: int = int8()
    value: str | None = string(nullable=True)


@struct
class IncrementalAlterConfigsAlterConfigsResource:
    resource_type: int = int8()
    resource_name: str = string()
    configs: list[IncrementalAlterConfigsAlterableConfig] = array(IncrementalAlterConfigsAlterableConfig)


@request(ApiKey.INCREMENTAL_ALTER_CONFIGS, versions="0-1", flexible=1)
class IncrementalAlterConfigsRequest(Request):
    """Changes to single configs of some resources."""

    resources: list[IncrementalAlterConfigsAlterConfigsResource] = array(
        IncrementalAlterConfigsAlterConfigsResource
    )
    validate_only: bool = boolean()


@struct
class IncrementalAlterConfigsAlterConfigsResourceResponse:
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    resource_type: int = int8()
    resource_name: str = string()


@response(ApiKey.INCREMENTAL_ALTER_CONFIGS, versions="0-1", flexible=1)
class IncrementalAlterConfigsResponse(Response):
    """Whether each resource was changed."""

    throttle_time_ms: int = int32()
    responses: list[IncrementalAlterConfigsAlterConfigsResourceResponse] = array(
        IncrementalAlterConfigsAlterConfigsResourceResponse
    )


@struct
class FeatureUpdateKey:
    feature: str = string()
    max_version_level: int = int16()
    allow_downgrade: bool = boolean(versions="0")
    upgrade_type: int = int8(versions="1+", default=1)


@request(ApiKey.UPDATE_FEATURES, versions="0-2", flexible=0)
class UpdateFeaturesRequest(Request):
    """New levels of features; 1 names the kind of change and can only validate."""

    timeout_ms: int = int32(default=60000)
    feature_updates: list[FeatureUpdateKey] = array(FeatureUpdateKey)
    validate_only: bool = boolean(versions="1+")


@struct
class UpdatableFeatureResult:
    feature: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable=True)


@response(ApiKey.UPDATE_FEATURES, versions="0-2", flexible=0)
class UpdateFeaturesResponse(Response):
    """Whether the levels were changed; up to version 1 with a result for each feature."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    results: list[UpdatableFeatureResult] = array(UpdatableFeatureResult, versions="0-1")


@request(ApiKey.LIST_CONFIG_RESOURCES, versions="0-1", flexible=0)
class ListConfigResourcesRequest(Request):
    """The types of resources to list, empty for all; 0 lists client metrics only."""

    resource_types: list[int] = array("int8", versions="1+")


@struct
class ListedConfigResource:
    resource_name: str = string()
    resource_type: int = int8(versions="1+", default=16)


@response(ApiKey.LIST_CONFIG_RESOURCES, versions="0-1", flexible=0)
class ListConfigResourcesResponse(Response):
    """Resources that have configs; 1 adds their types."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    config_resources: list[ListedConfigResource] = array(ListedConfigResource)
