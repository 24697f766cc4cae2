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
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from semel.cli.console_beside import beside
from semel.cli.listeners import DEFAULT_LISTEN, address_of, internal_of, listeners_of
from semel.cli.options import Chunks, Ledger, checked_ledger, pairs
from semel.cli.output import say_error

if TYPE_CHECKING:
    from semel.cli.console_beside import BesideBroker
    from semel.config import Settings
    from semel.server.listener import ListenerConfig
    from semel.server.server import Server
    from semel.store.opening import Remote

DEFAULT_DATA = "semel-data"
FILE_NAMES = (
    "data",
    "memory",
    "ledger",
    "chunks",
    "internal",
    "listen",
    "advertise",
    "metrics",
    "console",
    "log-level",
    "log-format",
    "settings",
)


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


Data = Annotated[
    Path | None,
    typer.Option(
        "--data", metavar="DIR", help=f"The data directory; created if missing. [default: ./{DEFAULT_DATA}]"
    ),
]
Listen = Annotated[
    list[str] | None,
    typer.Option(
        "--listen",
        metavar="[NAME=][PROTOCOL://]HOST:PORT",
        help="Where clients connect; may be repeated; port 0 is any free one. PROTOCOL is plaintext, ssl, "
        "sasl_plaintext or sasl_ssl; with ssl it needs the setting ssl.certificate.location. "
        f"[default: {DEFAULT_LISTEN}]",
    ),
]
Advertise = Annotated[
    list[str] | None,
    typer.Option(
        "--advertise",
        metavar="[NAME=]HOST:PORT",
        help="The address given to clients of a listener, if it differs from the one it listens on; "
        "that of the name 'internal' is given to other brokers, with --internal.",
    ),
]
Memory = Annotated[bool, typer.Option("--memory", help="Keep everything in memory; it is lost at the end.")]
Internal = Annotated[
    str | None,
    typer.Option(
        "--internal",
        metavar="HOST:PORT",
        help="For a cluster: where other brokers connect, in a private network. [default: any port of the "
        "first --listen host]",
    ),
]
MetricsAddress = Annotated[
    str | None,
    typer.Option("--metrics", metavar="HOST:PORT", help="Serve Prometheus metrics over HTTP here."),
]
ConsoleAddress = Annotated[
    str | None,
    typer.Option("--console", metavar="HOST:PORT", help="Serve the web console here; see 'semel console'."),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="A TOML file with these options, and [settings]."),
]
SettingTexts = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting by Kafka's name; may be repeated."),
]
Level = Annotated[LogLevel | None, typer.Option("--log-level", help="How much is logged. [default: info]")]
Layout = Annotated[LogFormat | None, typer.Option("--log-format", help="Plain lines, or JSON.")]


def serve(
    context: typer.Context,
    data: Data = None,
    listen: Listen = None,
    advertise: Advertise = None,
    memory: Memory = False,
    ledger: Ledger = None,
    chunks: Chunks = None,
    internal: Internal = None,
    metrics: MetricsAddress = None,
    console: ConsoleAddress = None,
    config: ConfigFile = None,
    setting: SettingTexts = None,
    log_level: Level = None,
    log_format: Layout = None,
) -> None:
    """Run a broker until it is stopped: alone on a data directory, or in a cluster (--ledger and --chunks).

    Prints one line, 'Semel is ready on HOST:PORT', when clients can connect; the log goes to standard error.
    Stop it with Ctrl-C or SIGTERM. Acknowledged records are durable, so it can also be killed.

    Try:  semel serve --data ./log --set auto.create.topics.enable=true

    Exit codes: 0 stopped, 2 wrong usage, 65 the data directory is incomplete or damaged (see 'semel repair'),
    or PostgreSQL has lost commits, 69 an address is taken, 70 the store or the broker failed, or another
    process took its place (start it again), 75 another process owns the data directory or the node.id, 78 the
    database or the object store refuses this broker, or cannot be trusted (change its settings).
    """
    given: dict[str, Any] = {
        "data": data,
        "memory": memory or None,
        "ledger": ledger,
        "chunks": chunks,
        "internal": internal,
        "listen": listen or None,
        "advertise": advertise or None,
        "metrics": metrics,
        "console": console,
        "log-level": log_level.value if log_level else None,
        "log-format": log_format.value if log_format else None,
    }
    options = _from_file(config) if config is not None else {}
    chosen = {name for name in _PLACES if _is_on_command_line(context, name)}
    if chosen:
        # The command line overrides the file and the environment.
        for name in _PLACES.keys() - {also for each in chosen for also in _PLACES[each]}:
            options.pop(name, None)
            given[name] = None
    options.update({name: value for name, value in given.items() if value is not None})
    settings = _settings({**options.get("settings", {}), **pairs(setting or (), "--set")})
    listeners = listeners_of(options, settings)
    if options.get("memory") and options.get("data") is not None:
        raise typer.BadParameter(
            "choose one: --memory keeps nothing, --data keeps everything", param_hint="--memory"
        )
    place, between = _place(options), internal_of(options)
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
    from semel.server import descriptors
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
    descriptors.take_all()
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


SWITCH_SECONDS: Final = 0.0005
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
    "listen": (list, "an address, or a list of them"),
    "advertise": (list, "an address, or a list of them"),
    "ledger": (str, "the address of a database"),
    "chunks": (str, "the URL of an object store"),
    "internal": (str, "an address"),
    "metrics": (str, "an address"),
    "console": (str, "an address"),
    "settings": (dict, "a table"),
}
"""The types of options in a file. The log options, which have fixed choices, are checked separately."""


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
        if name not in FILE_NAMES:
            near = difflib.get_close_matches(name, FILE_NAMES, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "settings of the broker belong under [settings]"
            raise typer.BadParameter(f"{path} has an unknown option {name!r}; {hint}", param_hint="--config")
    for name in ("listen", "advertise"):
        if isinstance(options.get(name), str):
            options[name] = [options[name]]
    for name, value in options.items():
        kind, called = _KINDS.get(name, (object, ""))
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
