"""Clients of the second generation (KIP-890: Produce 12, EndTxn 5). Behaviours 46 to 60."""

from typing import Any

import pytest
from support.brokers.peer import PEER, Timed
from support.clients.raw import RawClient
from support.clients.raw_log import Log
from support.clients.raw_transactions import RawProducer, describe, make_topic, new_name, soon
from support.waiting import until

from semel.wire.errors import ErrorCode
from semel.wire.messages import ApiVersionsRequest

TIMEOUT_S = 10
"""Passes when a test says so. With a peer it passes really."""


def pair(answer: Any) -> tuple[int, int, int]:
    return answer.error_code, answer.producer_id, answer.producer_epoch


def after(producer: RawProducer, by: int) -> tuple[int, int]:
    return producer.producer_id, producer.epoch + by


@pytest.mark.parametrize("version", [3, 4])
def test_behaviour_46_clients_are_told_of_the_second_generation(client: RawClient, version: int) -> None:
    request = ApiVersionsRequest(client_software_name="raw", client_software_version="1")
    answer = client.ask(request, version)
    assert answer.finalized_features_epoch >= 0
    levels = {
        each.name: (each.min_version_level, each.max_version_level) for each in answer.finalized_features
    }
    assert levels["transaction.version"] == (2, 2)
    highest = {each.api_key: each.max_version for each in answer.api_keys}
    assert highest[0] >= 12
    assert highest[26] >= 5
    assert highest[28] >= 5


def test_behaviour_48_the_first_write_adds_the_partition(second: RawProducer, client: RawClient) -> None:
    topic = make_topic(client, 3)
    assert describe(client, second.transactional_id).transaction_state == "Empty"
    found: Any = None
    for index in (2, 0):
        second.write(topic, b"v", partition=index)
        found = describe(client, second.transactional_id)
        assert found.transaction_state == "Ongoing"
        assert index in found.topics[0].partitions
    assert sorted(found.topics[0].partitions) == [0, 2]
    assert found.transaction_start_time_ms > 0


def test_behaviour_48_a_write_that_is_refused_opens_nothing(second: RawProducer, log: Log) -> None:
    """Elsewhere the partition is added before the record is checked, so it may be there without one."""
    answer = second.send(log.topic, b"v", sequence=3)
    assert answer.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (log.stable, log.end) == (0, 0)
    state = describe(log.client, second.transactional_id).transaction_state
    assert state == ("Ongoing" if PEER else "Empty")


@pytest.mark.parametrize("commit", [True, False])
def test_behaviour_49_every_end_raises_the_epoch(second: RawProducer, log: Log, commit: bool) -> None:
    before = second.pair
    second.write(log.topic, b"a", b"b")
    answer = second.end(commit=commit)
    assert pair(answer) == (0, *after(second, 1))
    soon(lambda: log.is_settled)
    assert log.markers() == [(2, before[1] + 1, commit)]
    second.take(answer)
    assert second.send(log.topic, b"c", sequence=2).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert second.send(log.topic, b"c", sequence=0).error_code == ErrorCode.NONE


def test_behaviour_50_a_late_write_of_the_transaction_before_is_refused(
    second: RawProducer, log: Log
) -> None:
    late = second.pair
    second.write(log.topic, b"a")
    second.commit()
    soon(lambda: log.is_settled)
    answer = second.send(log.topic, b"late", pair=late, sequence=1)
    assert answer.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    second.write(log.topic, b"next")
    answer = second.send(log.topic, b"late", pair=late, sequence=1)
    assert answer.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    second.commit()
    soon(lambda: log.values() == [b"a", b"next"])


@pytest.mark.parametrize("commit", [True, False])
def test_behaviour_51_an_end_can_be_repeated(second: RawProducer, log: Log, commit: bool) -> None:
    second.write(log.topic, b"a")
    answers = [second.end(commit=commit) for _ in range(3)]
    assert [pair(each) for each in answers] == [(0, *after(second, 1))] * 3
    soon(lambda: log.is_settled)
    assert len(log.markers()) == 1


@pytest.mark.parametrize("commit", [True, False])
def test_behaviour_52_but_not_changed(second: RawProducer, topic: str, commit: bool) -> None:
    second.write(topic, b"a")
    assert second.end(commit=commit).error_code == ErrorCode.NONE
    assert second.end(commit=not commit).error_code == ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("state", ["Empty", "CompleteCommit", "CompleteAbort"])
def test_behaviour_53_an_empty_abort_only_raises_the_epoch(second: RawProducer, log: Log, state: str) -> None:
    prepare(second, log, state)
    end = log.end
    assert pair(second.end(commit=False)) == (0, *after(second, 1))
    soon(lambda: describe(log.client, second.transactional_id).transaction_state == "CompleteAbort")
    assert log.end == end, "no marker"


@pytest.mark.parametrize("state", ["Empty", "CompleteCommit", "CompleteAbort"])
def test_behaviour_54_an_empty_commit_is_refused(second: RawProducer, log: Log, state: str) -> None:
    prepare(second, log, state)
    assert second.end(commit=True).error_code == ErrorCode.INVALID_TXN_STATE
    found = describe(log.client, second.transactional_id)
    assert (found.transaction_state, found.producer_epoch) == (state, second.epoch)


