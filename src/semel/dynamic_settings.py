"""Settings that can be changed while a broker runs, and the order in which values take precedence.

A setting can be changed if the broker reads it each time it needs it. `READ_ONLY` lists all others with the
reason, which is part of the error message. A broker's own value takes precedence over the value for all
brokers, which takes precedence over the value at startup (`in_force`).
"""

import difflib
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Any, Final

from semel.config import Settings
from semel.setting_values import check, check_value, coerce

VALUE_LENGTH_MAX: Final = 4_096
"""No setting needs a longer value, and the values are kept in memory."""

_READ_ONLY: Final[dict[str, tuple[str, ...]]] = {
    "it is the identity of the broker": ("node.id", "cluster.id", "broker.rack"),
    "brokers of a cluster rely on it while they watch each other": ("semel.lease.ms",),
    "it is checked with every connection to PostgreSQL": ("semel.ledger.unsafe",),
    "it decides which requests are advertised to clients that connect": (
        "transaction.two.phase.commit.enable",
        "semel.extensions.enable",
    ),
    "it says who may do what, which is for the operator of the broker to say": (
        "semel.authorizer",
        "super.users",
        "allow.everyone.if.no.acl.found",
        "semel.cluster.action.enable",
    ),
    "listeners and their authentication are set up at the start": (
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.ca.location",
        "ssl.client.auth",
        "ssl.principal.mapping.rules",
        "ssl.enabled.protocols",
        "ssl.cipher.suites",
        "sasl.enabled.mechanisms",
        "connections.max.reauth.ms",
        "sasl.oauthbearer.jwks.endpoint.url",
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        "sasl.oauthbearer.expected.issuer",
        "sasl.oauthbearer.expected.audience",
        "semel.oauthbearer.algorithms",
        "sasl.oauthbearer.sub.claim.name",
        "sasl.oauthbearer.clock.skew.seconds",
    ),
    "memory is divided by it at the start": (
        "semel.fetch.waiting.partitions.max",
        "max.incremental.fetch.session.cache.slots",
        "group.share.max.share.sessions",
        "socket.request.max.bytes",
        "semel.request.max.bytes",
        "semel.request.elements.max",
        "queued.max.request.bytes",
        "semel.queued.max.response.bytes",
        "semel.connections.per.user.max",
        "semel.requests.in.flight.max",
        "semel.entities.max",
        "semel.tick.bytes.max",
        "semel.block.cache.bytes",
    ),
    "work in progress relies on it": (
        "semel.durability",
        "transaction.abort.on.disconnect",
        "offsets.topic.num.partitions",
        "semel.compaction.hold.ms",
        "semel.compaction.hold.max.ms",
    ),
    "the store is opened with it": (
        "semel.chunk.bytes.max",
        "semel.disk.reserve.bytes",
        "semel.scrub.bytes.per.second",
        "semel.inline.bytes.max",
        "semel.object.bytes",
        "semel.roll.interval.ms",
        "semel.object.delete.delay.ms",
        "semel.object.reconcile.interval.ms",
        "semel.merge.interval.ms",
        "semel.merge.age.ms",
    ),
}
READ_ONLY: Final[dict[str, str]] = {name: reason for reason, names in _READ_ONLY.items() for name in names}
"""Why a setting cannot be changed, by its name."""


@cache
def _declared() -> dict[str, Any]:
    by_attribute = {each.name: each for each in fields(Settings)}
    return {name: by_attribute[attribute] for name, attribute in Settings.names().items()}


def unchangeable(name: str) -> str | None:
    """Return the error message for a setting that is unknown or cannot be changed; None if it can."""
    if name in READ_ONLY:
        return f"Cannot update {name} dynamically: {READ_ONLY[name]}. Change it where the broker is started."
    if name in _declared():
        return None
    near = difflib.get_close_matches(name[:100], _declared().keys() - READ_ONLY.keys(), n=1, cutoff=0.5)
    return f"Unknown broker config name: {name[:100]}" + (f"; did you mean {near[0]}?" if near else "")


def problem(name: str, value: str) -> str | None:
    """Return the error message for an invalid value of a setting; None if it is valid."""
    if len(value) > VALUE_LENGTH_MAX:
        return f"The value for configuration {name} is longer than {VALUE_LENGTH_MAX} characters"
    try:
        _changed(Settings(), name, value)
    except ValueError as error:
        return f"Invalid value for configuration {name}: {error}"
    return None


def is_list(name: str) -> bool:
    """Whether a setting is a list, so that entries can be appended."""
    declared = _declared().get(name)
    return declared is not None and bool(declared.metadata["is_list"])


def in_force(static: Settings, *layers: Mapping[str, str]) -> Settings:
    """Return the effective settings: those at startup, overridden by each layer of changed values in turn.

    Values that this version does not accept are skipped, because another version may have written them.
    """
    settings = static
    for layer in layers:
        for name, value in layer.items():
            if unchangeable(name) is None:
                try:
                    settings = _changed(settings, name, value)
                except ValueError:
                    continue
    return settings


def _changed(settings: Settings, name: str, value: str) -> Settings:
    declared = _declared()[name]
    parsed = coerce(name, value, type(declared.default))
    check_value(declared, parsed)
    changed = replace(settings, **{declared.name: parsed})
    check(changed)
    return changed
