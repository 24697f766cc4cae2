"""Declares commands: options from parameters, a client for those that need one, and the result printed."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, get_args, get_origin, runtime_checkable

import typer

from semel.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, Option, pairs
from semel.cli.output import Answer

if TYPE_CHECKING:
    from semel.client import Client, Security

COMMAND_TIMEOUT_S = 15.0
#: The client settings that were given before the command, for all commands.
_client_settings: ContextVar[dict[str, str] | None] = ContextVar("client_settings", default=None)


@runtime_checkable
class Checked(Protocol):
    """Options that are checked together before the command runs."""

    def check(self) -> None:
        """Raise BadParameter if the options are wrong or contradict each other."""


def command(
    app: typer.Typer | None = None, name: str | None = None
) -> Callable[[Callable[..., Answer | None]], Callable[..., None]]:
    """Make a function a command of a group; a command without a group is added by `main`.

    Its parameters are options and arguments, and its docstring is the help text.

    - A parameter named `client` or `admin` becomes the option --bootstrap. The function gets a client of that
      cluster, which is closed afterwards.
    - A parameter whose type is a NamedTuple becomes the options that are its fields; see also `Checked`.
    - A function that returns an `Answer` has the option --json, after --bootstrap or at the end. It has a
      parameter `as_json` only if it needs to know.
    """

    def declare(function: Callable[..., Answer | None]) -> Callable[..., None]:
        run = _run(function)
        return run if app is None else app.command(name)(run)

    return declare


def _run(function: Callable[..., Answer | None]) -> Callable[..., None]:
    wanted = inspect.signature(function).parameters
    options = [option for parameter in wanted.values() for option in _options(parameter)]
    names = [option.name for option in options]
    if inspect.signature(function).return_annotation is Answer and "as_json" not in names:
        at = names.index("bootstrap") + 1 if "bootstrap" in names else len(names)
        options.insert(at, _option("as_json", Json, False))
    signature = inspect.Signature(options)

    def run(*args: object, **kwargs: object) -> None:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        with ExitStack() as stack:
            values = {name: _value(parameter, given.arguments, stack) for name, parameter in wanted.items()}
            answer = function(**values)
        if answer is not None:
            answer.print(given.arguments["as_json"])

    run.__name__, run.__doc__ = function.__name__, function.__doc__
    run.__signature__ = signature  # type: ignore[attr-defined]
    return run


def _options(parameter: Parameter) -> Iterator[Parameter]:
    """Yield the options that a parameter becomes."""
    if parameter.name in ("client", "admin"):
        yield _option("bootstrap", Bootstrap, DEFAULT_BOOTSTRAP)
    elif fields := getattr(parameter.annotation, "_fields", None):
        kinds, defaults = parameter.annotation.__annotations__, parameter.annotation._field_defaults
        for field in fields:
            yield _option(field, kinds[field], defaults.get(field, Parameter.empty))
    else:
        yield _option(parameter.name, parameter.annotation, parameter.default)


def _option(name: str, kind: Any, default: object) -> Parameter:
    if get_origin(kind) is Annotated:
        base, *declared = get_args(kind)
        if isinstance(declared[0], Option):
            kind = Annotated[base, declared[0].info(name)]
    return Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation=kind, default=default)


def _value(parameter: Parameter, given: dict[str, Any], stack: ExitStack) -> object:
    """Return the value of a parameter, given those of the options."""
    if parameter.name in ("client", "admin"):
        client = stack.enter_context(connected(given["bootstrap"]))
        if parameter.name == "client":
            return client
        from semel.client import Admin

        return Admin(client)
    fields = getattr(parameter.annotation, "_fields", None)
    if fields is None:
        return given[parameter.name]
    options: object = parameter.annotation(**{field: given[field] for field in fields})
    if isinstance(options, Checked):
        options.check()
    return options


def keep_client_settings(file: Path | None, texts: Iterable[str]) -> None:
    """Store the client settings for the command that follows."""
    settings: dict[str, str] = {}
    if file is not None:
        try:
            lines = [line.strip() for line in file.read_text().splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            reason = f"{file} cannot be read: {error}"
            raise typer.BadParameter(reason, param_hint="--command-config") from None
        for number, line in enumerate(lines, 1):
            name, equals, value = line.partition("=")
            if not line or line.startswith("#"):
                continue
            if not equals:
                # The line itself is not shown: it may be a password.
                reason = f"line {number} of {file} is not NAME=VALUE"
                raise typer.BadParameter(reason, param_hint="--command-config")
            settings[name.strip()] = value.strip()
    _client_settings.set(settings | pairs(texts, "-X") or None)


def client_settings() -> dict[str, str]:
    """Return the settings of the client, for commands that pass them on."""
    return dict(_client_settings.get() or {})


@contextmanager
def connected(bootstrap: str) -> "Iterator[Client]":
    """Provide a client for the duration of a command."""
    from semel.client import Client

    security = _security()
    try:
        client = Client(bootstrap, client_id="semel-cli", timeout_s=COMMAND_TIMEOUT_S, security=security)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--bootstrap") from None
    with client:
        yield client


def _security() -> "Security | None":
    from semel.client import Security

    settings = _client_settings.get()
    if settings is None:
        return None
    try:
        security = Security.of(settings)
        # Report missing or invalid files here, with the names of their settings.
        security.context()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="-X and --command-config") from None
    return security
