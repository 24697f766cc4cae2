"""What all connections of a server share: the broker, the table of handlers, the budgets, the counters."""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from semel.broker.broker import Broker
from semel.config import connections_by_host
from semel.core.dynamic_configs import CONFIG
from semel.core.security.acls import ANONYMOUS
from semel.core.security.policies import USER, user_of
from semel.core.types import PolicyKey
from semel.handlers.context import CloseConnection, RequestContext
from semel.rate_limit import RateLimit
from semel.server import sockets
from semel.server.budgets import RequestBudget, ResponseBudget, decoded_bytes
from semel.server.dispatch import Dispatch
from semel.server.logs import event
from semel.server.sasl import Authenticators
from semel.server.sasl.certificate_names import distinguished_name, parse_rules
from semel.server.sasl.mechanism import AuthenticationFailed, principal_of
from semel.server.sockets import Address, address_of
from semel.server.throttling import Throttling
from semel.store.contract import LedgerDamaged, StoreFull, StoreRefused
from semel.wire.api_key import ApiKey
from semel.wire.errors import ProtocolError
from semel.wire.frames import FrameParser
from semel.wire.messages import APIS

if TYPE_CHECKING:
    from semel.server.connection import Connection

log = logging.getLogger("semel.server")

T = TypeVar("T")
audit = logging.getLogger("semel.audit")

EXPECTED: Final = {
    CloseConnection: "refused",
    ProtocolError: "malformed request",
    StoreFull: "no room",
    LedgerDamaged: "damaged ledger",
    StoreRefused: "the store refused",
}
"""The reasons to close a connection for errors that are not bugs."""


TOO_MANY_OF_USER: Final = "too many connections of this user (semel.connections.per.user.max)"


class Admitted(NamedTuple):
    """A new connection."""

    host: str
    connection_id: int = -1
    principal: str = ANONYMOUS
    wait_seconds: float = 0.0
    """If not 0, the address connects too often (a quota): the connection is closed after this time."""
    refused: str | None = None


