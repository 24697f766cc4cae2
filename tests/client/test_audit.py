"""The audit log: one line for each change, with who, from where and what."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

import semel
from semel.client import Admin, Client, KafkaError, NewTopic, Producer, Security, TransactionalProducer
from semel.client.admin.acls import Acl
from semel.client.admin.quotas import QuotaEntity

SETTINGS = {"semel.authorizer": "acl", "super.users": "User:admin"}


def security(user: str) -> Security:
    who = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": user, "sasl.password": "pw"}
    return Security.of({"security.protocol": "SASL_PLAINTEXT", **who})


@pytest.fixture
def broker() -> Iterator[semel.Embedded]:
    with semel.embedded(users={"admin": "pw", "bob": "pw"}, settings=SETTINGS) as broker:
        yield broker


@pytest.fixture
def admin(broker: semel.Embedded, caplog: pytest.LogCaptureFixture) -> Iterator[Admin]:
    caplog.set_level(logging.INFO, "semel.audit")
    with Client(broker.bootstrap_servers, client_id="tool", security=security("admin")) as client:
        yield Admin(client)


def lines(caplog: pytest.LogCaptureFixture, event: str = "changed") -> list[dict[str, Any]]:
    found: list[Any] = [each for each in caplog.records if each.name == "semel.audit"]
    return [each.fields for each in found if each.getMessage() == event]


def test_every_change_has_a_line(admin: Admin, caplog: pytest.LogCaptureFixture) -> None:
    admin.topics.create(NewTopic("t", 1))
    admin.topics.add_partitions("t", 2)
    admin.configs.alter_topic("t", values={"retention.ms": "7777777"})
    right = Acl.of("User:bob", "Write", topic="t")
    admin.acls.add(right)
    admin.acls.remove([right])
    admin.users.put("carl", "s3cret")
    admin.users.remove("carl")
    admin.quotas.alter(QuotaEntity(user="bob"), {"producer_byte_rate": 5.0})
    admin.groups.set_offsets("g", {("t", 0): 0})
    admin.groups.delete("g")
    admin.topics.delete("t")
    assert [each["what"] for each in lines(caplog)] == [
        "created topic t",
        "added partitions to topic t",
        "changed configs of topic t: retention.ms",
        "added ACL ALLOW WRITE on TOPIC LITERAL t for User:bob from *",
        "removed ACL ALLOW WRITE on TOPIC LITERAL t for User:bob from *",
        "set SCRAM-SHA-256 of user carl",
        "removed SCRAM-SHA-256 of user carl",
        "changed quotas of user bob: producer_byte_rate=5.0",
        "deleted group g",
        "deleted topic t",
    ]
    for each in lines(caplog):
        assert each["principal"] == "User:admin"
        assert (each["client"], each["client_id"]) == ("127.0.0.1", "tool")
    assert "7777777" not in caplog.text


def test_what_failed_has_none(admin: Admin, caplog: pytest.LogCaptureFixture) -> None:
    admin.topics.create(NewTopic("t", 1))
    for wrong in (
        lambda: admin.topics.create(NewTopic("t", 1)),
        lambda: admin.topics.delete("nothing"),
        lambda: admin.users.remove("nobody"),
        lambda: admin.configs.alter_topic("t", values={"no.such": "1"}),
    ):
        with pytest.raises(KafkaError):
            wrong()
    assert [each["what"] for each in lines(caplog)] == ["created topic t"]


def test_a_denied_request_has_a_line_and_a_client_in_a_loop_not_thousands(
    broker: semel.Embedded, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    admin.topics.create(NewTopic("t", 1))
    admin.acls.add(Acl.of("User:bob", "Describe", topic="t"))
    with Client(broker.bootstrap_servers, client_id="app", security=security("bob")) as client:
        for _ in range(50):
            producer = Producer(client, idempotent=False)
            producer.send("t", b"x")
            with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
                producer.close()
    (line,) = lines(caplog, "denied")
    assert line["principal"] == "User:bob"
    assert (line["api"], line["operation"], line["resource"]) == ("Produce", "WRITE", "t")


def test_a_transaction_that_another_instance_ends_has_a_line(
    admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    admin.topics.create(NewTopic("t", 1))
    client = admin._client
    first = TransactionalProducer(client, "tx")
    first.begin()
    first.send("t", b"x")
    first.flush()
    second = TransactionalProducer(client, "tx")
    second.begin()
    second.commit()
    assert lines(caplog, "transaction aborted") == [{"transactional_id": "tx", "reason": "fenced"}]
