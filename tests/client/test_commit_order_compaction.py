"""`CommitOrderConsumer` on compacted topics: compaction may remove the end of what it holds."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.brokers.compaction_by_hand import CONFIGS, SETTINGS, compact, compact_markers_away, put
from support.clients.raw import RawClient
from support.clients.raw_transactions import RawProducer, make_topic
from support.faults.proxy import Proxy

import semel
from semel.client import Admin, Client, CommitOrderConsumer, KafkaError
from semel.client.consume.compaction import compactions
from semel.embedded import Embedded


@pytest.fixture(scope="module")
def broker() -> Iterator[Embedded]:
    with semel.embedded(settings=SETTINGS) as broker:
        yield broker


@pytest.fixture
def raw(broker: Embedded) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap_servers) as client:
        yield client


@pytest.fixture
def topic(raw: RawClient) -> str:
    return make_topic(raw, **{name.replace(".", "_"): value for name, value in CONFIGS.items()})


@contextmanager
def consumer(bootstrap: str, topic: str) -> Iterator[CommitOrderConsumer]:
    with Client(bootstrap, timeout_s=20) as client, CommitOrderConsumer(client, topic) as consumer:
        yield consumer


def values(consumer: CommitOrderConsumer) -> list[str]:
    return [(record.value or b"").decode() for record in consumer.read_to_end()]


def log_of(raw: RawClient, topic: str) -> list[tuple[int, bool]]:
    """The batches of the log: base offset, and whether it is a marker."""
    return [(header.base_offset, header.is_control) for header in raw.headers(topic)]


def test_what_was_aborted_is_not_released_by_a_later_commit_of_the_same_epoch(
    broker: Embedded, raw: RawClient, topic: str
) -> None:
    producer = RawProducer(raw)
    with consumer(broker.bootstrap_servers, topic) as reader:
        pair = producer.pair
        assert producer.write(topic, b"aborted", key=b"a") == 0
        assert values(reader) == []
        assert reader.open_transactions() == {(topic, 0): {producer.producer_id: 0}}
        producer.abort()
        compact_markers_away(broker, topic)
        assert [offset for offset, is_marker in log_of(raw, topic) if is_marker] == []
        producer.write(topic, b"committed", key=b"b")
        producer.commit()
        assert producer.pair == pair, "clients of the first generation keep their epoch"
        assert values(reader) == ["filler 2", "committed"]
        assert reader.open_transactions() == {}


def test_a_transaction_whose_records_and_marker_are_gone_is_not_held_for_ever(
    broker: Embedded, raw: RawClient, topic: str
) -> None:
    producer = RawProducer(raw)
    with consumer(broker.bootstrap_servers, topic) as reader:
        producer.write(topic, b"aborted", key=b"a")
        assert values(reader) == []
        producer.abort()
        compact_markers_away(broker, topic)
        assert values(reader) == ["filler 2"]
        assert reader.poll(0.1) == []
        assert reader.open_transactions() == {}
        start, offset, _ = reader.position()[topic, 0]
        assert start == offset


def test_of_a_transaction_that_was_compacted_while_it_was_held_the_rest_is_shown(
    broker: Embedded, raw: RawClient, topic: str
) -> None:
    """Its marker is read before compaction and its records are older; others of it are still newest."""
    producer, other = RawProducer(raw), RawProducer(raw)
    with consumer(broker.bootstrap_servers, topic) as reader:
        producer.write(topic, b"old", key=b"a")
        producer.write(topic, b"kept", key=b"b")
        assert values(reader) == []
        producer.commit()
        put(broker, topic, "a", "new")
        compact(broker)
        # Open: what lies behind it cannot be read as committed.
        other.write(topic, b"open", key=b"c")
        producer.write(topic, b"behind", key=b"d")
        producer.commit()
        assert values(reader) == ["kept", "new", "behind"]
        other.abort()
        assert values(reader) == []


def test_records_behind_the_last_stable_offset_are_taken_from_what_is_held(
    broker: Embedded, raw: RawClient, topic: str
) -> None:
    """The marker of the first part is gone, the second part cannot be read as committed yet."""
    producer, other = RawProducer(raw), RawProducer(raw)
    with consumer(broker.bootstrap_servers, topic) as reader:
        producer.write(topic, b"aborted", key=b"a")
        assert values(reader) == []
        producer.abort()
        compact_markers_away(broker, topic)
        producer.write(topic, b"first", key=b"b")
        put(broker, topic, "plain", "plain")
        other.write(topic, b"open", key=b"c")
        producer.write(topic, b"second", key=b"d")
        assert values(reader) == ["filler 2", "plain"]
        assert reader.poll(0.1) == [], "at the end of the log, where what has ended is forgotten"
        producer.commit()
        assert values(reader) == ["first", "second"]
        other.commit()
        assert values(reader) == ["open"]


def test_what_cannot_be_verified_is_an_error(broker: Embedded, raw: RawClient) -> None:
    configs = CONFIGS | {"cleanup.policy": "compact,delete"}
    topic = make_topic(raw, **{name.replace(".", "_"): value for name, value in configs.items()})
    producer = RawProducer(raw)
    with consumer(broker.bootstrap_servers, topic) as reader:
        producer.write(topic, b"a1", key=b"a")
        assert values(reader) == []
        producer.commit()
        put(broker, topic, "b", "1")
        put(broker, topic, "b", "2")
        compact(broker)
        # The records that are held are deleted, their marker at 1 is not.
        with Client(broker.bootstrap_servers) as client:
            Admin(client).topics.delete_records({(topic, 0): 1})
        with pytest.raises(KafkaError, match=f"{topic}/0"):
            values(reader)


def test_a_broker_that_does_not_tell_is_believed_for_half_of_the_retention_of_markers(
    broker: Embedded, raw: RawClient
) -> None:
    """Without the feature the time decides. With a retention of nothing, everything is read again."""
    with Proxy(broker.bootstrap_servers, hides_extensions=True) as proxy:
        for retention, fetches_more in (("0", True), ("86400000", False)):
            configs = CONFIGS | {"delete.retention.ms": retention}
            topic = make_topic(raw, **{name.replace(".", "_"): value for name, value in configs.items()})
            producer = RawProducer(raw)
            with consumer(proxy.bootstrap, topic) as reader:
                producer.write(topic, b"aborted", key=b"a")
                assert values(reader) == []
                producer.abort()
                compact_markers_away(broker, topic)
                assert ([is_marker for _, is_marker in log_of(raw, topic)].count(True) == 0) == fetches_more
                producer.write(topic, b"committed", key=b"b")
                producer.commit()
                assert values(reader) == ["filler 2", "committed"]


def test_a_topic_that_is_not_compacted_costs_no_question(broker: Embedded, raw: RawClient) -> None:
    topic = make_topic(raw)
    with Client(broker.bootstrap_servers) as client:
        assert compactions(client, [(topic, 0)], hold=True) == {(topic, 0): (0, -1)}
    producer = RawProducer(raw)
    with consumer(broker.bootstrap_servers, topic) as reader:
        producer.write(topic, b"held")
        assert values(reader) == []
        assert reader._watch._compactions == {}
        producer.commit()
        assert values(reader) == ["held"]
