"""`semel serve`: runs a broker in the foreground.

Every option can be in a TOML file under the same name, and the command line overrides the file. Settings of
the broker have Kafka's dotted names, in the table `[settings]` or by `--set`. Unknown names are refused; the
error suggests the nearest known one.
"""

import difflib
import reprlib
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from semel.cli.command import command
from semel.cli.console import beside
from semel.cli.options import Chunks, Ledger, Option, address_of, checked_ledger, pairs
from semel.cli.output import say_error

if TYPE_CHECKING:
    from semel.cli.console import BesideBroker
    from semel.config import Settings
    from semel.server.listener import ListenerConfig
    from semel.server.server import Server
    from semel.server.tls import ServerTls
    from semel.store.opening import Remote

DEFAULT_DATA: Final = "semel-data"
DEFAULT_LISTEN: Final = "127.0.0.1:9092"
INTERNAL: Final = "internal"
PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SWITCH_SECONDS: Final = 0.0005


class LogLevel(StrEnum):
    """How much is logged."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


class LogFormat(StrEnum):
    """The format of the log."""

    text = "text"
    json = "json"


class Options(NamedTuple):
    """The options of the command; None, False or empty if not given."""

    data: Annotated[
        Path | None, Option(f"The data directory; created if missing. [default: ./{DEFAULT_DATA}]", "DIR")
    ] = None
    listen: Annotated[
        list[str] | None,
        Option(
            "Where clients connect; may be repeated; port 0 is any free one. PROTOCOL is plaintext, ssl, "
            "sasl_plaintext or sasl_ssl; with ssl it needs the setting ssl.certificate.location. "
            f"[default: {DEFAULT_LISTEN}]",
            "[NAME=][PROTOCOL://]HOST:PORT",
        ),
    ] = None
    advertise: Annotated[
        list[str] | None,
        Option(
            "The address given to clients of a listener, if it differs from the one it listens on; "
            "that of the name 'internal' is given to other brokers, with --internal.",
            "[NAME=]HOST:PORT",
        ),
    ] = None
    memory: Annotated[bool, Option("Keep everything in memory; it is lost at the end.")] = False
    ledger: Ledger = None
    chunks: Chunks = None
    internal: Annotated[
        str | None,
        Option(
            "For a cluster: where other brokers connect, in a private network. [default: any port of the "
            "first --listen host]",
            "HOST:PORT",
        ),
    ] = None
    metrics: Annotated[str | None, Option("Serve Prometheus metrics over HTTP here.", "HOST:PORT")] = None
    console: Annotated[
        str | None, Option("Serve the web console here; see 'semel console'.", "HOST:PORT")
    ] = None
    config: Annotated[Path | None, Option("A TOML file with these options, and [settings].", "FILE")] = None
    setting: Annotated[
        list[str] | None, Option("A setting by Kafka's name; may be repeated.", "--set", "NAME=VALUE")
    ] = None
    log_level: Annotated[LogLevel | None, Option("How much is logged. [default: info]")] = None
    log_format: Annotated[LogFormat | None, Option("Plain lines, or JSON.")] = None

    def given(self) -> dict[str, Any]:
        """Return the options that were given and that a file can have, by their names there."""
        return {
            name.replace("_", "-"): value
            for name, value in self._asdict().items()
            if name not in ("config", "setting") and value not in (None, False, [])
        }


@command()
def serve(context: typer.Context, arguments: Options) -> None:
    """Run a broker until it is stopped: alone on a data directory, or in a cluster (--ledger and --chunks).

    Prints one line, 'Semel is ready on HOST:PORT', when clients can connect; the log goes to standard error.
    Stop it with Ctrl-C or SIGTERM. Acknowledged records are durable, so it can also be killed.

    Try:  semel serve --data ./log --set auto.create.topics.enable=true

    Exit codes: 0 stopped, 2 wrong usage, 65 the data directory is incomplete or damaged (see 'semel repair'),
    or PostgreSQL has lost commits, 69 an address is taken, 70 the store or the broker failed, or another
    process took its place (start it again), 75 another process owns the data directory or the node.id, 78 the
    database or the object store refuses this broker, or cannot be trusted (change its settings).
    """
    options = _from_file(arguments.config) if arguments.config is not None else {}
    given = arguments.given()
    placed = {name for name in _PLACES if _is_on_command_line(context, name)}
    if placed:
        # The command line overrides the file and the environment.
        for name in _PLACES.keys() - {also for each in placed for also in _PLACES[each]}:
            options.pop(name, None)
            given.pop(name, None)
    options.update(given)
    settings = _settings({**options.get("settings", {}), **pairs(arguments.setting or (), "--set")})
    listeners = _listeners(options, settings)
    if options.get("memory") and options.get("data") is not None:
        raise typer.BadParameter(
            "choose one: --memory keeps nothing, --data keeps everything", param_hint="--memory"
        )
    place, between = _place(options), _internal(options)
    page = address_of(options["metrics"], "--metrics") if options.get("metrics") else None
    shown = beside(options["console"], listeners, settings, place) if options.get("console") else None
    logs = LogLevel(options.get("log-level", "info")), LogFormat(options.get("log-format", "text"))
    raise typer.Exit(_serve(settings, listeners, place, page, logs, between, shown))


_PLACES: Final[Mapping[str, Collection[str]]] = {
    "data": ("data",),
    "memory": ("memory",),
    "ledger": ("ledger", "chunks"),
    "chunks": ("ledger", "chunks"),
}
"""The options that say where the data is; each maps to those that belong together with it."""


def _is_on_command_line(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _serve(
    settings: "Settings",
    listeners: "Sequence[ListenerConfig]",
    place: "Path | Remote | None",
    page: tuple[str, int] | None,
    logs: tuple[LogLevel, LogFormat],
    internal: "ListenerConfig | None",
    console: "BesideBroker | None",
) -> int:
    from semel.allocator import keep_memory
    from semel.server import sockets
    from semel.server.logs import configure
    from semel.server.run import run, serve
    from semel.wire.addresses import write_address

    def ready(server: "Server") -> None:
        first = listeners[0]
        sys.stdout.write(f"Semel is ready on {write_address(first.host, server.ports[first.name])}\n")
        sys.stdout.flush()
        if console is not None:
            console.start(server)

    def failed(code: int, text: str) -> None:
        advice = _ADVICE if place is None or isinstance(place, Path) else _CLUSTER_ADVICE
        say_error(f"{text.rstrip('.')}.{advice.get(code, '')}")

    configure(logs[0].value, logs[1].value)
    keep_memory()
    sockets.take_all()
    # All requests wait for the thread that commits, so a busy event loop must release the interpreter soon.
    sys.setswitchinterval(SWITCH_SECONDS)
    with console or nullcontext():
        return run(serve(settings, listeners, place, page, ready, failed, internal))


def _place(options: Mapping[str, Any]) -> "Path | Remote | None":
    """Return where the data is: a directory, None for memory, or a ledger and an object store."""
    from semel.store.opening import Remote

    ledger, chunks = options.get("ledger"), options.get("chunks")
    if ledger is None and chunks is None:
        return None if options.get("memory") else Path(options.get("data") or DEFAULT_DATA)
    if ledger is None or chunks is None:
        raise typer.BadParameter(
            "a cluster needs both: --ledger for the database, --chunks for the bytes", param_hint="--ledger"
        )
    if options.get("memory") or options.get("data") is not None:
        raise typer.BadParameter(
            "choose one: --data, --memory, or --ledger and --chunks", param_hint="--ledger"
        )
    return Remote(checked_ledger(ledger), chunks)


_ADVICE: Mapping[int, str] = {
    69: " Choose another --listen or --metrics address, or stop what listens there.",
    65: " Nothing was changed. Put the missing files back if you have them, or see what can be done without"
    " them: semel repair DIR.",
    70: " See the log above, and start it again.",
    75: " Stop the other broker, or choose another --data directory.",
}
_CLUSTER_ADVICE: Mapping[int, str] = {
    69: " Choose another --listen, --internal or --metrics address, or stop what listens there.",
    70: " See the log above, and start it again.",
}
_KINDS: Mapping[str, tuple[type, str]] = {
    "data": (str, "a directory"),
    "memory": (bool, "true or false"),
    "log-level": (object, ""),
    "log-format": (object, ""),
    "listen": (list, "an address, or a list of them"),
    "advertise": (list, "an address, or a list of them"),
    "ledger": (str, "the address of a database"),
    "chunks": (str, "the URL of an object store"),
    "internal": (str, "an address"),
    "metrics": (str, "an address"),
    "console": (str, "an address"),
    "settings": (dict, "a table"),
}
"""The options that a file can have, and their types. The log options have fixed choices: see `_from_file`."""


def _from_file(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        options = tomllib.loads(path.read_text())
        if isinstance(options.get("settings"), dict):
            options["settings"] = _flat(options["settings"])
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path} cannot be read: {error}", param_hint="--config") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise typer.BadParameter(f"{path} is not TOML: {error}", param_hint="--config") from None
    for name in options:
        if name not in _KINDS:
            near = difflib.get_close_matches(name, _KINDS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "settings of the broker belong under [settings]"
            raise typer.BadParameter(f"{path} has an unknown option {name!r}; {hint}", param_hint="--config")
    for name in ("listen", "advertise"):
        if isinstance(options.get(name), str):
            options[name] = [options[name]]
    for name, value in options.items():
        kind, called = _KINDS[name]
        texts = value if isinstance(value, list) else []
        if not isinstance(value, kind) or not all(isinstance(each, str) for each in texts):
            shown = reprlib.repr(value)  # shortened: it may be nested too deeply to be shown in full
            raise typer.BadParameter(f"{name} in {path} must be {called}, not {shown}", param_hint="--config")
    for name, allowed in (("log-level", LogLevel), ("log-format", LogFormat)):
        known = [each.value for each in allowed]
        if name in options and options[name] not in known:
            raise typer.BadParameter(
                f"{name} in {path} must be one of {', '.join(known)}", param_hint="--config"
            )
    return options


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten to dotted names: TOML reads `num.partitions = 4` as a table within a table."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _settings(options: Mapping[str, Any]) -> "Settings":
    from semel.config import Settings

    try:
        return Settings.of(options)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--set") from None


def _listeners(options: Mapping[str, Any], settings: "Settings") -> "list[ListenerConfig]":
    """Return the listeners for clients, with the addresses that they advertise."""
    from semel.server.listener import ListenerConfig

    listeners: list[ListenerConfig] = []
    tls: ServerTls | None = None
    for text in options.get("listen") or [DEFAULT_LISTEN]:
        name, address, protocol = _secured(text)
        host, port = address_of(address, "--listen")
        name = name or (protocol if not listeners else f"{protocol}_{len(listeners) + 1}")
        if any(each.name == name for each in listeners):
            raise typer.BadParameter(f"there are two listeners named {name}", param_hint="--listen")
        has_tls, has_sasl = protocol.endswith("SSL"), protocol.startswith("SASL")
        if has_tls:
            tls = tls or _tls(settings)
        listeners.append(ListenerConfig(name, host, port, tls=tls if has_tls else None, has_sasl=has_sasl))
    _check(settings, listeners)
    for text in options.get("advertise") or ():
        name, (host, port) = _named(text, "--advertise")
        if name == INTERNAL and options.get("internal"):
            continue
        at = next((at for at, each in enumerate(listeners) if each.name == (name or listeners[0].name)), None)
        if at is None:
            known = ", ".join(each.name for each in listeners)
            raise typer.BadParameter(f"there is no listener {name}, only {known}", param_hint="--advertise")
        listeners[at] = listeners[at]._replace(advertised_host=host, advertised_port=port)
    return listeners


def _secured(text: str) -> tuple[str, str, str]:
    """Return name, address and protocol of `NAME=ssl://HOST:PORT`; name and protocol are optional."""
    name, equals, address = text.rpartition("=")
    protocol, separator, rest = address.partition("://")
    known = {each.lower(): each for each in PROTOCOLS}
    if separator and protocol.lower() not in known:
        hint = f"{protocol}:// is not supported; use {' or '.join(f'{each}://' for each in known)}"
        raise typer.BadParameter(hint, param_hint="--listen")
    if equals and not name:
        raise typer.BadParameter(f"{text!r} has no name before the '='", param_hint="--listen")
    return (name, rest, known[protocol.lower()]) if separator else (name, address, PROTOCOLS[0])


def _tls(settings: "Settings") -> "ServerTls":
    from semel.server.sasl.certificate_names import parse_rules
    from semel.server.tls import ServerTls

    try:
        parse_rules(settings.ssl_principal_mapping_rules)
        return ServerTls(settings)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--listen") from None


def _check(settings: "Settings", listeners: "list[ListenerConfig]") -> None:
    """Reject authentication settings that can never succeed, before a broker is started."""
    from semel.server.risks import check

    try:
        check(settings, listeners)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--set") from None


def _named(text: str, option: str) -> tuple[str, tuple[str, int]]:
    name, equals, address = text.rpartition("=")
    if equals and not name:
        raise typer.BadParameter(f"{text!r} has no name before the '='", param_hint=option)
    return name, address_of(address, option)


def _internal(options: Mapping[str, Any]) -> "ListenerConfig | None":
    """Return the listener for the other brokers of a cluster; None if the option is not given."""
    from semel.server.listener import ListenerConfig

    if not options.get("internal"):
        return None
    if options.get("ledger") is None:
        raise typer.BadParameter("it is for the other brokers of a cluster", param_hint="--internal")
    listener = ListenerConfig(INTERNAL, *address_of(options["internal"], "--internal"))
    for text in options.get("advertise") or ():
        name, (host, port) = _named(text, "--advertise")
        if name == INTERNAL:
            listener = listener._replace(advertised_host=host, advertised_port=port)
    return listener