def prepare(producer: RawProducer, log: Log, state: str) -> None:
    if state == "Empty":
        return
    producer.write(log.topic, b"v")
    if state == "CompleteCommit":
        producer.commit()
    else:
        producer.abort()
    soon(lambda: describe(log.client, producer.transactional_id).transaction_state == state)
    soon(lambda: log.is_settled)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("by", [-2, 1])
def test_behaviour_55_other_epochs_are_fenced(second: RawProducer, log: Log, by: int, commit: bool) -> None:
    for _ in range(3):
        prepare(second, log, "CompleteCommit")
    assert second.end(commit=commit, pair=after(second, by)).error_code == ErrorCode.PRODUCER_FENCED
    second.write(log.topic, b"open")
    for shift in (by, -1):
        answer = second.end(commit=commit, pair=after(second, shift))
        assert answer.error_code == ErrorCode.PRODUCER_FENCED
    second.commit()


def test_behaviour_57_after_a_timeout_an_abort_brings_the_producer_back(
    client: RawClient, log: Log, timed: Timed
) -> None:
    producer = RawProducer(client, generation=2, timeout_ms=TIMEOUT_S * 1000)
    producer.write(log.topic, b"late")
    timed.passes(TIMEOUT_S)
    until(lambda: log.is_settled, what="the broker aborts")
    assert producer.send(log.topic, b"later").error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.end(commit=True).error_code == ErrorCode.INVALID_TXN_STATE
    answer = producer.end(commit=False)
    assert pair(answer) == (0, *after(producer, 1))
    producer.take(answer)
    producer.write(log.topic, b"again")
    producer.commit()
    soon(lambda: log.values() == [b"again"])


def test_behaviour_57_or_it_begins_anew_with_its_pair(client: RawClient, log: Log, timed: Timed) -> None:
    producer = RawProducer(client, generation=2, timeout_ms=TIMEOUT_S * 1000)
    producer.write(log.topic, b"late")
    timed.passes(TIMEOUT_S)
    until(lambda: log.is_settled, what="the broker aborts")
    assert pair(producer.init(producer.pair)) == (0, *after(producer, 1))


@pytest.mark.parametrize("version", range(5))
def test_behaviour_57_a_client_of_the_first_generation_is_fenced_by_a_timeout(
    client: RawClient, log: Log, timed: Timed, version: int
) -> None:
    producer = RawProducer(client, timeout_ms=TIMEOUT_S * 1000)
    producer.write(log.topic, b"late")
    timed.passes(TIMEOUT_S)
    until(lambda: log.is_settled, what="the broker aborts")
    assert producer.send(log.topic, b"later").error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    expected = ErrorCode.INVALID_PRODUCER_EPOCH if version < 2 else ErrorCode.PRODUCER_FENCED
    for commit in (True, False):
        assert producer.end(commit=commit, version=version).error_code == expected
    assert log.values() == []


def test_behaviour_58_the_first_write_after_an_end_is_never_too_early(second: RawProducer, log: Log) -> None:
    for _ in range(10):
        assert second.send(log.topic, b"v").error_code == ErrorCode.NONE
        second.take(second.end(commit=True))
    soon(lambda: len(log.values()) == 10)


def test_behaviour_59_after_an_empty_abort_it_goes_on(second: RawProducer, log: Log) -> None:
    second.abort()
    assert second.send(log.topic, b"v", sequence=0).error_code == ErrorCode.NONE
    second.take(second.end(commit=True))
    soon(lambda: log.values() == [b"v"])


def test_behaviour_60_both_generations_side_by_side(client: RawClient) -> None:
    topic = make_topic(client, 2)
    logs = [Log(client, topic, index) for index in range(2)]
    producers = [RawProducer(client, generation=1 + index % 2) for index in range(4)]
    expected: list[list[bytes]] = [[], []]
    for number in range(6):
        for at, producer in enumerate(producers):
            for index in range(2):
                producer.write(topic, b"%d-%d" % (at, number), partition=index)
        for at, producer in enumerate(producers):
            if (at + number) % 3:
                producer.commit()
                for values in expected:
                    values.append(b"%d-%d" % (at, number))
            else:
                producer.abort()
    for log, values in zip(logs, expected, strict=True):
        soon(lambda log=log: log.is_settled)  # type: ignore[misc]  # a default: mypy infers no such lambda
        assert log.values() == values


def test_one_id_may_change_its_generation_between_transactions(client: RawClient, log: Log) -> None:
    """A client that is upgraded under way: the version is that of the transaction, not of the id."""
    producer = RawProducer(client, generation=1)
    producer.write(log.topic, b"a")
    producer.commit()
    producer.generation = 2
    producer.take(producer.init(producer.pair))
    producer.write(log.topic, b"b")
    producer.commit()
    producer.generation = 1
    producer.write(log.topic, b"c")
    producer.commit()
    soon(lambda: log.values() == [b"a", b"b", b"c"])


def test_a_group_is_added_by_its_first_offset(second: RawProducer, topic: str) -> None:
    group = new_name("group")
    assert second.send_offset(group, topic, 5) == ErrorCode.NONE
    found = describe(second.client, second.transactional_id)
    assert found.transaction_state == "Ongoing"
