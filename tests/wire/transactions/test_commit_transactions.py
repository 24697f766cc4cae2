"""CommitTransactions and BeginAttempt on the wire: one outcome, both visibilities, both generations."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.clients.raw import RawClient
from support.clients.raw_log import Log
from support.clients.raw_runs import RawAttempt, RawDriver
from support.clients.raw_transactions import RawProducer, committed, describe, make_topic, new_name, ours

import semel
from semel.wire.errors import ErrorCode
from semel.wire.messages import ApiVersionsRequest
from semel.wire.messages.semel import (
    COMMIT_TRANSACTIONS,
    FIRST_OWN_KEY,
    BeginAttemptRequest,
    CommitTransactionsRequest,
    TxnShareAcknowledgeRequest,
)

pytestmark = ours

NONE = ErrorCode.NONE


@pytest.fixture
def driver(client: RawClient) -> RawDriver:
    return RawDriver(client)


@pytest.fixture
def topics(client: RawClient) -> list[str]:
    return [make_topic(client), make_topic(client, semel_visibility="journal")]


def logs(client: RawClient, topics: list[str]) -> list[list[bytes]]:
    """What readers see."""
    return [Log(client, topic).values() for topic in topics]


def refused(answer: Any) -> dict[str, int]:
    return {each.transactional_id: each.error_code for each in answer.refused}


def test_several_transactions_end_together(client: RawClient, driver: RawDriver, topics: list[str]) -> None:
    attempts = [RawAttempt(driver, generation) for generation in (1, 2, 2)]
    for each in attempts:
        for topic in topics:
            each.write(topic, each.transactional_id.encode())
    assert logs(client, topics) == [[], []]
    answer = driver.decide(*attempts, offsets={topics[0]: 17}, note="batch 3")
    assert (answer.error_code, answer.error_message, answer.refused) == (NONE, None, [])
    expected = [each.transactional_id.encode() for each in attempts]
    assert logs(client, topics) == [expected, expected]
    assert committed(client, driver.group, topics[0], stable=True) == (NONE, 17)
    assert {describe(client, each.transactional_id).transaction_state for each in attempts} == {
        "CompleteCommit"
    }


def test_the_same_again_is_success_again(client: RawClient, driver: RawDriver, topics: list[str]) -> None:
    attempts = [RawAttempt(driver, generation) for generation in (1, 2)]
    for each in attempts:
        each.write(topics[0], b"v")
    request = driver.request(*attempts, offsets={topics[0]: 17})
    for _ in range(2):
        assert client.ask(request, 0).error_code == NONE
    assert logs(client, topics[:1]) == [[b"v", b"v"]]
    # A retry comes on a new connection; what is still under way on the old one is then too late.
    with RawClient(f"127.0.0.1:{client._socket.getpeername()[1]}") as newer:
        assert newer.ask(request, 0).error_code == NONE
    client.send(request, 0)
    assert client.is_closed_by_broker()


def test_one_that_is_lost_is_named_and_nothing_changes(
    client: RawClient, driver: RawDriver, topics: list[str]
) -> None:
    good, aborted, fenced, forged = (RawAttempt(driver) for _ in range(4))
    for each in (good, aborted, fenced, forged):
        each.write(topics[0], b"v")
        each.write(topics[1], b"v")
    aborted.end(commit=False)
    RawProducer(client, fenced.transactional_id)
    forged.pair = (forged.producer_id + 1_000, 0)
    answer = driver.decide(good, aborted, fenced, forged, offsets={topics[0]: 17})
    assert answer.error_code == ErrorCode.INVALID_TXN_STATE
    assert refused(answer) == {
        aborted.transactional_id: ErrorCode.INVALID_TXN_STATE,
        fenced.transactional_id: ErrorCode.PRODUCER_FENCED,
        forged.transactional_id: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
    assert describe(client, good.transactional_id).transaction_state == "Ongoing"
    assert committed(client, driver.group, topics[0]) == (NONE, -1)
    assert logs(client, topics) == [[], []]
    assert driver.decide(good, offsets={topics[0]: 17}).error_code == NONE
    assert logs(client, topics)[1] == [b"v"]


def test_offsets_that_are_refused_hold_up_the_transactions(
    client: RawClient, driver: RawDriver, topics: list[str]
) -> None:
    attempt = RawAttempt(driver)
    attempt.write(topics[0], b"v")
    nowhere = new_name("nowhere")
    answer = driver.decide(attempt, offsets={topics[0]: 1, nowhere: 1})
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert f"{nowhere}/0" in answer.error_message
    answer = driver.decide(attempt, offsets={topics[0]: 1}, note="x" * 5_000)
    assert answer.error_code == ErrorCode.OFFSET_METADATA_TOO_LARGE
    request = driver.request(attempt, offsets={topics[0]: 1})
    request.group_id = ""
    assert client.ask(request, 0).error_code == ErrorCode.INVALID_GROUP_ID
    assert describe(client, attempt.transactional_id).transaction_state == "Ongoing"
    assert driver.decide(attempt).error_code == NONE


def test_an_older_run_decides_nothing_and_begins_nothing(
    client: RawClient, driver: RawDriver, topics: list[str]
) -> None:
    attempt = RawAttempt(driver)
    attempt.write(topics[0], b"v")
    newer = RawDriver(client, driver.transactional_id)
    assert driver.decide(attempt, offsets={topics[0]: 1}).error_code == ErrorCode.PRODUCER_FENCED
    answer = driver.begin()
    assert answer.error_code == ErrorCode.PRODUCER_FENCED
    assert "not the current one" in answer.error_message
    assert (answer.producer_id, answer.producer_epoch) == (-1, -1)
    newer.pair = (newer.producer_id + 1_000, 0)
    assert newer.begin().error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert committed(client, driver.group, topics[0]) == (NONE, -1)
    # Ids that only look like attempts are left alone.
    RawProducer(client, f"{driver.group}/1.0/0.0", generation=2).write(topics[0], b"v")


def test_a_request_that_comes_again_does_no_harm_to_the_attempt(
    client: RawClient, driver: RawDriver, topic: str
) -> None:
    attempt = RawAttempt(driver)
    again = driver.begin(attempt.transactional_id)
    assert (again.error_code, again.producer_id, again.producer_epoch) == (NONE, *attempt.pair)
    attempt.write(topic, b"v")
    for _ in range(2):
        answer = driver.begin(attempt.transactional_id)
        assert (answer.error_code, answer.producer_id) == (ErrorCode.INVALID_TXN_STATE, -1)
        assert "used before" in answer.error_message
        assert driver.decide(attempt).error_code == NONE
    assert Log(client, topic).values() == [b"v"]


def test_an_attempt_is_open_before_it_writes_and_does_not_time_out(
    client: RawClient, driver: RawDriver
) -> None:
    attempt = RawAttempt(driver)
    shown = describe(client, attempt.transactional_id)
    assert (shown.transaction_state, shown.topics) == ("Ongoing", [])
    assert shown.transaction_timeout_ms == 86_400_000


@pytest.mark.parametrize(
    "change",
    [
        {"transactional_id": ""},
        {"twice": True},
        {"own": True},
        {"empty": True},
        {"many": True},
    ],
    ids=lambda change: next(iter(change)),
)
def test_requests_that_make_no_sense_are_refused(
    client: RawClient, driver: RawDriver, change: dict[str, Any]
) -> None:
    attempt = RawAttempt(driver)
    request = driver.request(attempt)
    (member,) = request.transactions
    if "transactional_id" in change:
        request.transactional_id = ""
    elif "twice" in change:
        request.transactions = [member, member]
    elif "own" in change:
        request.transactional_id = member.transactional_id
    elif "empty" in change:
        member.transactional_id = ""
    else:
        request.transactions = [
            type(member)(transactional_id=f"id {at}", producer_id=1, producer_epoch=0) for at in range(1_001)
        ]
    answer = client.ask(request, 0)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert answer.error_message
    assert describe(client, attempt.transactional_id).transaction_state == "Ongoing"


@pytest.mark.parametrize("change", ["", "own", "version"])
def test_attempts_that_make_no_sense_are_refused(client: RawClient, driver: RawDriver, change: str) -> None:
    request = BeginAttemptRequest(
        transactional_id=driver.transactional_id if change == "own" else change,
        driver_transactional_id=driver.transactional_id,
        driver_producer_id=driver.producer_id,
        driver_producer_epoch=driver.epoch,
        transaction_version=3 if change == "version" else 2,
    )
    answer = client.ask(request, 0)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert answer.error_message


def test_a_thousand_transactions_in_one_request(client: RawClient, driver: RawDriver, topic: str) -> None:
    attempts = [RawAttempt(driver) for _ in range(1_000)]
    for each in attempts[:20]:
        each.write(topic, b"v")
    assert driver.decide(*attempts, offsets={topic: 1}).error_code == NONE
    assert Log(client, topic).values() == [b"v"] * 20


@pytest.fixture
def hidden() -> Iterator[RawClient]:
    settings = {"semel.extensions.enable": False}
    with semel.embedded(settings=settings) as broker, RawClient(broker.bootstrap_servers) as client:
        yield client


def test_what_is_hidden_is_neither_shown_nor_served(client: RawClient, hidden: RawClient) -> None:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    shown, nothing = client.ask(request, 4), hidden.ask(request, 4)
    assert {each.api_key for each in shown.api_keys if each.api_key >= FIRST_OWN_KEY} == {
        CommitTransactionsRequest.api_key,
        BeginAttemptRequest.api_key,
        TxnShareAcknowledgeRequest.api_key,
    }
    assert all(each.api_key < FIRST_OWN_KEY for each in nothing.api_keys)
    names = [
        {each.name for each in (*answer.supported_features, *answer.finalized_features)}
        for answer in (shown, nothing)
    ]
    assert COMMIT_TRANSACTIONS in names[0]
    assert not any(name.startswith("semel.") for name in names[1])
    hidden.send(CommitTransactionsRequest(transactional_id="x"), 0)
    assert hidden.is_closed_by_broker()


def test_acknowledgements_in_transactions_are_not_served_without_extensions(hidden: RawClient) -> None:
    hidden.send(TxnShareAcknowledgeRequest(transactional_id="x", group_id="g", member_id="m"), 0)
    assert hidden.is_closed_by_broker()
