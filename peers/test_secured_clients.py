"""Kafka's own client and franz-go authenticate by each mechanism, and lose rights that are removed.

The programs are java/SecuredPeer.java and go/secured.go. All connections use TLS.
"""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.brokers.secured_broker import MECHANISMS, Secured, secured
from support.certificates import needs_openssl

from peers.programs import HERE, CannotBuild, Program, build_java
from semel.client import Consumer, NewTopic, Producer
from semel.client.admin.acls import Acl

pytestmark = needs_openssl

SCRAMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MODULES = "org.apache.kafka.common.security"
LOGINS = {
    "PLAIN": f"{MODULES}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{MODULES}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{MODULES}.scram.ScramLoginModule",
    "OAUTHBEARER": f"{MODULES}.oauthbearer.OAuthBearerLoginModule",
}
NOT_ALLOWED = {"java": "TopicAuthorizationException", "go": "TOPIC_AUTHORIZATION_FAILED"}
NO_GROUP = {"java": "GroupAuthorizationException", "go": "GROUP_AUTHORIZATION_FAILED"}
UNKNOWN = {"java": "SaslAuthenticationException", "go": "SASL_AUTHENTICATION_FAILED"}


class User:
    """A user of the broker, whose password is its name."""

    def __init__(self, broker: Secured) -> None:
        self.broker = broker
        self.name = f"user-{uuid.uuid4().hex[:8]}"
        with broker.admin() as admin:
            for mechanism in SCRAMS:
                admin.users.put(self.name, self.name, mechanism=mechanism)

    def right(self, operation: str, **resource: str) -> Acl:
        return Acl.of(f"User:{self.name}", operation, **resource)  # type: ignore[arg-type]

    def allow(self, operation: str, **resource: str) -> None:
        with self.broker.admin() as admin:
            admin.acls.add(self.right(operation, **resource))

    def take(self, operation: str, **resource: str) -> None:
        with self.broker.admin() as admin:
            admin.acls.remove([self.right(operation, **resource)])

    def remove(self) -> None:
        with self.broker.admin() as admin:
            for mechanism in SCRAMS:
                admin.users.remove(self.name, mechanism=mechanism)


@pytest.fixture(scope="module")
def secured_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured(tmp_path_factory.mktemp("secured")) as broker:
        yield broker


@pytest.fixture(scope="module")
def java_program(kafka_jars: str) -> list[str]:
    try:
        return build_java(kafka_jars, HERE / "java" / "SecuredPeer.java")
    except CannotBuild as error:
        pytest.skip(f"the Java client: {error}")


def new_topic(broker: Secured) -> str:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    with broker.admin() as admin:
        admin.topics.create(NewTopic(name, 1))
    return name


def java_settings(user: User, mechanism: str, folder: Path) -> Path:
    """Write a client's settings to a file."""
    broker, token = user.broker, folder / "token"
    jaas = f'{LOGINS[mechanism]} required username="{user.name}" password="{user.name}";'
    given = {
        "bootstrap.servers": broker.address("SASL_SSL"),
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": jaas,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(broker.certificate.certificate),
    }
    if mechanism == "OAUTHBEARER":
        token.write_text(broker.token(user.name))
        given["sasl.jaas.config"] = f"{LOGINS[mechanism]} required;"
        given["sasl.oauthbearer.token.endpoint.url"] = token.as_uri()
        given["sasl.login.callback.handler.class"] = f"{MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler"
    file = folder / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    return file


@contextmanager
def running(
    client: str, user: User, mechanism: str, folder: Path, request: pytest.FixtureRequest
) -> Iterator[Program]:
    """Run a program as the user."""
    broker = user.broker
    if client == "java":
        command = [*request.getfixturevalue("java_program"), str(java_settings(user, mechanism, folder))]
    else:
        secret = broker.token(user.name) if mechanism == "OAUTHBEARER" else user.name
        place = [broker.address("SASL_SSL"), str(broker.certificate.certificate)]
        command = [*request.getfixturevalue("go_command"), "secured", *place, mechanism, user.name, secret]
    with Program(command, folder / "client.log") as program:
        yield program


def values(broker: Secured, topic: str) -> list[bytes | None]:
    with broker.admin() as admin, Consumer(admin._client, topic) as consumer:
        return [record.value for record in consumer.read_to_end()]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_client_has_least_rights_and_loses_them_while_it_runs(
    client: str,
    mechanism: str,
    secured_broker: Secured,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    user, topic = User(secured_broker), new_topic(secured_broker)
    group = user.name
    user.allow("Write", topic=topic)
    with running(client, user, mechanism, tmp_path, request) as program:
        assert program.ask(f"write {topic} one") == "ok at 0"
        assert program.ask(f"read {topic} {group}") == f"failed {NO_GROUP[client]}"
        user.allow("Read", topic=topic)
        user.allow("Read", group=group)
        assert program.ask(f"read {topic} {group}") == "ok one"
        user.take("Write", topic=topic)
        assert program.ask(f"write {topic} two") == f"failed {NOT_ALLOWED[client]}"
        user.allow("Write", topic=topic)
        assert program.ask(f"write {topic} three").startswith("ok at")
        user.take("Read", topic=topic)
        assert program.ask(f"read {topic} {group}") == f"failed {NOT_ALLOWED[client]}"
        if mechanism != "OAUTHBEARER":  # OAuth users are not stored in the broker
            user.remove()
            assert program.ask(f"write {topic} four").startswith("failed")
            assert program.ask(f"look {topic}") == f"failed {UNKNOWN[client]}"
    assert values(secured_broker, topic) == [b"one", b"three"]


def test_java_authenticates_again_without_an_error(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The client writes records for six seconds, and must authenticate again every two."""
    with ExitStack() as stack:
        broker = stack.enter_context(secured(tmp_path / "broker", **{"connections.max.reauth.ms": "2000"}))
        user, topic = User(broker), new_topic(broker)
        user.allow("Write", topic=topic)
        program = stack.enter_context(running("java", user, "SCRAM-SHA-512", tmp_path, request))
        done, written, again = program.ask(f"write-for {topic} 6").split()
        assert done == "ok"
        assert int(again) >= 2
        assert len(values(broker, topic)) == int(written)


def test_a_transactional_pipeline_in_java_with_least_rights(
    secured_broker: Secured, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Consume, transform, produce, with Write TransactionalId, Read Group, Read and Write Topic."""
    user = User(secured_broker)
    given, made, group, identity = new_topic(secured_broker), new_topic(secured_broker), "pipe", user.name
    with secured_broker.admin() as admin, Producer(admin._client) as producer:
        for number in range(5):
            producer.send(given, b"%d" % number)
    rights = [
        {"operation": "Read", "topic": given},
        {"operation": "Write", "topic": made},
        {"operation": "Read", "group": group},
        {"operation": "Write", "transactional_id": identity},
    ]
    for right in rights:
        user.allow(**right)
    words = f"pipeline {given} {made} {group} {identity}"
    with running("java", user, "SCRAM-SHA-256", tmp_path, request) as program:
        assert program.ask(words) == "ok records 5"
        assert sorted(each or b"" for each in values(secured_broker, made)) == [
            b"o%d" % number for number in range(5)
        ]
        user.take("Write", transactional_id=identity)
        assert program.ask(words) == "failed TransactionalIdAuthorizationException"
