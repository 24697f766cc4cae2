"""`semel serve` in a cluster: how it starts, and why it does not."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import obstore
import pytest
from obstore.store import from_url
from support.brokers.cluster_members import Member, database, semel
from support.brokers.process import free_port
from support.servers.directories import server_directory
from support.servers.postgres import PostgresServer, binaries, why_not
from support.servers.s3 import S3Server
from support.waiting import until
from typer.testing import CliRunner

from semel.cli.main import app
from semel.client import Admin, Client, Consumer, Producer
from semel.config import Settings

INLINE_BYTES_MAX = Settings().semel_inline_bytes_max


@pytest.fixture
def ledger(postgres_dsn: str) -> Iterator[str]:
    with database(postgres_dsn) as dsn:
        yield dsn


def serve(
    *arguments: str, code: int, environment: Mapping[str, str] | None = None, seconds: float = 30.0
) -> str:
    """Run a broker that does not start. What it says, in one line."""
    command = [sys.executable, "-W", "error", "-m", "semel", "serve", "--listen", "127.0.0.1:0", *arguments]
    ran = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
        env={**os.environ, **(environment or {})},
    )
    assert ran.returncode == code, ran
    assert "Traceback" not in ran.stderr, ran.stderr
    return " ".join(ran.stderr.replace("│", " ").split())


def refused(*arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """What the command says of its options before it opens anything, in one line."""
    ran = CliRunner().invoke(app, ["serve", "--listen", "127.0.0.1:0", *arguments], env=environment)
    assert ran.exit_code == 2, ran.output
    return " ".join(ran.output.replace("│", " ").split())


@contextmanager
def starting(
    *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "semel", "serve", "--listen", "127.0.0.1:0", *arguments]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


# -- passwords --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://semel:hunter2@127.0.0.1/x",
        "postgresql://127.0.0.1/x?password=hunter2",
        "host=127.0.0.1 dbname=x user=semel password=hunter2",
        "host=127.0.0.1 PASSWORD = 'hunter2'",
        "postgresql://semel:hunter2@[127.0.0.1/x",
    ],
)
def test_a_password_on_the_command_line_is_refused(address: str, tmp_path: Path) -> None:
    said = refused("--ledger", address, "--chunks", tmp_path.as_uri())
    assert "PGPASSWORD or ~/.pgpass, or the whole address by SEMEL_LEDGER" in said
    assert "hunter2" not in said


def test_a_password_in_the_environment_is_used_and_not_logged(ledger: str, tmp_path: Path) -> None:
    with_password = ledger.replace("semel@", "semel:hunter2@")
    environment = {"SEMEL_LEDGER": with_password, "SEMEL_CHUNKS": tmp_path.as_uri()}
    with starting("--log-level", "debug", environment=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Semel is ready on")
        process.terminate()
        assert "hunter2" not in process.communicate(timeout=30)[1]
        assert process.returncode == 0


def test_an_address_that_is_none_is_not_shown(tmp_path: Path) -> None:
    environment = {
        "SEMEL_LEDGER": "postgresql://semel:hunter2/@[127.0.0.1:x/y",
        "SEMEL_CHUNKS": tmp_path.as_uri(),
    }
    said = serve(code=78, environment=environment)
    assert "is not that of a PostgreSQL database" in said
    assert "hunter2" not in said


@pytest.mark.parametrize("address", ["host=127.0.0.1 user=semel", "127.0.0.1/x", "mysql://x/y", ""])
def test_an_address_that_is_no_url_is_refused(address: str, tmp_path: Path) -> None:
    """Wherever it comes from, and before anything is opened."""
    chunks, config = tmp_path.as_uri(), tmp_path / "semel.toml"
    config.write_text(f'ledger = "{address}"\nchunks = "{chunks}"\n')
    for arguments, environment in (
        (["--ledger", address, "--chunks", chunks], {}),
        ([], {"SEMEL_LEDGER": address or "nonsense", "SEMEL_CHUNKS": chunks}),
        (["--config", str(config)], {}),
    ):
        said = refused(*arguments, environment=environment)
        assert "it must be a URL, postgresql://USER@HOST/DATABASE" in said


def test_a_list_with_a_password_in_the_environment_is_not_shown(tmp_path: Path) -> None:
    environment = {"SEMEL_LEDGER": "host=x password=hunter2", "SEMEL_CHUNKS": tmp_path.as_uri()}
    said = serve(code=2, environment=environment)
    assert "it must be a URL" in said
    assert "hunter2" not in said


# -- options ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--ledger", "postgresql://x/y"], "a cluster needs both"),
        (["--chunks", "file:///tmp"], "a cluster needs both"),
        (["--ledger", "postgresql://x/y", "--chunks", "file:///tmp", "--memory"], "choose one"),
        (["--ledger", "postgresql://x/y", "--chunks", "file:///tmp", "--data", "d"], "choose one"),
        (["--ledger", "postgresql://x/y", "--chunks", "file:///tmp", "--internal", "x:y"], "--internal"),
    ],
)
def test_options_that_do_not_belong_together(arguments: list[str], sentence: str) -> None:
    assert sentence in refused(*arguments)


def test_the_command_line_overrides_the_environment(tmp_path: Path) -> None:
    environment = {"SEMEL_LEDGER": "postgresql://nowhere.invalid/x", "SEMEL_CHUNKS": "s3://nowhere"}
    with starting("--data", str(tmp_path / "data"), environment=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Semel is ready on")


def test_options_in_a_file_and_addresses_for_others(ledger: str, tmp_path: Path) -> None:
    metrics, internal = free_port(), free_port()
    (tmp_path / "chunks").mkdir()
    (tmp_path / "semel.toml").write_text(
        f"""
