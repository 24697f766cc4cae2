"""Runs the console of `semel serve --console` on a thread of the broker's process.

It is for development and small machines. The console shares the interpreter with the broker, so every browser
slows the broker down. For many browsers, run `semel console` as a process of its own.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import typer

from semel.cli.cluster import cluster_status
from semel.cli.console import checked, needs_console
from semel.cli.listeners import address_of
from semel.cli.output import say, say_error

if TYPE_CHECKING:
    from semel.config import Settings
    from semel.console.serving import Beside
    from semel.server.listener import ListenerConfig
    from semel.server.server import Server
    from semel.store.opening import Remote

OPTION = "--console"


class BesideBroker:
    """A console that starts when the broker is ready, and ends with it."""

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
    needs_console()
    from semel.console.settings import PASSWORD_MECHANISMS, ConsoleSettings

    host, port = address_of(address, OPTION)
    listener = next((each for each in listeners if each.tls is None), None)
    if listener is None:
        raise typer.BadParameter(
            "it needs a --listen address without TLS; run 'semel console' with the certificates instead",
            param_hint=OPTION,
        )
    enabled = [each.strip() for each in settings.sasl_enabled_mechanisms.split(",")]
    mechanism = next((each for each in enabled if each in PASSWORD_MECHANISMS), "")
    client = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism} if listener.has_sasl else {}
    given: dict[str, Any] = {"host": host, "port": port, "client": client, "login": listener.has_sasl}
    if place is not None and not isinstance(place, Path):
        given["cluster_status"] = partial(cluster_status, place.ledger)
    checked(ConsoleSettings(**given), OPTION)
    return BesideBroker(given, listener)
