"""A real cluster: PostgreSQL, a chunk store, and brokers in processes of their own, which tests may kill.

Proxies may stand between its parts:

    with running(Cluster(tmp_path, proxied=True)) as cluster:
        cluster.brokers[0].to_postgres.silence()

Each broker has a proxy of its own before PostgreSQL, and another before its internal address, for the other
brokers. Clients reach brokers directly.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from semel.client import Client, ClientError, KafkaError
from support.brokers.process import BrokerProcess, free_port
from support.faults.tcp_proxy import TcpProxy
from support.servers.postgres import PostgresServer, postgres_server
from support.waiting import LIMIT_SECONDS, until

LEASE_SECONDS = 3.0
"""The default of ``semel.lease.ms``."""
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.heartbeat.interval.ms": 300,
    # Raw producers write batches with old timestamps.
    "log.retention.ms": -1,
    "log.cleaner.backoff.ms": 200,
    "transaction.two.phase.commit.enable": "true",
}


class Member(BrokerProcess):
    """One broker of a cluster."""

    def __init__(self, cluster: "Cluster", node_id: int, **settings: Any) -> None:
        settings = {**SETTINGS, **settings, "node.id": node_id}
        texts = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        sasl_port = free_port()
        if cluster.has_sasl:
            texts += ["--listen", f"sasl_plaintext://127.0.0.1:{sasl_port}"]
        super().__init__(cluster.directory / f"broker-{node_id}", *texts)
        self.sasl_port = sasl_port
        self.node_id = node_id
        self.cluster = cluster
        self.internal_port = free_port()
        self._to_postgres: TcpProxy | None = None
        self._from_brokers: TcpProxy | None = None
        self._is_paused = False

    def connect(self, to_postgres: TcpProxy, from_brokers: TcpProxy) -> None:
        """Put these proxies between this broker and the others, from its next start on."""
        self._to_postgres, self._from_brokers = to_postgres, from_brokers

    @property
    def to_postgres(self) -> TcpProxy:
        assert self._to_postgres is not None, "the cluster has no proxies"
        return self._to_postgres

    @property
    def from_brokers(self) -> TcpProxy:
        assert self._from_brokers is not None, "the cluster has no proxies"
        return self._from_brokers

    @property
    def environment(self) -> Mapping[str, str]:  # type: ignore[override]
        return self.cluster.environment

    @property
    def dsn(self) -> str:
        """The address of the ledger, as this broker sees it."""
        if self._to_postgres is None:
            return self.cluster.dsn
        parts = urlsplit(self.cluster.dsn)
        return parts._replace(netloc=f"{parts.username}@127.0.0.1:{self.to_postgres.port}").geturl()

    @property
    def storage(self) -> Sequence[str]:
        internal = ["--internal", f"127.0.0.1:{self.internal_port}"]
        if self._from_brokers is not None:
            internal += ["--advertise", f"internal=127.0.0.1:{self.from_brokers.port}"]
        return ("--ledger", self.dsn, "--chunks", self.cluster.chunks, *internal)

    @property
    def has_ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    @property
    def is_paused(self) -> bool:
        return self._is_paused

    def pause(self) -> None:
        """Stop the process with SIGSTOP, like a machine that sleeps."""
        os.kill(self.pid, signal.SIGSTOP)
        self._is_paused = True

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self._is_paused = False

    def kill(self) -> None:
        super().kill()
        self._is_paused = False

    def end(self) -> None:
        """Stop the broker if it runs, so that no other waits for its lease. If it is paused, kill it."""
        if self.process is not None:
            if not self._is_paused:
                self.stop()
            else:
                self.kill()

    def restart(self) -> None:
        """Start again, whether the broker runs, has exited or has been killed."""
        self.end()
        self.start()


class Cluster:
    """Brokers over one database and one chunk store. Use it through ``running``."""

    def __init__(
        self,
        directory: Path,
        *,
        brokers: int = 3,
        chunks: str | None = None,
        environment: Mapping[str, str] | None = None,
        proxied: bool = False,
        settings: Mapping[str, Any] | None = None,
        has_sasl: bool = False,
    ) -> None:
        self.directory = directory
        self.has_sasl = has_sasl
        """Whether brokers have a second listener, on which clients authenticate."""
        self.chunks = chunks or (directory / "chunks").as_uri()
        self.environment = environment or {}
        self.settings = settings or {}
        self.dsn = ""
        self._proxied = proxied
        self._server: PostgresServer | None = None
        self._exit = contextlib.ExitStack()
        (directory / "chunks").mkdir(parents=True, exist_ok=True)
        self.brokers = [self._member(number) for number in range(1, brokers + 1)]

    def _member(self, node_id: int) -> Member:
        return Member(self, node_id, **self.settings)

    @property
    def postgres(self) -> PostgresServer:
        """The PostgreSQL server, if the cluster started its own."""
        assert self._server is not None
        return self._server

    @property
    def bootstrap(self) -> str:
        return ",".join(each.bootstrap for each in self.brokers)

    def start(self, dsn: str | None = None) -> None:
        """Start everything: over a new database of the given server, or over the cluster's own server."""
        if dsn is None:
            self._server = self._exit.enter_context(postgres_server())
            dsn = self._server.dsn
        name = f"cluster_{os.urandom(6).hex()}"
        query(dsn, f"CREATE DATABASE {name}")
        self.dsn = urlsplit(dsn)._replace(path=f"/{name}").geturl()
        for each in self.brokers:
            self._connect(each)
            each.launch()
        for each in self.brokers:
            each.wait_until_ready()
        self.settle()

    def restart(self) -> None:
        """Stop all brokers, and start them again."""
        for each in self.brokers:
            each.end()
        for each in self.brokers:
            each.launch()
        for each in self.brokers:
            each.wait_until_ready()
        self.settle()

    def _connect(self, member: Member) -> None:
        if self._proxied:
            parts = urlsplit(self.dsn)
            assert parts.hostname is not None
            assert parts.port is not None
            member.connect(
                self._exit.enter_context(TcpProxy((parts.hostname, parts.port))),
                self._exit.enter_context(TcpProxy(("127.0.0.1", member.internal_port))),
            )

    def add(self) -> Member:
        """Start another broker, which joins the cluster."""
        member = self._member(len(self.brokers) + 1)
        self._connect(member)
        member.start()
        self.brokers.append(member)
        return member

    def stop(self) -> None:
        """End everything. The database on a given server remains."""
        for each in self.brokers:
            if each.process is not None:
                each.kill()
        self._exit.close()

    # -- looking at it --------------------------------------------------------------------------------------

    def query(self, text: str, *arguments: Any) -> list[Any]:
        """Run a query in PostgreSQL."""
        return query(self.dsn, text, *arguments)

    def owners(self) -> dict[int | None, int]:
        """How many shards each broker owns."""
        rows = self.query("SELECT owner, count(*) AS count FROM semel.shards GROUP BY owner")
        return {row["owner"]: row["count"] for row in rows}

    def settle(self, seconds: float = LIMIT_SECONDS) -> None:
        """Wait until the running brokers own all shards, and each of them knows all of them."""
        running = {each.node_id for each in self.brokers if not each.has_ended and not each.is_paused}
        until(lambda: set(self.owners()) == running, seconds, f"shards of {running}")
        for member in self.brokers:
            if member.node_id in running:
                until(partial(self._knows, member, running), seconds, f"{member.node_id} knows all")

    def _knows(self, member: Member, running: set[int]) -> bool:
        return self._nodes(member) == running

    def _nodes(self, member: Member) -> set[int]:
        with contextlib.suppress(KafkaError, ClientError), Client(member.bootstrap, timeout_s=5) as client:
            return {each.node_id for each in client.describe(topics=()).nodes}
        return set()

    def leader(self, topic: str, partition: int) -> Member:
        with Client(self.bootstrap, timeout_s=20) as client:
            return self._numbered(client.leader(topic, partition))

    def coordinator(self, name: str, kind: int = 0) -> Member:
        with Client(self.bootstrap, timeout_s=20) as client:
            return self._numbered(client.coordinator(name, kind))

    def _numbered(self, node_id: int) -> Member:
        return next(each for each in self.brokers if each.node_id == node_id)

    def names_at(self, member: Member, count: int = 1, word: str = "name") -> list[str]:
        """Return names of groups or transactional ids that this broker coordinates."""
        from semel.core.entities import name_shard

        rows = self.query("SELECT shard FROM semel.shards WHERE owner = $1", member.node_id)
        shards = {row["shard"] for row in rows}
        run = os.urandom(3).hex()
        names = (f"{word}-{run}-{number}" for number in range(100_000))
        return [name for name in names if name_shard(name) in shards][:count]

    def mend(self) -> None:
        """Restart brokers that have exited by themselves, as a supervisor would."""
        for each in self.brokers:
            if each.process is not None and each.has_ended:
                code = each.wait()
                assert code in EXPECTED, f"broker {each.node_id} ended with {code}: {each.log.read_text()}"
                each.start()

    def heal(self, seconds: float = LIMIT_SECONDS) -> None:
        """Restart brokers that exit, until all of them run and own shards.

        A broker that was replaced exits some time after PostgreSQL is back, later on a busy machine.
        """
        wanted = {each.node_id for each in self.brokers if each.process is not None and not each.is_paused}

        def is_whole() -> bool:
            self.mend()
            return set(self.owners()) == wanted

        until(is_whole, seconds, f"shards of {wanted}")
        self.settle(seconds)

    # -- PostgreSQL -----------------------------------------------------------------------------------------

    def kill_backend(self) -> None:
        """Kill one session of a broker with SIGKILL. The server then ends all others and recovers."""
        rows = self.query(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'semel' ORDER BY random() LIMIT 1"
        )
        for row in rows:
            with contextlib.suppress(ProcessLookupError):
                os.kill(row["pid"], signal.SIGKILL)

    def crash_postgres(self, seconds: float = 0.0) -> None:
        """Stop all of PostgreSQL without a checkpoint, and start it again."""
        self.postgres.stop(mode="immediate")
        time.sleep(seconds)
        self.postgres.start()

    def logs(self) -> str:
        return "\n".join(f"-- broker {each.node_id}\n{each.log.read_text()}" for each in self.brokers)


def query(dsn: str, text: str, *arguments: Any) -> list[Any]:
    """Run a query in PostgreSQL."""

    async def ask() -> list[Any]:
        connection = await asyncpg.connect(dsn, timeout=10)
        try:
            rows: list[Any] = await connection.fetch(text, *arguments)
            return rows
        finally:
            await connection.close()

    return asyncio.run(ask())


def s3_environment(options: Mapping[str, Any]) -> dict[str, str]:
    """The environment variables that point a broker at an S3 test server."""
    return {
        "AWS_ENDPOINT": options["endpoint"],
        "AWS_ACCESS_KEY_ID": options["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": options["secret_access_key"],
        "AWS_REGION": options["region"],
        "AWS_ALLOW_HTTP": "true",
    }


EXPECTED = {70}
"""Exit codes after which a broker is restarted: it was replaced, or its store failed."""


@contextlib.contextmanager
def running(cluster: Cluster, dsn: str | None = None) -> Iterator[Cluster]:
    """Run the cluster for the duration of the block."""
    try:
        cluster.start(dsn)
        yield cluster
    finally:
        cluster.stop()
