"""`semel configs`: show and change the configurations of brokers, groups and topics while brokers run."""

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from semel.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, connected, pairs
from semel.cli.output import say, show_json, show_rows

if TYPE_CHECKING:
    from semel.client import Client, ConfigValue

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Show and change the configurations of brokers, groups and topics.",
)

BrokerId = Annotated[int | None, typer.Option("--broker", metavar="ID", help="A broker, by its node id.")]
AllBrokers = Annotated[bool, typer.Option("--all-brokers", help="All brokers without a value of their own.")]
Group = Annotated[str | None, typer.Option("--group", metavar="GROUP", help="A group.")]
TopicName = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="A topic.")]


class _Resource(NamedTuple):
    """The resource that a configuration belongs to; exactly one field is given."""

    broker: int | None
    all_brokers: bool
    group: str | None
    topic: str | None

    def __str__(self) -> str:
        if self.group is not None:
            return f"group {self.group}"
        if self.topic is not None:
            return f"topic {self.topic}"
        return "all brokers" if self.all_brokers else f"broker {self.broker}"

    @property
    def source(self) -> str:
        """The source of values that were set for this resource."""
        if self.group is not None:
            return "group"
        if self.topic is not None:
            return "topic"
        return "broker default" if self.all_brokers else "broker"

    def values(self, client: "Client") -> "list[ConfigValue]":
        """Return the configuration of the resource."""
        from semel.client import Admin

        configs = Admin(client).configs
        if self.group is not None:
            return configs.of_group(self.group)
        if self.topic is not None:
            return configs.of_topic(self.topic)
        return configs.of_all_brokers() if self.broker is None else configs.of_broker(self.broker)

    def alter(self, client: "Client", values: dict[str, str], remove: list[str]) -> None:
        """Change the configuration of the resource."""
        from semel.client import Admin

        configs = Admin(client).configs
        if self.group is not None:
            configs.alter_group(self.group, values=values, remove=remove)
        elif self.topic is not None:
            configs.alter_topic(self.topic, values=values, remove=remove)
        else:
            configs.alter_broker(self.broker, values=values, remove=remove)


def _resource(broker: int | None, all_brokers: bool, group: str | None, topic: str | None) -> _Resource:
    given = (broker is not None) + all_brokers + (group is not None) + (topic is not None)
    if given != 1:
        raise typer.BadParameter("give one of --broker, --all-brokers, --group, --topic")
    return _Resource(broker, all_brokers, group, topic)


@app.command()
def describe(
    broker: BrokerId = None,
    all_brokers: AllBrokers = False,
    group: Group = None,
    topic: TopicName = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Include values that were not set for the resource.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Show the values set for a broker, all brokers, a group or a topic; with --all, those in force."""
    resource = _resource(broker, all_brokers, group, topic)
    with connected(bootstrap) as client:
        found = resource.values(client)
    rows = [
        {"config": each.name, "value": each.value, "source": each.source, "read_only": each.read_only}
        for each in found
        if everything or each.source == resource.source
    ]
    if as_json:
        show_json(rows)
    else:
        show_rows(rows, empty=f"Nothing was set for {resource}.")


@app.command()
def alter(
    config: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE...", help="Configurations to set.")
    ] = None,
    delete: Annotated[
        list[str] | None,
        typer.Option("--delete", metavar="NAME", help="Remove what was set; may be repeated."),
    ] = None,
    broker: BrokerId = None,
    all_brokers: AllBrokers = False,
    group: Group = None,
    topic: TopicName = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Set and remove configurations. The changes are in force at every broker when the command returns.

    Try:  semel configs alter --all-brokers log.retention.ms=86400000
    """
    resource = _resource(broker, all_brokers, group, topic)
    values = pairs(config or (), "NAME=VALUE")
    if not values and not delete:
        raise typer.BadParameter("give at least one NAME=VALUE or --delete NAME")
    with connected(bootstrap) as client:
        resource.alter(client, values, delete or [])
    say(f"Altered {resource}.")
