"""The broker is restarted under queries that run: they go on by themselves, and every record counts once.

It is away for longer than an answer may take, which is what queries gave up after.
"""

import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from support.brokers.process import BrokerProcess
from support.spark.jobs import committed, create, fill, open_transactions, values
from support.spark.lake import content
from support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

WAIT_SECONDS = 180.0
BATCH = 300
#: How long an answer may take. On a busy machine it takes longer now and then, which queries survive, too.
SHORT_SECONDS = 1
SHORT = {"kafka.request.timeout.ms": f"{SHORT_SECONDS * 1000}"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as broker:
        create(broker.bootstrap, ("in", 2), ("out", 3))
        yield broker


class Queries:
    """A query to a topic and one to a table, which read the same input."""

    def __init__(
        self, spark: SparkSession, broker: BrokerProcess, directory: Path, options: dict[str, str]
    ) -> None:
        self._broker = broker
        self._spark = spark
        self._directory = directory
        self._options = {"kafka.bootstrap.servers": broker.bootstrap, **options}
        self._count = 0
        # The first contact of a driver has no more time than an answer; this one has the usual time.
        table = spark.read.format("semel").option("kafka.bootstrap.servers", broker.bootstrap)
        assert table.option("subscribe", "in").load().count() == 0
        self.queries = [self._start("semel", "copy"), self._start("semel-delta", "archive")]

    def _start(self, sink: str, name: str) -> StreamingQuery:
        options = self._options | {"pipeline.id": name}
        rows = self._spark.readStream.format("semel").options(**options, subscribe="in").load()
        target = {"topic": "out"} if sink == "semel" else {"path": str(self._directory / "table")}
        return (
            rows.select("key", "value")
            .writeStream.format(sink)
            .options(**options, **target)
            .option("checkpointLocation", str(self._directory / name))
            .trigger(processingTime="100 milliseconds")
            .start()
        )

    def add(self) -> None:
        """Input for a batch."""
        fill(self._broker.bootstrap, "in", range(self._count, self._count + BATCH))
        self._count += BATCH

    def check(self) -> None:
        """All input is in the output, once, and no query has stopped."""
        wanted = values(range(self._count))
        until(lambda: self._is_active() and self._copied() == wanted.total(), WAIT_SECONDS, "all rows")
        assert committed(self._broker.bootstrap, "out") == wanted
        assert Counter(content(self._directory / "table")["value"]) == wanted

    def _is_active(self) -> bool:
        for query in self.queries:
            error = query.exception()
            assert error is None, str(error)
            assert query.isActive
        return True

    def _copied(self) -> int:
        """How many rows the output that is behind has."""
        table = self._directory / "table"
        # The directory is there before the first commit, which makes it a table.
        rows = len(content(table)["value"]) if DeltaTable.is_deltatable(str(table)) else 0
        return min(rows, committed(self._broker.bootstrap, "out").total())

    def until_in_a_batch(self) -> None:
        """Until a task has a transaction open; with more input if one was too quick to be seen."""

        def is_in_a_batch() -> bool:
            self.add()
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline:
                if any("/driver" not in each for each in open_transactions(self._broker.bootstrap)):
                    return True
            return False

        until(is_in_a_batch, WAIT_SECONDS, "a batch")


@pytest.fixture
def queries(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Queries]:
    running = Queries(spark, broker, tmp_path, getattr(request, "param", SHORT))
    yield running
    for query in running.queries:
        query.stop()


def restart(broker: BrokerProcess, queries: Queries, away_seconds: float) -> None:
    """Kill the broker in the middle of a batch, and stop it when the queries have nothing to do."""
    queries.add()
    queries.check()
    queries.until_in_a_batch()
    broker.kill()
    time.sleep(away_seconds)
    broker.start()
    queries.check()
    broker.stop()
    time.sleep(away_seconds)
    broker.start()
    queries.add()
    queries.check()


def test_queries_survive_a_restart_of_the_broker(broker: BrokerProcess, queries: Queries) -> None:
    """It takes twice as long as an answer may take."""
    restart(broker, queries, 2 * SHORT_SECONDS)


@pytest.mark.long
@pytest.mark.parametrize("queries", [{}], indirect=True)
def test_queries_survive_thirty_seconds_without_a_broker(broker: BrokerProcess, queries: Queries) -> None:
    """With the timeouts that queries have by default."""
    restart(broker, queries, 30.0)


def test_a_query_can_be_stopped_while_the_broker_is_away(broker: BrokerProcess, queries: Queries) -> None:
    queries.add()
    queries.check()
    broker.kill()
    await_attempts(broker.port, len(queries.queries))
    began_at = time.monotonic()
    for query in queries.queries:
        query.stop()
    assert time.monotonic() - began_at < 60, "patience is for the broker, not for who stops the query"


def await_attempts(port: int, count: int) -> None:
    """Until somebody has tried so often to reach what is not there; nobody is answered."""
    with socket.create_server(("127.0.0.1", port)) as server:
        server.settimeout(WAIT_SECONDS)
        for _ in range(count):
            server.accept()[0].close()
