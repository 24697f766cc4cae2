"""Looking into transactions, and the requests of administrators and brokers. Behaviours 47 and 97 to 101."""

from typing import Any

import pytest
from support.clients.raw import RawClient
from support.clients.raw_log import Log
from support.clients.raw_transactions import (
    RawProducer,
    committed,
    describe,
    make_topic,
    new_name,
    ours,
    producers,
    soon,
)
from support.waiting import until

import semel
from semel.wire.errors import ErrorCode
from semel.wire.messages import ApiVersionsRequest, transactions
from semel.wire.messages.configs import FeatureUpdateKey, UpdateFeaturesRequest

INIT_PRODUCER_ID = 22


@ours
@pytest.mark.parametrize("level", [0, 1])
def test_behaviour_47_a_cluster_can_be_of_the_first_generation(level: int) -> None:
    """Clients go by the finalized level and its epoch; whatever they do, they are served."""
    with semel.embedded() as broker, RawClient(broker.bootstrap_servers) as client:
        client.create_topic("t")
        before = features(client)
        update = FeatureUpdateKey(feature="transaction.version", max_version_level=level, upgrade_type=2)
        answer = client.ask(UpdateFeaturesRequest(feature_updates=[update], timeout_ms=10_000), 1)
        assert answer.error_code == ErrorCode.NONE
        after = features(client)
        assert after.finalized_features_epoch > before.finalized_features_epoch
        # A level of 0 is not listed.
        expected = {"transaction.version": level} if level else {}
        assert {
            each.name: each.max_version_level
            for each in after.finalized_features
            if each.name == "transaction.version"
        } == expected
        for generation in (1, 2):
            producer = RawProducer(client, generation=generation)
            producer.write("t", b"v")
            producer.commit()
        assert Log(client, "t").values() == [b"v", b"v"]


def features(client: RawClient) -> Any:
    request = ApiVersionsRequest(client_software_name="raw", client_software_version="1")
    return client.ask(request, 4)


def add_request(producer: RawProducer, topic: str, *, verify_only: bool) -> Any:
    transaction = transactions.AddPartitionsToTxnTransaction(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        verify_only=verify_only,
        topics=[transactions.AddPartitionsToTxnTopic(name=topic, partitions=[0])],
    )
    return transactions.AddPartitionsToTxnRequest(transactions=[transaction])


@ours
@pytest.mark.parametrize("version", [4, 5])
def test_behaviour_97_the_versions_between_brokers_need_cluster_rights(version: int) -> None:
    settings = {"semel.cluster.action.enable": False}
    with semel.embedded(settings=settings) as broker, RawClient(broker.bootstrap_servers) as client:
        client.create_topic("t")
        producer = RawProducer(client)
        for verify_only in (True, False):
            answer = client.ask(add_request(producer, "t", verify_only=verify_only), version)
            assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert describe(client, producer.transactional_id).transaction_state == "Empty"


@pytest.mark.parametrize("version", [4, 5])
def test_behaviour_97_with_them_they_verify_and_add(producer: RawProducer, topic: str, version: int) -> None:
    client = producer.client

    def ask(*, verify_only: bool) -> int:
        answer = client.ask(add_request(producer, topic, verify_only=verify_only), version)
        assert answer.error_code == ErrorCode.NONE
        (result,) = answer.results_by_transaction
        code: int = result.topic_results[0].results_by_partition[0].partition_error_code
        return code

    assert ask(verify_only=True) == ErrorCode.TRANSACTION_ABORTABLE
    assert ask(verify_only=False) == ErrorCode.NONE
    assert ask(verify_only=True) == ErrorCode.NONE
    assert describe(client, producer.transactional_id).transaction_state == "Ongoing"


def test_behaviour_98_two_phase_commit_is_not_advertised(client: RawClient) -> None:
    highest = {each.api_key: each.max_version for each in features(client).api_keys}
    assert highest[INIT_PRODUCER_ID] == 5


@ours
@pytest.mark.parametrize("commit", [True, False])
def test_behaviour_98_where_it_is_enabled_a_prepared_transaction_can_be_taken_over(commit: bool) -> None:
    """Elsewhere KeepPreparedTxn is not there yet (35)."""
    settings = {"transaction.two.phase.commit.enable": True}
    with semel.embedded(settings=settings) as broker, RawClient(broker.bootstrap_servers) as client:
        client.create_topic("t")
        highest = {each.api_key: each.max_version for each in features(client).api_keys}
        assert highest[INIT_PRODUCER_ID] == 6
        producer = RawProducer(client, "id", 2)
        producer.take(producer.init(version=6, enable2_pc=True))
        producer.write("t", b"v")
        prepared = producer.pair
        assert describe(client, "id").transaction_timeout_ms == 2**31 - 1
        answer = producer.init(version=6, enable2_pc=True, keep_prepared_txn=True)
        assert answer.error_code == ErrorCode.NONE
        assert (answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch) == prepared
        assert producer.send("t", b"zombie").error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        producer.take(answer)
        producer.take(producer.end(commit=commit))
        assert Log(client, "t").values() == ([b"v"] if commit else [])


def listed(client: RawClient, version: int = 2, **filters: Any) -> dict[str, str]:
    answer = client.ask(transactions.ListTransactionsRequest(**filters), version)
    assert answer.error_code == ErrorCode.NONE
    return {each.transactional_id: each.transaction_state for each in answer.transaction_states}


