"""`semel.client` and others with brokers that do not talk to everybody: TLS with Semel, SASL by the RFCs."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from support.brokers.process import BrokerProcess
from support.brokers.sasl_broker import SaslBroker
from support.certificates import PASSWORD, Certificate, make_certificate, needs_openssl
from support.waiting import until

from semel.client import Admin, AuthenticationFailed, BrokerUnreachable, Client, Consumer, Producer, Security

USER, SECRET = "ann, of = fame", "hush-hush ä"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Certificate]:
    folder = tmp_path_factory.mktemp("tls")
    return {name: make_certificate(folder, name) for name in ("broker", "client", "stranger")} | {
        "elsewhere": make_certificate(folder, "elsewhere", host="192.0.2.1")
    }


Serve = Callable[..., str]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start `semel serve` with a listener for TLS; its address."""
    processes: list[BrokerProcess] = []

    def start(certificate: Certificate, **settings: Any) -> str:
        given = {
            "ssl.certificate.location": certificate.certificate,
            "ssl.key.location": certificate.key,
            "auto.create.topics.enable": "true",
            **settings,
        }
        process = BrokerProcess(
            tmp_path / "data", *(text for item in given.items() for text in ("--set", "{}={}".format(*item)))
        )
        process.scheme = "ssl://"
        process.start()
        processes.append(process)
        return process.bootstrap

    yield start
    for process in processes:
        process.stop()


def tls(certificate: Certificate | None = None, **settings: Any) -> Security:
    trusted = {} if certificate is None else {"ssl.ca.location": str(certificate.certificate)}
    return Security.of({"security.protocol": "SSL", **trusted, **settings})


@needs_openssl
def test_records_go_through_tls_and_back(serve: Serve, certificates: dict[str, Certificate]) -> None:
    address = serve(certificates["broker"])
    with Client(address, security=tls(certificates["broker"])) as client:
        with Producer(client) as producer:
            for number in range(500):
                producer.send("t", b"%d " % number + bytes(1_000))
        with Consumer(client, "t") as consumer:
            assert len(list(consumer.read_to_end())) == 500
    others: dict[str, str | int | float | bool] = {
        "bootstrap.servers": address,
        "security.protocol": "SSL",
        "ssl.ca.location": str(certificates["broker"].certificate),
    }
    assert "t" in AdminClient(others).list_topics(timeout=10).topics


@needs_openssl
def test_who_is_not_known_is_not_trusted(serve: Serve, certificates: dict[str, Certificate]) -> None:
    address = serve(certificates["elsewhere"])
    with (
        Client(address, security=tls(certificates["stranger"])) as client,
        pytest.raises(AuthenticationFailed, match="self-signed"),
    ):
        client.describe()
    with (
        Client(address, security=tls(certificates["elsewhere"])) as client,
        pytest.raises(AuthenticationFailed, match=r"127\.0\.0\.1"),
    ):
        Admin(client).topics.all()
    lenient = tls(certificates["elsewhere"], **{"ssl.endpoint.identification.algorithm": "none"})
    with Client(address, security=lenient) as client:
        assert client.describe().nodes


@needs_openssl
def test_only_clients_with_a_certificate_get_in(serve: Serve, certificates: dict[str, Certificate]) -> None:
    mine = certificates["client"]
    address = serve(certificates["broker"], **{"ssl.ca.location": mine.certificate})
    files: dict[str, str] = {}
    for key, password in ((mine.key, {}), (mine.encrypted_key, {"ssl.key.password": PASSWORD})):
        files = {"ssl.certificate.location": str(mine.certificate), "ssl.key.location": str(key)}
        with Client(address, security=tls(certificates["broker"], **files, **password)) as client:
            assert client.describe().nodes
    with pytest.raises(ValueError, match=r"ssl\.key\.password"):
        Client(address, security=tls(certificates["broker"], **files))
    with (
        Client(address, security=tls(certificates["broker"])) as client,
        pytest.raises(BrokerUnreachable, match=r"(?i)certificate.required|closed the connection"),
    ):
        client.describe()
    with Client(address) as client, pytest.raises(BrokerUnreachable, match="closed the connection"):
        client.describe()


def sasl(mechanism: str, password: str = SECRET) -> Security:
    return Security.of(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": USER,
            "sasl.password": password,
        }
    )


MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_user_that_is_known_gets_in(mechanism: str, version: int) -> None:
    with SaslBroker(USER, SECRET, authenticate_version=version) as broker:
        with Client(broker.bootstrap, security=sasl(mechanism)) as client:
            assert [each.port for each in client.describe().nodes] == [broker.address[1]]
        assert broker.authenticated == 1


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_others_are_told_at_once_and_without_the_password(mechanism: str) -> None:
    with (
        SaslBroker(USER, SECRET) as broker,
        Client(broker.bootstrap, security=sasl(mechanism, "guess")) as client,
    ):
        with pytest.raises(AuthenticationFailed, match=r"'ann.*sasl\.username") as told:
            client.describe()
        assert "guess" not in str(told.value)


def test_a_mechanism_that_the_broker_does_not_have_is_told() -> None:
    with (
        SaslBroker(USER, SECRET, ("SCRAM-SHA-512",)) as broker,
        Client(broker.bootstrap, security=sasl("PLAIN")) as client,
        pytest.raises(AuthenticationFailed, match=r"PLAIN.*SCRAM-SHA-512"),
    ):
        client.describe()


def test_a_broker_that_does_not_know_the_password_is_found_out() -> None:
    with (
        SaslBroker(USER, "something else", is_impostor=True) as broker,
        Client(broker.bootstrap, security=sasl("SCRAM-SHA-256")) as client,
        pytest.raises(AuthenticationFailed, match="password"),
    ):
        client.describe()


def test_a_session_that_is_about_to_end_is_begun_anew() -> None:
    with (
        SaslBroker(USER, SECRET, session_lifetime_ms=1) as broker,
        Client(broker.bootstrap, security=sasl("PLAIN")) as client,
    ):
        until(lambda: bool(client.describe().nodes) and broker.authenticated >= 3, 10, "three sessions")


def test_the_test_broker_is_one_for_librdkafka_too() -> None:
    with SaslBroker(USER, SECRET) as broker:
        settings = {
            "bootstrap.servers": broker.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": USER,
            "sasl.password": SECRET,
            "log_level": 0,
        }
        with closing(confluent_kafka.Consumer({**settings, "group.id": "g"})) as consumer:
            assert consumer.list_topics(timeout=10).brokers
        assert broker.authenticated >= 1
