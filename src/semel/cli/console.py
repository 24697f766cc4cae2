"""`semel console`: a web console for a cluster, and the console of `semel serve --console`."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from semel.cli.cluster import cluster_status
from semel.cli.command import client_settings, command
from semel.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Ledger, Option, address_of
from semel.cli.output import say, say_error

if TYPE_CHECKING:
    from semel.config import Settings
    from semel.console.serving import Beside
    from semel.console.settings import ConsoleSettings
    from semel.server.listener import ListenerConfig
    from semel.server.server import Server
    from semel.store.opening import Remote

FAILED, ADDRESS_TAKEN = 1, 69
SERVE_OPTION = "--console"
_AllowHost = Annotated[
    list[str] | None,
    Option(
        "A name under which browsers reach the console, if it is not that of --listen; may be repeated.",
        "NAME",
    ),
]
_Storage = Annotated[
    Path | None,
    typer.Option(
        "--storage",
        metavar="DIR",
        exists=True,
        file_okay=False,
        help="A data directory that no broker has open, such as a backup, for the page of checks.",
    ),
]


@command()
def console(
    listen: Annotated[
        str, Option("Where browsers connect; port 0 is any free one.", "HOST:PORT")
    ] = "127.0.0.1:8080",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    login: Annotated[bool, Option("Want a login on loopback, too. Elsewhere it is always wanted.")] = False,
    read_only: Annotated[bool, Option("Change nothing in the cluster.")] = False,
    allow_host: _AllowHost = None,
    certificate: Annotated[Path | None, Option("Serve HTTPS with this PEM certificate.", "FILE")] = None,
    key: Annotated[Path | None, Option("Its key, if that is in another file.", "FILE")] = None,
    audit: Annotated[
        Path | None, Option("The log of a broker on this machine, for its audit trail.", "FILE")
    ] = None,
    storage: _Storage = None,
    ledger: Ledger = None,
    registry: Annotated[
        str | None, Option("A schema registry, to decode messages with.", "--schema-registry", "URL")
    ] = None,
) -> None:
    """Serve a web console for a cluster: topics, messages, groups and, unlike other consoles, transactions.

    It works with Semel and with every other Kafka broker. On loopback it acts with the settings given by -X
    and --command-config. On other addresses users log in with their SASL user and password of the broker,
    and ACLs decide what they see; -X then sets the protocol and the mechanism.

    Try:  semel console --bootstrap 127.0.0.1:9092

    Exit codes: 0 stopped, 1 failed, 2 wrong usage, 69 the address is taken.
    """
    _need_packages()
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
    _check(settings)
    _serve(settings, listen)


def _serve(settings: "ConsoleSettings", listen: str) -> None:
    from semel.console.serving import serve

    try:
        serve(settings, _ready)
    except OSError as error:
        say_error(
            f"the console cannot listen on {listen}: {error.strerror}. Choose another --listen address."
        )
        raise typer.Exit(ADDRESS_TAKEN) from None


def _need_packages() -> None:
    """Exit with an error if the packages of the console are missing."""
    if any(find_spec(name) is None for name in ("anyio", "starlette", "jinja2", "uvicorn")):
        say_error("the console needs more packages: pip install 'semel[console]'.")
        raise typer.Exit(FAILED)


def _check(settings: "ConsoleSettings", option: str = "--listen") -> None:
    """Refuse settings that are invalid, or that would give access without a login."""
    try:
        settings.checked()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _ready(address: str) -> None:
    sys.stdout.write(f"The console is ready on {address}\n")
    sys.stdout.flush()


class BesideBroker:
    """A console on a thread of the broker's process: it starts when the broker is ready, and ends with it.

    It is for development and small machines. The console shares the interpreter with the broker, so every
    browser slows the broker down. For many browsers, run `semel console` as a process of its own.
    """

    def __init__(self, settings: dict[str, Any], listener: "ListenerConfig") -> None:
        self._settings = settings
        self._listener = listener
        self._running: Beside | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._running is not None:
            self._running.close()

    def start(self, server: "Server") -> None:
        """Start the console of a broker that is ready. If it cannot listen, the broker runs without it."""
        from semel.console.serving import Beside
        from semel.console.settings import ConsoleSettings
        from semel.server.listener import reachable
        from semel.wire.addresses import write_address

        bootstrap = write_address(reachable(self._listener.host), server.ports[self._listener.name])
        try:
            self._running = Beside(ConsoleSettings(**self._settings, bootstrap=bootstrap)).start()
        except OSError as error:
            address = write_address(self._settings["host"], self._settings["port"])
            say_error(
                f"the console cannot listen on {address}: {error.strerror}. The broker runs without it."
            )
            return
        with suppress(OSError):  # Standard error may be closed; that must not stop the console.
            say(f"The console is ready on {self._running.address}")


def beside(
    address: str, listeners: "Sequence[ListenerConfig]", settings: "Settings", place: "Path | Remote | None"
) -> BesideBroker:
    """Return the console of a broker. BadParameter if it cannot reach the broker, or would be unsafe."""
    _need_packages()
    from semel.console.settings import PASSWORD_MECHANISMS, ConsoleSettings

    host, port = address_of(address, SERVE_OPTION)
    listener = next((each for each in listeners if each.tls is None), None)
    if listener is None:
        raise typer.BadParameter(
            "it needs a --listen address without TLS; run 'semel console' with the certificates instead",
            param_hint=SERVE_OPTION,
        )
    enabled = [each.strip() for each in settings.sasl_enabled_mechanisms.split(",")]
    mechanism = next((each for each in enabled if each in PASSWORD_MECHANISMS), "")
    client = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism} if listener.has_sasl else {}
    given: dict[str, Any] = {"host": host, "port": port, "client": client, "login": listener.has_sasl}
    if place is not None and not isinstance(place, Path):
        given["cluster_status"] = partial(cluster_status, place.ledger)
    _check(ConsoleSettings(**given), SERVE_OPTION)
    return BesideBroker(given, listener)
