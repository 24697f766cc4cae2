"""Retries: which errors are retried, how long, with which pauses, and how they end."""

from collections.abc import Callable
from typing import Any

import pytest

from semel.client import (
    Client,
    ClientError,
    ConnectionLost,
    ErrorCode,
    KafkaError,
    OffsetAt,
    ProtocolError,
)
from semel.client.consume.offsets import LATEST, list_offsets
from semel.client.net import retry
from semel.client.net.retry import IDLE_PAUSE_S, LONGEST_PAUSE_S, Attempts, BackOff, Outage, retrying
from semel.wire.messages import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

MOVED = KafkaError(ErrorCode.NOT_COORDINATOR)
REFUSED = KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)


class PausesOnly:
    """Stands for the module `time`: only pauses take time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> PausesOnly:
    clock = PausesOnly()
    monkeypatch.setattr(retry, "time", clock)
    return clock


def failing(*errors: Exception) -> Callable[[], str]:
    """Return an attempt that fails with each of these errors in turn, and then succeeds."""
    waiting = list(errors)

    def attempt() -> str:
        if waiting:
            raise waiting.pop(0)
        return "done"

    return attempt


def test_the_first_success_is_returned(clock: PausesOnly) -> None:
    assert retrying(failing(), 10) == "done"
    assert clock.pauses == []
    assert retrying(failing(MOVED, ConnectionLost("lost"), MOVED), 10) == "done"
    assert len(clock.pauses) == 3


def test_pauses_become_longer_up_to_a_limit(clock: PausesOnly) -> None:
    retrying(failing(*[MOVED] * 12), 60)
    assert 0.016 <= clock.pauses[0] <= 0.024
    for shorter, longer in zip(clock.pauses[:5], clock.pauses[1:6], strict=True):
        assert 1.3 < longer / shorter < 3.1
    assert all(0.8 * LONGEST_PAUSE_S <= pause <= 1.2 * LONGEST_PAUSE_S for pause in clock.pauses[6:])
    pauses = BackOff()
    assert {pauses.next_s() < 0.03, pauses.next_s() < 0.03} == {True, False}


@pytest.mark.parametrize("error", [REFUSED, ClientError("wrong")])
def test_an_error_that_is_not_retriable_is_raised_at_once(clock: PausesOnly, error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        retrying(failing(error), 10)
    assert raised.value is error
    assert clock.pauses == []
    assert retrying(failing(error), 10, retriable=lambda each: each is error) == "done"
    with pytest.raises(KafkaError, match="NOT_COORDINATOR"):
        retrying(failing(MOVED), 10, retriable=lambda each: each is error)


def test_the_last_error_is_raised_when_the_time_is_over(clock: PausesOnly) -> None:
    lost = [ConnectionLost(f"attempt {number}") for number in range(100)]
    with pytest.raises(ConnectionLost) as raised:
        retrying(failing(*lost), 2.0)
    assert raised.value is lost[len(clock.pauses)]
    assert 0 < sum(clock.pauses) < 2.0
    with pytest.raises(KafkaError, match="NOT_COORDINATOR"):
        retrying(failing(MOVED), 0.0)


def test_every_failure_is_reported_also_the_last(clock: PausesOnly) -> None:
    seen: list[int] = []
    with pytest.raises(KafkaError, match="INVALID_TOPIC"):
        retrying(failing(MOVED, MOVED, REFUSED), 10, on_failure=lambda: seen.append(len(clock.pauses)))
    assert seen == [0, 1, 2]


def test_an_error_of_another_kind_is_none_of_its_business(clock: PausesOnly) -> None:
    seen: list[None] = []
    with pytest.raises(ProtocolError, match="nonsense"):
        retrying(failing(ProtocolError("nonsense")), 10, on_failure=lambda: seen.append(None))
    assert (clock.pauses, seen) == ([], [])


def test_attempts_know_the_remaining_time(clock: PausesOnly) -> None:
    attempts = Attempts(1.0)
    attempts.failed(MOVED)
    assert attempts.remaining_s == pytest.approx(1.0 - sum(clock.pauses))
    clock.now += 5
    assert attempts.remaining_s == 0.0
    with pytest.raises(KafkaError, match="NOT_COORDINATOR"):
        attempts.failed(MOVED)


def test_an_outage_is_tolerated_until_a_poll_succeeds(clock: PausesOnly) -> None:
    outage = Outage()
    outage.tolerate(MOVED, 3.0)
    clock.now += 2
    outage.tolerate(ClientError("wrong"), 3.0)
    assert clock.pauses == [IDLE_PAUSE_S] * 2
    outage.end()
    clock.now += 2
    outage.tolerate(MOVED, 3.0)
    clock.now += 4
    with pytest.raises(KafkaError, match="NOT_COORDINATOR"):
        outage.tolerate(MOVED, 3.0)
    with pytest.raises(KafkaError, match="INVALID_TOPIC"):
        Outage().tolerate(REFUSED, 3.0)


def listed(codes: dict[int, int]) -> ListOffsetsResponse:
    partitions = [
        ListOffsetsPartitionResponse(partition_index=number, error_code=code, offset=number + 40)
        for number, code in codes.items()
    ]
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=partitions)])


def test_only_partitions_without_an_answer_are_asked_about_again(fake_broker: Any, clock: PausesOnly) -> None:
    responses = [listed({0: 0, 1: ErrorCode.NOT_LEADER_OR_FOLLOWER}), listed({1: 0})]
    broker = fake_broker(lambda request, version: responses.pop(0))
    with Client(broker.address) as client:
        found = list_offsets(client, {("t", 0): LATEST, ("t", 1): LATEST})
    assert {key: at.offset for key, at in found.items()} == {("t", 0): 40, ("t", 1): 41}
    asked = [[each.partition_index for each in request.topics[0].partitions] for request in broker.requests]
    assert asked == [[0, 1], [1]]
    assert len(clock.pauses) == 1


def test_a_partition_that_a_broker_omits_is_an_error(fake_broker: Any) -> None:
    """It used to be asked about again at once, without end."""
    broker = fake_broker(lambda request, version: listed({0: 0}))
    with Client(broker.address) as client, pytest.raises(ProtocolError, match=r"no answer for .*'t', 1"):
        list_offsets(client, {("t", 0): LATEST, ("t", 1): LATEST})
    assert [type(each) for each in broker.requests] == [ListOffsetsRequest]


def test_no_partition_needs_no_request(fake_broker: Any) -> None:
    broker = fake_broker(lambda request, version: None)
    with Client(broker.address) as client:
        found: dict[tuple[str, int], OffsetAt] = list_offsets(client, {})
    assert (found, broker.requests) == ({}, [])
