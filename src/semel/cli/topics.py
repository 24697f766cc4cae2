"""`semel topics`: create, list, describe, alter, delete."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, Yes, confirm, connected, pairs
from semel.cli.output import say, show_json, show_rows

if TYPE_CHECKING:
    from semel.client import Client, ConfigValue, TopicInfo

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Create, list, describe, alter and delete topics."
)

Names = Annotated[list[str], typer.Argument(metavar="TOPIC", help="Names of topics.")]
Configs = Annotated[
    list[str] | None,
    typer.Option(
        "--config", "-c", metavar="NAME=VALUE", help="A configuration of the topic; may be repeated."
    ),
]


@app.command()
def create(
    names: Names,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", help="How many partitions; -1 is the broker's choice.")
    ] = -1,
    replication_factor: Annotated[
        int, typer.Option("--replication-factor", help="How many copies; -1 is the broker's choice.")
    ] = -1,
    config: Configs = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="An existing topic is not an error.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Create topics.

    Try:  semel topics create orders -p 4 -c retention.ms=3600000
    """
    from semel.client import Admin, ErrorCode, KafkaError, NewTopic

    configs = pairs(config or (), "--config")
    created = []
    with connected(bootstrap) as client:
        for name in names:
            try:
                (topic,) = Admin(client).topics.create(
                    NewTopic(name, partitions, replication_factor, configs)
                )
            except KafkaError as error:
                if not if_not_exists or error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
                continue
            created.append({"topic": topic.name, "partitions": topic.partitions})
    if as_json:
        show_json(created)
        return
    for each in created:
        say(f"Created topic {each['topic']}.")


@app.command("list")
def list_(
    internal: Annotated[bool, typer.Option("--internal", help="Include internal topics.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """List topics."""
    from semel.client import Admin

    with connected(bootstrap) as client:
        found = [topic for topic in Admin(client).topics.all() if internal or not topic.is_internal]
    rows = [{"topic": topic.name, "partitions": len(topic.partitions)} for topic in found]
    if as_json:
        show_json(rows)
    else:
        show_rows(rows, empty="There are no topics. Create one with 'semel topics create NAME'.")


@app.command()
def describe(
    names: Names,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
    all_configs: Annotated[
        bool, typer.Option("--all-configs", help="Include configurations at their default.")
    ] = False,
) -> None:
    """Show partitions, offsets and configurations of topics."""
    from semel.client import Admin

    with connected(bootstrap) as client:
        described = []
        for name in names:
            topic = Admin(client).topics.describe(name)
            described.append(_described(client, topic, all_configs or as_json))
    if as_json:
        show_json(described)
        return
    for each in described:
        show_rows(each["partitions"], empty="", title=f"{each['topic']}  (id {each['topic_id']})")
        show_rows(each["configs"], empty="All configurations have their default.")


def _described(client: "Client", topic: "TopicInfo", all_configs: bool) -> dict[str, Any]:
    from semel.client import EARLIEST, LATEST, Admin

    admin = Admin(client)
    keys = [(topic.name, each.partition) for each in topic.partitions]
    first = admin.topics.offsets(dict.fromkeys(keys, EARLIEST))
    last = admin.topics.offsets(dict.fromkeys(keys, LATEST))
    return {
        "topic": topic.name,
        "topic_id": topic.topic_id.hex(),
        "partitions": [
            {
                "partition": each.partition,
                "leader": each.leader,
                "replicas": list(each.replicas),
                "earliest": first[topic.name, each.partition].offset,
                "latest": last[topic.name, each.partition].offset,
            }
            for each in topic.partitions
        ],
        "configs": _configs(admin.configs.of_topic(topic.name), all_configs),
    }


def _configs(values: "list[ConfigValue]", everything: bool) -> list[dict[str, Any]]:
    return [
        {"config": each.name, "value": each.value, "source": each.source}
        for each in values
        if everything or each.source == "topic"
    ]


@app.command()
def alter(
    name: Annotated[str, typer.Argument(metavar="TOPIC")],
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", help="The new number of partitions; it can only grow.")
    ] = None,
    config: Configs = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option(
            "--delete-config", metavar="NAME", help="Reset a configuration to its default; may be repeated."
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Change the configuration of a topic, or add partitions.

    Keys may move to another partition when the number of partitions changes.
    """
    from semel.client import Admin

    values = pairs(config or (), "--config")
    if partitions is None and not values and not delete_config:
        raise typer.BadParameter("give at least one of --partitions, --config, --delete-config")
    with connected(bootstrap) as client:
        admin = Admin(client)
        if values or delete_config:
            admin.configs.alter_topic(name, values=values, remove=delete_config or ())
        if partitions is not None:
            admin.topics.add_partitions(name, partitions)
    say(f"Altered topic {name}.")


@app.command()
def delete(
    names: Names,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete topics with all their records. Asks for confirmation at a terminal."""
    from semel.client import Admin

    confirm(f"Delete {', '.join(names)} with all records?", yes)
    with connected(bootstrap) as client:
        Admin(client).topics.delete(*names)
    for name in names:
        say(f"Deleted topic {name}.")
