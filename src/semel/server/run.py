"""Runs a broker: open, serve, wait for the end, close.

`serve` runs one broker from start to end and returns an exit code. `semel serve` calls it with `run` in a
process, an embedded broker in a thread. `serve` does not raise operational errors (a directory in use, a port
in use, a failing disk): such an error is a line in the log and an exit code, and while the broker runs also
an exception in `Server.failure`.

If the store fails, the outcome of its last commit is unknown. The broker then sends no more responses and the
process ends; recovery at the next start determines the outcome.
"""

import asyncio
import contextlib
import gc
import logging
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from semel.broker.broker import Broker
from semel.config import Settings
from semel.core.security.policies import PutCredential
from semel.core.security.users import ScramCredential
from semel.printable import explained
from semel.server.listener import ListenerConfig
from semel.server.logs import event
from semel.server.metrics_page import MetricsPage
from semel.server.peers import PeerConnections
from semel.server.server import Server
from semel.store import contract
from semel.store.opening import Remote

log = logging.getLogger("semel.server")

EXIT_OK: Final = 0
EXIT_BROKEN: Final = 70
"""The store or the broker failed; a restart recovers. From sysexits: an internal error."""
EXIT_DAMAGED: Final = 65
"""The data directory is incomplete or damaged; a restart does not help. From sysexits: data."""
EXIT_LOCKED: Final = 75
"""Another process owns the data directory or the node id. From sysexits: try again later."""
EXIT_MISCONFIGURED: Final = 78
"""The store refuses this broker; a restart does not help. From sysexits: configuration."""
EXIT_CANNOT_LISTEN: Final = 69
"""An address is in use or not local. From sysexits: unavailable."""

YOUNG_OBJECTS_MAX: Final = 5_000
"""The number of new objects that triggers Python's cyclic garbage collector. With the default of 700, some
twenty requests in flight trigger it in vain: a request creates no cycles. That took a tenth of the event
loop's time."""
GRACE_SECONDS: Final = 5.0
LINGER_SECONDS: Final = 0.5
"""How long a broker that has left its cluster redirects its clients, which ask for the new leaders over their
open connections. If these were closed at once, librdkafka would ask this broker again and again.
"""
CLOSE_SECONDS: Final = 30.0


def run(main: Coroutine[Any, Any, int]) -> int:
    """Run ``main`` to its end, on uvloop if it is installed."""
    try:
        import uvloop
    except ImportError:  # not available on every system, and only an optimization
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


async def serve(
    settings: Settings,
    listeners: Sequence[ListenerConfig],
    data: Path | Remote | None,
    metrics: tuple[str, int] | None = None,
    ready: Callable[[Server], None] = lambda server: None,
    failed: Callable[[int, str], None] = lambda code, text: None,
    internal: ListenerConfig | None = None,
    users: Sequence[ScramCredential] = (),
) -> int:
    """Run one broker. Calls `ready` when clients are served, `failed` if the broker cannot start.

    Adds ``users``: a broker in memory gets its first user this way.
    """
    in_cluster = isinstance(data, Remote)
    try:
        broker = await Broker.open(settings, data, connect=PeerConnections, joins=False)
    except contract.StoreLocked as error:
        what = "the node.id" if in_cluster else "the data directory"
        return _cannot_start(EXIT_LOCKED, f"{what} is in use", error, failed)
    except contract.StoreMisconfigured as error:
        return _cannot_start(EXIT_MISCONFIGURED, "the store cannot be used", error, failed)
    except (contract.StoreDamaged, contract.LedgerDamaged) as error:
        return _cannot_start(EXIT_DAMAGED, "the broker refuses to start", error, failed)
    except (contract.StoreBroken, contract.StoreRefused, OSError) as error:
        what = "the store" if in_cluster else "the data directory"
        return _cannot_start(EXIT_BROKEN, f"{what} cannot be opened", error, failed)
    try:
        server = Server(broker, listeners, internal=internal)
    except ValueError as error:
        await _close(broker)
        return _cannot_start(EXIT_MISCONFIGURED, "a setting is wrong", error, failed)
    broker.fatal = server.fail
    page = _metrics_page(server)
    try:
        await server.start()
        # After the start: in a cluster, this waits until the other brokers know the users.
        await broker.submit([PutCredential(each) for each in users])
        if metrics is not None:
            port = await page.start(*metrics)
            event(log, logging.INFO, "metrics page", host=metrics[0], port=port)
    except (OSError, UnicodeError) as error:  # UnicodeError from an invalid host name
        return await _cannot_serve(server, EXIT_CANNOT_LISTEN, "cannot listen", error, failed)
    except (contract.StoreBroken, contract.StoreRefused) as error:
        return await _cannot_serve(server, EXIT_BROKEN, "the cluster cannot be joined", error, failed)
    except ValueError as error:
        return await _cannot_serve(server, EXIT_MISCONFIGURED, "clients cannot log in", error, failed)
    with _signals(server), _mistakes(server):
        ready(server)
        await server.stopping.wait()
        event(log, logging.INFO, "stopping")
        await page.stop()
        if server.failure is not None:
            await server.abort()
        else:
            await _leave(broker, server, lingers=in_cluster)
        await _close(broker)
    event(log, logging.INFO, "stopped")
    return EXIT_OK if server.failure is None else _code_of(server.failure)


