"""Builds the listeners of `semel serve` from its options: addresses, names, protocols."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from semel.config import Settings
    from semel.server.listener import ListenerConfig
    from semel.server.tls import ServerTls

DEFAULT_LISTEN: Final = "127.0.0.1:9092"
INTERNAL: Final = "internal"
PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


def listeners_of(options: Mapping[str, Any], settings: "Settings") -> "list[ListenerConfig]":
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


def address_of(text: str, option: str) -> tuple[str, int]:
    """Parse HOST:PORT."""
    from semel.wire.addresses import parse_address

    try:
        return parse_address(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def internal_of(options: Mapping[str, Any]) -> "ListenerConfig | None":
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
