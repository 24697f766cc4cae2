"""Settings that are allowed and hardly meant: what an operator is warned of at the start."""

from collections.abc import Iterator, Sequence
from typing import Final

from semel.config import Settings
from semel.server.listener import ListenerConfig
from semel.server.sasl.plain import NAME as PLAIN

_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


def risks(settings: Settings, listeners: Sequence[ListenerConfig]) -> Iterator[str]:
    """Sentences about what is not as safe as it seems."""
    has_acls = settings.semel_authorizer == "acl"
    has_sasl = any(each.has_sasl for each in listeners)
    if settings.super_users and not has_acls:
        yield "super.users has no effect without semel.authorizer=acl: every client may do everything"
    for each in listeners:
        is_local = each.host in _LOOPBACK
        knows_clients = each.has_sasl or (each.tls is not None and settings.ssl_ca_location)
        if has_sasl and not knows_clients and not has_acls and not is_local:
            yield f"clients of listener {each.name} may do everything without authentication"
        if each.has_sasl and each.tls is None and not is_local and PLAIN in settings.sasl_enabled_mechanisms:
            yield f"listener {each.name} receives passwords without encryption: use sasl_ssl, or no PLAIN"
