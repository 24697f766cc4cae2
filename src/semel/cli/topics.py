"""`semel topics`: create, list, describe, alter, delete. `semel offsets`: where partitions begin and end."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel.cli.command import command
from semel.cli.options import (
    Isolation,
    IsolationName,
    Json,
    Option,
    Yes,
    argument,
    confirm,
    group,
    moment_ms,
    pairs,
)
from semel.cli.output import Answer, Columns, Remark, Table, say
from semel.times import time_text

if TYPE_CHECKING:
    from semel.client import Admin, ConfigValue, CreatedTopic, TopicInfo

app = group("Create, list, describe, alter and delete topics.")

Names = Annotated[list[str], argument("TOPIC", "Names of topics.")]
Configs = Annotated[
    list[str] | None, Option("A configuration of the topic; may be repeated.", "-c", "NAME=VALUE")
]
CREATED: "Columns[CreatedTopic]" = Columns(
    topic=lambda topic: topic.name, partitions=lambda topic: topic.partitions
)
TOPICS: "Columns[TopicInfo]" = Columns(
    topic=lambda topic: topic.name, partitions=lambda topic: len(topic.partitions)
)
CONFIGS: "Columns[ConfigValue]" = Columns(
    config=lambda config: config.name, value=lambda config: config.value, source=lambda config: config.source
)


@command(app)
def create(
    *,
    names: Names,
    partitions: Annotated[int, Option("How many partitions; -1 is the broker's choice.", "-p")] = -1,
    replication_factor: Annotated[int, Option("How many copies; -1 is the broker's choice.")] = -1,
    config: Configs = None,
    if_not_exists: Annotated[bool, Option("An existing topic is not an error.")] = False,
    admin: "Admin",
) -> Answer:
    """Create topics.

    Try:  semel topics create orders -p 4 -c retention.ms=3600000
    """
    from semel.client import ErrorCode, KafkaError, NewTopic

    configs = pairs(config or (), "--config")
    created: list[CreatedTopic] = []
    for name in names:
        try:
            created += admin.topics.create(NewTopic(name, partitions, replication_factor, configs))
        except KafkaError as error:
            if not if_not_exists or error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
    return Answer(CREATED.rows(created), *(Remark(f"Created topic {topic.name}.") for topic in created))


@command(app, "list")
def list_(*, internal: Annotated[bool, Option("Include internal topics.")] = False, admin: "Admin") -> Answer:
    """List topics."""
    found = [topic for topic in admin.topics.all() if internal or not topic.is_internal]
    return TOPICS.answer(found, "There are no topics. Create one with 'semel topics create NAME'.")


@command(app)
def describe(
    *,
    names: Names,
    admin: "Admin",
    as_json: Json = False,
    all_configs: Annotated[bool, Option("Include configurations at their default.")] = False,
) -> Answer:
    """Show partitions, offsets and configurations of topics."""
    described = [_described(admin, name, all_configs or as_json) for name in names]
    tables: list[Table] = []
    for topic in described:
        tables.append(Table(topic["partitions"], "", f"{topic['topic']}  (id {topic['topic_id']})"))
        tables.append(Table(topic["configs"], "All configurations have their default."))
    return Answer(described, *tables)


def _described(admin: "Admin", name: str, all_configs: bool) -> dict[str, Any]:
    from semel.client import EARLIEST, LATEST

    topic = admin.topics.describe(name)
    keys = [(topic.name, partition.partition) for partition in topic.partitions]
    first = admin.topics.offsets(dict.fromkeys(keys, EARLIEST))
    last = admin.topics.offsets(dict.fromkeys(keys, LATEST))
    configs = admin.configs.of_topic(topic.name)
    return {
        "topic": topic.name,
        "topic_id": topic.topic_id.hex(),
        "partitions": [
            {
                "partition": partition.partition,
                "leader": partition.leader,
                "replicas": list(partition.replicas),
                "earliest": first[key].offset,
                "latest": last[key].offset,
            }
            for key, partition in zip(keys, topic.partitions, strict=True)
        ],
        "configs": CONFIGS.rows(value for value in configs if all_configs or value.source == "topic"),
    }


@command(app)
def alter(
    *,
    name: Annotated[str, argument("TOPIC")],
    partitions: Annotated[int | None, Option("The new number of partitions; it can only grow.", "-p")] = None,
    config: Configs = None,
    delete_config: Annotated[
        list[str] | None, Option("Reset a configuration to its default; may be repeated.", "NAME")
    ] = None,
    admin: "Admin",
) -> None:
    """Change the configuration of a topic, or add partitions.

    Keys may move to another partition when the number of partitions changes.
    """
    values = pairs(config or (), "--config")
    if partitions is None and not values and not delete_config:
        raise typer.BadParameter("give at least one of --partitions, --config, --delete-config")
    if values or delete_config:
        admin.configs.alter_topic(name, values=values, remove=delete_config or ())
    if partitions is not None:
        admin.topics.add_partitions(name, partitions)
    say(f"Altered topic {name}.")


@command(app)
def delete(*, names: Names, yes: Yes = False, admin: "Admin") -> None:
    """Delete topics with all their records. Asks for confirmation at a terminal."""
    confirm(f"Delete {', '.join(names)} with all records?", yes)
    admin.topics.delete(*names)
    for name in names:
        say(f"Deleted topic {name}.")


@command()
def offsets(
    *,
    topic: Annotated[str, argument("TOPIC", "The name of a topic.")],
    at: Annotated[
        str | None, Option("Also the offset of the first record at or after this time.", "TIME")
    ] = None,
    isolation: Isolation = IsolationName.uncommitted,
    admin: "Admin",
) -> Answer:
    """Show the earliest and the latest offset of each partition.

    The latest is the offset of the next record. With --isolation read_committed it is the last stable offset,
    where such a reader stops. TIME is ISO 8601, local unless it has a zone, or milliseconds since 1970.

    Try:  semel offsets orders --at 2026-01-31T18:00:00Z
    """
    from semel.client import EARLIEST, LATEST

    time_ms = moment_ms(at, "--at") if at is not None else None
    keys = [(topic, partition.partition) for partition in admin.topics.describe(topic).partitions]
    first = admin.topics.offsets(dict.fromkeys(keys, EARLIEST), isolation.wire)
    last = admin.topics.offsets(dict.fromkeys(keys, LATEST), isolation.wire)
    rows: list[dict[str, Any]] = [
        {"partition": key[1], "earliest": first[key].offset, "latest": last[key].offset} for key in keys
    ]
    if time_ms is not None:
        found = admin.topics.offsets(dict.fromkeys(keys, time_ms), isolation.wire)
        for key, row in zip(keys, rows, strict=True):
            there = found[key].offset >= 0
            row["at"] = found[key].offset if there else None
            row["at_time"] = time_text(found[key].timestamp) if there else None
    return Answer({"topic": topic, "partitions": rows}, Table(rows, ""))
