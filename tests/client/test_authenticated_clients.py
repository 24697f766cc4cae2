"""Clients of today authenticate by each mechanism, do what they may, and lose it when it is taken away."""

import itertools
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.brokers.process import BrokerProcess
from support.brokers.secured_broker import CLIENTS, MECHANISMS, PROTOCOLS, Denied, Secured, secured
from support.certificates import Certificate, make_certificate, needs_openssl

from semel.client import Admin, Client, Consumer, NewTopic, Security
from semel.client.admin.acls import Acl

pytestmark = needs_openssl

Fresh = Callable[[str], str]
DENIED = "(?i)auth"
NOT_LET_IN = "(?i)auth|bootstrap"
"""aiokafka logs the reason, and says only that it cannot connect."""
# librdkafka asks for a token when it has run for a second, with TLS or without.
SLOW = ("librdkafka", "OAUTHBEARER", "SASL_PLAINTEXT")
EVERY_WAY = [
    pytest.param(*way, marks=[pytest.mark.slow] if way == SLOW else [])
    for way in itertools.product(CLIENTS, MECHANISMS, PROTOCOLS)
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured(tmp_path_factory.mktemp("secured")) as broker:
        yield broker


@pytest.fixture
def user(broker: Secured, fresh: Fresh) -> str:
    """A user with a password of the same name, by both SCRAM mechanisms."""
    name = fresh("user")
    with broker.admin() as admin:
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            admin.users.put(name, name, mechanism=mechanism)
    return name


@pytest.fixture
def topic(broker: Secured, fresh: Fresh) -> str:
    """A topic that nobody may use."""
    name = fresh("topic")
    with broker.admin() as admin:
        admin.topics.create(NewTopic(name, 1))
    return name


def values(broker: Secured, topic: str) -> list[bytes | None]:
    with broker.admin() as admin, Consumer(admin._client, topic) as consumer:
        return [record.value for record in consumer.read_to_end()]


@pytest.mark.parametrize(("client", "mechanism", "protocol"), EVERY_WAY)
def test_a_known_user_may_do_what_acls_allow_and_nothing_else(
    broker: Secured, client: str, mechanism: str, protocol: str, user: str, topic: str
) -> None:
    write = CLIENTS[client]
    with pytest.raises(Denied, match=DENIED):
        write(broker, protocol, mechanism, user, user, topic)
    right = Acl.of(f"User:{user}", "Write", topic=topic)
    with broker.admin() as admin:
        admin.acls.add(right)
        write(broker, protocol, mechanism, user, user, topic)
        admin.acls.remove([right])
    with pytest.raises(Denied, match=DENIED):
        write(broker, protocol, mechanism, user, user, topic)
    assert values(broker, topic) == [b"x"]


@pytest.mark.parametrize("mechanism", [each for each in MECHANISMS if each != "OAUTHBEARER"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_wrong_password_and_a_removed_user_do_not_get_in(
    broker: Secured, client: str, mechanism: str, user: str, topic: str
) -> None:
    write = CLIENTS[client]
    with broker.admin() as admin:
        admin.acls.add(Acl.of(f"User:{user}", "Write", topic=topic))
        with pytest.raises(Denied, match=NOT_LET_IN):
            write(broker, "SASL_SSL", mechanism, user, "guessed", topic)
        write(broker, "SASL_SSL", mechanism, user, user, topic)
        for each in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            admin.users.remove(user, mechanism=each)
    with pytest.raises(Denied, match=NOT_LET_IN):
        write(broker, "SASL_SSL", mechanism, user, user, topic)
    assert values(broker, topic) == [b"x"]


def certified(folder: Path, name: str, subject: str, issuer: Certificate) -> tuple[Path, Path]:
    """A certificate with this subject, issued by another."""
    key, request, made = (folder / f"{name}.{suffix}" for suffix in ("key", "csr", "crt"))
    new = ["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", subject]
    sign = ["openssl", "x509", "-req", "-days", "2", "-CAcreateserial"]
    sign += ["-CA", str(issuer.certificate), "-CAkey", str(issuer.key)]
    for command in (
        [*new, "-keyout", str(key), "-out", str(request)],
        [*sign, "-in", str(request), "-out", str(made)],
    ):
        subprocess.run(command, check=True, capture_output=True)
    return made, key


def test_who_has_a_certificate_is_the_user_in_it(tmp_path: Path) -> None:
    """The principal by ssl.principal.mapping.rules; who has none is anonymous if one is only requested."""
    authority = make_certificate(tmp_path, "authority")
    settings = {
        "ssl.certificate.location": authority.certificate,
        "ssl.key.location": authority.key,
        "ssl.ca.location": authority.certificate,
        "ssl.client.auth": "requested",
        "ssl.principal.mapping.rules": r"RULE:^CN=([^,]+),OU=ops.*$/$1/L,DEFAULT",
        "semel.authorizer": "acl",
        "super.users": "User:admin",
    }
    options = [text for name, value in settings.items() for text in ("--set", f"{name}={value}")]
    process = BrokerProcess(tmp_path / "data", *options)
    process.scheme = "ssl://"

    def client(subject: str | None) -> Client:
        given = {"security.protocol": "SSL", "ssl.ca.location": str(authority.certificate)}
        if subject is not None:
            made, key = certified(tmp_path, str(abs(hash(subject))), subject, authority)
            given |= {"ssl.certificate.location": str(made), "ssl.key.location": str(key)}
        return Client(process.bootstrap, security=Security.of(given))

    with process:
        with client("/O=Example/OU=ops/CN=ADMIN") as admin:
            Admin(admin).topics.create(NewTopic("t", 1))
            Admin(admin).acls.add(
                Acl.of("User:CN=bob\\, the first,O=Example", "Describe", topic="t"),
                Acl.of("User:ANONYMOUS", "Describe", topic="other"),
            )
        with client("/O=Example/CN=bob, the first") as bob:
            assert [each.name for each in Admin(bob).topics.all()] == ["t"]
        with client("/O=Example/OU=sales/CN=ADMIN") as stranger:
            assert not Admin(stranger).topics.all()
        with client(None) as nobody:
            assert not Admin(nobody).topics.all()
