"""One broker for each module of client tests, and names that nobody else uses.

Set SEMEL_PEER to a host and port to run the same tests against another broker, for instance Apache Kafka with
the settings below: what passes there is what the clients may expect here.
"""

import itertools
import uuid
import warnings
from collections.abc import Callable, Iterator

import pytest
from support.brokers.peer import Timed, broker_or_peer, timed_broker
from support.clients.client_transactions import VISIBILITIES
from support.clients.raw import RawClient

import semel
from semel.client import Client

with warnings.catch_warnings():
    # kafka-python reads its schemas, when it is imported, with functions that Python 3.11 deprecates.
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    import kafka  # noqa: F401

SETTINGS = {
    "auto.create.topics.enable": False,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 500,
    "group.consumer.heartbeat.interval.ms": 200,
    # A member must outlast a pause of the machine. Groups whose members die have a shorter one of their own.
    "group.consumer.session.timeout.ms": 30_000,
    "group.consumer.min.session.timeout.ms": 500,
}

_run = uuid.uuid4().hex[:8]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with broker_or_peer(SETTINGS) as address:
        yield address


@pytest.fixture
def timed() -> Iterator[Timed]:
    """A broker of the test's own, whose clock it moves."""
    with timed_broker(SETTINGS) as broker:
        yield broker


@pytest.fixture(scope="module")
def creating_bootstrap() -> Iterator[str]:
    """A broker that makes topics when they are asked for."""
    with semel.embedded(
        settings={**SETTINGS, "auto.create.topics.enable": True, "num.partitions": 2}
    ) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def raw(bootstrap: str) -> Iterator[RawClient]:
    with RawClient(bootstrap) as client:
        yield client


@pytest.fixture
def client(bootstrap: str) -> Iterator[Client]:
    with Client(bootstrap, timeout_s=20) as client:
        yield client


@pytest.fixture(params=VISIBILITIES)
def visibility(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def topic(raw: RawClient, fresh: Callable[[str], str]) -> str:
    """A topic with three partitions."""
    name = fresh("topic")
    raw.create_topic(name, 3)
    return name


@pytest.fixture
def fresh() -> Callable[[str], str]:
    """A name that no other test has, of this run or another."""
    return lambda word: f"{word}-{_run}-{next(_numbers)}"
