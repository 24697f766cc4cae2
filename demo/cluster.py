"""Run the demonstration on a cluster: `python -m demo.cluster`.

PostgreSQL and an S3 server come from packages of PyPI. Besides the brokers, one session of PostgreSQL is
killed, and all of PostgreSQL. Both are crashes that begin a new term: what was open is aborted, and the
pipeline writes that batch again.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.brokers.cluster import query, s3_environment
from support.servers.postgres import PostgresServer, postgres_server
from support.servers.s3 import s3_server

from demo import processes
from demo.__main__ import Demo, Victim, run
from demo.report import Report
from demo.security import Secured

BROKERS = 3
KILLS = 5


class Session:
    """One session of a broker with PostgreSQL; there are always others."""

    name = "a session of PostgreSQL"

    def __init__(self, server: PostgresServer) -> None:
        self._server = server

    def kill(self) -> None:
        """Kill a session with SIGKILL. The server then ends all others, and recovers."""
        rows = query(
            self._server.dsn, "SELECT pid FROM pg_stat_activity WHERE application_name = 'semel' LIMIT 1"
        )
        for row in rows:
            with suppress(ProcessLookupError):
                os.kill(row["pid"], signal.SIGKILL)

    def start(self) -> None:
        """Do nothing: brokers reconnect by themselves."""


class AllOfPostgres:
    """The whole PostgreSQL server."""

    name = "all of PostgreSQL"

    def __init__(self, server: PostgresServer) -> None:
        self._server = server

    def kill(self) -> None:
        """Stop it without a checkpoint."""
        self._server.stop(mode="immediate")

    def start(self) -> None:
        """Start it again."""
        self._server.start()


@contextmanager
def _cluster(directory: Path, report: Report, per_second: int) -> Iterator[Demo]:
    with postgres_server() as postgres, s3_server() as s3:
        settings = s3_environment(s3.options)
        secured = Secured.prepare(directory)
        secured.add_administrator("--ledger", postgres.dsn)
        brokers = {}
        for number in range(1, BROKERS + 1):
            port = processes.free_port()
            brokers[f"127.0.0.1:{port}"] = processes.member(
                number, port, postgres.dsn, s3.address, settings, secured
            )
        first, second, third = brokers.values()
        victims: list[Victim] = [first, Session(postgres), second, AllOfPostgres(postgres), third]
        yield Demo(secured, report, per_second, brokers, victims)


if __name__ == "__main__":
    sys.exit(run(__doc__, KILLS, _cluster))
