"""`semel acls`: list, add and remove ACLs.

Kafka accepts ACLs that can never apply, and so does Semel's broker. On the command line they are typing
errors, so `allow` and `deny` refuse them. `remove` accepts them, because such an ACL may exist.
"""

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from semel.cli.command import command
from semel.cli.options import Option, Yes, argument, confirm, group
from semel.cli.output import Answer, Columns, Remark

if TYPE_CHECKING:
    from semel.client import Admin
    from semel.client.admin.acls import Acl

app = group("List, add and remove ACLs: who may do what.")

TopicName = Annotated[str | None, Option("A topic; * for all of them.")]
ACLS: "Columns[Acl]" = Columns(
    "principal", "permission", "operation", "resource_type", "resource_name", "pattern_type", "host"
)


class Rules(NamedTuple):
    """ACLs of one principal on one resource, one for each operation."""

    principal: Annotated[str, argument("PRINCIPAL", "User:NAME, or User:* for everybody.")]
    operations: Annotated[
        list[str], argument("OPERATION", "Read, Write, Describe, Create, Delete, Alter, All, …")
    ]
    topic: TopicName = None
    group: Annotated[str | None, Option("A group; * for all of them.")] = None
    transactional_id: Annotated[str | None, Option("A transactional id; * for all of them.")] = None
    cluster: Annotated[bool, Option("The cluster itself.")] = False
    prefix: Annotated[bool, Option("The name is a prefix of names.")] = False
    host: Annotated[str, Option("Only from this address.", "ADDRESS")] = "*"

    def acls(self, *, is_denied: bool) -> "list[Acl]":
        """Return the ACLs. BadParameter if they are not valid."""
        from semel.client.admin.acls import Acl

        if self.topic is not None and self.topic != "*" and self.topic.endswith("*"):
            name = self.topic.rstrip("*")
            hint = f"it is no pattern; for all topics that begin so: --topic {name} --prefix"
            raise typer.BadParameter(hint, param_hint="--topic")
        try:
            return [
                Acl.of(
                    self.principal,
                    operation,
                    topic=self.topic,
                    group=self.group,
                    transactional_id=self.transactional_id,
                    is_cluster=self.cluster,
                    is_prefix=self.prefix,
                    host=self.host,
                    is_denied=is_denied,
                )
                for operation in self.operations
            ]
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None


@command(app, "list")
def list_(
    *,
    principal: Annotated[str | None, Option("Only of this principal.")] = None,
    topic: TopicName = None,
    admin: "Admin",
) -> Answer:
    """List ACLs. With --topic, list all that apply to that topic, including those with a prefix or *."""
    kind, pattern = ("TOPIC", "MATCH") if topic else ("ANY", "ANY")
    found = admin.acls.list(
        principal=principal, resource_type=kind, resource_name=topic, pattern_type=pattern
    )
    return ACLS.answer(found, "There are no such ACLs. Add one with 'semel acls allow'.")


@command(app)
def allow(rules: Rules, admin: "Admin") -> Answer:
    """Allow operations on a resource.

    Try:  semel acls allow User:billing Read --topic orders
    """
    return _add(admin, rules.acls(is_denied=False))


@command(app)
def deny(rules: Rules, admin: "Admin") -> Answer:
    """Deny operations on a resource, even if other ACLs allow them."""
    return _add(admin, rules.acls(is_denied=True))


@command(app)
def remove(
    *,
    rules: Rules,
    denied: Annotated[bool, Option("Remove ACLs that deny.")] = False,
    admin: "Admin",
    yes: Yes = False,
) -> Answer:
    """Remove exactly these ACLs."""
    acls = rules.acls(is_denied=denied)
    confirm(f"Remove {len(acls)} ACL(s) of {rules.principal}?", yes)
    return ACLS.answer(admin.acls.remove(acls), "There were no such ACLs.")


def _add(admin: "Admin", acls: "list[Acl]") -> Answer:
    for acl in acls:
        _check_principal(acl.principal)
        _check_operation(acl)
    admin.acls.add(*acls)
    return Answer(ACLS.rows(acls), Remark(f"Added {len(acls)} ACL(s)."))


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
