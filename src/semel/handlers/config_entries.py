"""Configs as they appear in responses: the value, its source and its synonyms.

Used by DescribeConfigs, and by CreateTopics for the configs of the new topic. A value comes from the topic or
group, else from a config of the broker or of all brokers, else from a setting at the broker's start, else
from the default. A setting that equals its default counts as the default, because settings do not record
whether they were set explicitly.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from semel.broker.broker import Broker
from semel.broker.policies import DynamicConfigs
from semel.config import SETTINGS, text_of
from semel.core.configs import LIST, STRING, Config
from semel.core.dynamic_configs import GROUP
from semel.core.groups.configs import GROUP_CONFIGS
from semel.core.topic_configs import TOPIC_CONFIGS
from semel.core.types import Topic
from semel.wire.addresses import write_address

SOURCE_TOPIC: Final = 1
SOURCE_BROKER: Final = 2
SOURCE_ALL_BROKERS: Final = 3
SOURCE_STATIC_BROKER: Final = 4
SOURCE_DEFAULT: Final = 5
SOURCE_GROUP: Final = 8

_SECRETS: Final = ("password", "secret")


class Synonym(NamedTuple):
    """One of the sources of a value, in order of precedence."""

    name: str
    value: str | None
    source: int


class ConfigEntry(NamedTuple):
    """One config with everything that DescribeConfigs can return for it."""

    name: str
    kind: int
    documentation: str
    synonyms: tuple[Synonym, ...]
    """The sources of its value; the first has precedence."""
    is_read_only: bool
    is_sensitive: bool = False

    @property
    def value(self) -> str | None:
        """The value in force."""
        return self.synonyms[0].value

    @property
    def source(self) -> int:
        """The source of the value."""
        return self.synonyms[0].source


def topic_entries(topic: Topic, configs: DynamicConfigs) -> list[ConfigEntry]:
    """Every config of a topic, in the order of the table."""
    return _entries(TOPIC_CONFIGS, topic.configs, SOURCE_TOPIC, configs)


def group_entries(group_id: str, configs: DynamicConfigs) -> list[ConfigEntry]:
    """Every config of a group, which need not exist."""
    return _entries(GROUP_CONFIGS, configs.of(GROUP, group_id), SOURCE_GROUP, configs)


def _entries(
    table: Mapping[str, Config], own: Mapping[str, str], source: int, configs: DynamicConfigs
) -> list[ConfigEntry]:
    """The configs of a table: a resource's own values have precedence over the settings that they follow."""
    entries = []
    for name, config in table.items():
        synonyms = [Synonym(name, own[name], source)] if name in own else []
        if config.setting:
            synonyms += _setting_synonyms(config.setting, configs)
        else:
            synonyms.append(Synonym(config.synonym or name, config.default, SOURCE_DEFAULT))
        entries.append(_entry(name, config, synonyms))
    return entries


def _entry(name: str, config: Config, synonyms: list[Synonym]) -> ConfigEntry:
    doc = config.doc + (" (accepted and kept, changes nothing)" if config.inert else "")
    return ConfigEntry(name, config.kind.wire, doc, tuple(synonyms), bool(config.fixed))


def broker_entries(broker: Broker) -> list[ConfigEntry]:
    """Every setting of the broker, and its node id, addresses and directory."""
    configs = broker.policies.configs
    settings = [_setting_entry(name, _setting_synonyms(name, configs)) for name in SETTINGS]
    return settings + [
        ConfigEntry(
            name, (LIST if is_list else STRING).wire, why, (Synonym(name, value, SOURCE_STATIC_BROKER),), True
        )
        for name, (value, is_list, why) in _facts(broker).items()
    ]


def default_entries(configs: DynamicConfigs) -> list[ConfigEntry]:
    """The configs that were set for all brokers."""
    return [
        _setting_entry(name, [Synonym(name, value, SOURCE_ALL_BROKERS)])
        for name, value in configs.of_all_brokers().items()
        if name in SETTINGS
    ]


def _setting_entry(name: str, synonyms: list[Synonym]) -> ConfigEntry:
    if not any(word in name for word in _SECRETS):
        return _entry(name, SETTINGS[name], synonyms)
    hidden = [synonym._replace(value=None) for synonym in synonyms]
    return _entry(name, SETTINGS[name], hidden)._replace(is_sensitive=True)


def _setting_synonyms(name: str, configs: DynamicConfigs) -> list[Synonym]:
    default, static = SETTINGS[name].default, text_of(configs.static.value(name))
    sources = (
        (configs.of_broker().get(name), SOURCE_BROKER),
        (configs.of_all_brokers().get(name), SOURCE_ALL_BROKERS),
        (None if static == default else static, SOURCE_STATIC_BROKER),
        (default, SOURCE_DEFAULT),
    )
    return [Synonym(name, value, source) for value, source in sources if value is not None]


def _facts(broker: Broker) -> dict[str, tuple[str, bool, str]]:
    """Settings that only Kafka has, with their value here, whether it is a list, and why."""
    advertised = ",".join(
        f"{name}://{write_address(each.host, each.port)}" for name, each in broker.endpoints.items()
    )
    return {
        "broker.id": (str(broker.node_id), False, "the same as node.id"),
        "listeners": (broker.listeners, True, "the addresses that are bound (semel serve --listen)"),
        "advertised.listeners": (advertised, True, "the addresses that clients are told"),
        "log.dirs": (broker.directory, True, "where the data is"),
        "default.replication.factor": ("1", False, "the store provides durability"),
        "offsets.topic.replication.factor": ("1", False, "the store provides durability"),
        "transaction.state.log.replication.factor": ("1", False, "the store provides durability"),
        "min.insync.replicas": ("1", False, "the store provides durability"),
        "unclean.leader.election.enable": ("false", False, "there is no leader election"),
    }
