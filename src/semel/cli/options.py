"""The options of commands: how they are declared, which ones commands share, how their text is parsed."""

import sys
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from semel.printable import printable

if TYPE_CHECKING:
    from typer.models import ArgumentInfo, OptionInfo

    from semel.client.consume.offsets import Isolation as WireIsolation

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
LEDGER_SCHEMES = ("postgresql://", "postgres://")
UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Option:
    """An option of a command (`command`): what it is for, its names, and what stands for its value.

    A name starts with a dash. If no long one is given, it is that of the parameter.
    """

    def __init__(self, text: str, *names: str, lowest: int | None = None) -> None:
        self._text = text
        self._names = tuple(name for name in names if name.startswith("-"))
        self._metavar = next((name for name in names if not name.startswith("-")), None)
        self._lowest = lowest

    def info(self, parameter: str) -> "OptionInfo":
        """Return the option as Typer declares it, given the name of its parameter."""
        names = self._names
        if not any(name.startswith("--") for name in names):
            names = (f"--{parameter.replace('_', '-')}", *names)
        info: OptionInfo = typer.Option(*names, metavar=self._metavar, min=self._lowest, help=self._text)
        return info


def argument(metavar: str, text: str | None = None, lowest: int | None = None) -> "ArgumentInfo":
    """Declare an argument of a command."""
    info: ArgumentInfo = typer.Argument(metavar=metavar, min=lowest, help=text)
    return info


def existing_directory(text: str) -> "ArgumentInfo":
    """Declare an argument that is an existing directory."""
    info: ArgumentInfo = typer.Argument(metavar="DIR", help=text, exists=True, file_okay=False)
    return info


def group(text: str) -> typer.Typer:
    """Return an empty group of commands."""
    return typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=text)


Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="SEMEL_BOOTSTRAP",
        metavar="HOST:PORT",
        help="A broker of the cluster; several are separated by commas.",
    ),
]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        envvar="SEMEL_COMMAND_CONFIG",
        metavar="FILE",
        help="Settings of the client, one NAME=VALUE a line: security.protocol, ssl.* and sasl.*.",
    ),
]
ClientSettings = Annotated[
    list[str] | None,
    typer.Option(
        "-X", metavar="NAME=VALUE", help="One such setting; may be repeated, and overrides the file."
    ),
]


def _ledger(context: typer.Context, parameter: typer.CallbackParam, value: str | None) -> str | None:
    """Refuse an address that is no URL, or a password on the command line, which all local users can see."""
    if value is None:
        return None
    source = context.get_parameter_source(str(parameter.name))
    if source is not None and source.name == "COMMANDLINE" and has_password(value):
        raise typer.BadParameter(
            "all users of this machine can see a password on the command line; give it by PGPASSWORD or"
            " ~/.pgpass, or the whole address by SEMEL_LEDGER"
        )
    return checked_ledger(value)


def has_password(address: str) -> bool:
    """Whether the address of a database contains a password."""
    from urllib.parse import parse_qs, urlsplit

    if not address.startswith(LEDGER_SCHEMES):
        return "password" in address.lower()
    try:
        parts = urlsplit(address)
        return parts.password is not None or any("password" in name for name in parse_qs(parts.query))
    except ValueError:
        return True  # The address is invalid and refused later. It may contain a password.


def checked_ledger(address: str) -> str:
    """Return the address of a database, which must be a URL. The error hides it: it may have a password."""
    if not address.startswith(LEDGER_SCHEMES):
        raise typer.BadParameter(
            "it must be a URL, postgresql://USER@HOST/DATABASE; host=… user=… is not supported",
            param_hint="--ledger",
        )
    return address


LEDGER_OPTION = typer.Option(
    "--ledger",
    metavar="URL",
    envvar="SEMEL_LEDGER",
    show_envvar=True,
    callback=_ledger,
    help="For a cluster: the PostgreSQL database of all brokers, postgresql://USER@HOST/DATABASE. Give the "
    "password by PGPASSWORD, ~/.pgpass or SEMEL_LEDGER.",
)
CHUNKS_OPTION = typer.Option(
    "--chunks",
    metavar="URL",
    envvar="SEMEL_CHUNKS",
    show_envvar=True,
    help="For a cluster: where the bytes are, s3://BUCKET/PREFIX, gs://…, az://… or file:///DIR that all "
    "brokers see. Credentials come from the environment.",
)
Ledger = Annotated[str | None, LEDGER_OPTION]
RequiredLedger = Annotated[str, LEDGER_OPTION]
Chunks = Annotated[str | None, CHUNKS_OPTION]
RequiredChunks = Annotated[str, CHUNKS_OPTION]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


class IsolationName(StrEnum):
    """What a reader may see."""

    committed = "read_committed"
    uncommitted = "read_uncommitted"

    @property
    def wire(self) -> "WireIsolation":
        """The value in the protocol."""
        from semel.client import Isolation

        return Isolation[self.value.upper()]


Isolation = Annotated[IsolationName, Option("Whether records of open and aborted transactions are seen.")]


def confirm(question: str, yes: bool) -> None:
    """Ask at a terminal, unless `yes`. Abort the command if the answer is no."""
    if not yes and sys.stdin.isatty():
        typer.confirm(printable(question), abort=True)


def pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """Parse the `name=value` arguments of an option that may be repeated."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=option)
        found[name] = value
    return found


def duration_ms(text: str, option: str) -> int:
    """Parse a time span: a number and its unit, as in 250ms, 90s, 5m, 2h, 7d."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit_ms = UNITS_MS.get(text[len(number) :])
    if unit_ms is None or not (number.isascii() and number.isdigit()):
        hint = f"write a number and one of {', '.join(UNITS_MS)}, as in 90s"
        raise typer.BadParameter(f"{text!r} is not a time span; {hint}", param_hint=option)
    return int(number) * unit_ms


def moment_ms(text: str, option: str) -> int:
    """Parse a point in time: ISO 8601, local unless it has a zone, or milliseconds since 1970."""
    from datetime import datetime

    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        hint = "write it like 2026-01-31T18:00:00, with +01:00 or Z at the end if it is not local time"
        raise typer.BadParameter(f"{text!r} is not a time; {hint}", param_hint=option) from None
    return int(moment.timestamp() * 1000)


def address_of(text: str, option: str) -> tuple[str, int]:
    """Parse HOST:PORT."""
    from semel.wire.addresses import parse_address

    try:
        return parse_address(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
