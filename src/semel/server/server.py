"""The server: all listeners of a broker and their connections, from start to stop.

There are two ways to end, and both leave the same data on disk. `stop` is graceful: it refuses new
connections, answers requests in flight, then closes connections. `abort` is for a broker that has failed: it
closes every connection at once, so that no client gets a response that may be wrong.

`request_stop` sets `stopping`; `fail` also aborts all connections. `run.serve` waits for `stopping` and ends
the server.

Background tasks close slow clients, measure the event loop's lag, release unused memory, and close all
connections while the broker has no lease. One sweep over all connections per second is cheaper than a timer
for each connection, and exact enough for timeouts of minutes. The probe sleeps a tenth of a second and
measures how much longer the sleep took: every client waited that long for the broker.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Coroutine, Sequence
from typing import Any, Final, NoReturn

from semel.allocator import give_back
from semel.broker.broker import Broker
from semel.broker.cluster.member import ClusterMember
from semel.core.security.policies import PutSecret
from semel.rate_limit import RateLimit
from semel.server.dispatch import Dispatch
from semel.server.listener import Listener, ListenerConfig, reachable
from semel.server.logs import event
from semel.server.peers import PeerListener
from semel.server.risks import check, risks
from semel.server.sasl import look_for_keys
from semel.server.server_context import ServerContext
from semel.server.tls import look_for_certificates
from semel.store.contract import StoreDamaged, StoreFenced, StoreMisconfigured

PROBE_SECONDS: Final = 0.1
LAG_ALARM_SECONDS: Final = 0.25
RELEASE_SECONDS: Final = 2.0
QUIET_BYTES: Final = 4 * 1024 * 1024
"""Below this much traffic between two checks, no large buffers are needed."""
SWEEP_SECONDS_MAX: Final = 1.0
SWEEP_SECONDS_MIN: Final = 0.02
AWAY_AFTER_SECONDS: Final = 1.0


async def check_connections(server: ServerContext) -> NoReturn:
    """Close clients that are idle or slow for too long."""
    while True:
        shortest_ms = min(server.settings.connections_max_idle_ms, server.settings.semel_write_timeout_ms)
        pause = min(SWEEP_SECONDS_MAX, max(SWEEP_SECONDS_MIN, shortest_ms / 4_000))
        await asyncio.sleep(pause)
        now = time.monotonic()
        for connection in tuple(server.connections):
            connection.check(now)
        server.throttling.tidy(now)


async def watch_lease(server: ServerContext, member: ClusterMember) -> NoReturn:
    """Close all connections if the lease is over and is not renewed within a second.

    Other brokers may already own the shards that these clients use, and commits on this broker wait until
    PostgreSQL answers. Clients would wait too, and the metadata of this broker would still name the old
    owners.
    """
    over_since: float | None = None
    while True:
        await asyncio.sleep(PROBE_SECONDS)
        now = time.monotonic()
        over_since = None if member.is_serving else over_since or now
        was_away = server.is_away
        # A broker that was only delayed renews its lease at once.
        server.is_away = over_since is not None and now - over_since > AWAY_AFTER_SECONDS
        if server.is_away and not was_away:
            log.warning("the lease is over: clients are sent away until it is renewed")
        if server.is_away:
            for connection in tuple(server.connections):
                connection.abort()


async def release_memory(server: ServerContext) -> NoReturn:
    """Return unused memory to the system after a burst."""
    moved = 0
    while True:
        await asyncio.sleep(RELEASE_SECONDS)
        before, moved = moved, server.metrics.bytes_in + server.metrics.bytes_out
        if moved - before < QUIET_BYTES:
            await asyncio.to_thread(give_back)


async def probe_loop(server: ServerContext) -> NoReturn:
    """Measure the lag of the event loop."""
    lines = RateLimit(lines=1)
    while True:
        before = time.monotonic()
        await asyncio.sleep(PROBE_SECONDS)
        lag = max(0.0, time.monotonic() - before - PROBE_SECONDS)
        server.metrics.observe_loop_lag(lag)
        if lag > LAG_ALARM_SECONDS and lines.suppressed("lag") is not None:
            event(log, logging.WARNING, "the event loop was held up", seconds=round(lag, 3))


log = logging.getLogger("semel.server")


class Server:
    """All listeners of one broker."""

    def __init__(
        self,
        broker: Broker,
        listeners: Sequence[ListenerConfig],
        dispatch: Dispatch | None = None,
        internal: ListenerConfig | None = None,
    ) -> None:
        """``internal`` is the listener for other brokers of a cluster; by default it takes any free port on
        the host of the first listener. ValueError if the settings contradict the listeners."""
        check(broker.settings, listeners)
        self.broker = broker
        self._internal = internal or listeners[0]._replace(name="internal", port=0, advertised_port=None)
        self._peers: PeerListener | None = None
        self.stopping = asyncio.Event()
        self.failure: BaseException | None = None
        self._server = ServerContext(broker, dispatch or _default_dispatch(broker))
        self._configs = listeners
        self._listeners: list[Listener] = []
        self._tasks: list[asyncio.Task[Any]] = []

    @property
    def ports(self) -> dict[str, int]:
        """The port that each listener is bound to."""
        return {listener.name: listener.port for listener in self._listeners}

    async def start(self) -> None:
        """Bind all listeners, set the broker's endpoints, then accept clients. OSError if a port is in use.

        ValueError if clients cannot be authenticated as the settings demand.
        """
        if any(config.has_sasl for config in self._configs):
            authenticators = self._server.authenticate_by_settings()
            await authenticators.start()
            self._watch("keys of tokens", look_for_keys(authenticators))
        try:
            for config in self._configs:
                self._listeners.append(await Listener.bind(self._server, config))
        except OSError:
            self._close_listeners()
            raise
        for listener in self._listeners:
            self.broker.endpoints[listener.name] = listener.endpoint
        self.broker.listeners = ",".join(each.bound for each in self._listeners)
        await self._join_cluster()
        if any(config.has_sasl for config in self._configs):
            await self.broker.ask(PutSecret(secrets.token_hex(32)))
        for risk in risks(self.broker.settings, self._configs, self.broker.policies.acls):
            event(log, logging.WARNING, risk)
        self._watch("check connections", check_connections(self._server))
        self._watch("probe loop", probe_loop(self._server))
        if self.broker.member is not None:
            self._watch("lease", watch_lease(self._server, self.broker.member))
        self._watch("release memory", release_memory(self._server))
        for tls in {config.tls for config in self._configs if config.tls is not None}:
            tls.warn()
            self._watch("certificates", look_for_certificates(tls))
        for listener in self._listeners:
            await listener.serve()
            event(
                log,
                logging.INFO,
                "listening",
                listener=listener.name,
                port=listener.port,
                advertised=f"{listener.endpoint.host}:{listener.endpoint.port}",
            )

    async def _join_cluster(self) -> None:
        """Listen for other brokers, and join the cluster with this address. Nothing outside a cluster."""
        if self.broker.member is None:
            return
        config = self._internal
        self._peers = PeerListener(self.broker.member.secret, self.broker.member.receive)
        port = await self._peers.start(config.host, config.port)
        await self.broker.join(
            (config.advertised_host or reachable(config.host), config.advertised_port or port)
        )

    async def stop(self, grace_seconds: float = 5.0) -> None:
        """Accept no more clients, answer requests in flight, close. Abort connections after the grace."""
        self._close_listeners()
        for connection in tuple(self._server.connections):
            connection.finish()
        await self._all_gone(grace_seconds)
        await self._end()

    async def abort(self) -> None:
        """Abort every connection now."""
        self._close_listeners()
        await self._end()

    def request_stop(self) -> None:
        """Set ``stopping``, so that `run.serve` stops this server."""
        self.stopping.set()

    def fail(self, error: BaseException) -> None:
        """Abort all connections and set ``stopping``: the broker has failed. Keeps the first error."""
        if self.failure is None:
            self.failure = error
            if isinstance(error, StoreFenced | StoreDamaged | StoreMisconfigured):
                log.critical("the broker stops: %s", error)
            else:
                log.critical("the broker stops after an error: %r", error, exc_info=error)
        for connection in tuple(self._server.connections):
            connection.abort()
        self.stopping.set()

    async def _end(self) -> None:
        for connection in tuple(self._server.connections):
            connection.abort()
        # An aborted transport notifies its protocol in the next turn of the event loop.
        await self._all_gone(1.0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._peers is not None:
            await self._peers.stop()
        for listener in self._listeners:
            await listener.wait_closed()
        self._server.close()

    async def _all_gone(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._server.emptied.wait()

    def _close_listeners(self) -> None:
        self._server.is_closing = True
        for listener in self._listeners:
            listener.close()

    def _watch(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        """Start a task whose failure is fatal to the broker."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.broker.fatal(error)


def _default_dispatch(broker: Broker) -> Dispatch:
    # Imported here, because tests with their own handlers do not need these.
    from semel.handlers import HANDLERS, served
    from semel.handlers.changes import audited

    settings = broker.settings
    apis = served(
        two_phase=settings.transaction_two_phase_commit_enable, extensions=settings.semel_extensions_enable
    )
    return Dispatch(audited(HANDLERS), apis)
