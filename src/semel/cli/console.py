"""`semel console`: a web console for a cluster."""

import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from semel.cli.cluster import cluster_status
from semel.cli.listeners import address_of
from semel.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Ledger, client_settings
from semel.cli.output import say_error

if TYPE_CHECKING:
    from semel.console.settings import ConsoleSettings

DEFAULT_LISTEN = "127.0.0.1:8080"
FAILED, ADDRESS_TAKEN = 1, 69

Listen = Annotated[
    str, typer.Option("--listen", metavar="HOST:PORT", help="Where browsers connect; port 0 is any free one.")
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host",
        metavar="NAME",
        help="A name under which browsers reach the console, if it is not that of --listen; may be repeated.",
    ),
]


Login = Annotated[
    bool, typer.Option("--login", help="Want a login on loopback, too. Elsewhere it is always wanted.")
]
ReadOnly = Annotated[bool, typer.Option("--read-only", help="Change nothing in the cluster.")]
Certificate = Annotated[
    Path | None, typer.Option("--certificate", metavar="FILE", help="Serve HTTPS with this PEM certificate.")
]
Key = Annotated[
    Path | None, typer.Option("--key", metavar="FILE", help="Its key, if that is in another file.")
]
Audit = Annotated[
    Path | None,
    typer.Option("--audit", metavar="FILE", help="The log of a broker on this machine, for its audit trail."),
]
Storage = Annotated[
    Path | None,
    typer.Option(
        "--storage",
        metavar="DIR",
        exists=True,
        file_okay=False,
        help="A data directory that no broker has open, such as a backup, for the page of checks.",
    ),
]
Registry = Annotated[
    str | None,
    typer.Option("--schema-registry", metavar="URL", help="A schema registry, to decode messages with."),
]


def console(
    listen: Listen = DEFAULT_LISTEN,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    login: Login = False,
    read_only: ReadOnly = False,
    allow_host: AllowHost = None,
    certificate: Certificate = None,
    key: Key = None,
    audit: Audit = None,
    storage: Storage = None,
    ledger: Ledger = None,
    registry: Registry = None,
) -> None:
    """Serve a web console for a cluster: topics, messages, groups and, unlike other consoles, transactions.

    It works with Semel and with every other Kafka broker. On loopback it acts with the settings given by -X
    and --command-config. On other addresses users log in with their SASL user and password of the broker,
    and ACLs decide what they see; -X then sets the protocol and the mechanism.

    Try:  semel console --bootstrap 127.0.0.1:9092

    Exit codes: 0 stopped, 1 failed, 2 wrong usage, 69 the address is taken.
    """
    needs_console()
    from semel.console.settings import ConsoleSettings

    host, port = address_of(listen, "--listen")
    settings = ConsoleSettings(
        bootstrap=bootstrap,
        client=client_settings(),
        host=host,
        port=port,
        allowed_hosts=tuple(allow_host or ()),
        login=login,
        read_only=read_only,
        certificate=certificate,
        key=key,
        audit_file=audit,
        storage=storage,
        cluster_status=None if ledger is None else partial(cluster_status, ledger),
        registry=registry,
    )
    checked(settings)
    from semel.console.serving import serve

    try:
        serve(settings, _ready)
    except OSError as error:
        say_error(
            f"the console cannot listen on {listen}: {error.strerror}. Choose another --listen address."
        )
        raise typer.Exit(ADDRESS_TAKEN) from None


def needs_console() -> None:
    """Exit with an error if the packages of the console are missing."""
    if any(find_spec(name) is None for name in ("starlette", "jinja2", "uvicorn")):
        say_error("the console needs more packages: pip install 'semel[console]'.")
        raise typer.Exit(FAILED)


def checked(settings: "ConsoleSettings", option: str = "--listen") -> None:
    """Refuse settings that are invalid, or that would give access without a login."""
    try:
        settings.checked()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _ready(address: str) -> None:
    sys.stdout.write(f"The console is ready on {address}\n")
    sys.stdout.flush()
