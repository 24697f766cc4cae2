"""PgBouncer between Semel and PostgreSQL: in each of its modes, a broker reports it and does not start."""

import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.brokers.cluster_members import semel
from support.brokers.process import free_port
from support.servers.postgres import postgres_server, why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

IGNORED = (
    "application_name,search_path,client_min_messages,idle_in_transaction_session_timeout,lock_timeout,"
    "statement_timeout,enable_seqscan,enable_hashjoin,enable_mergejoin,jit,tcp_keepalives_idle,"
    "tcp_keepalives_interval,tcp_keepalives_count,extra_float_digits"
)


@pytest.fixture(scope="module")
def dsn() -> Iterator[str]:
    with postgres_server() as server:
        yield server.dsn


@contextmanager
def pgbouncer(dsn: str, directory: Path, mode: str, ignored: str) -> Iterator[str]:
    """Run a PgBouncer before a server; yield its address."""
    program = shutil.which("pgbouncer")
    if program is None:
        pytest.skip("PgBouncer is not installed")
    parts, port = urlsplit(dsn), free_port()
    config = directory / "pgbouncer.ini"
    config.write_text(
        f"""
        [databases]
        postgres = host={parts.hostname} port={parts.port} user={parts.username}
        [pgbouncer]
        listen_addr = 127.0.0.1
        listen_port = {port}
        unix_socket_dir =
        auth_type = any
        pool_mode = {mode}
        {f"ignore_startup_parameters = {ignored}" if ignored else ""}
        """.replace("        ", "")
    )
    # PgBouncer refuses to run as root.
    user: dict[str, Any] = {"user": pwd.getpwnam("nobody").pw_uid} if os.geteuid() == 0 else {}
    process = subprocess.Popen([program, "-q", config], cwd="/", **user)
    try:
        deadline = time.monotonic() + 20
        address = parts._replace(netloc=f"{parts.username}@127.0.0.1:{port}").geturl()
        while _is_away(port):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield address
    finally:
        process.kill()
        process.wait()


def _is_away(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.parametrize("mode", ["session", "transaction", "statement"])
@pytest.mark.parametrize("ignored", ["", IGNORED], ids=["strict", "ignoring"])
def test_a_broker_refuses_a_pooler(dsn: str, tmp_path: Path, mode: str, ignored: str) -> None:
    # PgBouncer runs as another user, which may not enter the tests' directories.
    directory = Path("/tmp") / f"semel-pgbouncer-{os.urandom(6).hex()}"
    directory.mkdir()
    directory.chmod(0o755)
    try:
        with pgbouncer(dsn, directory, mode, ignored) as pooled:
            (tmp_path / "chunks").mkdir()
            place = ("--ledger", pooled, "--chunks", (tmp_path / "chunks").as_uri())
            refused = semel("serve", *place, "--listen", "127.0.0.1:0", code=78)
            assert "connection pooler" in refused.stderr
            assert "connection pooler" in semel("cluster", "status", "--ledger", pooled, code=1).stderr
    finally:
        shutil.rmtree(directory)
