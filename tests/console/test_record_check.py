"""The check that reads a topic: what it calls damage is damage, and nothing else is."""

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from support.browser.console import console

import semel
from semel.client import Admin, Client, ErrorCode, KafkaError, NewTopic, Partition, Producer, Security
from semel.client.admin.acls import Acl
from semel.client.consume.fetch import fetch_batches
from semel.client.net.retry import Attempts
from semel.console import checking
from semel.wire.messages import PartitionData

Answers = list[tuple[Partition, PartitionData]]


def _filled(client: Client, topic: str, partitions: int = 1) -> None:
    """A topic with ten batches of one record in each partition."""
    Admin(client).topics.create(NewTopic(topic, partitions))
    with Producer(client) as producer:
        for number in range(10 * partitions):
            producer.send(topic, b"x", partition=number % partitions)
            producer.flush()


def _checked(client: Client, topic: str) -> tuple[list[str], dict[str, Any]]:
    """The findings of a check, and its result."""
    events = list(checking.check_records(client, threading.Event(), topic, 1 << 30, 60.0))
    name, result = events[-1]
    assert name == "result"
    return [data["text"] for name, data in events if name == "finding"], result


def _answering(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Mapping[Partition, int], Answers], Answers]
) -> None:
    """Let the check see other answers than the broker's."""

    def fetch(client: Client, positions: Mapping[Partition, int], *args: Any) -> Answers:
        return change(positions, fetch_batches(client, positions, *args))

    monkeypatch.setattr(checking, "fetch_batches", fetch)


def test_what_one_may_not_read_is_not_damaged() -> None:
    users = {"admin": "a", "reader": "r"}
    rules = {"semel.authorizer": "acl", "super.users": "User:admin"}
    sasl = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}
    with semel.embedded(settings=rules, users=users) as broker:
        security = Security.of({**sasl, "sasl.username": "admin", "sasl.password": "a"})
        with Client(broker.bootstrap_servers, security=security) as admin:
            _filled(admin, "secret")
            Admin(admin).acls.add(Acl.of("User:reader", "DESCRIBE", topic="secret"))
        with console(broker.bootstrap_servers, login=True, client=sasl) as browsing:
            browsing.post("/login", {"user": "reader", "password": "r"})
            reply = browsing.post("/checks/records", {"topic": "secret"}).text
    assert "damaged" not in reply
    assert "event: result" not in reply
    failed = json.loads(reply.split("event: failed\ndata: ")[1].split("\n")[0])
    assert "secret/0 cannot be read from offset 0. Ask for access to the topic." in failed["message"]


def test_records_that_are_deleted_during_the_check_are_not_damaged(client: Client) -> None:
    _filled(client, "kept")
    running = checking.check_records(client, threading.Event(), "kept", 1 << 30, 60.0)
    next(running)
    Admin(client).topics.delete_records({("kept", 0): 7})
    events = list(running)
    assert "finding" not in [name for name, _ in events]
    result = events[-1][1]
    assert (result["good"], result["done"], result["total"]) == (True, 10, 10)
    assert result["text"].startswith("3 batches")


def test_a_log_that_ends_before_the_position_fails_the_check(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    _filled(client, "cut")
    error = PartitionData(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
    _answering(monkeypatch, lambda positions, _: [(key, error) for key in positions])
    with pytest.raises(KafkaError, match=r"cut/0.* 0\b"):
        _checked(client, "cut")


def test_a_leader_that_moves_is_asked_again(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    _filled(client, "moved", 2)
    refusals = 3

    def change(positions: Mapping[Partition, int], answers: Answers) -> Answers:
        nonlocal refusals
        if not refusals:
            return answers
        refusals -= 1
        error = PartitionData(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return [(key, error if key[1] == 0 else data) for key, data in answers]

    _answering(monkeypatch, change)
    findings, result = _checked(client, "moved")
    assert (findings, result["good"], refusals) == ([], True, 0)
    assert result["text"].startswith("20 batches")


def test_a_leader_that_never_comes_back_fails_the_check(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    _filled(client, "lost")
    error = PartitionData(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    _answering(monkeypatch, lambda positions, _: [(key, error) for key in positions])
    # Only the check is impatient: a broker that takes a second for another request has not failed.
    monkeypatch.setattr(checking, "Attempts", lambda _, **options: Attempts(0.5, **options))
    with pytest.raises(KafkaError, match=r"lost/0.* 0\b"):
        _checked(client, "lost")


@pytest.mark.parametrize(
    ("at", "value"),
    [(62, 0xFF), (23, 0xFF), (11, 0)],
    ids=["a record", "a last offset below zero", "a length that cannot be"],
)
def test_a_damaged_batch_is_found_and_the_others_are_read(
    client: Client, monkeypatch: pytest.MonkeyPatch, at: int, value: int
) -> None:
    topic = f"damaged-{at}"
    _filled(client, topic)

    def change(positions: Mapping[Partition, int], answers: Answers) -> Answers:
        """Offset 4 is damaged. One batch at a time is answered."""
        ((key, data),) = answers
        found = bytearray(data.records or b"")
        batch = found[: len(found) // (10 - positions[key])]
        if positions[key] == 4:
            batch[at] = value
        return [(key, PartitionData(records=bytes(batch)))]

    _answering(monkeypatch, change)
    findings, result = _checked(client, topic)
    (finding,) = findings
    assert finding.startswith(f"{topic}/0 is damaged from 4")
    assert not result["good"]
    assert result["text"].endswith("; 1 are damaged.")
    assert result["done"] == 10


def test_a_batch_that_the_broker_calls_corrupt_is_one_finding(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    _filled(client, "corrupt")
    error = PartitionData(error_code=ErrorCode.CORRUPT_MESSAGE)

    def change(positions: Mapping[Partition, int], answers: Answers) -> Answers:
        """Offsets 0 to 4 are one batch that the broker does not serve."""
        return [(key, error if positions[key] < 5 else data) for key, data in answers]

    _answering(monkeypatch, change)
    findings, result = _checked(client, "corrupt")
    assert findings == ["corrupt/0 is damaged from 0: its checksum is wrong."]
    assert result["text"].startswith("5 batches")
    assert result["text"].endswith("; 1 are damaged.")
