"""Audit of denied requests: one line on the logger ``semel.audit`` for each resource that was denied.

A line has a constant sentence and fields, like those of `semel.server.logs`, which this layer may not import.
A client can cause any number of lines, so they are limited: one line per principal, API and resource in ten
seconds, and at most a hundred lines per principal. The next line of the principal carries the number of lines
that were suppressed. The memory for this is bounded.
"""

import logging
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

from semel.broker.broker import Broker
from semel.core.security.acls import Operation, ResourceType
from semel.handlers.context import RequestContext

log = logging.getLogger("semel.audit")

K = TypeVar("K")
V = TypeVar("V")

PERIOD_MS: Final = 10_000
LINES_MAX: Final = 100
"""Lines per principal and period, whatever the number of resources that it names."""
REMEMBERED_MAX: Final = 1_000
"""The most lines, and principals, that are remembered. The oldest are forgotten; a line may then recur."""
NAME_CHARS_MAX: Final = 249
"""The longest name in a line, and of a topic. Names from requests may have 32,767 characters."""


class _Lines:
    """The lines that one broker has written in the last period."""

    def __init__(self) -> None:
        self._written: dict[tuple[str, ...], int] = {}
        """When a line was written."""
        self._principals: dict[str, tuple[int, int]] = {}
        """When the period of a principal began, and how many lines it has had."""
        self._suppressed: dict[str, int] = {}

    def suppressed(self, principal: str, line: tuple[str, ...], now: int) -> int | None:
        """None if this line must not be written, else the number of lines suppressed since the last one."""
        began, lines = self._principals.get(principal, (now, 0))
        if now - began >= PERIOD_MS:
            began, lines = now, 0
        written = self._written.get(line)
        if lines >= LINES_MAX or (written is not None and now - written < PERIOD_MS):
            _remember(self._suppressed, principal, self._suppressed.get(principal, 0) + 1)
            return None
        _remember(self._principals, principal, (began, lines + 1))
        _remember(self._written, line, now)
        return self._suppressed.pop(principal, 0)


def _remember(known: dict[K, V], key: K, value: V) -> None:
    known.pop(key, None)
    if len(known) >= REMEMBERED_MAX:
        del known[next(iter(known))]
    known[key] = value


# By broker, and dropped together with it.
_LINES: WeakKeyDictionary[Broker, _Lines] = WeakKeyDictionary()


def denied(
    broker: Broker,
    context: RequestContext,
    api: str,
    operation: Operation,
    resource_type: ResourceType,
    name: str,
) -> None:
    """Log that an operation on a resource was denied, unless the line is suppressed."""
    lines = _LINES.get(broker)
    if lines is None:
        lines = _LINES[broker] = _Lines()
    name = name[:NAME_CHARS_MAX]
    line = (context.principal, api, operation.name, resource_type.name, name)
    suppressed = lines.suppressed(context.principal, line, broker.now())
    if suppressed is None:
        return
    fields = {
        "principal": context.principal,
        "client": context.client_host,
        "client_id": context.client_id,
        "listener": context.listener,
        "api": api,
        "version": context.version,
        "operation": operation.name,
        "resource_type": resource_type.name,
        "resource": name,
        "suppressed": suppressed,
    }
    log.info("denied", extra={"fields": fields})
