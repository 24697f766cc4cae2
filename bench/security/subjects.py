"""The brokers for measuring the cost of security, each in its own process.

Three have SASL: one without ACLs, a second one without, which shows by how much two equal brokers differ, and
one with ACLs. Two have TLS, with the same certificate: Semel and Apache Kafka.
"""

import secrets
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import ClassVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from support.brokers.process import free_port
from support.certificates import Certificate, make_certificate

from bench.security.bindings import bindings
from bench.side_by_side.places import topics_of
from bench.subjects import KAFKA_JAVA, Kafka, Semel, Subject, serve
from peers.kafka import HOST, KafkaProcess
from semel.client import Admin, Client, Security

ADMIN, CLIENT = "admin", "client"
MECHANISM = "SCRAM-SHA-256"
ACLS_AT_A_TIME = 500
ANSWER_SECONDS = 5.0
TOPIC, PARTITIONS = "security", 8
TOPICS = [*topics_of("warming", PARTITIONS), *topics_of(TOPIC, PARTITIONS)]
"""The topics that the client may write and read."""
PREFIXES = ("warming-", "security-")
"""The prefixes of its transactional ids."""
GROUP = "bench"


class WithSasl(Semel):
    """SASL_PLAINTEXT with SCRAM. Every authenticated client has all rights."""

    name, title = "semel-sasl", "Semel with SASL, without ACLs"
    settings: ClassVar[Mapping[str, str]] = {}

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._passwords = {user: secrets.token_urlsafe() for user in (ADMIN, CLIENT)}
        self.access = self._access_of(CLIENT)

    @property
    def administration(self) -> Mapping[str, str]:
        return self._access_of(ADMIN)

    def _access_of(self, user: str) -> Mapping[str, str]:
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": self._passwords[user],
        }

    @property
    def command(self) -> list[str]:
        return serve(self.directory, "sasl_plaintext", **self.settings)

    def prepare(self) -> None:
        """Add the first user, which no client could do."""
        command = [sys.executable, "-m", "semel", "users", "add", ADMIN, "--password-stdin"]
        command += ["--data", str(self.directory)]
        password = f"{self._passwords[ADMIN]}\n"
        subprocess.run(command, input=password, text=True, check=True, capture_output=True)

    def start(self) -> None:
        super().start()
        with Client(self.bootstrap, security=Security.of(self.administration)) as client:
            self._set_up(Admin(client))

    def _set_up(self, admin: Admin) -> None:
        admin.users.put(CLIENT, self._passwords[CLIENT], mechanism=MECHANISM)

    def _answers(self) -> bool:
        return has_brokers(self)


class WithSaslToo(WithSasl):
    """A second broker equal to `WithSasl`."""

    name, title = "semel-sasl-2", "the same again"


class WithAcls(WithSasl):
    """`WithSasl` with thousands of ACLs, which give the client exactly the rights that it needs."""

    name, title = "semel-acl", "Semel with SASL and ACLs"
    settings: ClassVar[Mapping[str, str]] = {"semel_authorizer": "acl", "super_users": f"User:{ADMIN}"}

    def _set_up(self, admin: Admin) -> None:
        super()._set_up(admin)
        acls = bindings(f"User:{CLIENT}", TOPICS, GROUP, PREFIXES)
        for at in range(0, len(acls), ACLS_AT_A_TIME):
            admin.acls.add(*acls[at : at + ACLS_AT_A_TIME])


class SemelWithTls(Semel):
    """Semel with an `ssl` listener."""

    name, title = "semel-tls", "Semel with TLS"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.access = tls_access()

    @property
    def command(self) -> list[str]:
        made = certificate()
        files = {"ssl_certificate_location": str(made.certificate), "ssl_key_location": str(made.key)}
        return serve(self.directory, "ssl", **files)

    def _answers(self) -> bool:
        return has_brokers(self)


class KafkaWithTls(Kafka):
    """Apache Kafka with an SSL listener, and otherwise in its default configuration."""

    name, title = "kafka-tls", "Apache Kafka with TLS"

    def __init__(self, directory: Path) -> None:
        self._port = free_port()
        super().__init__(directory)
        self.bootstrap = f"{HOST}:{self._port}"
        self.access = tls_access()

    def _made(self, class_path: str) -> KafkaProcess:
        made = certificate()
        both = self.directory.with_suffix(".pem")
        both.parent.mkdir(parents=True, exist_ok=True)
        both.write_text(made.key.read_text() + made.certificate.read_text())
        settings = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(both)}
        listeners = {"SSL": self._port}
        return KafkaProcess(
            class_path, self.directory, settings, listeners=listeners, java_options=KAFKA_JAVA
        )

    def _answers(self) -> bool:
        self._kafka.check_alive()
        return has_brokers(self)


def has_brokers(subject: Subject) -> bool:
    """Whether an administrator can connect and gets an answer."""
    admin = AdminClient({"bootstrap.servers": subject.bootstrap, "log_level": 0, **subject.administration})
    try:
        return bool(admin.list_topics(timeout=ANSWER_SECONDS).brokers)
    except KafkaException:
        return False


def tls_access() -> Mapping[str, str]:
    """Return the client settings for the subjects with TLS."""
    return {"security.protocol": "SSL", "ssl.ca.location": str(certificate().certificate)}


@cache
def _folder() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="semel-bench-certificate-")


@cache
def certificate() -> Certificate:
    """Return the certificate of this run, which all subjects share."""
    return make_certificate(Path(_folder().name), "broker")


SASL: tuple[type[Subject], ...] = (WithSasl, WithSaslToo, WithAcls)
TLS: tuple[type[Subject], ...] = (Semel, Kafka, SemelWithTls, KafkaWithTls)
SECURED: tuple[type[Subject], ...] = (*SASL, SemelWithTls, KafkaWithTls)
