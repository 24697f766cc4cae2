"""`semel.client` and group commit: several producers' transactions with one outcome, on Semel alone."""

import os
from collections.abc import Callable, Iterator

import pytest
from support.faults.proxy import Act, Proxy

import semel
from semel.client import (
    Admin,
    Client,
    Consumer,
    ErrorCode,
    KafkaError,
    NewTopic,
    PreparedTransaction,
    TransactionError,
    TransactionMisuse,
    end_transaction,
)
from semel.client.admin.group_offsets import fetch_offsets
from semel.client.produce.commit_transactions import (
    AttemptProducer,
    CommitTransactionsRefused,
    DriverEpoch,
    commit_transactions,
    serves_commit_transactions,
)
from semel.client.produce.transaction_coordinator import Coordinator
from semel.wire.messages.semel import CommitTransactionsRequest

pytestmark = pytest.mark.skipif("SEMEL_PEER" in os.environ, reason="only Semel has it")

Fresh = Callable[[str], str]


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with semel.embedded() as broker:
        yield broker.bootstrap_servers


@pytest.fixture(params=["marker", "journal"])
def topic(client: Client, fresh: Fresh, request: pytest.FixtureRequest) -> str:
    name = fresh("topic")
    Admin(client).topics.create(
        NewTopic(name, partitions=2, configs={"semel.visibility": str(request.param)})
    )
    return name


@pytest.fixture
def run(client: Client, fresh: Fresh) -> DriverEpoch:
    return begin_run(client, fresh("driver"))


def begin_run(client: Client, name: str) -> DriverEpoch:
    return DriverEpoch(name, Coordinator(client, name, 20.0).init(60_000).identity)


def write(
    client: Client, run: DriverEpoch, name: str, topic: str, version_max: int = 2
) -> PreparedTransaction:
    """An attempt that writes its name to both partitions, and is gone."""
    producer = AttemptProducer(client, name, run, version_max=version_max)
    producer.begin()
    for partition in range(2):
        producer.send(topic, name.encode(), partition=partition)
    prepared = producer.prepare()
    producer.close()
    assert prepared is not None
    return prepared


def seen(client: Client, topic: str) -> list[bytes]:
    with Consumer(client, topic) as consumer:
        return sorted(record.value or b"" for record in consumer.read_to_end())


def state(client: Client, name: str) -> str:
    return Admin(client).transactions.describe(name).state


def test_all_of_it_counts_at_once(client: Client, run: DriverEpoch, topic: str, fresh: Fresh) -> None:
    names = [fresh("attempt") for _ in range(3)]
    prepared = [write(client, run, name, topic, 1 + at % 2) for at, name in enumerate(names)]
    assert seen(client, topic) == []
    group = fresh("group")
    for _ in range(2):
        commit_transactions(client, run, prepared, group, {(topic, 0): 7, (topic, 1): 8})
    assert seen(client, topic) == sorted(name.encode() for name in names * 2)
    offsets = {key: each.offset for key, each in fetch_offsets(client, group).items()}
    assert offsets == {(topic, 0): 7, (topic, 1): 8}


def test_a_refusal_names_what_is_lost(client: Client, run: DriverEpoch, topic: str, fresh: Fresh) -> None:
    good, lost = (write(client, run, fresh("attempt"), topic) for _ in range(2))
    end_transaction(client, lost.transactional_id, lost.producer_id, lost.epoch, commit=False)
    with pytest.raises(CommitTransactionsRefused, match=lost.transactional_id) as refused:
        commit_transactions(client, run, [good, lost], fresh("group"), {(topic, 0): 7})
    assert refused.value.lost == {lost.transactional_id: ErrorCode.INVALID_TXN_STATE}
    assert (seen(client, topic), state(client, good.transactional_id)) == ([], "Ongoing")


def test_a_newer_run_takes_all_rights(client: Client, run: DriverEpoch, topic: str, fresh: Fresh) -> None:
    prepared = write(client, run, fresh("attempt"), topic)
    newer = begin_run(client, run.transactional_id)
    with pytest.raises(KafkaError) as fenced:
        commit_transactions(client, run, [prepared])
    assert fenced.value.code is ErrorCode.PRODUCER_FENCED
    late = AttemptProducer(client, fresh("attempt"), run)
    with pytest.raises(KafkaError, match="not the current one") as fenced:
        late.begin()
    assert fenced.value.code is ErrorCode.PRODUCER_FENCED
    commit_transactions(client, newer, [prepared])
    assert len(seen(client, topic)) == 2


@pytest.mark.parametrize("version", [1, 2])
def test_an_attempt_has_one_transaction(
    client: Client, run: DriverEpoch, topic: str, fresh: Fresh, version: int
) -> None:
    name = fresh("attempt")
    producer = AttemptProducer(client, name, run, version_max=version)
    producer.begin()
    assert state(client, name) == "Ongoing", "also before anything was written"
    producer.send(topic, b"v")
    producer.abort()
    assert state(client, name) == "CompleteAbort"
    with pytest.raises(TransactionMisuse, match="its only transaction"):
        producer.begin()
    with AttemptProducer(client, fresh("attempt"), run, version_max=version) as empty:
        empty.begin()
    assert state(client, empty.transactional_id) == "CompleteAbort", "nothing was written, and it was open"
    failing = AttemptProducer(client, fresh("attempt"), run, version_max=version)
    failing.begin()
    failing.send(topic, b"x" * 2_000_000)
    with pytest.raises(TransactionError):
        failing.flush()
    failing.close()
    assert state(client, failing.transactional_id) == "CompleteAbort", "and is not taken again"


def test_an_answer_that_is_lost_is_asked_for_again(
    bootstrap: str, client: Client, run: DriverEpoch, topic: str, fresh: Fresh
) -> None:
    prepared = [write(client, run, fresh("attempt"), topic) for _ in range(2)]
    with Proxy(bootstrap) as proxy, Client(proxy.bootstrap, timeout_s=20) as other:
        rule = proxy.on(CommitTransactionsRequest.api_key, Act.CUT_ANSWER)
        commit_transactions(other, run, prepared, fresh("group"), {(topic, 0): 7})
        assert rule.answered.is_set()
    assert len(seen(client, topic)) == 4


def test_who_does_not_have_it_is_not_asked(bootstrap: str, client: Client) -> None:
    assert serves_commit_transactions(client)
    with Proxy(bootstrap, hides_extensions=True) as proxy, Client(proxy.bootstrap) as other:
        assert not serves_commit_transactions(other), "the feature without the key"
    settings = {"semel.extensions.enable": False}
    with semel.embedded(settings=settings) as broker, Client(broker.bootstrap_servers) as other:
        assert not serves_commit_transactions(other)
