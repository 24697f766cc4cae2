"""A broker from beginning to end: ready, stopped by a signal, refused a directory or a port, broken."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semel.config import Settings
from semel.server.listener import ListenerConfig
from semel.server.run import EXIT_BROKEN, EXIT_CANNOT_LISTEN, EXIT_LOCKED, EXIT_OK, run, serve
from semel.server.server import Server
from semel.store.contract import StoreBroken

LOCAL = ListenerConfig("main", "127.0.0.1", 0)


def serve_until(act: Callable[[Server], None], **options: Any) -> int:
    """Serve, act as soon as it is ready, and wait for the end."""
    listeners = options.pop("listeners", [LOCAL])
    return run(serve(Settings(), listeners, options.pop("data", None), ready=act, **options))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it(number: signal.Signals) -> None:
    assert serve_until(lambda server: os.kill(os.getpid(), number)) == EXIT_OK


def test_every_listener_tells_its_own_address() -> None:
    seen: list[dict[str, Any]] = []

    def act(server: Server) -> None:
        seen.append({**server.broker.endpoints, "bound": server.ports})
        server.request_stop()

    outside = ListenerConfig("outside", "127.0.0.1", 0, "broker.example", 19092)
    everywhere = ListenerConfig("everywhere", "0.0.0.0", 0)
    assert serve_until(act, listeners=[LOCAL, outside, everywhere]) == EXIT_OK
    (endpoints,) = seen
    assert endpoints["main"] == ("127.0.0.1", endpoints["bound"]["main"])
    assert endpoints["outside"] == ("broker.example", 19092)
    assert endpoints["everywhere"] == (socket.gethostname(), endpoints["bound"]["everywhere"])
    assert len(set(endpoints["bound"].values())) == 3


def test_a_directory_in_use_is_told_and_left_alone(tmp_path: Path) -> None:
    told: list[tuple[int, str]] = []
    second: list[int] = []

    async def again(server: Server) -> None:
        code = await serve(Settings(), [LOCAL], tmp_path, failed=lambda code, text: told.append((code, text)))
        second.append(code)
        server.request_stop()

    tasks: list[asyncio.Task[None]] = []
    code = serve_until(lambda server: tasks.append(asyncio.ensure_future(again(server))), data=tmp_path)
    assert code == EXIT_OK
    assert second == [EXIT_LOCKED]
    assert told[0][0] == EXIT_LOCKED
    assert "in use" in told[0][1]


def test_a_port_that_is_taken() -> None:
    told: list[str] = []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listener = ListenerConfig("main", "127.0.0.1", taken.getsockname()[1])
        code = run(serve(Settings(), [LOCAL, listener], None, failed=lambda code, text: told.append(text)))
    assert code == EXIT_CANNOT_LISTEN
    assert "cannot listen" in told[0]


def test_a_broken_store_ends_it_and_cuts_everyone() -> None:
    cut: list[bytes] = []

    async def client(server: Server) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.ports["main"])
        while not server._server.connections:  # noqa: ASYNC110  the server accepts in its own time
            await asyncio.sleep(0)
        server.broker.fatal(StoreBroken("the disk is gone"))
        with contextlib.suppress(ConnectionError):
            cut.append(await reader.read())
        writer.close()

    failures: list[Any] = []
    tasks: list[asyncio.Task[None]] = []

    def act(server: Server) -> None:
        failures.append(server)
        tasks.append(asyncio.ensure_future(client(server)))

    assert serve_until(act) == EXIT_BROKEN
    assert isinstance(failures[0].failure, StoreBroken)


def test_a_background_task_that_dies_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def dies(server: Any) -> None:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr("semel.server.server.check_connections", dies)
    assert serve_until(lambda server: None) == EXIT_BROKEN


def test_the_metrics_page_is_served() -> None:
    answers: list[bytes] = []
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    async def ask(server: Server) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /health HTTP/1.1\r\n\r\n")
        answers.append(await reader.read())
        writer.close()
        server.request_stop()

    tasks: list[asyncio.Task[None]] = []
    code = serve_until(
        lambda server: tasks.append(asyncio.ensure_future(ask(server))), metrics=("127.0.0.1", port)
    )
    assert code == EXIT_OK
    assert b'"status": "serving"' in answers[0]