ledger = "{ledger}"
chunks = "{(tmp_path / "chunks").as_uri()}"
internal = "127.0.0.1:{internal}"
advertise = ["clients.example:9092", "internal=brokers.example:9093"]
metrics = "127.0.0.1:{metrics}"

[settings]
node.id = 7
broker.rack = "a"
"""
    )
    with starting("--config", str(tmp_path / "semel.toml")) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Semel is ready on")
        (broker,) = json.loads(semel("cluster", "status", "--ledger", ledger, "--json").stdout)["brokers"]
        assert broker["broker_id"] == 7
        assert broker["rack"] == "a"
        assert broker["endpoints"] == {"PLAINTEXT": "clients.example:9092"}
        assert broker["internal"] == "brokers.example:9093"
        socket.create_connection(("127.0.0.1", internal)).close()
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/health") as answer:
            health = json.loads(answer.read())
        assert (health["status"], health["node_id"]) == ("serving", 7)
        said = serve("--config", str(tmp_path / "semel.toml"), "--internal", "127.0.0.1:0", code=75)
        assert "The node.id is in use: another process runs as broker 7 at brokers.example:9093" in said
        assert "--data" not in said
        said = serve(
            *("--config", str(tmp_path / "semel.toml"), "--set", "node.id=8", "--metrics", "127.0.0.1:0"),
            code=69,
        )
        assert "--internal" in said


# -- what is not there ------------------------------------------------------------------------------------


def test_without_the_packages_of_a_cluster() -> None:
    program = "import sys; sys.modules['asyncpg'] = None; from semel.cli.main import run; run()"
    for arguments in (
        ["serve", "--ledger", "postgresql://x/y", "--chunks", "file:///tmp"],
        ["cluster", "status", "--ledger", "postgresql://x/y"],
        ["migrate", "/tmp", "--ledger", "postgresql://x/y", "--chunks", "file:///tmp"],
    ):
        ran = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        assert ran.returncode == (78 if arguments[0] == "serve" else 1)
        assert "pip install 'semel[cluster]'" in ran.stderr
        assert "Traceback" not in ran.stderr


def test_a_database_that_does_not_exist(ledger: str, tmp_path: Path) -> None:
    said = serve("--ledger", ledger + "_not", "--chunks", tmp_path.as_uri(), code=78)
    assert "PostgreSQL refuses: database" in said


def test_a_certificate_that_does_not_exist(ledger: str, tmp_path: Path) -> None:
    address = f"{ledger}?sslmode=verify-full&sslrootcert={tmp_path / 'no.pem'}"
    said = serve("--ledger", address, "--chunks", tmp_path.as_uri(), code=78)
    assert (
        f"there is no file {tmp_path / 'no.pem'}, which the address of the ledger names as sslrootcert"
        in said
    )


def test_what_belongs_to_another_cluster(ledger: str, tmp_path: Path) -> None:
    chunks = tmp_path / "chunks"
    chunks.mkdir()
    place = ("--ledger", ledger, "--chunks", chunks.as_uri())
    with Member(ledger, chunks, 0):
        pass
    said = serve(*place, "--set", "cluster.id=other", code=78)
    assert "and cluster.id is other" in said
    (tmp_path / "else").mkdir()
    said = serve("--ledger", ledger, "--chunks", (tmp_path / "else").as_uri(), code=78)
    assert "this is not the object store of the cluster" in said


@pytest.mark.parametrize(
    ("chunks", "sentence"),
    [
        ("/srv/semel", "is not an address: use s3://BUCKET/PREFIX"),
        ("file://srv/semel", "a directory has three slashes"),
    ],
)
def test_an_address_of_chunks_that_is_none(ledger: str, chunks: str, sentence: str) -> None:
    assert sentence in serve("--ledger", ledger, "--chunks", chunks, code=78)


def test_tables_of_somebody_else(ledger: str, tmp_path: Path) -> None:
    asyncio.run(_execute(ledger, "CREATE SCHEMA semel; CREATE TABLE semel.topics (x int)"))
    said = serve("--ledger", ledger, "--chunks", tmp_path.as_uri(), code=78)
    assert "the tables of the ledger cannot be made" in said


async def _execute(dsn: str, statement: str) -> None:
    connection: Any = await asyncpg.connect(dsn)
    await connection.execute(statement)
    await connection.close()


def test_a_directory_that_does_not_exist(ledger: str, tmp_path: Path) -> None:
    said = serve("--ledger", ledger, "--chunks", (tmp_path / "no").as_uri(), code=78)
    assert f"{tmp_path / 'no'} is not a directory" in said


def test_postgresql_may_start_later(tmp_path: Path) -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    found = binaries()
    assert found is not None
    directory = server_directory("postgres")
    server = PostgresServer(directory, found, {})
    try:
        server.create()
        with starting("--ledger", server.dsn, "--chunks", tmp_path.as_uri()) as process:
            assert process.stderr is not None
            assert process.stdout is not None
            assert "waiting for PostgreSQL since 0 s" in process.stderr.readline()
            server.start()
            assert process.stdout.readline().startswith("Semel is ready on")
            process.terminate()
            process.communicate(timeout=30)
            assert process.returncode == 0
    finally:
        server.stop(mode="immediate")
        shutil.rmtree(directory, ignore_errors=True)


def credentials(server: S3Server, **others: str) -> dict[str, str]:
    options = server.options
    return {
        "AWS_ENDPOINT": options["endpoint"],
        "AWS_ACCESS_KEY_ID": options["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": options["secret_access_key"],
        "AWS_REGION": options["region"],
        "AWS_ALLOW_HTTP": "true",
        **others,
    }


def test_s3_by_the_environment(ledger: str, s3: S3Server, tmp_path: Path) -> None:
    with starting("--ledger", ledger, "--chunks", s3.address, environment=credentials(s3)) as process:
        assert process.stdout is not None
        address = process.stdout.readline().removeprefix("Semel is ready on ").strip()
        with Client(address) as client:
            Admin(client).topics.create("orders")
            large = os.urandom(INLINE_BYTES_MAX)
            with Producer(client) as producer:
                producer.send("orders", large)
            with Consumer(client, "orders") as consumer:
                assert [each.value for each in consumer.read_to_end()] == [large]
    s3_files = [each for page in obstore.list(from_url(s3.address, **s3.options)) for each in page]
    objects = [each["size"] for each in s3_files if "/chunks/" in each["path"]]
    assert [size > INLINE_BYTES_MAX for size in objects] == [True], "the record is in an object"


def test_a_bucket_that_does_not_exist(ledger: str, s3: S3Server) -> None:
    said = serve("--ledger", ledger, "--chunks", "s3://not-there/x", code=78, environment=credentials(s3))
    assert "s3://not-there/x cannot be used: NoSuchBucket" in said


def test_credentials_that_are_wrong(ledger: str, s3: S3Server) -> None:
    wrong = credentials(s3, AWS_SECRET_ACCESS_KEY="hunter2")
    said = serve("--ledger", ledger, "--chunks", s3.address, code=78, environment=wrong)
    assert "cannot be used: SignatureDoesNotMatch" in said
    assert "hunter2" not in said


def test_a_member_that_stops_is_ready_again_at_once(ledger: str, tmp_path: Path) -> None:
    (tmp_path / "chunks").mkdir()
    with Member(ledger, tmp_path / "chunks", 0) as member:
        assert member.stop() == 0
        member.start()
        with Client(member.bootstrap) as client:
            until(lambda: Admin(client).cluster().nodes, what="a broker")
