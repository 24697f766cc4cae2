"""Configurations of topics, groups and brokers: read them, set and reset single values."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from semel.client.errors import check
from semel.client.net.cluster import Client
from semel.wire import messages as wire


class ResourceType(IntEnum):
    """The kinds of resource that have a configuration."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


class ConfigOperation(IntEnum):
    """The operation on one value; the last two are for lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


#: The source of a value, by its number in the protocol.
SOURCES = {
    1: "topic",
    2: "broker",
    3: "broker default",
    4: "static",
    5: "default",
    6: "logger",
    7: "client metrics",
    8: "group",
}


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """One value of a configuration, and whether it was set on this resource."""

    name: str
    value: str | None
    source: str
    is_default: bool
    read_only: bool
    is_sensitive: bool
    documentation: str = ""
    """The description; empty if it was not requested, and from old brokers."""


class ConfigAdmin:
    """Configurations of a cluster. Reached as `Admin(client).configs`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def of_topic(self, name: str) -> list[ConfigValue]:
        """Return the configuration of a topic."""
        return self.describe(ResourceType.TOPIC, name)

    def of_broker(self, node_id: int) -> list[ConfigValue]:
        """Return the configuration of a broker."""
        return self.describe(ResourceType.BROKER, str(node_id), node=node_id)

    def of_all_brokers(self) -> list[ConfigValue]:
        """Return the values that were set for all brokers."""
        return self.describe(ResourceType.BROKER, "")

    def of_group(self, group_id: str) -> list[ConfigValue]:
        """Return the configuration of a group."""
        return self.describe(ResourceType.GROUP, group_id)

    def describe(
        self, kind: ResourceType, name: str, node: int | None = None, *, documented: bool = False
    ) -> list[ConfigValue]:
        """Return the configuration of a resource, ordered by name; `documented` adds descriptions."""
        resource = wire.DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=None
        )
        response: wire.DescribeConfigsResponse = self._client.ask(
            wire.DescribeConfigsRequest(resources=[resource], include_documentation=documented), node=node
        )
        (result,) = response.results
        check(result.error_code, f"the configuration of {name!r} could not be read", result.error_message)
        values = [
            ConfigValue(
                name=config.name,
                value=config.value,
                source=SOURCES.get(config.config_source, "unknown"),
                is_default=config.config_source == 5,
                read_only=config.read_only,
                is_sensitive=config.is_sensitive,
                documentation=config.documentation or "",
            )
            for config in result.configs
        ]
        return sorted(values, key=lambda config: config.name)

    def alter_topic(
        self, name: str, *, values: Mapping[str, str] | None = None, remove: Iterable[str] = ()
    ) -> None:
        """Set these values of a topic, and reset others to their default. All or nothing."""
        self.alter(ResourceType.TOPIC, name, _changes(values, remove))

    def alter_group(
        self, group_id: str, *, values: Mapping[str, str] | None = None, remove: Iterable[str] = ()
    ) -> None:
        """Set these values of a group, and reset others to those of the brokers. All or nothing."""
        self.alter(ResourceType.GROUP, group_id, _changes(values, remove))

    def alter_broker(
        self, node_id: int | None, *, values: Mapping[str, str] | None = None, remove: Iterable[str] = ()
    ) -> None:
        """Set these values of a broker, or (None) of all brokers, and reset others. All or nothing."""
        name = "" if node_id is None else str(node_id)
        self.alter(ResourceType.BROKER, name, _changes(values, remove), node=node_id)

    def alter(
        self,
        kind: ResourceType,
        name: str,
        changes: Iterable[tuple[str, ConfigOperation, str | None]],
        *,
        validate_only: bool = False,
        node: int | None = None,
    ) -> None:
        """Change single values. Those of one broker are changed by that broker: pass its id as `node`."""
        resource = wire.IncrementalAlterConfigsAlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[
                wire.IncrementalAlterConfigsAlterableConfig(name=key, config_operation=operation, value=value)
                for key, operation, value in changes
            ],
        )
        request = wire.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
        response: wire.IncrementalAlterConfigsResponse = self._client.send(request, node=node)
        for result in response.responses:
            check(result.error_code, f"the configuration of {name!r} was not changed", result.error_message)


def _changes(
    values: Mapping[str, str] | None, remove: Iterable[str]
) -> list[tuple[str, ConfigOperation, str | None]]:
    changes: list[tuple[str, ConfigOperation, str | None]] = []
    changes += [(key, ConfigOperation.SET, value) for key, value in (values or {}).items()]
    changes += [(key, ConfigOperation.DELETE, None) for key in remove]
    return changes
