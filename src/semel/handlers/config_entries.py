"""Configs as they appear in responses: the value, its source and its synonyms.

Used by DescribeConfigs, and by CreateTopics for the configs of the new topic. A value comes from the topic,
else from a setting of the broker, else from the default. A setting that equals its default counts as the
default, because settings do not record whether they were set explicitly.
"""

from dataclasses import fields
from functools import cache
from typing import Final, NamedTuple

from semel.config import Settings
from semel.core.topic_configs import TOPIC_CONFIGS, TopicConfig
from semel.core.types import Topic

SOURCE_TOPIC: Final = 1
SOURCE_STATIC_BROKER: Final = 4
SOURCE_DEFAULT: Final = 5

_WIRE_KINDS: Final[dict[type, int]] = {bool: 1, str: 2, int: 5, float: 6}
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


def topic_entries(topic: Topic, settings: Settings) -> list[ConfigEntry]:
    """Every config of a topic, in the order of the table."""
    return [_topic_entry(name, row, topic, settings) for name, row in TOPIC_CONFIGS.items()]


def _topic_entry(name: str, row: TopicConfig, topic: Topic, settings: Settings) -> ConfigEntry:
    synonyms: list[Synonym] = []
    if name in topic.configs:
        synonyms.append(Synonym(name, topic.configs[name], SOURCE_TOPIC))
    if row.setting:
        synonyms.extend(_setting_synonyms(row.setting, settings))
    else:
        synonyms.append(Synonym(name, row.default, SOURCE_DEFAULT))
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


def broker_entries(settings: Settings) -> list[ConfigEntry]:
    """Every setting of the broker. All are read-only, because settings are read at startup."""
    entries = []
    for name, (_, default, why) in _settings_table().items():
        is_sensitive = any(word in name for word in _SECRETS)
        synonyms = tuple(
            each._replace(value=None) if is_sensitive else each for each in _setting_synonyms(name, settings)
        )
        kind = _WIRE_KINDS.get(type(default), _WIRE_KINDS[str])
        entries.append(
            ConfigEntry(name, synonyms[0].value, synonyms[0].source, kind, why, synonyms, True, is_sensitive)
        )
    return entries


def _setting_synonyms(name: str, settings: Settings) -> list[Synonym]:
    attribute, default, _ = _settings_table()[name]
    value = getattr(settings, attribute)
    synonyms = [Synonym(name, _text(default), SOURCE_DEFAULT)]
    if value != default:
        synonyms.insert(0, Synonym(name, _text(value), SOURCE_STATIC_BROKER))
    return synonyms


@cache
def _settings_table() -> dict[str, tuple[str, object, str]]:
    """Maps the dotted name of every setting to its attribute, default and reason."""
    rows = {each.name: (each.default, str(each.metadata.get("why", ""))) for each in fields(Settings)}
    return {dotted: (attribute, *rows[attribute]) for dotted, attribute in Settings.names().items()}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
