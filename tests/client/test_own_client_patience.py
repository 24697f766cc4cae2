"""`semel.client` while the broker is restarted: a patient client goes on by itself, with every operation.

The broker is away for longer than an answer may take, so a client without patience gives up.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest
from support.brokers.process import BrokerProcess, free_port
from support.faults.proxy import Act, Proxy

from semel.client import (
    LATEST,
    Admin,
    BrokerUnreachable,
    Client,
    ClientError,
    Consumer,
    KafkaError,
    NewTopic,
    Producer,
)
from semel.client.admin.group_offsets import commit_offsets, fetch_offsets
from semel.client.admin.transactions import fence_producer, list_transactions
from semel.client.consume.offsets import list_offsets
from semel.client.produce.commit_transactions import (
    AttemptProducer,
    DriverEpoch,
    commit_transactions,
    serves_commit_transactions,
)
from semel.client.produce.transaction_coordinator import Coordinator
from semel.wire.messages import BeginAttemptRequest, CommitTransactionsRequest, InitProducerIdRequest
from semel.wire.schema import Request

TIMEOUT_S = 0.25
AWAY_S = 0.25
"""Before it is started, which takes longer than that itself."""
PATIENCE_S = 60.0
KEY = ("t", 0)

OPERATIONS: dict[str, Callable[[Client], object]] = {
    "metadata": lambda client: client.describe(["t"]),
    "features": serves_commit_transactions,
    "offsets": lambda client: list_offsets(client, {KEY: LATEST}),
    "group": lambda client: fetch_offsets(client, "g"),
    "commit": lambda client: commit_offsets(client, "g", {KEY: 1}),
    "configuration": lambda client: Admin(client).configs.of_topic("t"),
    "transactions": lambda client: list_transactions(client, ["Ongoing"]),
    "fence": lambda client: fence_producer(client, "someone"),
    "run": lambda client: Coordinator(client, "p/driver", client.patience_s).init(60_000),
}


@pytest.fixture(scope="module")
def killable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker


@pytest.fixture
def broker(killable: BrokerProcess) -> Iterator[BrokerProcess]:
    """A broker with an empty topic."""
    with Client(killable.bootstrap) as client:
        Admin(client).topics.create(NewTopic("t", partitions=1))
        yield killable
        Admin(client).topics.delete("t")


@contextmanager
def hasty(bootstrap: str, patience_s: float | None = PATIENCE_S) -> Iterator[Client]:
    """A client that has found the broker, and from then on waits for an answer for a moment only.

    It has no patience before, so a broker on a busy machine gets the usual time for the first answer.
    """
    with Client(bootstrap, patience_s=patience_s) as client:
        client.describe()
        client.timeout_s = TIMEOUT_S
        yield client


@contextmanager
def away(broker: BrokerProcess) -> Iterator[None]:
    """The broker is dead at the beginning of the block, and comes back by itself."""
    broker.kill()
    back = threading.Timer(AWAY_S, broker.start)
    back.start()
    try:
        yield
    finally:
        back.join()


def restart(broker: BrokerProcess) -> None:
    with away(broker):
        pass


def test_each_operation_waits_for_the_broker(broker: BrokerProcess) -> None:
    """All at once, each with a client of its own."""
    with ExitStack() as stack:
        clients = {name: stack.enter_context(hasty(broker.bootstrap)) for name in OPERATIONS}
        for name, client in clients.items():
            OPERATIONS[name](client)
        pool = stack.enter_context(ThreadPoolExecutor(len(OPERATIONS)))
        with away(broker):
            waiting = {name: pool.submit(OPERATIONS[name], client) for name, client in clients.items()}
            failed = {
                name: error for name, each in waiting.items() if (error := each.exception()) is not None
            }
            assert failed == {}


def test_a_client_without_patience_gives_up(broker: BrokerProcess) -> None:
    with hasty(broker.bootstrap, patience_s=None) as client:
        broker.kill()
        for operation in OPERATIONS.values():
            with pytest.raises((ClientError, KafkaError)):
                operation(client)
        broker.start()


def test_records_are_written_once(broker: BrokerProcess) -> None:
    with hasty(broker.bootstrap) as client:
        with Producer(client, delivery_timeout_s=client.patience_s) as producer:
            producer.send("t", b"before").result()
            with away(broker):
                producer.send("t", b"while it is away").result()
        assert values(client) == [b"before", b"while it is away"]


def test_an_attempt_goes_on(broker: BrokerProcess) -> None:
    """It begins while the broker is away; its transaction survives a kill, and is committed after another."""
    with hasty(broker.bootstrap) as client:
        run = DriverEpoch("p/driver", Coordinator(client, "p/driver", PATIENCE_S).init(60_000).identity)
        attempt = AttemptProducer(client, f"p/{run.identity.epoch}/0", run, timeout_s=PATIENCE_S)
        with away(broker):
            attempt.begin()
        attempt.send("t", b"before").result()
        with away(broker):
            attempt.send("t", b"while it is away").result()
        prepared = attempt.prepare()
        assert prepared is not None
        with away(broker):
            commit_transactions(client, run, [prepared], "p", {KEY: 1})
        assert values(client) == [b"before", b"while it is away"]


@pytest.mark.parametrize("api", [InitProducerIdRequest, BeginAttemptRequest, CommitTransactionsRequest])
def test_an_answer_is_lost_and_the_broker_dies(broker: BrokerProcess, api: type[Request]) -> None:
    """What was done is not done twice, and what is asked again is not refused."""
    with Proxy(broker.bootstrap) as proxy, hasty(proxy.bootstrap) as client:
        first = Coordinator(client, "p/driver", PATIENCE_S).init(60_000).identity
        lost = proxy.on(api.api_key, Act.CUT_ANSWER)

        def kill() -> None:
            if lost.answered.wait(PATIENCE_S):
                restart(broker)

        killer = threading.Thread(target=kill)
        killer.start()
        run = DriverEpoch(
            "p/driver", Coordinator(client, "p/driver", PATIENCE_S).init(60_000, first).identity
        )
        attempt = AttemptProducer(client, f"p/{run.identity.epoch}/0", run, timeout_s=PATIENCE_S)
        attempt.begin()
        attempt.send("t", b"once").result()
        prepared = attempt.prepare()
        assert prepared is not None
        commit_transactions(client, run, [prepared], "p", {KEY: 7})
        killer.join()
        assert values(client) == [b"once"]
        assert fetch_offsets(client, "p")[KEY].offset == 7


def test_the_first_contact_is_not_waited_for() -> None:
    """Nobody is there, so the address may be wrong. Whoever waited would do so for ten minutes."""
    port = free_port()
    with Client(f"127.0.0.1:{port}", timeout_s=600.0, patience_s=600.0) as client:
        for operation in OPERATIONS.values():
            with pytest.raises(BrokerUnreachable, match=str(port)) as found:
                operation(client)
            assert found.value.is_first_contact


def values(client: Client) -> list[bytes | None]:
    with Consumer(client, "t") as consumer:
        return [record.value for record in consumer.read_to_end()]
