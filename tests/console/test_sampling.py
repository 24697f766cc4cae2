"""Sampling goes on whatever the broker answers, and pages say when it does not work."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.brokers.process import free_port
from support.browser.console import console
from support.waiting import until, until_async

import semel
from semel.client import Admin, Client, TransactionalProducer
from semel.console.observing import Observer, Section
from semel.console.sessions import LoginSession
from semel.console.settings import ConsoleSettings
from semel.console.workers import TookTooLong

PATHS = ("/transactions", "/groups", "/pipelines")
STALE = "could not be read since"


@contextmanager
def garbage(port: int) -> Iterator[None]:
    """Something that is no broker: it answers every request with bytes that mean nothing."""
    listener = socket.create_server(("127.0.0.1", port))
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            try:
                made, _ = listener.accept()
            except OSError:
                return
            with made:
                answer = made.recv(4096)[8:12] + b"\xff" * 60
                if not over.is_set() and len(answer) == 64:
                    made.sendall(len(answer).to_bytes(4, "big") + answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        over.set()
        socket.create_connection(("127.0.0.1", port)).close()
        thread.join()
        listener.close()


def test_sampling_survives_answers_that_cannot_be_read() -> None:
    port = free_port()
    with console(f"127.0.0.1:{port}", sample_seconds=0.1, sample_share=1.0, request_seconds=5.0) as browsing:
        with garbage(port):
            for path in ("/overview.json", "/topics.json", "/groups.json", "/transactions.json"):
                assert browsing.get(path).status in (503, 504), path
        with semel.embedded(port=port) as broker, Client(broker.bootstrap_servers) as client:
            Admin(client).topics.create("after")
            until(lambda: "after" in browsing.get("/topics.json").text)
            until(lambda: browsing.get("/overview.json").json["health"]["state"] == "good")


def test_lists_say_when_they_are_not_live(tmp_path: Path) -> None:
    port = free_port()
    settings = {"sample_seconds": 0.1, "sample_share": 1.0, "request_seconds": 1.0}
    with console(f"127.0.0.1:{port}", **settings) as browsing:

        def is_live(path: str) -> bool:
            found = browsing.get(f"{path}.json").json
            return found.get("sampled_at") is not None and found["error"] is None

        def is_stale(path: str) -> bool:
            return browsing.get(f"{path}.json").json["error"] is not None

        for _ in range(2):
            with semel.embedded(tmp_path, port=port):
                for path in PATHS:
                    until(partial(is_live, path))
                    until(lambda path=path: STALE not in browsing.get(path).text)  # type: ignore[misc]
            for path in PATHS:
                until(partial(is_stale, path))
                seen = browsing.get(f"{path}.json").json["sampled_at"]
                assert STALE in browsing.get(path).text
                assert browsing.get(f"{path}.json").json["sampled_at"] == seen


def test_transactions_that_may_be_over_do_not_grow_older() -> None:
    port = free_port()
    with console(f"127.0.0.1:{port}", sample_seconds=0.1, sample_share=1.0, request_seconds=1.0) as browsing:

        def listed() -> Any:
            return browsing.get("/transactions.json").json

        with semel.embedded(port=port) as broker, Client(broker.bootstrap_servers) as client:
            Admin(client).topics.create("payments")
            producer = TransactionalProducer(client, "worker")
            producer.begin()
            producer.send("payments", b"1")
            producer.flush()
            until(lambda: bool(listed().get("transactions")))
        until(lambda: listed()["error"] is not None)
        ages = {listed()["transactions"][0]["age_ms"] for _ in range(5)}
        assert len(ages) == 1
        assert "the line is the last sample" in browsing.get("/transactions").text


def test_an_error_that_nobody_expected_is_kept_and_the_next_sample_counts() -> None:
    async def sample(observer: Observer) -> int:
        if not seen:
            seen.append(1)
            raise ZeroDivisionError("a bug")
        return 7

    async def run() -> None:
        section = Section(sample, 5.0)
        await section.refresh(None)  # type: ignore[arg-type]
        assert section.problem == "ZeroDivisionError: a bug"
        with pytest.raises(ZeroDivisionError):
            await section.get()
        await section.refresh(None)  # type: ignore[arg-type]
        assert (await section.get(), section.problem) == (7, None)

    seen: list[int] = []
    asyncio.run(run())


def test_a_page_does_not_wait_for_ever_for_the_first_sample() -> None:
    async def never(observer: Observer) -> int:
        raise AssertionError("it is not asked")

    async def run() -> None:
        with pytest.raises(TookTooLong, match=r"0\.05"):
            await Section(never, 0.05).get()

    asyncio.run(run())


def _observer() -> Observer:
    return Observer(LoginSession("a", None), SimpleNamespace(), ConsoleSettings(), lambda _: None)  # type: ignore[arg-type]


def test_sampling_stops_although_a_section_waits_for_another() -> None:
    """What it waits for is given up at the moment at which it is cancelled."""
    is_waiting = asyncio.Event()

    async def never(observer: Observer) -> int:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        return await future

    async def dependent(observer: Observer) -> int:
        is_waiting.set()
        return int(await observer.sections["first"].get())

    async def run() -> None:
        observer = _observer()
        observer.sections = {"first": Section(never, 60.0), "second": Section(dependent, 60.0)}
        running = asyncio.create_task(observer.run())
        await is_waiting.wait()
        await asyncio.sleep(0)
        observer.stop()
        done, _ = await asyncio.wait({running}, timeout=10.0)
        assert done

    asyncio.run(run())


def test_a_browser_that_leaves_at_the_moment_of_a_change_waits_for_no_other() -> None:
    async def run() -> None:
        observer = _observer()
        waiting = asyncio.create_task(observer.next_versions({"catalogue": 0}))
        for _ in range(3):
            await asyncio.sleep(0)
        observer._announce()
        waiting.cancel()
        done, _ = await asyncio.wait({waiting}, timeout=10.0)
        assert done
        assert waiting.cancelled()

    asyncio.run(run())


def test_a_change_does_not_wait_for_the_rests_of_a_sample_in_the_background() -> None:
    begun = asked = 0

    def question(client: object) -> None:
        nonlocal asked
        asked += 1

    async def sample(observer: Observer) -> int:
        nonlocal begun
        begun += 1
        for _ in range(3):
            await observer.ask(question)
        return begun

    async def run_as(session: LoginSession, function: Any) -> None:
        function(None)

    async def run() -> None:
        # After each question it rests for 30 seconds, which is the longest.
        settings = ConsoleSettings(sample_seconds=0.05, sample_share=1e-12)
        workers: Any = SimpleNamespace(run_as=run_as)
        observer = Observer(LoginSession("a", None), workers, settings, lambda _: None)
        section = Section(sample, 5.0)
        observer.sections = {"it": section}
        running = asyncio.create_task(observer.run())

        async def is_resting() -> bool:
            return begun == section.version + 1

        try:
            assert await section.get() == 1
            for count in (1, 2):
                await until_async(is_resting)
                seen = begun
                given_up, *changes = (asyncio.create_task(observer.refresh("it")) for _ in range(1 + count))
                await asyncio.sleep(0)
                given_up.cancel()
                await asyncio.wait_for(asyncio.gather(*changes), 10.0)
                # The one that rested has gone on, and those after the changes have followed.
                assert (section.value, asked) == (seen + count, 3 * (seen + count))
            await until_async(is_resting)
            await asyncio.sleep(0.2)
            assert (begun, asked) == (section.version + 1, 3 * section.version)  # It rests again.
        finally:
            observer.stop()
            await running

    asyncio.run(run())
