"""What all connections of a server share: the broker, the table of handlers, the budgets, the counters."""

import asyncio
import logging
from itertools import count
from typing import TYPE_CHECKING, Final

from semel.broker.broker import Broker
from semel.config import connections_by_host
from semel.handlers.context import CloseConnection, RequestContext
from semel.server import descriptors
from semel.server.budgets import RequestBudget, ResponseBudget, decoded_bytes
from semel.server.dispatch import FETCH, PRODUCE, Dispatch
from semel.server.logs import RateLimit, event
from semel.store.interface import LedgerDamaged, StoreFull, StoreRefused
from semel.wire.errors import ProtocolError
from semel.wire.frames import FrameParser
from semel.wire.messages import APIS

if TYPE_CHECKING:
    from semel.server.connection import Connection

log = logging.getLogger("semel.server")

EXPECTED: Final = {
    CloseConnection: "refused",
    ProtocolError: "malformed request",
    StoreFull: "no room",
    LedgerDamaged: "damaged ledger",
    StoreRefused: "the store refused",
}
"""The reasons to close a connection for errors that are not bugs."""


class ServerContext:
    """One per server."""

    def __init__(self, broker: Broker, dispatch: Dispatch) -> None:
        self.broker = broker
        self.settings = broker.settings
        self.metrics = broker.metrics
        self.dispatch = dispatch
        self.requests = RequestBudget(broker.settings.queued_max_request_bytes)
        self.responses = ResponseBudget(broker.settings.semel_queued_max_response_bytes)
        self.connections: dict[Connection, int] = {}
        """Open connections with their ids, which ascend."""
        self._by_host: dict[str, int] = {}
        """The number of connections from each address."""
        self._overrides = connections_by_host(broker.settings.max_connections_per_ip_overrides)
        self.is_closing = False
        """New connections are refused: some may have been accepted before the listeners were closed."""
        self.is_away = False
        """New connections are refused: other brokers may have replaced this one."""
        self.emptied = asyncio.Event()
        """Set while there is no connection."""
        self.emptied.set()
        self._connection_ids = count(1)
        self._lines = RateLimit()
        gauge = self.metrics.gauge
        gauge("requests_under_way", "Requests begun and not answered.", lambda: self.requests.in_flight)
        gauge("request_bytes", "Bytes of requests that are not answered.", lambda: self.requests.used)
        gauge("response_bytes", "Bytes of responses that clients did not take.", lambda: self.responses.used)

    def new_parser(self) -> FrameParser:
        """A parser for one connection. Only Produce carries records, so only its frames may be large."""
        settings = self.settings
        return FrameParser(settings.socket_request_max_bytes, settings.semel_request_max_bytes, (PRODUCE,))

    def admit(self, connection: "Connection", host: str) -> tuple[int, str | None]:
        """The id of a new connection; -1 and the reason if it is refused."""
        if self.is_closing:
            return -1, "stopping"
        if self.is_away:
            return -1, "the lease is over"
        if len(self.connections) >= self._connections_max():
            return -1, "too many connections"
        from_host = self._by_host.get(host, 0)
        if from_host >= self._overrides.get(host, self.settings.max_connections_per_ip):
            return -1, f"too many connections from {host} (max.connections.per.ip)"
        self._by_host[host] = from_host + 1
        connection_id = self.connections[connection] = next(self._connection_ids)
        self.emptied.clear()
        self.metrics.connections = len(self.connections)
        self.metrics.connections_accepted += 1
        return connection_id, None

    def _connections_max(self) -> int:
        wanted, possible = self.settings.max_connections, descriptors.for_connections()
        return wanted if possible is None else min(wanted, possible)

    def dismiss(self, connection: "Connection", host: str) -> None:
        """Remove a closed connection, and notify the broker unless the server is stopping."""
        connection_id = self.connections.pop(connection, None)
        if connection_id is not None:
            self._by_host[host] -= 1
            if not self._by_host[host]:
                del self._by_host[host]
        if connection_id is not None and not self.is_closing:
            self.broker.connection_gone(connection_id)
        if not self.connections:
            self.emptied.set()
        self.metrics.connections = len(self.connections)

    def decoded_bytes(self, api_key: int, frame_bytes: int) -> int:
        """The charge of a decoded request. Waiting fetches are bounded by the broker instead."""
        return decoded_bytes(0 if api_key == FETCH else frame_bytes, self.settings.semel_request_elements_max)

    def blamed(self, api_key: int, version: int, error: BaseException) -> tuple[str, object]:
        """The reason to close the connection of a request that ended in an error.

        A bug is logged with its traceback, but not for every request that runs into it.
        """
        for kind, reason in EXPECTED.items():
            if isinstance(error, kind):
                return reason, error
        if self._lines.suppressed(f"failed {api_key}") is not None:
            log.error("a request failed: api=%s version=%d", APIS[api_key].name, version, exc_info=error)
        return "internal error", repr(error)

    def refused_handshake(self, listener: str, host: str, error: Exception) -> None:
        """Count and log a failed TLS handshake."""
        self.metrics.count_closed("tls handshake")
        suppressed = self._lines.suppressed("tls handshake")
        if suppressed is not None:
            fields = {"suppressed": suppressed} if suppressed else {}
            event(
                log,
                logging.WARNING,
                "tls handshake failed",
                detail=error,
                client=host,
                listener=listener,
                **fields,
            )

    def closing(self, context: RequestContext, reason: str, detail: object) -> None:
        """Count the closing of a connection, and log it within the rate limit."""
        self.metrics.count_closed(reason)
        suppressed = self._lines.suppressed(reason)
        if suppressed is None:
            return
        fields = {"suppressed": suppressed} if suppressed else {}
        event(
            log,
            logging.INFO if reason == "idle" else logging.WARNING,
            "connection closed",
            reason=reason,
            detail=detail,
            client=context.client_host,
            client_id=context.client_id,
            listener=context.listener,
            **fields,
        )
