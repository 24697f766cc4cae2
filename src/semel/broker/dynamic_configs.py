"""The configs of groups and brokers as they were last committed, and the settings that follow from them.

Part of the policies (``policies``), which load them and publish their changes. ``settings`` are the settings
in force at this broker. ``changed`` is called with new settings, for components that keep copies.
"""

from collections.abc import Callable, Mapping
from typing import Final

from semel.config import Settings, in_force
from semel.core.dynamic_configs import ALL_BROKERS, BROKER, GROUP
from semel.core.groups import Migration
from semel.core.groups.configs import SETTINGS, GroupTimeouts, ShareConfigs, share_configs, timeouts

_NONE: Final[Mapping[str, str]] = {}


class DynamicConfigs:
    """The configs of all groups and brokers."""

    def __init__(self, static: Settings) -> None:
        self.static: Final = static
        """The settings at the start of the broker."""
        self.settings = static
        """The settings in force."""
        self.changed: Callable[[Settings], None] = lambda settings: None
        """Called with new settings."""
        self._own: Final = str(static.node_id)
        self._configs: dict[tuple[int, str], dict[str, str]] = {}
        self._group_limits = _group_limits(static)

    def of(self, kind: int, resource: str) -> Mapping[str, str]:
        """The configs that were set for a resource."""
        return self._configs.get((kind, resource), _NONE)

    def of_broker(self) -> Mapping[str, str]:
        """The configs that were set for this broker alone."""
        return self.of(BROKER, self._own)

    def of_all_brokers(self) -> Mapping[str, str]:
        """The configs that were set for all brokers."""
        return self.of(BROKER, ALL_BROKERS)

    def resources(self, kind: int) -> list[str]:
        """The resources of a kind that have configs."""
        return sorted(name for each, name in self._configs if each == kind)

    @property
    def group_limits(self) -> Mapping[str, int]:
        """The settings that the configs of groups depend on."""
        return self._group_limits

    def group(self, group_id: str) -> GroupTimeouts:
        """The timeouts of a group of the consumer protocol."""
        return timeouts(self.of(GROUP, group_id), self._group_limits)

    def share_group(self, group_id: str) -> ShareConfigs:
        """The configs of a share group."""
        return share_configs(self.of(GROUP, group_id), self._group_limits)

    def set(self, kind: int, resource: str, name: str, value: str | None) -> None:
        """Apply a committed change of one config; the value None removes it."""
        configs = self._configs.setdefault((kind, resource), {})
        if value is None:
            configs.pop(name, None)
        else:
            configs[name] = value
        if not configs:
            del self._configs[kind, resource]
        if kind == BROKER and resource in (ALL_BROKERS, self._own):
            self.settings = in_force(self.static, self.of_all_brokers(), self.of_broker())
            self._group_limits = _group_limits(self.settings)
            self.changed(self.settings)


def _group_limits(settings: Settings) -> dict[str, int]:
    return {name: settings.value(name) for name in SETTINGS}


def migration_of(settings: Settings) -> Migration:
    """Return which changes of a group's protocol the settings allow."""
    policy = settings.group_consumer_migration_policy
    return Migration.by_policy(policy, settings.group_max_size, settings.group_consumer_max_size)
