"""A cluster of real ``semel serve`` processes over a database of its own."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from support.brokers.process import BrokerProcess


@contextmanager
def database(dsn: str) -> Iterator[str]:
    """Create a database on a server; yield its address, and drop it afterwards."""
    name = f"test_{os.urandom(8).hex()}"
    asyncio.run(_execute(dsn, f"CREATE DATABASE {name}"))
    try:
        yield urlunsplit(urlsplit(dsn)._replace(path=f"/{name}"))
    finally:
        asyncio.run(_execute(dsn, f"DROP DATABASE {name} WITH (FORCE)"))


async def _execute(dsn: str, *statements: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        for each in statements:
            await connection.execute(each)
    finally:
        await connection.close()


class Member(BrokerProcess):
    """A broker of a cluster."""

    def __init__(self, ledger: str, chunks: Path, node_id: int, *options: str) -> None:
        super().__init__(chunks / f"node-{node_id}", *options)
        self.log = chunks.parent / f"node-{node_id}.log"
        self.node_id = node_id
        self._place = ["--ledger", ledger, "--chunks", chunks.as_uri(), "--set", f"node.id={node_id}"]

    def start(self) -> None:
        command = [*self.program, "serve", *self._place, "--listen", self.bootstrap, *self.options]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.strip() == f"Semel is ready on {self.bootstrap}", self.log.read_text()


@contextmanager
def members(
    ledger: str, chunks: Path, *node_ids: int, options: tuple[str, ...] = ()
) -> Iterator[list[Member]]:
    """Run these brokers for the duration of the block."""
    with ExitStack() as stack:
        yield [stack.enter_context(Member(ledger, chunks, each, *options)) for each in node_ids]


def semel(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command and check its exit code."""
    command = [sys.executable, "-W", "error", "-m", "semel", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == code, ran
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran
