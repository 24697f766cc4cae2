"""One Spark for all tests of a process, and a broker for each.

Set SEMEL_PEER to a host and port to run the scenarios against another broker: `make peers` does it with
Apache Kafka.
"""

import itertools
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.faults.proxy import Proxy
from support.spark.jobs import Pipeline, create, start_spark
from support.spark.outputs import TwoOutputs

import semel
from semel.embedded import Embedded

_run = uuid.uuid4().hex[:8]
_numbers = itertools.count()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = start_spark()
    yield session
    session.stop()


@pytest.fixture
def pipeline(spark: SparkSession, semel_broker: Embedded, tmp_path: Path) -> Pipeline:
    """A pipeline from `in`, which has two partitions, to `out`, which has three."""
    create(semel_broker.bootstrap_servers, ("in", 2), ("out", 3))
    return Pipeline(spark, semel_broker.bootstrap_servers, tmp_path)


@pytest.fixture(scope="module")
def any_broker() -> Iterator[str]:
    """A broker for the module, or the peer."""
    peer = os.environ.get("SEMEL_PEER")
    if peer:
        yield peer
        return
    with semel.embedded() as broker:
        yield broker.bootstrap_servers


@pytest.fixture(params=["portable"] if "SEMEL_PEER" in os.environ else ["portable", "extended"])
def protocol(request: pytest.FixtureRequest) -> str:
    """Whether the pipeline sees a broker that has Kafka's requests alone, or one that is Semel."""
    name: str = request.param
    return name


@pytest.fixture
def proxy(any_broker: str, protocol: str) -> Iterator[Proxy]:
    """What stands between the pipeline and the broker."""
    with Proxy(any_broker, hides_extensions=protocol == "portable") as proxy:
        yield proxy


@pytest.fixture
def proxied(spark: SparkSession, any_broker: str, proxy: Proxy, tmp_path: Path) -> Pipeline:
    """A pipeline that reaches its broker by the proxy, with topics and a name that no other has."""
    mark = f"{_run}-{next(_numbers)}"
    topics = (f"in-{mark}", f"out-{mark}")
    create(any_broker, (topics[0], 2), (topics[1], 3))
    return Pipeline(spark, proxy.bootstrap, tmp_path, f"copy-{mark}", topics)


@pytest.fixture
def two_outputs(spark: SparkSession, any_broker: str, proxy: Proxy, tmp_path: Path) -> TwoOutputs:
    """A pipeline that reaches its broker by the proxy, and writes each batch to two topics."""
    mark = f"{_run}-{next(_numbers)}"
    topics = (f"in-{mark}", f"out-{mark}", f"more-{mark}")
    create(any_broker, (topics[0], 2), (topics[1], 3), (topics[2], 2))
    return TwoOutputs(spark, proxy.bootstrap, tmp_path, f"copy-{mark}", topics)
