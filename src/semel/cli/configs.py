"""`semel configs`: show and change the configurations of brokers, groups and topics while brokers run."""

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from semel.cli.command import command
from semel.cli.options import Option, argument, group, pairs
from semel.cli.output import Answer, Columns, say

if TYPE_CHECKING:
    from semel.client import Admin, ConfigValue

app = group("Show and change the configurations of brokers, groups and topics.")

CONFIGS: "Columns[ConfigValue]" = Columns(
    config=lambda config: config.name,
    value=lambda config: config.value,
    source=lambda config: config.source,
    read_only=lambda config: config.read_only,
)


class Resource(NamedTuple):
    """The resource that a configuration belongs to; exactly one field is given."""

    broker: Annotated[int | None, Option("A broker, by its node id.", "ID")] = None
    all_brokers: Annotated[bool, Option("All brokers without a value of their own.")] = False
    group: Annotated[str | None, Option("A group.", "GROUP")] = None
    topic: Annotated[str | None, Option("A topic.", "TOPIC")] = None

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

    def check(self) -> None:
        """Refuse none, and several."""
        given = (self.broker is not None, self.all_brokers, self.group is not None, self.topic is not None)
        if sum(given) != 1:
            raise typer.BadParameter("give one of --broker, --all-brokers, --group, --topic")

    def values(self, admin: "Admin") -> "list[ConfigValue]":
        """Return the configuration of the resource."""
        if self.group is not None:
            return admin.configs.of_group(self.group)
        if self.topic is not None:
            return admin.configs.of_topic(self.topic)
        return admin.configs.of_all_brokers() if self.broker is None else admin.configs.of_broker(self.broker)

    def alter(self, admin: "Admin", values: dict[str, str], remove: list[str]) -> None:
        """Change the configuration of the resource."""
        if self.group is not None:
            admin.configs.alter_group(self.group, values=values, remove=remove)
        elif self.topic is not None:
            admin.configs.alter_topic(self.topic, values=values, remove=remove)
        else:
            admin.configs.alter_broker(self.broker, values=values, remove=remove)


@command(app)
def describe(
    *,
    resource: Resource,
    everything: Annotated[
        bool, Option("Include values that were not set for the resource.", "--all")
    ] = False,
    admin: "Admin",
) -> Answer:
    """Show the values set for a broker, all brokers, a group or a topic; with --all, those in force."""
    found = [value for value in resource.values(admin) if everything or value.source == resource.source]
    return CONFIGS.answer(found, f"Nothing was set for {resource}.")


@command(app)
def alter(
    *,
    config: Annotated[list[str] | None, argument("NAME=VALUE...", "Configurations to set.")] = None,
    delete: Annotated[list[str] | None, Option("Remove what was set; may be repeated.", "NAME")] = None,
    resource: Resource,
    admin: "Admin",
) -> None:
    """Set and remove configurations. The changes are in force at every broker when the command returns.

    Try:  semel configs alter --all-brokers log.retention.ms=86400000
    """
    values = pairs(config or (), "NAME=VALUE")
    if not values and not delete:
        raise typer.BadParameter("give at least one NAME=VALUE or --delete NAME")
    resource.alter(admin, values, delete or [])
    say(f"Altered {resource}.")