def test_behaviour_99_transactions_are_listed_by_state_producer_and_pattern(
    client: RawClient, topic: str
) -> None:
    prefix = new_name("list.ed")
    empty, opened, ended = (RawProducer(client, f"{prefix}-{name}", 2) for name in ("empty", "open", "ended"))
    opened.write(topic, b"v")
    ended.write(topic, b"v")
    ended.commit()
    soon(lambda: describe(client, ended.transactional_id).transaction_state == "CompleteCommit")
    states = {
        empty.transactional_id: "Empty",
        opened.transactional_id: "Ongoing",
        ended.transactional_id: "CompleteCommit",
    }
    for version in range(3):
        found = listed(client, version)
        assert {name: found[name] for name in states} == states
    pattern = prefix.replace(".", "[.]") + ".*"
    assert listed(client, transactional_id_pattern=pattern) == states
    assert listed(client, transactional_id_pattern=prefix) == {}, "the whole id must match"
    assert states.items() <= listed(client, transactional_id_pattern="").items()
    assert listed(client, transactional_id_pattern=pattern, state_filters=["Ongoing"]) == {
        opened.transactional_id: "Ongoing"
    }
    assert listed(client, producer_id_filters=[empty.producer_id]) == {empty.transactional_id: "Empty"}
    assert listed(client, producer_id_filters=[empty.producer_id], state_filters=["Ongoing"]) == {}


def test_behaviour_99_what_a_filter_does_not_know(client: RawClient) -> None:
    unknown = transactions.ListTransactionsRequest(state_filters=["Nothing"])
    answer = client.ask(unknown, 2)
    assert (answer.error_code, answer.unknown_state_filters) == (ErrorCode.NONE, ["Nothing"])
    assert answer.transaction_states == []
    broken = transactions.ListTransactionsRequest(transactional_id_pattern="(")
    assert client.ask(broken, 2).error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_behaviour_99_by_how_long_they_are_open(producer: RawProducer, topic: str) -> None:
    client = producer.client
    producer.write(topic, b"v")
    only: dict[str, Any] = {"producer_id_filters": [producer.producer_id]}
    assert listed(client, duration_filter=600_000, **only) == {}
    assert listed(client, duration_filter=-1, **only) == {producer.transactional_id: "Ongoing"}
    found = until(lambda: listed(client, duration_filter=1, **only), what="more than a millisecond")
    assert found == {producer.transactional_id: "Ongoing"}


def test_behaviour_100_the_producers_of_a_partition(producer: RawProducer, log: Log) -> None:
    producer.write(log.topic, b"a", b"b")
    (found,) = producers(log.client, log.topic)
    assert (found.producer_id, found.producer_epoch) == producer.pair
    assert (found.last_sequence, found.coordinator_epoch, found.current_txn_start_offset) == (1, -1, 0)
    producer_id, epoch = producer.pair
    producer.commit()
    soon(lambda: log.is_settled)
    (found,) = producers(log.client, log.topic)
    assert (found.producer_id, found.producer_epoch) == (producer_id, epoch + producer.generation - 1)
    assert found.current_txn_start_offset == -1
    assert found.coordinator_epoch >= 0
    assert found.last_sequence == (1 if producer.generation == 1 else -1)


def test_behaviour_101_an_administrator_ends_a_hanging_transaction(producer: RawProducer, log: Log) -> None:
    """With the values of 100; the coordinator is not asked."""
    client = log.client
    producer.write(log.topic, b"v")
    (found,) = producers(client, log.topic)
    marker = transactions.WritableTxnMarker(
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        transaction_result=False,
        topics=[transactions.WritableTxnMarkerTopic(name=log.topic, partition_indexes=[0])],
        coordinator_epoch=found.coordinator_epoch,
    )
    (answer,) = client.ask(transactions.WriteTxnMarkersRequest(markers=[marker]), 1).markers
    assert answer.producer_id == found.producer_id
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
    soon(lambda: log.is_settled)
    part = log.fetch()
    assert [each.first_offset for each in part.aborted_transactions or ()] == [0]
    assert log.values() == []


def test_behaviour_101_a_marker_for_what_does_not_exist(client: RawClient) -> None:
    missing = new_name("missing")
    marker = transactions.WritableTxnMarker(
        producer_id=1,
        producer_epoch=0,
        transaction_result=False,
        topics=[transactions.WritableTxnMarkerTopic(name=missing, partition_indexes=[0])],
        coordinator_epoch=0,
    )
    (answer,) = client.ask(transactions.WriteTxnMarkersRequest(markers=[marker]), 1).markers
    assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_describe_what_is_unknown(client: RawClient) -> None:
    assert describe(client, new_name("unknown")).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert describe(client, "").error_code == ErrorCode.INVALID_REQUEST


def test_a_name_may_be_that_of_everything(client: RawClient) -> None:
    """A topic, a group and a transactional id of the same name are three things."""
    name = make_topic(client)
    for generation in (1, 2):
        producer = RawProducer(client, name, generation)
        producer.write(name, b"%d" % generation)
        producer.write_offset(name, name, generation)
        producer.commit()
    soon(lambda: committed(client, name, name, stable=True) == (0, 2))
    soon(lambda: Log(client, name).values() == [b"1", b"2"])
