"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources.

The configs of topics, groups and brokers can be changed. ``semel.core`` decides the changes, and
``semel.config`` says which settings of a broker can be changed while it runs. Kafka's other
resources (loggers, client metrics) have no configs here: a request for them is INVALID_REQUEST. Each resource
succeeds or fails independently.
"""

from collections import Counter
from typing import Final, NamedTuple, TypeVar

from semel.broker.broker import Broker
from semel.config import READ_ONLY, SETTINGS, unchangeable, value_problem
from semel.core.configs import DELETE, LIST, SET, SUBTRACT, ConfigOperation
from semel.core.dynamic_configs import (
    ALL_BROKERS,
    BROKER,
    GROUP,
    AlterBrokerConfigs,
    AlterGroupConfigs,
    ConfigAnswer,
)
from semel.core.names import is_usable
from semel.core.security.acls import Operation
from semel.core.topics import AlterTopic, TopicAnswer, name_problem
from semel.core.types import Command, ErrorCode
from semel.handlers.config_entries import (
    ConfigEntry,
    broker_entries,
    default_entries,
    group_entries,
    topic_entries,
)
from semel.handlers.context import Handler, RequestContext
from semel.handlers.rights import (
    ALTER_CONFIGS,
    CLUSTER_DENIED,
    DESCRIBE_CONFIGS,
    GROUP_DENIED,
    MESSAGES,
    TOPIC_DENIED,
    RequestRights,
    rights_of,
)
from semel.handlers.topics import ask_topics
from semel.wire import messages as wire
from semel.wire.api_key import ApiKey

TOPIC: Final = 2
BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
KINDS: Final = (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP)
"""Kafka's kinds of resources. Loggers and client metrics have no configs here."""
DESCRIBED_AT_ONCE: Final = 2_000
"""Resources per request; each has some forty configs, with their synonyms and documentation."""


class Resource(NamedTuple):
    """A resource that has configs: its kind and its name."""

    kind: int
    name: str


Answer = TopicAnswer | ConfigAnswer

_DENIED: Final = {
    TOPIC: TOPIC_DENIED,
    GROUP: GROUP_DENIED,
    BROKER: CLUSTER_DENIED,
    BROKER_LOGGER: CLUSTER_DENIED,
    CLIENT_METRICS: CLUSTER_DENIED,
}
"""The error if a right is missing, by kind of resource. Unknown kinds are refused for another reason."""

R = TypeVar("R", wire.AlterConfigsResourceResponse, wire.IncrementalAlterConfigsAlterConfigsResourceResponse)


