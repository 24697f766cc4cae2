"""Configs that change while brokers run: those of groups, of single brokers, and of all brokers.

Each value is a policy of its own (``policies``), so it is in the memory of every broker, and a change is
answered when all brokers have it. The values of a group are decided together, because they restrict each
other. The values of a broker are independent of each other. The caller has checked each of them, because the
core does not know the settings.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from msgspec import json

from semel.core.configs import DELETE, ConfigOperation, InvalidOperation, operate
from semel.core.data import Data
from semel.core.groups import configs as group_configs
from semel.core.security.policies import changing
from semel.core.types import Command, Decide, Decision, ErrorCode, PolicyKey

if TYPE_CHECKING:
    from semel.core.state import BrokerState

CONFIG: Final = "config"
"""The kind of these policies."""
BROKER: Final = 4
GROUP: Final = 32
"""The kinds of resources, by their numbers on the wire."""
ALL_BROKERS: Final = ""
"""The resource name for all brokers: its configs apply to each broker that does not set its own."""


def config_key(kind: int, resource: str, name: str) -> PolicyKey:
    """Return the key of a config of a resource."""
    return PolicyKey(CONFIG, json.encode((kind, resource, name)).decode())


def config_of(key: PolicyKey) -> tuple[int, str, str]:
    """Return the kind of the resource, its name, and the name of the config."""
    return json.decode(key.name, type=tuple[int, str, str])


def value_of(body: str) -> str:
    """Return the value of a config."""
    return json.decode(body, type=str)


class ConfigAnswer(Data):
    """The answer to a change of configs."""

    error: ErrorCode
    message: str | None = None


class AlterBrokerConfigs(Command["ConfigAnswer"]):
    """Change configs of one or all brokers: by operations, or (``replace``) to exactly the given values.

    The caller has checked the values. ``lists`` has the effective value of each list that is changed, in case
    it is not set. ``present`` are the names of the configs that are set: a replacement removes them.
    """

    broker: str
    operations: tuple[ConfigOperation, ...]
    replace: bool
    validate_only: bool
    lists: Mapping[str, str]
    present: tuple[str, ...] = ()

    def keys(self) -> Iterable[PolicyKey]:
        """The configs in the operations, and those that a replacement removes."""
        return [config_key(BROKER, self.broker, name) for name in self._names()]

    def _names(self) -> Iterable[str]:
        replaced = self.present if self.replace else ()
        return dict.fromkeys((*(name for name, _, _ in self.operations), *replaced))


class AlterGroupConfigs(Command["ConfigAnswer"]):
    """Change configs of a group: by operations, or (``replace``) to exactly the given values."""

    group_id: str
    operations: tuple[ConfigOperation, ...]
    replace: bool
    validate_only: bool
    limits: Mapping[str, int]

    def keys(self) -> Iterable[PolicyKey]:
        """All configs of the group."""
        return [config_key(GROUP, self.group_id, name) for name in group_configs.GROUP_CONFIGS]


def _alter_broker(state: "BrokerState", command: AlterBrokerConfigs, now: int) -> Decision:
    return _alter(state, command.keys(), command, command.lists, lambda configs: None)


def _alter_group(state: "BrokerState", command: AlterGroupConfigs, now: int) -> Decision:
    for name, operation, _ in command.operations:
        unknown = group_configs.unknown(name)
        if unknown and operation != DELETE:
            return Decision(ConfigAnswer(ErrorCode.INVALID_CONFIG, unknown))
    return _alter(
        state, command.keys(), command, {}, lambda configs: group_configs.problem(configs, command.limits)
    )


def _alter(
    state: "BrokerState",
    keys: Iterable[PolicyKey],
    command: AlterBrokerConfigs | AlterGroupConfigs,
    lists: Mapping[str, str],
    problem: Callable[[Mapping[str, str]], str | None],
) -> Decision:
    places = {config_of(key)[2]: key for key in keys}
    bodies = {name: state.policies[key] for name, key in places.items()}
    configs = {name: value_of(body) for name, body in bodies.items() if body is not None}
    if command.replace:
        configs.clear()
    try:
        for each in command.operations:
            operate(configs, each, lists.get(each[0]))
    except InvalidOperation as invalid:
        return Decision(ConfigAnswer(ErrorCode.INVALID_CONFIG, str(invalid)))
    wrong = problem(configs)
    if wrong:
        return Decision(ConfigAnswer(ErrorCode.INVALID_CONFIG, wrong))
    if command.validate_only:
        return Decision(ConfigAnswer(ErrorCode.NONE))
    wanted = [
        (key, json.encode(configs[name]).decode() if name in configs else None)
        for name, key in places.items()
    ]
    return Decision(ConfigAnswer(ErrorCode.NONE), changing(state, wanted))


DECIDE: dict[type, Decide] = {AlterBrokerConfigs: _alter_broker, AlterGroupConfigs: _alter_group}
