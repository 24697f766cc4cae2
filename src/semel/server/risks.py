"""Checks settings against the listeners at startup: rejects contradictions, warns of probable mistakes."""

from collections.abc import Iterator, Sequence
from typing import Final

from semel.config import Settings
from semel.core.security.acls import CLUSTER_NAME, Acls, Operation, ResourceType
from semel.server.listener import ListenerConfig
from semel.server.sasl.authenticators import check_settings
from semel.server.sasl.plain import NAME as PLAIN

_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


def check(settings: Settings, listeners: Sequence[ListenerConfig]) -> None:
    """Reject authentication settings that can never take effect. Raises ValueError."""
    wanted = settings.ssl_client_auth
    if wanted in ("required", "requested") and not any(each.tls is not None for each in listeners):
        raise ValueError(
            f"ssl.client.auth={wanted} needs a listener with ssl:// or sasl_ssl://: without one, no client is"
            " asked for a certificate"
        )
    # Checked even without a SASL listener, because one may be added later.
    if settings.sasl_enabled_mechanisms or any(each.has_sasl for each in listeners):
        check_settings(settings)


def risks(settings: Settings, listeners: Sequence[ListenerConfig], acls: Acls) -> Iterator[str]:
    """Yield warnings about settings that are less safe, or less useful, than they seem."""
    has_acls = settings.semel_authorizer == "acl"
    has_sasl = any(each.has_sasl for each in listeners)
    if settings.super_users and not has_acls:
        yield "super.users has no effect without semel.authorizer=acl: every client may do everything"
    if has_acls and not settings.super_users and not _may_anyone_alter(settings, acls):
        yield (
            "nobody may add an ACL, because none allows Alter on the cluster and there is no super user:"
            " set super.users=User:NAME and start the broker again"
        )
    for each in listeners:
        is_local = each.host in _LOOPBACK
        knows_clients = each.has_sasl or (each.tls is not None and settings.ssl_ca_location)
        if has_sasl and not knows_clients and not has_acls and not is_local:
            yield f"clients of listener {each.name} may do everything without authentication"
        if each.has_sasl and each.tls is None and not is_local and PLAIN in settings.sasl_enabled_mechanisms:
            yield f"listener {each.name} receives passwords without encryption: use sasl_ssl, or no PLAIN"


def _may_anyone_alter(settings: Settings, acls: Acls) -> bool:
    """Whether any principal may change ACLs without being a super user."""
    of_cluster = list(acls.about(ResourceType.CLUSTER, CLUSTER_NAME))
    if not of_cluster:
        return settings.allow_everyone_if_no_acl_found
    return any(
        acls.allow(each.principal, each.host, Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
        for each in of_cluster
    )