def _code_of(failure: BaseException) -> int:
    """Return the exit code of a broker that failed while it ran."""
    if isinstance(failure, contract.StoreMisconfigured):
        return EXIT_MISCONFIGURED
    return EXIT_DAMAGED if isinstance(failure, contract.StoreDamaged) else EXIT_BROKEN


def _cannot_start(code: int, sentence: str, error: Exception, failed: Callable[[int, str], None]) -> int:
    detail = explained(error)
    event(log, logging.ERROR, sentence, detail=detail)
    failed(code, f"{sentence}: {detail}")
    return code


def _metrics_page(server: Server) -> MetricsPage:
    broker = server.broker

    def page() -> bytes:
        # Imported late for a fast start: it loads more than the rest of this package.
        from semel.broker import metrics_text

        return metrics_text.page(broker.metrics)

    return MetricsPage(
        page,
        lambda: (
            not server.stopping.is_set() and broker.is_serving,
            {"cluster_id": broker.cluster_id, "node_id": broker.node_id},
        ),
    )


async def _cannot_serve(
    server: Server, code: int, sentence: str, error: Exception, failed: Callable[[int, str], None]
) -> int:
    await server.abort()
    await _close(server.broker)
    return _cannot_start(code, sentence, error, failed)


async def _leave(broker: Broker, server: Server, *, lingers: bool) -> None:
    await broker.leave()
    broker.end_waits()
    if lingers:
        await asyncio.sleep(LINGER_SECONDS)
    await server.stop(GRACE_SECONDS)


async def _close(broker: Broker) -> None:
    """Close the broker. A broken store may fail to close, and must not keep the process from ending."""
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await broker.close()
    except contract.StoreFenced:
        pass  # The broker that took its place has all of its data.
    except (contract.StoreBroken, OSError, TimeoutError) as error:
        event(log, logging.ERROR, "the store did not close cleanly", detail=repr(error))


@contextlib.contextmanager
def _signals(server: Server) -> Iterator[None]:
    """Stop the server on SIGTERM and SIGINT, and tune the garbage collector, if in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.request_stop)
    # Objects created at startup live until the end, so the collector can skip them.
    gc.collect()
    gc.freeze()
    before = gc.get_threshold()
    gc.set_threshold(YOUNG_OBJECTS_MAX, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def _mistakes(server: Server) -> Iterator[None]:
    """Log uncaught exceptions of the event loop. One in a callback outside a connection ends the broker."""
    loop = asyncio.get_running_loop()

    def handle(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        log.error("unhandled error in the event loop: %s", context.get("message"), exc_info=error)
        is_callback = "handle" in context and "transport" not in context and "protocol" not in context
        if error is not None and is_callback:
            server.fail(error)

    before = loop.get_exception_handler()
    loop.set_exception_handler(handle)
    try:
        yield
    finally:
        loop.set_exception_handler(before)
