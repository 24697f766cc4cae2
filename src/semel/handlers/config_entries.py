"""Configs as they appear in responses: the value, its source and its synonyms.

Used by DescribeConfigs, and by CreateTopics for the configs of the new topic. A value comes from the topic or
group, else from a config of the broker or of all brokers, else from a setting at the broker's start, else
from the default. A setting that equals its default counts as the default, because settings do not record
whether they were set explicitly.
"""

from dataclasses import fields
from functools import cache
from typing import Final, NamedTuple

from semel.broker.broker import Broker
from semel.broker.dynamic_configs import DynamicConfigs
from semel.config import Settings
from semel.core.dynamic_configs import GROUP
from semel.core.groups import configs as group_configs
from semel.core.topic_configs import BOOLEAN, DOUBLE, LIST, LONG, STRING, TOPIC_CONFIGS, TopicConfig
from semel.core.types import Topic
from semel.dynamic_settings import READ_ONLY, is_list
from semel.wire.addresses import write_address

SOURCE_TOPIC: Final = 1
SOURCE_BROKER: Final = 2
SOURCE_ALL_BROKERS: Final = 3
SOURCE_STATIC_BROKER: Final = 4
SOURCE_DEFAULT: Final = 5
SOURCE_GROUP: Final = 8

_WIRE_KINDS: Final[dict[type, int]] = {
    bool: BOOLEAN.wire,
    str: STRING.wire,
    int: LONG.wire,
    float: DOUBLE.wire,
}
_SECRETS: Final = ("password", "secret")


class Synonym(NamedTuple):
    """One of the sources of a value, in order of precedence."""

    name: str
    value: str | None
    source: int


class ConfigEntry(NamedTuple):
    """One config with everything that DescribeConfigs can return for it."""

    name: str
    value: str | None
    source: int
    kind: int
    documentation: str
    synonyms: tuple[Synonym, ...]
    is_read_only: bool = False
    is_sensitive: bool = False


def topic_entries(topic: Topic, configs: DynamicConfigs) -> list[ConfigEntry]:
    """Every config of a topic, in the order of the table."""
    return [_topic_entry(name, row, topic, configs) for name, row in TOPIC_CONFIGS.items()]


def _topic_entry(name: str, row: TopicConfig, topic: Topic, configs: DynamicConfigs) -> ConfigEntry:
    synonyms: list[Synonym] = []
    if name in topic.configs:
        synonyms.append(Synonym(name, topic.configs[name], SOURCE_TOPIC))
    if row.setting:
        synonyms.extend(_setting_synonyms(row.setting, configs))
    else:
        synonyms.append(Synonym(row.synonym or name, row.default, SOURCE_DEFAULT))
    documentation = row.doc + (" (accepted and kept, changes nothing)" if row.inert else "")
    return ConfigEntry(
        name,
        synonyms[0].value,
        synonyms[0].source,
        row.kind.wire,
        documentation,
        tuple(synonyms),
        is_read_only=row.at_creation,
    )


def group_entries(group_id: str, configs: DynamicConfigs) -> list[ConfigEntry]:
    """Every config of a group, which need not exist."""
    own, entries = configs.of(GROUP, group_id), []
    for name, row in group_configs.GROUP_CONFIGS.items():
        if row.choices:
            synonyms = [Synonym(name, row.choices[0], SOURCE_DEFAULT)]
        else:
            synonyms = _setting_synonyms(row.setting, configs)
        if name in own:
            synonyms.insert(0, Synonym(name, own[name], SOURCE_GROUP))
        value, source = synonyms[0].value, synonyms[0].source
        entries.append(ConfigEntry(name, value, source, row.kind.wire, row.doc, tuple(synonyms)))
    return entries


def broker_entries(broker: Broker) -> list[ConfigEntry]:
    """Every setting of the broker, and its node id, addresses and directory."""
    configs = broker.policies.configs
    settings = [_broker_entry(name, tuple(_setting_synonyms(name, configs))) for name in _settings_table()]
    facts = [
        ConfigEntry(
            name,
            value,
            SOURCE_STATIC_BROKER,
            (LIST if is_listed else STRING).wire,
            why,
            (Synonym(name, value, SOURCE_STATIC_BROKER),),
            is_read_only=True,
        )
        for name, (value, is_listed, why) in _facts(broker).items()
    ]
    return settings + facts


def default_entries(configs: DynamicConfigs) -> list[ConfigEntry]:
    """The configs that were set for all brokers."""
    return [
        _broker_entry(name, (Synonym(name, value, SOURCE_ALL_BROKERS),))
        for name, value in configs.of_all_brokers().items()
        if name in _settings_table()
    ]


def _broker_entry(name: str, synonyms: tuple[Synonym, ...]) -> ConfigEntry:
    _, default, why = _settings_table()[name]
    is_sensitive = any(word in name for word in _SECRETS)
    if is_sensitive:
        synonyms = tuple(each._replace(value=None) for each in synonyms)
    kind = LIST.wire if is_list(name) else _WIRE_KINDS[type(default)]
    value, source = synonyms[0].value, synonyms[0].source
    return ConfigEntry(name, value, source, kind, why, synonyms, name in READ_ONLY, is_sensitive)


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


def _setting_synonyms(name: str, configs: DynamicConfigs) -> list[Synonym]:
    attribute, default, _ = _settings_table()[name]
    static = getattr(configs.static, attribute)
    synonyms = [Synonym(name, _text(default), SOURCE_DEFAULT)]
    if static != default:
        synonyms.insert(0, Synonym(name, _text(static), SOURCE_STATIC_BROKER))
    if name in configs.of_all_brokers():
        synonyms.insert(0, Synonym(name, configs.of_all_brokers()[name], SOURCE_ALL_BROKERS))
    if name in configs.of_broker():
        synonyms.insert(0, Synonym(name, configs.of_broker()[name], SOURCE_BROKER))
    return synonyms


@cache
def _settings_table() -> dict[str, tuple[str, object, str]]:
    """Maps the dotted name of every setting to its attribute, default and reason."""
    rows = {each.name: (each.default, str(each.metadata.get("why", ""))) for each in fields(Settings)}
    return {dotted: (attribute, *rows[attribute]) for dotted, attribute in Settings.names().items()}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
