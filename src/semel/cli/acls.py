"""`semel acls`: list, add and remove ACLs.

Kafka accepts ACLs that can never apply, and so does Semel's broker. On the command line they are typing
errors, so `allow` and `deny` refuse them. `remove` accepts them, because such an ACL may exist.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, Yes, confirm, connected
from semel.cli.output import say, show_json, show_rows

if TYPE_CHECKING:
    from semel.client.admin.acls import Acl

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List, add and remove ACLs: who may do what."
)

Principal = Annotated[str, typer.Argument(metavar="PRINCIPAL", help="User:NAME, or User:* for everybody.")]
Operations = Annotated[
    list[str],
    typer.Argument(metavar="OPERATION", help="Read, Write, Describe, Create, Delete, Alter, All, …"),
]
Topic = Annotated[str | None, typer.Option("--topic", help="A topic; * for all of them.")]
Group = Annotated[str | None, typer.Option("--group", help="A group; * for all of them.")]
TransactionalId = Annotated[
    str | None, typer.Option("--transactional-id", help="A transactional id; * for all of them.")
]
OfCluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
Prefix = Annotated[bool, typer.Option("--prefix", help="The name is a prefix of names.")]
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Only from this address.")]


@app.command("list")
def list_(
    principal: Annotated[str | None, typer.Option("--principal", help="Only of this principal.")] = None,
    topic: Topic = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """List ACLs. With --topic, list all that apply to that topic, including those with a prefix or *."""
    from semel.client import Admin

    kind, pattern = ("TOPIC", "MATCH") if topic else ("ANY", "ANY")
    with connected(bootstrap) as client:
        found = Admin(client).acls.list(
            principal=principal, resource_type=kind, resource_name=topic, pattern_type=pattern
        )
    _show(found, as_json, "There are no such ACLs. Add one with 'semel acls allow'.")


@app.command()
def allow(
    principal: Principal,
    operations: Operations,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: OfCluster = False,
    prefix: Prefix = False,
    host: Host = "*",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Allow operations on a resource.

    Try:  semel acls allow User:billing Read --topic orders
    """
    acls = _acls(principal, operations, topic, group, transactional_id, cluster, prefix, host, False)
    _add(acls, bootstrap, as_json)


@app.command()
def deny(
    principal: Principal,
    operations: Operations,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: OfCluster = False,
    prefix: Prefix = False,
    host: Host = "*",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Deny operations on a resource, even if other ACLs allow them."""
    acls = _acls(principal, operations, topic, group, transactional_id, cluster, prefix, host, True)
    _add(acls, bootstrap, as_json)


@app.command()
def remove(
    principal: Principal,
    operations: Operations,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: OfCluster = False,
    prefix: Prefix = False,
    host: Host = "*",
    denied: Annotated[bool, typer.Option("--denied", help="Remove ACLs that deny.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
    yes: Yes = False,
) -> None:
    """Remove exactly these ACLs."""
    from semel.client import Admin

    acls = _acls(principal, operations, topic, group, transactional_id, cluster, prefix, host, denied)
    confirm(f"Remove {len(acls)} ACL(s) of {principal}?", yes)
    with connected(bootstrap) as client:
        removed = Admin(client).acls.remove(acls)
    _show(removed, as_json, "There were no such ACLs.")


def _acls(
    principal: str,
    operations: list[str],
    topic: str | None,
    group: str | None,
    transactional_id: str | None,
    cluster: bool,
    prefix: bool,
    host: str,
    denied: bool,
) -> "list[Acl]":
    from semel.client.admin.acls import Acl

    if topic is not None and topic != "*" and topic.endswith("*"):
        hint = f"it is no pattern; for all topics that begin so: --topic {topic.rstrip('*')} --prefix"
        raise typer.BadParameter(hint, param_hint="--topic")
    try:
        return [
            Acl.of(
                principal,
                operation,
                topic=topic,
                group=group,
                transactional_id=transactional_id,
                is_cluster=cluster,
                is_prefix=prefix,
                host=host,
                is_denied=denied,
            )
            for operation in operations
        ]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _add(acls: "list[Acl]", bootstrap: str, as_json: bool) -> None:
    from semel.client import Admin

    for each in acls:
        _check_principal(each.principal)
        _check_operation(each)
    with connected(bootstrap) as client:
        Admin(client).acls.add(*acls)
    if as_json:
        show_json([_row(each) for each in acls])
    else:
        say(f"Added {len(acls)} ACL(s).")


def _check_principal(principal: str) -> None:
    from semel.principals import meant_principal

    meant = meant_principal(principal)
    if meant != principal:
        hint = f"; did you mean {meant}?" if meant else ""
        raise typer.BadParameter(f"{principal!r} is not like User:billing{hint}", param_hint="PRINCIPAL")


def _check_operation(acl: "Acl") -> None:
    """Refuse an operation that no request on this resource needs, as Kafka's tool does."""
    from semel.core.security.acls import OPERATIONS_OF, Operation, ResourceType

    known = [each.name for each in (*OPERATIONS_OF[ResourceType[acl.resource_type]], Operation.ALL)]
    if acl.operation not in known:
        resource = acl.resource_type.lower().replace("_", " ")
        hint = f"{acl.operation} has no meaning for a {resource}; there are {', '.join(known)}"
        raise typer.BadParameter(hint, param_hint="OPERATION")


def _show(acls: Any, as_json: bool, empty: str) -> None:
    rows = [_row(each) for each in acls]
    if as_json:
        show_json(rows)
    else:
        show_rows(rows, empty=empty)


def _row(acl: "Acl") -> dict[str, str]:
    return {
        "principal": acl.principal,
        "permission": acl.permission,
        "operation": acl.operation,
        "resource_type": acl.resource_type,
        "resource_name": acl.resource_name,
        "pattern_type": acl.pattern_type,
        "host": acl.host,
    }