class ServerContext:
    """The state that all connections of one server share."""

    def __init__(self, broker: Broker, dispatch: Dispatch) -> None:
        self.broker = broker
        self.settings = broker.settings
        self.metrics = broker.metrics
        self.dispatch = dispatch
        self.requests = RequestBudget(broker.settings.queued_max_request_bytes)
        self.responses = ResponseBudget(broker.settings.semel_queued_max_response_bytes)
        self.connections: dict[Connection, int] = {}
        """Open connections with their ids, which ascend."""
        self.throttling = Throttling(broker.policies.quotas, broker.settings.semel_connections_per_user_max)
        self._users: dict[Connection, str] = {}
        """The principals of the connections that count towards the limit of a user."""
        self._arriving: set[Address] = set()
        """The clients whose TLS handshakes are under way."""
        self._by_host: dict[str, int] = {}
        """The number of connections from each address, including those in a TLS handshake."""
        self._overrides = connections_by_host(self.settings.max_connections_per_ip_overrides)
        self.needs_lease = broker.member is not None and broker.policies.has_authorizer
        """Whether requests require a lease: without one, this broker may miss that a right was revoked."""
        self.is_closing = False
        """Refuse new connections: the kernel may have accepted some before the listeners were closed."""
        self.is_away = False
        """Refuse new connections: other brokers may have replaced this one."""
        self._authenticators: Authenticators | None = None
        self._hashing = ThreadPoolExecutor(1, "authentication")
        self._certificate_names = parse_rules(broker.settings.ssl_principal_mapping_rules)
        broker.policies.changed = self._policy_changed
        self.emptied = asyncio.Event()
        """Set while there is no connection."""
        self.emptied.set()
        self._connection_ids = count(1)
        self._lines = RateLimit()
        self._failures = RateLimit()
        gauge = self.metrics.gauge
        gauge("requests_under_way", "Requests begun and not answered.", lambda: self.requests.in_flight)
        gauge("request_bytes", "Bytes of requests that are not answered.", lambda: self.requests.used)
        gauge("response_bytes", "Bytes of responses that clients did not take.", lambda: self.responses.used)

    @property
    def authenticators(self) -> Authenticators:
        """The SASL mechanisms; only set if a listener has SASL."""
        assert self._authenticators is not None
        return self._authenticators

    def authenticate_by_settings(self) -> Authenticators:
        """Offer the SASL mechanisms of the settings. ValueError if one of the settings is wrong."""
        broker = self.broker
        self.needs_lease = broker.member is not None
        self._authenticators = Authenticators(
            self.settings,
            broker.policies.credential,
            broker.clock,
            self._hash,
            lambda: broker.policies.salt_secret,
        )
        return self._authenticators

    async def _hash(self, work: Callable[[], T]) -> T:
        """Hash a password on a dedicated thread, so that many logins delay only each other."""
        return await asyncio.get_running_loop().run_in_executor(self._hashing, work)

    def close(self) -> None:
        """End the thread that hashes passwords."""
        self._hashing.shutdown(wait=False, cancel_futures=True)

    def _principal(self, transport: asyncio.BaseTransport) -> str:
        """Return the principal of a client's certificate. ValueError if no rule matches."""
        certificate = transport.get_extra_info("peercert")
        if not certificate:
            return ANONYMOUS
        return principal_of(self._certificate_names.user(distinguished_name(certificate)))

    def _policy_changed(self, key: PolicyKey) -> None:
        """Close the connections of a removed credential, or apply changed settings."""
        if key.kind == CONFIG:
            self.settings = self.broker.settings
            self._overrides = connections_by_host(self.settings.max_connections_per_ip_overrides)
        if key.kind == USER and key not in self.broker.policies.credentials:
            user, mechanism = user_of(key)
            for connection in tuple(self.connections):
                connection.revoke(user, mechanism)

    def new_parser(self) -> FrameParser:
        """Return a parser for one connection. Only frames of Produce may be large, as it carries records."""
        settings = self.settings
        return FrameParser(
            settings.socket_request_max_bytes, settings.semel_request_max_bytes, (ApiKey.PRODUCE,)
        )

    def arrive(self, peer: Address) -> tuple[str | None, float]:
        """Count a client that begins a TLS handshake, which costs a descriptor and memory.

        Return the reason to refuse it, or after how many seconds to close it because its address connects too
        often (a quota; 0: never). The client counts until `gone` or `admit`.
        """
        host = str(peer[0])
        if refused := self._refusal(host):
            return refused, 0.0
        self._arriving.add(peer)
        self._add_to_host(host, 1)
        return None, self.throttling.may_connect(host, time.monotonic()) / 1000

    def gone(self, peer: Address) -> bool:
        """Note that the handshake of a client is over. Return whether the client was still counted."""
        if peer not in self._arriving:
            return False
        self._arriving.discard(peer)
        self._add_to_host(str(peer[0]), -1)
        return True

    def _add_to_host(self, host: str, number: int) -> None:
        self._by_host[host] = self._by_host.get(host, 0) + number
        if not self._by_host[host]:
            del self._by_host[host]

    def admit(
        self, connection: "Connection", transport: asyncio.Transport, *, has_sasl: bool = False
    ) -> "Admitted":
        """Register a new connection, or give the reason why it is refused."""
        host = address_of(transport)
        has_arrived = self.gone(transport.get_extra_info("peername"))
        if refused := self._refusal(host):
            return Admitted(host, refused=refused)
        self._add_to_host(host, 1)
        connection_id = self.connections[connection] = next(self._connection_ids)
        self.emptied.clear()
        self.metrics.connections = len(self.connections)
        self.metrics.connections_accepted += 1
        wait_ms = 0 if has_arrived else self.throttling.may_connect(host, time.monotonic())
        try:
            # With SASL, the authentication determines the user, whatever the certificate says.
            principal = ANONYMOUS if has_sasl else self._principal(transport)
        except ValueError as error:
            return Admitted(host, connection_id, refused=str(error))
        if not self.count_user(connection, principal):
            return Admitted(host, connection_id, refused=TOO_MANY_OF_USER)
        return Admitted(host, connection_id, principal, wait_ms / 1000)

    def _refusal(self, host: str) -> str | None:
        if self.is_closing:
            return "stopping"
        if self.is_away:
            return "the lease is over"
        if len(self.connections) + len(self._arriving) >= self._connections_max():
            return "too many connections"
        if self._by_host.get(host, 0) >= self._overrides.get(host, self.settings.max_connections_per_ip):
            return f"too many connections from {host} (max.connections.per.ip)"
        return None

    def count_user(self, connection: "Connection", principal: str) -> bool:
        """Count a connection of an authenticated user. False if there are too many."""
        if principal == ANONYMOUS or connection in self._users:
            # A client that re-authenticates is already counted.
            return True
        if not self.throttling.connected(principal):
            return False
        self._users[connection] = principal
        return True

    def _connections_max(self) -> int:
        wanted, possible = self.settings.max_connections, sockets.for_connections()
        return wanted if possible is None else min(wanted, possible)

    def dismiss(self, connection: "Connection", host: str) -> None:
        """Remove a closed connection, and notify the broker unless the server is stopping."""
        connection_id = self.connections.pop(connection, None)
        if (principal := self._users.pop(connection, None)) is not None:
            self.throttling.disconnected(principal)
        if connection_id is not None:
            self._add_to_host(host, -1)
        if connection_id is not None and not self.is_closing:
            self.broker.connection_gone(connection_id)
        if not self.connections:
            self.emptied.set()
        self.metrics.connections = len(self.connections)

    def decoded_bytes(self, api_key: int, frame_bytes: int) -> int:
        """Return the charge of a decoded request, minimal for Fetch: the broker bounds waiting fetches."""
        return decoded_bytes(
            0 if api_key == ApiKey.FETCH else frame_bytes, self.settings.semel_request_elements_max
        )

    def blamed(self, api_key: int, version: int, error: BaseException) -> tuple[str, object]:
        """Return why to close the connection of a request that ended in an error: reason and detail.

        A bug is logged with its traceback, within the rate limit.
        """
        for kind, reason in EXPECTED.items():
            if isinstance(error, kind):
                return reason, error
        if self._lines.suppressed(f"failed {api_key}") is not None:
            fields = {"api": APIS[api_key].name, "version": version}
            log.error("a request failed", exc_info=error, extra={"fields": fields})
        return "internal error", repr(error)

    def refused_handshake(self, listener: str, host: str, error: Exception) -> None:
        """Count and log a failed TLS handshake, or a client that was refused before it."""
        is_refused = isinstance(error, ConnectionRefusedError)
        reason = "refused" if is_refused else "tls handshake"
        self.metrics.count_closed(reason)
        suppressed = self._lines.suppressed(reason)
        if suppressed is not None:
            fields = {"suppressed": suppressed} if suppressed else {}
            event(
                log,
                logging.WARNING,
                "connection refused" if is_refused else "tls handshake failed",
                detail=error,
                client=host,
                listener=listener,
                **fields,
            )

    def authentication_failed(
        self, context: RequestContext, mechanism: str, failure: AuthenticationFailed | None
    ) -> None:
        """Count and log a failed authentication."""
        self.metrics.failed_authentications += 1
        # Limited for each address, so that a guessing client does not hide the failures of others.
        suppressed = self._failures.suppressed(context.client_host)
        if suppressed is not None:
            event(
                audit,
                logging.WARNING,
                "authentication failed",
                detail=failure.detail if failure is not None else "",
                mechanism=mechanism,
                client=context.client_host,
                client_id=context.client_id,
                listener=context.listener,
                suppressed=suppressed,
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
