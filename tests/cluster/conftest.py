"""Clusters of real processes. Tests that leave a cluster as it was share one for each module."""

import uuid
import warnings
from collections.abc import Callable, Iterator

import pytest
from support.brokers.cluster import Cluster, running
from support.clients.routed import RoutedClient

from semel.client import Admin, Client, NewTopic

with warnings.catch_warnings():
    # kafka-python reads its schemas, when it is imported, with functions that Python 3.11 deprecates.
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    import kafka  # noqa: F401


@pytest.fixture(scope="module")
def cluster(postgres_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers, with proxies before PostgreSQL and before each other."""
    with running(Cluster(tmp_path_factory.mktemp("cluster"), proxied=True), postgres_dsn) as cluster:
        yield cluster


@pytest.fixture
def raw(cluster: Cluster) -> Iterator[RoutedClient]:
    with RoutedClient(cluster.bootstrap) as client:
        yield client


Create = Callable[..., str]


@pytest.fixture
def spread(cluster: Cluster) -> Create:
    """Creates a topic whose partitions have several leaders; more of them for each call."""
    return lambda **configs: make_spread(cluster, **configs)


def make_spread(cluster: Cluster, partitions: int = 6, **configs: str) -> str:
    """Create a topic whose partitions have several leaders.

    Shards are drawn from the id of a topic, so one in some hundred topics has a single leader.
    """
    wanted = {each.replace("_", "."): value for each, value in configs.items()}
    with Client(cluster.bootstrap) as client:
        for _ in range(10):
            name = f"topic-{uuid.uuid4().hex[:8]}"
            Admin(client).topics.create(NewTopic(name, partitions, configs=wanted))
            if len({client.leader(name, index) for index in range(partitions)}) > 1:
                return name
    raise AssertionError("all partitions have one leader")
