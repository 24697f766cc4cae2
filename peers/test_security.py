"""`semel.client` with Apache Kafka behind TLS and SASL."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from support.brokers.process import free_port
from support.certificates import Certificate, make_certificate, needs_openssl
from support.waiting import until

from peers.brokers import run_kafka
from semel.client import Admin, AuthenticationFailed, Client, Consumer, NewTopic, Producer, Security

pytestmark = needs_openssl

USER, SECRET = "ann", "hush-hush"
SCRAMS = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}
MECHANISMS = ("PLAIN", *SCRAMS)
MODULES = "org.apache.kafka.common.security"
PLAIN = f'{MODULES}.plain.PlainLoginModule required user_{USER}="{SECRET}";'
SCRAM = f"{MODULES}.scram.ScramLoginModule required;"


@dataclass(frozen=True)
class Kafka:
    """One broker, with an address for each protocol."""

    addresses: dict[str, str]
    certificate: Certificate

    def security(self, protocol: str, **settings: str) -> Security:
        given = {"security.protocol": protocol, **settings}
        if protocol.endswith("SSL"):
            given["ssl.ca.location"] = str(self.certificate.certificate)
        return Security.of(given)


@pytest.fixture(scope="module")
def kafka(kafka_jars: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    folder = tmp_path_factory.mktemp("kafka")
    certificate = make_certificate(folder, "broker")
    both = folder / "both.pem"
    both.write_text(certificate.key.read_text() + certificate.certificate.read_text())
    ports = {protocol: free_port() for protocol in ("SASL_PLAINTEXT", "SASL_SSL", "SSL")}
    settings = {
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(both),
        "connections.max.reauth.ms": "60000",
    }
    for name in ("sasl_plaintext", "sasl_ssl"):
        settings[f"listener.name.{name}.plain.sasl.jaas.config"] = PLAIN
        for mechanism in SCRAMS:
            settings[f"listener.name.{name}.{mechanism.lower()}.sasl.jaas.config"] = SCRAM
    with run_kafka(kafka_jars, folder / "broker", listeners=ports, **settings) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for each in SCRAMS.values():
            new = UserScramCredentialUpsertion(USER, ScramCredentialInfo(each, 4_096), SECRET.encode())
            for done in admin.alter_user_scram_credentials([new]).values():
                done.result()
        addresses = {protocol: f"127.0.0.1:{port}" for protocol, port in ports.items()}
        yield Kafka(addresses, certificate)


def describe(client: Client) -> bool:
    """Whether the broker accepts the user; it learns of new users some time after they were created."""
    try:
        return bool(client.describe().nodes)
    except AuthenticationFailed:
        return False


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_records_are_written_and_read_by_a_known_user(kafka: Kafka, mechanism: str, protocol: str) -> None:
    module = PLAIN if mechanism == "PLAIN" else SCRAM
    jaas = f'{module.split()[0]} required username="{USER}" password="{SECRET}";'
    security = kafka.security(protocol, **{"sasl.mechanism": mechanism, "sasl.jaas.config": jaas})
    topic = f"{protocol}-{mechanism}".lower()
    with Client(kafka.addresses[protocol], security=security) as client:
        until(lambda: describe(client), 30, f"{USER} by {mechanism}")
        Admin(client).topics.create(NewTopic(topic, partitions=2))
        with Producer(client) as producer:
            for number in range(20):
                producer.send(topic, b"%d" % number)
        with Consumer(client, topic) as consumer:
            found = sorted(int(record.value or b"") for record in consumer.read_to_end())
    assert found == list(range(20))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_told(kafka: Kafka, mechanism: str) -> None:
    who = {"sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": "guess"}
    security = kafka.security("SASL_SSL", **who)
    with (
        Client(kafka.addresses["SASL_SSL"], security=security) as client,
        pytest.raises(AuthenticationFailed, match="rejected user 'ann'"),
    ):
        client.describe()


def test_tls_alone(kafka: Kafka, tmp_path: Path) -> None:
    with Client(kafka.addresses["SSL"], security=kafka.security("SSL")) as client:
        assert client.describe().nodes
    stranger = make_certificate(tmp_path, "stranger")
    security = Security.of({"security.protocol": "SSL", "ssl.ca.location": str(stranger.certificate)})
    with (
        Client(kafka.addresses["SSL"], security=security) as client,
        pytest.raises(AuthenticationFailed, match="is not accepted"),
    ):
        client.describe()
