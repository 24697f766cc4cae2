"""`semel users`: list, add and remove SCRAM users.

The first user is added without a broker, to a directory that no broker uses, or to the ledger of a cluster
without running brokers. All others are added through a broker.
"""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from semel.cli.command import command, connected
from semel.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Ledger, Option, Yes, argument, confirm, group
from semel.cli.output import Answer, Columns, Remark, say
from semel.printable import printable

if TYPE_CHECKING:
    from semel.client import Admin
    from semel.client.admin.users import ScramUser

app = group("List, add and remove users with a password (SCRAM).")
PASSWORD_CHARS_MAX = 1_024


class Mechanism(StrEnum):
    """The SCRAM mechanisms."""

    sha_256 = "SCRAM-SHA-256"
    sha_512 = "SCRAM-SHA-512"


Name = Annotated[str, argument("NAME", "Name of the user.")]
MechanismOption = Annotated[Mechanism, Option("How the user authenticates.")]
USERS: "Columns[ScramUser]" = Columns("user", "mechanism", "iterations")


@command(app)
def add(
    name: Name,
    mechanism: MechanismOption = Mechanism.sha_256,
    password_stdin: Annotated[bool, Option("Read the password from standard input.")] = False,
    iterations: Annotated[
        int, typer.Option("--iterations", min=4_096, max=16_384, help="More of them make guessing slower.")
    ] = 4_096,
    data: Annotated[
        Path | None, Option("Add it to this directory, which no broker may be using.", "DIR")
    ] = None,
    ledger: Ledger = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> Answer:
    """Add a user, or change the password. Without --password-stdin, prompt for the password.

    Try:  semel users add admin --data semel-data
    """
    if data is not None and ledger is not None:
        raise typer.BadParameter("choose one: --data or --ledger", param_hint="--data")
    password = _password(password_stdin)
    if data is None and ledger is None:
        is_replaced = _add_through_broker(name, password, mechanism, iterations, bootstrap)
    else:
        is_replaced = _add_without_broker(name, password, mechanism, iterations, data, ledger)
    done = f"Added the user {printable(name)} with {mechanism.value}."
    if is_replaced:
        done = f"Replaced the password of the user {printable(name)} for {mechanism.value}."
    row = {"user": name, "mechanism": mechanism.value, "iterations": iterations, "replaced": is_replaced}
    return Answer(row, Remark(done))


@command(app, "list")
def list_(admin: "Admin") -> Answer:
    """List users."""
    return USERS.answer(admin.users.list(), "There are no users. Add one with 'semel users add NAME'.")


@command(app)
def remove(
    *, name: Name, mechanism: MechanismOption = Mechanism.sha_256, admin: "Admin", yes: Yes = False
) -> Answer:
    """Remove the password of a user for one mechanism: the user can no longer authenticate with it."""
    confirm(f"Remove {mechanism.value} of the user {name}?", yes)
    admin.users.remove(name, mechanism=mechanism.value)
    row = {"user": name, "mechanism": mechanism.value}
    return Answer(row, Remark(f"Removed {mechanism.value} of the user {printable(name)}."))


def _password(from_stdin: bool) -> str:
    """Read the password. It is not an option, because all users of a machine can see the command line."""
    if from_stdin:
        password = sys.stdin.readline().rstrip("\r\n")
    elif sys.stdin.isatty():
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        raise typer.BadParameter("there is no terminal to ask at", param_hint="--password-stdin")
    if not 0 < len(password) <= PASSWORD_CHARS_MAX:
        raise typer.BadParameter(
            f"it must have 1 to {PASSWORD_CHARS_MAX:,} characters", param_hint="--password-stdin"
        )
    return password


def _add_through_broker(
    name: str, password: str, mechanism: Mechanism, iterations: int, bootstrap: str
) -> bool:
    """Add or change a user, and return whether there was a password before."""
    from semel.client import Admin
    from semel.client.errors import KafkaError

    with connected(bootstrap) as client:
        users = Admin(client).users
        try:
            is_replaced = users.has(name, mechanism=mechanism.value)
        except KafkaError:  # The client may be authorised to add users but not to list them.
            is_replaced = False
        users.put(name, password, mechanism=mechanism.value, iterations=iterations)
    return is_replaced


def _add_without_broker(
    name: str, password: str, mechanism: Mechanism, iterations: int, data: Path | None, ledger: str | None
) -> bool:
    """Add or change a user, and return whether there was a password before."""
    import asyncio
    import secrets

    from semel.client.admin.users import SALT_BYTES
    from semel.core.security.users import credential_of_password, user_problem
    from semel.store.first_user import put_in_directory, put_in_ledger

    if wrong_name := user_problem(name):
        raise typer.BadParameter(wrong_name, param_hint="NAME")
    salt = secrets.token_bytes(SALT_BYTES)
    credential = credential_of_password(name, mechanism.value, salt, iterations, password)
    if data is not None:
        if not data.exists():
            say(f"There is no directory {data}: it is created.")
        return asyncio.run(put_in_directory(data, credential))
    assert ledger is not None
    return asyncio.run(put_in_ledger(ledger, credential))
