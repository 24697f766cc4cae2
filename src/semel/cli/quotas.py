"""`semel quotas`: list, set, remove."""

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from semel.cli.command import command
from semel.cli.options import Json, Option, argument, group, pairs
from semel.cli.output import Answer, Columns, Remark, Table

if TYPE_CHECKING:
    from semel.client import Admin
    from semel.client.admin.quotas import ClientQuota, QuotaEntity

app = group("List, set and remove the quotas of users, client ids and addresses.")

# In JSON the entity is as in the protocol: only the given types, null for the default.
QUOTAS: "Columns[ClientQuota]" = Columns(
    entity=lambda quota: dict(quota.entity.parts()), limits=lambda quota: dict(quota.limits)
)


class Whose(NamedTuple):
    """The user, client id and address that a quota is of; several of them together, or none for all."""

    user: Annotated[str | None, Option("A user, without 'User:'.", "NAME")] = None
    client_id: Annotated[str | None, Option("A client id.", "ID")] = None
    ip: Annotated[str | None, Option("The address of a client.", "ADDRESS")] = None
    default_user: Annotated[bool, Option("All users without an own quota.")] = False
    default_client_id: Annotated[bool, Option("All client ids without an own quota.")] = False
    default_ip: Annotated[bool, Option("All addresses without an own quota.")] = False

    def entity(self, *, is_needed: bool = True) -> "QuotaEntity":
        """Return the entity. BadParameter if the options contradict each other, or none is given."""
        from semel.client.admin.quotas import DEFAULT, QuotaEntity

        names: list[str | None] = []
        for option, name, is_default in (
            ("user", self.user, self.default_user),
            ("client-id", self.client_id, self.default_client_id),
            ("ip", self.ip, self.default_ip),
        ):
            if name is not None and is_default:
                raise typer.BadParameter(f"give --{option} or --default-{option}, not both")
            if name == "":
                hint = f"it is empty; --default-{option} is the default"
                raise typer.BadParameter(hint, param_hint=f"--{option}")
            names.append(DEFAULT if is_default else name)
        if self.user is not None and self.user.startswith("User:"):
            raise typer.BadParameter("quotas name a user without 'User:'", param_hint="--user")
        if is_needed and names == [None] * 3:
            raise typer.BadParameter(
                "say whose quota: --user, --client-id, --ip, or one of --default-user, --default-client-id,"
                " --default-ip"
            )
        return QuotaEntity(*names)


@command(app, "list")
def list_(whose: Whose, admin: "Admin") -> Answer:
    """List quotas: all, or those of a user, a client id or an address."""
    found = admin.quotas.list(whose.entity(is_needed=False))
    rows = [
        {
            "user": _shown(quota.entity.user),
            "client_id": _shown(quota.entity.client_id),
            "ip": _shown(quota.entity.ip),
            "quota": key,
            "value": int(value) if value.is_integer() else value,
        }
        for quota in found
        for key, value in quota.limits.items()
    ]
    empty = "There are none. Set one with 'semel quotas set --user NAME QUOTA=VALUE'."
    return Answer(QUOTAS.rows(found), Table(rows, empty))


@command(app, "set")
def set_(
    limits: Annotated[list[str], argument("QUOTA=VALUE...", "Limits to set.")],
    whose: Whose,
    admin: "Admin",
    as_json: Json = False,
) -> Answer:
    """Set limits of a user, a client id, both together, or an address. Other limits stay as they are.

    Of users and client ids: producer_byte_rate and consumer_byte_rate in bytes per second, request_percentage
    in percent of one core, controller_mutation_rate in partitions per second. Of addresses:
    connection_creation_rate in connections per second.

    Try:  semel quotas set --user alice producer_byte_rate=1048576
    """
    entity = whose.entity()
    values = {key: _number(value) for key, value in pairs(limits, "QUOTA=VALUE").items()}
    admin.quotas.alter(entity, values)
    now = admin.quotas.list(entity, strict=True) if as_json else []
    return Answer(QUOTAS.rows(now), Remark(f"Set the quota of {entity}."))


@command(app)
def remove(
    *,
    limits: Annotated[list[str] | None, argument("QUOTA...", "Limits to remove; by default all.")] = None,
    whose: Whose,
    admin: "Admin",
    as_json: Json = False,
) -> Answer:
    """Remove limits of a user, a client id, both together, or an address."""
    entity = whose.entity()
    # Report names that are not set: they may be misspelt, and the broker would not report that.
    known = [key for quota in admin.quotas.list(entity, strict=True) for key in quota.limits]
    missing = [key for key in limits or () if key not in known]
    if missing or not known:
        raise typer.BadParameter(
            f"{entity} has no quota {', '.join(missing)}".rstrip() + "; see 'semel quotas list'"
        )
    admin.quotas.alter(entity, remove=limits or known)
    remaining = admin.quotas.list(entity, strict=True) if as_json else []
    return Answer(QUOTAS.rows(remaining), Remark(f"Removed {', '.join(limits or known)} of {entity}."))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number", param_hint="QUOTA=VALUE") from None


def _shown(name: str | None) -> str | None:
    return "(default)" if name == "" else name
