"""`semel.client` and what only Semel has or does: two-phase commit (KIP-939), journal topics, restarts."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import semel
from semel.client import (
    Admin,
    Client,
    Consumer,
    NewTopic,
    PreparedTransaction,
    Producer,
    ProducerFenced,
    TransactionalProducer,
    complete_transaction,
    end_transaction,
)

SETTINGS = {
    "num.partitions": 3,
    "transaction.two.phase.commit.enable": True,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
}
Fresh = Callable[[str], str]


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with semel.embedded(settings=SETTINGS) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def topic(client: Client, fresh: Fresh) -> str:
    name = fresh("topic")
    Admin(client).topics.create(name)
    return name


def prepare(client: Client, name: str, topic: str, value: bytes) -> PreparedTransaction:
    """Write in a transaction, prepare it, and be gone."""
    with TransactionalProducer(client, name, two_phase=True, transaction_timeout_ms=1) as producer:
        producer.begin()
        for partition in range(3):
            producer.send(topic, value, partition=partition)
        producer.send_offsets({("in", 0): 7}, f"group-{name}")
        prepared = producer.prepare()
    assert prepared is not None
    return prepared


def read(client: Client, topic: str) -> list[bytes]:
    with Consumer(client, topic) as consumer:
        return sorted(record.value or b"" for record in consumer.read_to_end())


@pytest.mark.parametrize("commit", [True, False])
def test_whoever_knows_the_id_can_complete_it(client: Client, topic: str, fresh: Fresh, commit: bool) -> None:
    client.topic("in", create=True, wait_s=5)
    prepared = prepare(client, fresh("id"), topic, b"v")
    name = prepared.transactional_id
    found = Admin(client).transactions.describe(name)
    assert (found.state, found.is_two_phase) == ("Ongoing", True)
    assert read(client, topic) == []
    assert complete_transaction(client, prepared if commit else name, commit=commit)
    assert not complete_transaction(client, prepared, commit=commit), "it has ended"
    assert read(client, topic) == [b"v"] * 3 * commit
    offsets = Admin(client).groups.offsets(f"group-{name}")
    assert [each.offset for each in offsets.values()] == [7] * commit


def test_a_producer_resumes_what_it_had_prepared(client: Client, topic: str, fresh: Fresh) -> None:
    name = fresh("id")
    producers = [TransactionalProducer(client, name, two_phase=True) for _ in range(3)]
    before, crashed, after = producers
    before.begin()
    before.send(topic, b"v")
    prepared = before.prepare()
    assert crashed.resume() == prepared
    assert after.resume() == prepared
    after.commit()
    for fenced in (before, crashed):
        with pytest.raises(ProducerFenced):
            fenced.commit()
    with after.transaction():
        after.send(topic, b"w")
    assert read(client, topic) == [b"v", b"w"]


def test_a_prepared_transaction_outlives_the_broker(tmp_path: Path) -> None:
    """And its timeout: it has none."""
    notes = []
    with (
        semel.embedded(tmp_path, settings=SETTINGS) as broker,
        Client(broker.bootstrap_servers, timeout_s=20) as client,
    ):
        for topic in ("in", "t"):
            client.topic(topic, create=True, wait_s=5)
        notes += [str(prepare(client, f"id-{number}", "t", b"%d" % number)) for number in range(3)]
    by_id, by_pair, aborted = map(PreparedTransaction.parse, notes)
    with (
        semel.embedded(tmp_path, settings=SETTINGS) as broker,
        Client(broker.bootstrap_servers, timeout_s=20) as client,
    ):
        assert read(client, "t") == []
        assert complete_transaction(client, by_id, commit=True)
        end_transaction(client, by_pair.transactional_id, by_pair.producer_id, by_pair.epoch, commit=True)
        assert complete_transaction(client, aborted, commit=False)
        assert read(client, "t") == [b"0"] * 3 + [b"1"] * 3


@pytest.mark.parametrize("version", [1, 2])
def test_an_open_transaction_goes_on_after_a_restart_of_the_broker(tmp_path: Path, version: int) -> None:
    broker = semel.embedded(tmp_path, settings=SETTINGS).start()
    port = broker.port
    with Client(broker.bootstrap_servers, timeout_s=10) as client:
        producer = TransactionalProducer(client, "id", version_max=version)
        producer.begin()
        producer.send("t", b"before", partition=0)
        producer.flush()
        broker.close()
        broker = semel.embedded(tmp_path, settings=SETTINGS, port=port).start()
        producer.send("t", b"after", partition=0)
        producer.commit()
        assert read(client, "t") == [b"after", b"before"]
        producer.close()
    broker.close()


def test_a_new_producer_that_does_not_resume_aborts(client: Client, topic: str, fresh: Fresh) -> None:
    client.topic("in", create=True, wait_s=5)
    prepared = prepare(client, fresh("id"), topic, b"v")
    with TransactionalProducer(client, prepared.transactional_id, two_phase=True):
        assert read(client, topic) == []
    assert not complete_transaction(client, prepared, commit=True)


@pytest.mark.parametrize("version", [1, 2])
def test_a_journal_topic_shows_committed_records_to_everyone(
    client: Client, version: int, fresh: Fresh
) -> None:
    topic = fresh("journal")
    Admin(client).topics.create(NewTopic(topic, partitions=1, configs={"semel.visibility": "journal"}))
    with TransactionalProducer(client, fresh("id"), version_max=version) as producer:
        producer.begin()
        delivery = producer.send(topic, b"one")
        assert delivery.result().offset == -1, "it has no offset before the commit"
        with Producer(client) as plain:
            assert plain.send(topic, b"plain").result().offset == 0
        assert read(client, topic) == [b"plain"]
        producer.commit()
        with producer.transaction():
            producer.send(topic, b"two")
        producer.begin()
        producer.send(topic, b"aborted")
        producer.flush()
        producer.abort()
    with Consumer(client, topic, isolation="read_uncommitted") as consumer:
        found = [(record.offset, record.value) for record in consumer.read_to_end()]
    assert found == [(0, b"plain"), (1, b"one"), (2, b"two")]
