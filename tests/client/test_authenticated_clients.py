"""Clients of today authenticate by each mechanism, do what they may, and lose it when it is taken away."""

from collections.abc import Callable, Iterator

import pytest
from support.certificates import needs_openssl
from support.secured import CLIENTS, MECHANISMS, PROTOCOLS, Denied, Secured, secured

from semel.client import Consumer, NewTopic
from semel.client.acls import Acl

pytestmark = [
    needs_openssl,
    # kafka-python leaves sockets open if it cannot connect.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

Fresh = Callable[[str], str]
DENIED = "(?i)auth"
NOT_LET_IN = "(?i)auth|Unable to bootstrap"
"""aiokafka logs the reason, and says only that it cannot connect."""


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


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", CLIENTS)
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