async def describe_configs(
    broker: Broker, request: wire.DescribeConfigsRequest, context: RequestContext
) -> wire.DescribeConfigsResponse:
    """DescribeConfigs v1–v4: the configs of topics and groups, and the settings of the broker.

    Behaviour: all configs, or the named ones; each with its source, and on request with its synonyms. A
        broker describes itself (resource name: its id) and the configs set for all brokers (empty name). A
        group need not exist. A repeated resource, and resources beyond the first 2,000, are INVALID_REQUEST.
    Versions:  v1 sources and synonyms · v3 types and documentation · v4 flexible.
    Differs:   loggers and client metrics have no configs: INVALID_REQUEST. Settings that have no meaning here
        are left out.
    """
    rights = rights_of(broker, request, context)
    response = wire.DescribeConfigsResponse()
    described: set[Resource] = set()
    denied: list[wire.DescribeConfigsResult] = []
    for resource in request.resources:
        result = wire.DescribeConfigsResult(
            error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        refusal = _refusal(rights, DESCRIBE_CONFIGS, resource.resource_type, resource.resource_name)
        if refusal is not None:
            result.error_code, result.error_message = refusal.error, refusal.message
            denied.append(result)
            continue
        found = _not_described(resource, described) or await _entries(broker, resource)
        if isinstance(found, TopicAnswer):
            result.error_code, result.error_message = found.error, found.message
        else:
            wanted = frozenset(resource.configuration_keys or ())
            result.configs = [_shown(each, request) for each in found if not wanted or each.name in wanted]
        response.results.append(result)
    response.results += denied
    return response


def _refusal(rights: RequestRights, operation: Operation, kind: int, name: str) -> TopicAnswer | None:
    """The error if the client lacks the right on a resource; for brokers, that on the cluster."""
    error = _DENIED.get(kind)
    if error == TOPIC_DENIED:
        may = rights.topic(operation, name)
    elif error == GROUP_DENIED:
        may = rights.group(operation, name)
    else:
        may = error is None or rights.cluster(operation)
    return None if may or error is None else TopicAnswer(error, MESSAGES[error])


def _not_described(resource: wire.DescribeConfigsResource, described: set[Resource]) -> TopicAnswer | None:
    """The error if a resource is repeated or there are too many; else adds it to ``described``."""
    asked = Resource(resource.resource_type, resource.resource_name)
    if asked in described:
        return _invalid("Each resource must appear at most once.")
    if len(described) >= DESCRIBED_AT_ONCE:
        return _invalid(f"More than {DESCRIBED_AT_ONCE} resources.")
    described.add(asked)
    return None


async def _entries(broker: Broker, resource: wire.DescribeConfigsResource) -> list[ConfigEntry] | TopicAnswer:
    name, configs = resource.resource_name, broker.policies.configs
    if resource.resource_type == BROKER:
        if name == ALL_BROKERS:
            return default_entries(configs)
        return _foreign(broker, name) or broker_entries(broker)
    if resource.resource_type == GROUP:
        return _unusable(name) or group_entries(name, configs)
    if resource.resource_type != TOPIC:
        return _unsupported(resource.resource_type)
    wrong_name = name_problem(name)
    if wrong_name:
        return TopicAnswer(ErrorCode.INVALID_TOPIC_EXCEPTION, wrong_name)
    topic = await broker.catalog.topic(name)
    if topic is None:
        return TopicAnswer(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {name!r} does not exist.")
    return topic_entries(topic, configs)


def _invalid(message: str) -> TopicAnswer:
    return TopicAnswer(ErrorCode.INVALID_REQUEST, message)


def _foreign(broker: Broker, name: str) -> TopicAnswer | None:
    """The error if a name is not the id of this broker. As in Kafka, clients ask each broker itself."""
    if name == str(broker.node_id):
        return None
    if not (name.isascii() and name.removeprefix("-").isdecimal()):
        return _invalid(f"Broker id must be an integer, but it is {name!r}.")
    return _invalid(f"Unexpected broker id {name!r}: this is {broker.node_id}, which knows only its own.")


def _unusable(group_id: str) -> TopicAnswer | None:
    if is_usable(group_id):
        return None
    return _invalid("A group must have a name, and not too long a one.")


def _shown(entry: ConfigEntry, request: wire.DescribeConfigsRequest) -> wire.DescribeConfigsResourceResult:
    synonyms = entry.synonyms if request.include_synonyms else ()
    return wire.DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=[
            wire.DescribeConfigsSynonym(name=each.name, value=each.value, source=each.source)
            for each in synonyms
        ],
        config_type=entry.kind,
        documentation=entry.documentation if request.include_documentation else None,
    )


async def alter_configs(
    broker: Broker, request: wire.AlterConfigsRequest, context: RequestContext
) -> wire.AlterConfigsResponse:
    """AlterConfigs v0–v2: set the configs of a resource to exactly these; all others get their defaults.

    Behaviour: deprecated in Kafka in favour of IncrementalAlterConfigs; served because clients still send it.
        For topics, groups, this broker and all brokers.
    Versions:  v2 flexible.
    """
    return wire.AlterConfigsResponse(
        responses=await _alter(
            broker,
            rights_of(broker, request, context),
            request,
            wire.AlterConfigsResourceResponse,
            replace=True,
        )
    )


async def incremental_alter_configs(
    broker: Broker, request: wire.IncrementalAlterConfigsRequest, context: RequestContext
) -> wire.IncrementalAlterConfigsResponse:
    """IncrementalAlterConfigs v0–v1: set, delete, append to or subtract from the configs of a resource.

    Behaviour: for topics, groups, this broker (resource name: its id) and all brokers (empty name). The
        operations on one resource are applied together or not at all, and are in force at every broker when
        the request is answered. A setting that cannot be changed while the broker runs is INVALID_REQUEST
        with the reason. The error for an unknown config contains the most similar name that exists.
    Versions:  v1 flexible.
    Differs:   an unknown config is an error for brokers, too. Deleting an unknown config of a topic is an
        error. More settings can be changed than in Kafka, but not listeners and their certificates (those are
        read again when their files change).
    """
    return wire.IncrementalAlterConfigsResponse(
        responses=await _alter(
            broker,
            rights_of(broker, request, context),
            request,
            wire.IncrementalAlterConfigsAlterConfigsResourceResponse,
            replace=False,
        )
    )


async def _alter(
    broker: Broker,
    rights: RequestRights,
    request: wire.AlterConfigsRequest | wire.IncrementalAlterConfigsRequest,
    shown_as: type[R],
    *,
    replace: bool,
) -> list[R]:
    """Alter or refuse each resource; returns the answers in the order of the request, denied ones last."""
    wanted: dict[Resource, tuple[ConfigOperation, ...]] = {}
    times: Counter[Resource] = Counter()
    for each in request.resources:
        resource = Resource(each.resource_type, each.resource_name)
        times[resource] += 1
        wanted[resource] = tuple(map(_operation, each.configs))
    denied: dict[Resource, Answer] = {}
    for resource in [each for each in wanted if times[each] == 1]:
        if refusal := _refusal(rights, ALTER_CONFIGS, *resource):
            denied[resource] = refusal
            del wanted[resource]
    answers = dict(denied)
    commands: dict[Resource, Command[ConfigAnswer | TopicAnswer]] = {}
    for resource, operations in wanted.items():
        command = _refused(resource, operations, twice=times[resource] > 1) or _command(
            broker, resource, operations, replace=replace, validate_only=request.validate_only
        )
        if isinstance(command, TopicAnswer):
            answers[resource] = command
        else:
            commands[resource] = command
    if not broker.policies.has_room(_more_policies(broker, commands)):
        full = TopicAnswer(ErrorCode.POLICY_VIOLATION, "There are too many policies (semel.policies.max).")
        for resource in [each for each in commands if each.kind != TOPIC]:
            del commands[resource]
            answers[resource] = full
    if commands:
        answers.update(zip(commands, await ask_topics(broker, list(commands.values())), strict=True))
    return [
        shown_as(
            error_code=answers[resource].error,
            error_message=answers[resource].message,
            resource_type=resource.kind,
            resource_name=resource.name,
        )
        for resource in (*wanted, *denied)
    ]


def _operation(config: wire.AlterableConfig | wire.IncrementalAlterConfigsAlterableConfig) -> ConfigOperation:
    if isinstance(config, wire.AlterableConfig):
        return config.name, SET, config.value
    return config.name, config.config_operation, config.value


def _refused(
    resource: Resource, operations: tuple[ConfigOperation, ...], *, twice: bool
) -> TopicAnswer | None:
    """The error of an alteration that is invalid for any resource."""
    if twice:
        return _invalid("Each resource must appear at most once.")
    if resource.kind not in (TOPIC, BROKER, GROUP):
        return _unsupported(resource.kind)
    names = Counter(name for name, _, _ in operations)
    if any(count > 1 for count in names.values()):
        return _invalid("Error due to duplicate config keys.")
    for name, operation, value in operations:
        if not SET <= operation <= SUBTRACT:
            return _invalid(f"Unknown config operation {operation} on {name}.")
        if value is None and operation != DELETE:
            return _invalid(f"Null value not supported for {name}.")
    return None


def _command(
    broker: Broker,
    resource: Resource,
    operations: tuple[ConfigOperation, ...],
    *,
    replace: bool,
    validate_only: bool,
) -> Command[ConfigAnswer | TopicAnswer] | TopicAnswer:
    """The command that alters a resource, or the error if that is not possible."""
    name, configs = resource.name, broker.policies.configs
    if resource.kind == BROKER:
        refused = (_foreign(broker, name) if name else None) or _broker_refused(operations)
        if refused:
            return refused
        names = [each for each, _, _ in operations if each in SETTINGS and SETTINGS[each].kind is LIST]
        lists = {each: str(configs.static.value(each)) for each in names}
        present = tuple(configs.of(BROKER, name))
        return AlterBrokerConfigs(name, operations, replace, validate_only, lists, present)
    if not name:
        kind = "topic" if resource.kind == TOPIC else "group"
        return _invalid(f"Default {kind} resources are not allowed.")
    if resource.kind == GROUP:
        return _unusable(name) or AlterGroupConfigs(
            name, operations, replace, validate_only, configs.group_limits
        )
    wrong_name = name_problem(name)
    if wrong_name:
        return TopicAnswer(ErrorCode.INVALID_TOPIC_EXCEPTION, wrong_name)
    return AlterTopic(name, operations, replace, validate_only)


def _broker_refused(operations: tuple[ConfigOperation, ...]) -> TopicAnswer | None:
    """The error if a setting cannot be changed, or its new value is invalid. The codes are Kafka's."""
    for name, operation, value in operations:
        if operation == DELETE:
            # As in Kafka: its tools remove replication throttles without checking that they are set.
            continue
        if (fixed := unchangeable(name)) is not None:
            is_known = name in READ_ONLY
            return TopicAnswer(ErrorCode.INVALID_REQUEST if is_known else ErrorCode.INVALID_CONFIG, fixed)
        if value is not None and (wrong := value_problem(name, value)):
            return _invalid(wrong)
    return None


def _more_policies(broker: Broker, commands: dict[Resource, Command[ConfigAnswer | TopicAnswer]]) -> int:
    """How many policies the commands may add. Configs of topics are not policies."""
    more = 0
    for resource, command in commands.items():
        if isinstance(command, AlterBrokerConfigs | AlterGroupConfigs):
            present = broker.policies.configs.of(resource.kind, resource.name)
            more += sum(verb != DELETE and name not in present for name, verb, _ in command.operations)
    return more


def _unsupported(kind: int) -> TopicAnswer:
    return _invalid(
        f"Resources of type {kind} have no configs here; topics ({TOPIC}), brokers ({BROKER}) and groups "
        f"({GROUP}) have.",
    )


async def list_config_resources(
    broker: Broker, request: wire.ListConfigResourcesRequest, context: RequestContext
) -> wire.ListConfigResourcesResponse:
    """ListConfigResources v0–v1: topics, live brokers, and the groups that have configs (KIP-1142).

    Behaviour: resources of all kinds, or of the named ones; an unknown kind is UNSUPPORTED_VERSION.
    Versions:  v0 client metrics alone (there are none) · v1 kinds of resources.
    Differs:   in Kafka every broker also has loggers.
    """
    if not rights_of(broker, request, context).cluster(DESCRIBE_CONFIGS):
        return wire.ListConfigResourcesResponse(error_code=CLUSTER_DENIED)
    kinds = request.resource_types or KINDS
    if not set(kinds).issubset(KINDS):
        return wire.ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    if context.version == 0:
        return wire.ListConfigResourcesResponse()
    names: dict[int, list[str]] = {}
    if GROUP in kinds:
        names[GROUP] = broker.policies.configs.resources(GROUP)
    if BROKER in kinds:
        names[BROKER] = [str(each.node_id) for each in broker.ownership.nodes()]
    if TOPIC in kinds:
        names[TOPIC] = [each.name for each in await broker.catalog.all()]
    return wire.ListConfigResourcesResponse(
        config_resources=[
            wire.ListedConfigResource(resource_name=name, resource_type=kind)
            for kind, some in names.items()
            for name in some
        ]
    )


HANDLERS: dict[int, Handler] = {
    ApiKey.DESCRIBE_CONFIGS: describe_configs,
    ApiKey.ALTER_CONFIGS: alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs,
    ApiKey.LIST_CONFIG_RESOURCES: list_config_resources,
}
