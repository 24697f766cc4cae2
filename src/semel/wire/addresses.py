"""Parses and writes the addresses of brokers."""

from collections.abc import Sequence
from typing import TypeAlias

DEFAULT_PORT = 9092

Address: TypeAlias = tuple[str, int]


def parse_addresses(servers: str | Sequence[str]) -> list[Address]:
    """Parse `host:port,host:port`; IPv6 addresses are in brackets. ValueError says which part is wrong."""
    texts = servers.split(",") if isinstance(servers, str) else list(servers)
    addresses = [parse_address(text.strip()) for text in texts if text.strip()]
    if not addresses:
        raise ValueError("give at least one bootstrap server, as HOST:PORT")
    return addresses


def parse_address(text: str, default_port: int = DEFAULT_PORT) -> Address:
    """Parse `host:port` or `[ipv6]:port`; the port is optional."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        port = rest.removeprefix(":") if bracket and (not rest or rest.startswith(":")) else "?"
    else:
        host, _, port = text.partition(":")
    if not host or (port and not (port.isascii() and port.isdigit() and int(port) < 1 << 16)):
        raise ValueError(f"{text!r} is not an address; write HOST:PORT, for example 127.0.0.1:9092")
    return host, int(port) if port else default_port


def write_address(host: str, port: int) -> str:
    """Write `host:port`; an IPv6 address is put in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
