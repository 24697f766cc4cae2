"""A broker for the tests of transactions, and what each of them begins with.

SEMEL_PEER names another broker to hold them against: one node of Kafka 4.3, with
`transaction.abort.timed.out.transaction.cleanup.interval.ms` of a second.
"""

from collections.abc import Callable, Iterator

import pytest
from support.brokers.peer import Timed, timed_broker
from support.clients.raw import KEEPS_RECORDS, RawClient
from support.clients.raw_log import Log
from support.clients.raw_transactions import RawProducer, make_topic


@pytest.fixture(scope="module")
def timed() -> Iterator[Timed]:
    with timed_broker(KEEPS_RECORDS) as broker:
        yield broker


@pytest.fixture(scope="module")
def bootstrap(timed: Timed) -> str:
    return timed.address


@pytest.fixture
def topic(client: RawClient) -> str:
    return make_topic(client)


@pytest.fixture
def log(client: RawClient, topic: str) -> Log:
    return Log(client, topic)


Begin = Callable[..., RawProducer]


@pytest.fixture
def begin(client: RawClient) -> Begin:
    """Makes a producer of generation 1 or 2."""
    return lambda *args, **fields: RawProducer(client, *args, **fields)


@pytest.fixture(params=[1, 2], ids=["version-1", "version-2"])
def producer(client: RawClient, request: pytest.FixtureRequest) -> RawProducer:
    return RawProducer(client, generation=request.param)


@pytest.fixture
def first(client: RawClient) -> RawProducer:
    """A producer of generation 1: adds by request, keeps its epoch."""
    return RawProducer(client, generation=1)


@pytest.fixture
def second(client: RawClient) -> RawProducer:
    """A producer of generation 2: adds by writing, a new epoch with every end."""
    return RawProducer(client, generation=2)
