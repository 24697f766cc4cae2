"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs.

The configs of topics can be changed; ``semel.core.topics`` validates them. The broker's settings are
read-only, because they are read at startup. Other resources of Kafka (loggers, client metrics, groups) have
no configs here: a request for them is INVALID_REQUEST. Each resource succeeds or fails independently.
"""

from collections import Counter
from typing import Final, NamedTuple, TypeVar

from semel.broker.broker import Broker
from semel.core.topics import DELETE, SET, SUBTRACT, AlterTopic, ConfigOperation, TopicAnswer, name_problem
from semel.core.types import ErrorCode
from semel.handlers.config_entries import ConfigEntry, broker_entries, topic_entries
from semel.handlers.context import Handler, RequestContext
from semel.handlers.topics import ask_topics
from semel.wire.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterConfigsAlterableConfig,
    IncrementalAlterConfigsAlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

TOPIC: Final = 2
BROKER: Final = 4
DESCRIBED_AT_ONCE: Final = 2_000
"""Resources per request; each has some forty configs, with their synonyms and documentation."""


class Resource(NamedTuple):
    """A resource that has configs: its kind and its name."""

    kind: int
    name: str


R = TypeVar("R", AlterConfigsResourceResponse, IncrementalAlterConfigsAlterConfigsResourceResponse)


async def describe_configs(
    broker: Broker, request: DescribeConfigsRequest, context: RequestContext
) -> DescribeConfigsResponse:
    """DescribeConfigs v1–v4: the configs of topics and the settings of the broker.

    Behaviour: all configs, or those that are named; each with its source, and on request with its synonyms.
        A repeated resource, and resources beyond the first 2,000, are INVALID_REQUEST.
    Versions:  v1 sources and synonyms · v3 types and documentation · v4 flexible.
    Differs:   a topic's config has a broker setting as its synonym only where such a setting exists.
        Loggers, client metrics and groups have no configs: INVALID_REQUEST.
    """
    response = DescribeConfigsResponse()
    described: set[Resource] = set()
    for resource in request.resources:
        result = DescribeConfigsResult(
            error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        found = _not_described(resource, described) or await _entries(broker, resource)
        if isinstance(found, TopicAnswer):
            result.error_code, result.error_message = found.error, found.message
        else:
            wanted = frozenset(resource.configuration_keys or ())
            result.configs = [_shown(each, request) for each in found if not wanted or each.name in wanted]
        response.results.append(result)
    return response


def _not_described(resource: DescribeConfigsResource, described: set[Resource]) -> TopicAnswer | None:
    """The error if a resource is repeated or there are too many; else adds it to ``described``."""
    asked = Resource(resource.resource_type, resource.resource_name)
    if asked in described:
        return TopicAnswer(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
    if len(described) >= DESCRIBED_AT_ONCE:
        return TopicAnswer(ErrorCode.INVALID_REQUEST, f"More than {DESCRIBED_AT_ONCE} resources.")
    described.add(asked)
    return None


async def _entries(broker: Broker, resource: DescribeConfigsResource) -> list[ConfigEntry] | TopicAnswer:
    name = resource.resource_name
    if resource.resource_type == BROKER:
        if not name:
            # An empty name asks for the dynamic defaults of all brokers. There are none.
            return []
        if name != str(broker.node_id):
            message = f"Unexpected broker id {name!r}: this is {broker.node_id}, which knows only its own."
            return TopicAnswer(ErrorCode.INVALID_REQUEST, message)
        return broker_entries(broker.settings)
    if resource.resource_type != TOPIC:
        return _unsupported(resource.resource_type)
    wrong_name = name_problem(name)
    if wrong_name:
        return TopicAnswer(ErrorCode.INVALID_TOPIC_EXCEPTION, wrong_name)
    topic = await broker.catalog.topic(name)
    if topic is None:
        return TopicAnswer(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {name!r} does not exist.")
    return topic_entries(topic, broker.settings)


def _shown(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = entry.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=each.name, value=each.value, source=each.source) for each in synonyms
        ],
        config_type=entry.kind,
        documentation=entry.documentation if request.include_documentation else None,
    )


async def alter_configs(
    broker: Broker, request: AlterConfigsRequest, context: RequestContext
) -> AlterConfigsResponse:
    """AlterConfigs v0–v2: set a topic's configs to exactly these; all others return to their defaults.

    Behaviour: deprecated in Kafka in favour of IncrementalAlterConfigs; served because clients still send it.
    Versions:  v2 flexible.
    """
    return AlterConfigsResponse(
        responses=await _alter(broker, request, AlterConfigsResourceResponse, replace=True)
    )


async def incremental_alter_configs(
    broker: Broker, request: IncrementalAlterConfigsRequest, context: RequestContext
) -> IncrementalAlterConfigsResponse:
    """IncrementalAlterConfigs v0–v1: set, delete, append to or subtract from a topic's configs.

    Behaviour: the operations on one topic are applied together or not at all. The error for an unknown config
        contains its name and the most similar name that exists.
    Versions:  v1 flexible.
    Differs:   deleting an unknown config is also an error; the broker's settings are read-only.
    """
    return IncrementalAlterConfigsResponse(
        responses=await _alter(
            broker, request, IncrementalAlterConfigsAlterConfigsResourceResponse, replace=False
        )
    )


async def _alter(
    broker: Broker,
    request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
    shown_as: type[R],
    *,
    replace: bool,
) -> list[R]:
    """Alter or refuse each resource; returns the answers in the order of the request."""
    wanted: dict[Resource, tuple[ConfigOperation, ...]] = {}
    times: Counter[Resource] = Counter()
    for each in request.resources:
        resource = Resource(each.resource_type, each.resource_name)
        times[resource] += 1
        wanted[resource] = tuple(map(_operation, each.configs))
    refused: dict[Resource, TopicAnswer] = {}
    commands: dict[Resource, AlterTopic] = {}
    for resource, operations in wanted.items():
        answer = _refused(resource, operations, twice=times[resource] > 1)
        if answer is not None:
            refused[resource] = answer
        else:
            commands[resource] = AlterTopic(resource.name, operations, replace, request.validate_only)
    decided = await ask_topics(broker, list(commands.values())) if commands else []
    answers = {**refused, **dict(zip(commands, decided, strict=True))}
    return [
        shown_as(
            error_code=answers[resource].error,
            error_message=answers[resource].message,
            resource_type=resource.kind,
            resource_name=resource.name,
        )
        for resource in wanted
    ]


def _operation(config: AlterableConfig | IncrementalAlterConfigsAlterableConfig) -> ConfigOperation:
    if isinstance(config, AlterableConfig):
        return config.name, SET, config.value
    return config.name, config.config_operation, config.value


def _refused(
    resource: Resource, operations: tuple[ConfigOperation, ...], *, twice: bool
) -> TopicAnswer | None:
    """The error of an alteration that is invalid for any topic."""
    if twice:
        return TopicAnswer(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
    if resource.kind == BROKER:
        message = "The broker's settings are read-only: change them where it is started."
        return TopicAnswer(ErrorCode.INVALID_REQUEST, message)
    if resource.kind != TOPIC:
        return _unsupported(resource.kind)
    if not resource.name:
        return TopicAnswer(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
    wrong_name = name_problem(resource.name)
    if wrong_name:
        return TopicAnswer(ErrorCode.INVALID_TOPIC_EXCEPTION, wrong_name)
    names = Counter(name for name, _, _ in operations)
    if any(count > 1 for count in names.values()):
        return TopicAnswer(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys.")
    for name, operation, value in operations:
        if not SET <= operation <= SUBTRACT:
            return TopicAnswer(ErrorCode.INVALID_REQUEST, f"Unknown config operation {operation} on {name}.")
        if value is None and operation != DELETE:
            return TopicAnswer(ErrorCode.INVALID_REQUEST, f"Null value not supported for {name}.")
    return None


def _unsupported(kind: int) -> TopicAnswer:
    return TopicAnswer(
        ErrorCode.INVALID_REQUEST, f"Resources of type {kind} have no configs here; topics ({TOPIC}) have."
    )


HANDLERS: dict[int, Handler] = {32: describe_configs, 33: alter_configs, 44: incremental_alter_configs}
