"""Background tasks of the server: close slow clients, measure the event loop's lag, release unused memory,
close all connections while the broker has no lease.

One sweep over all connections per second is cheaper than a timer for each connection, and exact enough for
timeouts of minutes. The probe sleeps a tenth of a second and measures how much longer the sleep took: every
client waited that long for the broker.
"""

import asyncio
import logging
import time
from typing import Final, NoReturn

from semel.allocator import give_back
from semel.broker.cluster.member import ClusterMember
from semel.rate_limit import RateLimit
from semel.server.logs import event
from semel.server.server_context import ServerContext

log = logging.getLogger("semel.server")

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
