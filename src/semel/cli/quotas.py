"""`semel quotas`: list, set, remove."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, connected, pairs
from semel.cli.output import say, show_json, show_rows

if TYPE_CHECKING:
    from semel.client.admin.quotas import ClientQuota, QuotaEntity

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List, set and remove the quotas of users, client ids and addresses.",
)

User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="A user, without 'User:'.")]
ClientId = Annotated[str | None, typer.Option("--client-id", metavar="ID", help="A client id.")]
Ip = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="The address of a client.")]
DefaultUser = Annotated[bool, typer.Option("--default-user", help="All users without an own quota.")]
DefaultClientId = Annotated[
    bool, typer.Option("--default-client-id", help="All client ids without an own quota.")
]
DefaultIp = Annotated[bool, typer.Option("--default-ip", help="All addresses without an own quota.")]
DEFAULT_SHOWN = "(default)"


@app.command("list")
def list_(
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    default_user: DefaultUser = False,
    default_client_id: DefaultClientId = False,
    default_ip: DefaultIp = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """List quotas: all, or those of a user, a client id or an address."""
    from semel.client.admin.quotas import QuotaAdmin

    like = _entity(user, client_id, ip, (default_user, default_client_id, default_ip), is_needed=False)
    with connected(bootstrap) as client:
        found = QuotaAdmin(client).list(like)
    if as_json:
        show_json([_as_json(each) for each in found])
        return
    rows = [
        {
            "user": _shown(each.entity.user),
            "client_id": _shown(each.entity.client_id),
            "ip": _shown(each.entity.ip),
            "quota": key,
            "value": int(value) if value.is_integer() else value,
        }
        for each in found
        for key, value in each.limits.items()
    ]
    show_rows(rows, empty="There are none. Set one with 'semel quotas set --user NAME QUOTA=VALUE'.")


@app.command("set")
def set_(
    limits: Annotated[list[str], typer.Argument(metavar="QUOTA=VALUE...", help="Limits to set.")],
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    default_user: DefaultUser = False,
    default_client_id: DefaultClientId = False,
    default_ip: DefaultIp = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Set limits of a user, a client id, both together, or an address. Other limits stay as they are.

    Of users and client ids: producer_byte_rate and consumer_byte_rate in bytes per second, request_percentage
    in percent of one core, controller_mutation_rate in partitions per second. Of addresses:
    connection_creation_rate in connections per second.

    Try:  semel quotas set --user alice producer_byte_rate=1048576
    """
    from semel.client.admin.quotas import QuotaAdmin

    entity = _entity(user, client_id, ip, (default_user, default_client_id, default_ip))
    values = {key: _number(value) for key, value in pairs(limits, "QUOTA=VALUE").items()}
    with connected(bootstrap) as client:
        quotas = QuotaAdmin(client)
        quotas.alter(entity, values)
        now = quotas.list(entity, strict=True) if as_json else []
    if as_json:
        show_json([_as_json(each) for each in now])
    else:
        say(f"Set the quota of {entity}.")


@app.command()
def remove(
    limits: Annotated[
        list[str] | None, typer.Argument(metavar="QUOTA...", help="Limits to remove; by default all.")
    ] = None,
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    default_user: DefaultUser = False,
    default_client_id: DefaultClientId = False,
    default_ip: DefaultIp = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Remove limits of a user, a client id, both together, or an address."""
    from semel.client.admin.quotas import QuotaAdmin

    entity = _entity(user, client_id, ip, (default_user, default_client_id, default_ip))
    with connected(bootstrap) as client:
        quotas = QuotaAdmin(client)
        # Report names that are not set: they may be misspelt, and the broker would not report that.
        known = [key for each in quotas.list(entity, strict=True) for key in each.limits]
        missing = [key for key in limits or () if key not in known]
        if missing or not known:
            raise typer.BadParameter(
                f"{entity} has no quota {', '.join(missing)}".rstrip() + "; see 'semel quotas list'"
            )
        quotas.alter(entity, remove=limits or known)
        left = quotas.list(entity, strict=True) if as_json else []
    if as_json:
        show_json([_as_json(each) for each in left])
    else:
        say(f"Removed {', '.join(limits or known)} of {entity}.")


def _entity(
    user: str | None,
    client_id: str | None,
    ip: str | None,
    defaults: tuple[bool, bool, bool],
    *,
    is_needed: bool = True,
) -> "QuotaEntity":
    from semel.client.admin.quotas import DEFAULT, QuotaEntity

    names: list[str | None] = []
    for option, name, is_default in zip(
        ("user", "client-id", "ip"), (user, client_id, ip), defaults, strict=True
    ):
        if name is not None and is_default:
            raise typer.BadParameter(f"give --{option} or --default-{option}, not both")
        if name == "":
            raise typer.BadParameter(
                f"it is empty; --default-{option} is the default", param_hint=f"--{option}"
            )
        names.append(DEFAULT if is_default else name)
    if user is not None and user.startswith("User:"):
        raise typer.BadParameter("quotas name a user without 'User:'", param_hint="--user")
    if is_needed and names == [None] * 3:
        raise typer.BadParameter(
            "say whose quota: --user, --client-id, --ip, or one of --default-user, --default-client-id,"
            " --default-ip"
        )
    return QuotaEntity(*names)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number", param_hint="QUOTA=VALUE") from None


def _shown(name: str | None) -> str | None:
    return DEFAULT_SHOWN if name == "" else name


def _as_json(quota: "ClientQuota") -> dict[str, Any]:
    """Return a quota with its entity as in the protocol: only the given types, null for the default."""
    return {"entity": dict(quota.entity.parts()), "limits": dict(quota.limits)}
