"""``kafka-acls.sh`` and ``kafka-configs.sh`` as an administrator runs them, over TLS and with a password.

Both Semel and Apache Kafka get the same steps, and the tools print the same. They print in the order of hash
tables, so lines are sorted before they are compared, and so are the items of a line.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.brokers.process import free_port
from support.brokers.secured_broker import ADMIN, PASSWORD, secured
from support.certificates import Certificate, needs_openssl

from peers.brokers import run_kafka
from peers.programs import CannotBuild, Program
from peers.tools import ToolRunner, build_runner
from semel.client import Admin, Client

pytestmark = needs_openssl

MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
GUEST = "guest"
"""A user without rights, whose password is the name."""
ACLS, CONFIGS = "org.apache.kafka.tools.AclCommand", "kafka.admin.ConfigCommand"
ALICE = ("--entity-type", "users", "--entity-name", "alice")
APP = ("--entity-type", "clients", "--entity-name", "app")
USERS, CLIENTS, ADDRESSES = (("--entity-type", each) for each in ("users", "clients", "ips"))
DEFAULT = "--entity-default"
READING = {"--list", "--describe"}
PATIENCE_SECONDS = 5.0
BYTE_RATES = "producer_byte_rate=1024,consumer_byte_rate=2048"

ACL_STEPS = {
    "several operations on a topic and a group": (
        *("--add", "--allow-principal", "User:alice", "--operation", "Read", "--operation", "Describe"),
        *("--topic", "orders", "--group", "readers"),
    ),
    "the rights of a producer": (
        *("--add", "--allow-principal", "User:bob", "--producer", "--idempotent"),
        *("--topic", "results", "--transactional-id", "bob-1"),
    ),
    "the rights of a consumer": (
        *("--add", "--allow-principal", "User:carol", "--consumer", "--topic", "orders", "--group", "g"),
    ),
    "a prefix": (
        *("--add", "--allow-principal", "User:dave", "--operation", "Write", "--topic", "logs-"),
        *("--resource-pattern-type", "prefixed"),
    ),
    "a denial of one host": (
        *("--add", "--deny-principal", "User:eve", "--deny-host", "10.0.0.1", "--topic", "orders"),
    ),
    "everybody from one host": (
        *("--add", "--allow-principal", "User:*", "--allow-host", "10.0.0.2", "--operation", "Read"),
        *("--topic", "*"),
    ),
    "the cluster": ("--add", "--allow-principal", "User:alice", "--operation", "Create", "--cluster"),
    "list all": ("--list",),
    "list a topic": ("--list", "--topic", "orders"),
    "list a principal": ("--list", "--principal", "User:carol"),
    "list a group": ("--list", "--group", "g"),
    "list what is about a name": ("--list", "--topic", "logs-app", "--resource-pattern-type", "match"),
    "list prefixes": ("--list", "--topic", "logs-", "--resource-pattern-type", "prefixed"),
    "remove the rights of a consumer": (
        *("--remove", "--force", "--allow-principal", "User:carol", "--consumer"),
        *("--topic", "orders", "--group", "g"),
    ),
    "remove one right": (
        *("--remove", "--force", "--allow-principal", "User:alice", "--operation", "Read"),
        *("--topic", "orders"),
    ),
    "list what is left of a topic": ("--list", "--topic", "orders"),
    "remove all of a topic": ("--remove", "--force", "--topic", "orders"),
    "remove a prefix": (*("--remove", "--force", "--topic", "logs-", "--resource-pattern-type", "prefixed"),),
    "list what is left": ("--list",),
}
CONFIG_STEPS = {
    "a user": ("--alter", *ALICE, "--add-config", "SCRAM-SHA-256=[iterations=8192,password=one]"),
    "another mechanism": ("--alter", *ALICE, "--add-config", "SCRAM-SHA-512=[password=two]"),
    "a user twice": (
        *("--alter", *ALICE),
        *("--add-config", "SCRAM-SHA-256=[password=one],SCRAM-SHA-512=[password=two]"),
    ),
    "too few iterations": ("--alter", *ALICE, "--add-config", "SCRAM-SHA-256=[iterations=9,password=one]"),
    "too many iterations": (
        *("--alter", *ALICE, "--add-config", "SCRAM-SHA-256=[iterations=20000,password=one]"),
    ),
    "describe a user": ("--describe", *ALICE),
    "describe users": ("--describe", *USERS),
    "describe nobody": ("--describe", *USERS, "--entity-name", "nobody"),
    "remove a mechanism": ("--alter", *ALICE, "--delete-config", "SCRAM-SHA-256"),
    "remove it again": ("--alter", *ALICE, "--delete-config", "SCRAM-SHA-256"),
    "describe what is left of a user": ("--describe", *ALICE),
    "remove the other mechanism": ("--alter", *ALICE, "--delete-config", "SCRAM-SHA-512"),
    "describe the users that are left": ("--describe", *USERS),
}
QUOTA_STEPS = {
    "a user": ("--alter", *ALICE, "--add-config", f"{BYTE_RATES},controller_mutation_rate=5"),
    "users": ("--alter", *USERS, DEFAULT, "--add-config", "request_percentage=150"),
    "a client": ("--alter", *APP, "--add-config", "consumer_byte_rate=4096.5"),
    "clients": ("--alter", *CLIENTS, DEFAULT, "--add-config", BYTE_RATES),
    "a client of a user": ("--alter", *ALICE, *APP, "--add-config", "producer_byte_rate=1"),
    "clients of a user": ("--alter", *ALICE, *CLIENTS, DEFAULT, "--add-config", "producer_byte_rate=2"),
    "an address": (
        *("--alter", *ADDRESSES, "--entity-name", "10.0.0.1", "--add-config", "connection_creation_rate=10"),
    ),
    "addresses": ("--alter", *ADDRESSES, DEFAULT, "--add-config", "connection_creation_rate=99"),
    "describe a user": ("--describe", *ALICE),
    "describe users": ("--describe", *USERS),
    "describe the default of users": ("--describe", *USERS, DEFAULT),
    "describe a client": ("--describe", *APP),
    "describe clients": ("--describe", *CLIENTS),
    "describe clients of users": ("--describe", *USERS, *CLIENTS),
    "describe the clients of a user": ("--describe", *ALICE, *CLIENTS),
    "describe an address": ("--describe", *ADDRESSES, "--entity-name", "10.0.0.1"),
    "describe addresses": ("--describe", *ADDRESSES),
    "remove a limit": ("--alter", *ALICE, "--delete-config", "producer_byte_rate"),
    "remove a limit that is not there": ("--alter", *ALICE, "--delete-config", "request_percentage"),
    "remove the default of clients": (
        *("--alter", *CLIENTS, DEFAULT, "--delete-config", "producer_byte_rate,consumer_byte_rate"),
    ),
    "remove an address": (
        *("--alter", *ADDRESSES, "--entity-name", "10.0.0.1", "--delete-config", "connection_creation_rate"),
    ),
    "a limit that nobody has": ("--alter", *ALICE, "--add-config", "nonsense=1"),
    "describe what is left of a user": ("--describe", *ALICE),
    "describe the clients that are left": ("--describe", *CLIENTS),
    "describe the addresses that are left": ("--describe", *ADDRESSES),
}
GUEST_STEPS = {
    "list ACLs": (ACLS, "--list"),
    "add an ACL": (
        *(ACLS, "--add", "--allow-principal", f"User:{GUEST}", "--operation", "All", "--cluster"),
    ),
    "describe users": (CONFIGS, "--describe", *USERS),
    "add a user": (CONFIGS, "--alter", *ALICE, "--add-config", "SCRAM-SHA-256=[password=one]"),
    "add a quota": (CONFIGS, "--alter", *APP, "--add-config", "producer_byte_rate=1"),
}
STEPS = {
    "acls": {name: (ACLS, *words) for name, words in ACL_STEPS.items()},
    "users": {name: (CONFIGS, *words) for name, words in CONFIG_STEPS.items()},
    "quotas": {name: (CONFIGS, *words) for name, words in QUOTA_STEPS.items()},
}


class Both(NamedTuple):
    """Semel and Apache Kafka."""

    folder: Path
    certificate: Certificate
    runners: Sequence[ToolRunner]

    def differ(self, user: str, password: str, steps: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """Return the steps in which Semel and Apache Kafka print different things, and both outputs."""
        config = self.folder / f"{user}.properties"
        config.write_text(
            "security.protocol=SASL_SSL\n"
            "sasl.mechanism=SCRAM-SHA-256\n"
            f'sasl.jaas.config={MODULE} required username="{user}" password="{password}";\n'
            "ssl.truststore.type=PEM\n"
            f"ssl.truststore.location={self.certificate.certificate}\n"
        )
        both = {name: self._take(config, step) for name, step in steps.items()}
        return {name: each for name, each in both.items() if each[0] != each[1]}

    def _take(self, config: Path, step: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return what both print. Apache Kafka may show a change some time after it was made."""
        semel, kafka = self.runners
        expected, found = semel.lines(step, config), kafka.lines(step, config)
        until = time.monotonic() + PATIENCE_SECONDS
        while found != expected and READING & set(step) and time.monotonic() < until:
            found = kafka.lines(step, config)
        return expected, found


@contextmanager
def kafka_with_tls(class_path: str, folder: Path, certificate: Certificate) -> Iterator[str]:
    """Run Apache Kafka with its own authorizer; yield the address of its listener with SASL and TLS."""
    folder.mkdir()
    both = folder / "both.pem"
    both.write_text(certificate.key.read_text() + certificate.certificate.read_text())
    port = free_port()
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{ADMIN}",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": f"{MODULE} required;",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(both),
    }
    with run_kafka(class_path, folder, listeners={"SASL_SSL": port}, **settings) as broker:
        with Client(broker.direct) as client:
            Admin(client).users.put(ADMIN, PASSWORD)
            Admin(client).users.put(GUEST, GUEST)
        yield f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def both(kafka_jars: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("tools")
    try:
        command = build_runner(kafka_jars)
    except CannotBuild as error:
        pytest.skip(f"Kafka's tools: {error}")
    with ExitStack() as stack:
        semel = stack.enter_context(secured(folder / "semel"))
        with semel.admin() as admin:
            admin.users.put(GUEST, GUEST)
        kafka = stack.enter_context(kafka_with_tls(kafka_jars, folder / "kafka", semel.certificate))
        addresses = {"semel": semel.address("SASL_SSL"), "kafka": kafka}
        runners = [
            ToolRunner(stack.enter_context(Program(command, folder / f"{name}-tools.log")), address)
            for name, address in addresses.items()
        ]
        yield Both(folder, semel.certificate, runners)


@pytest.mark.parametrize("about", STEPS)
def test_the_tools_print_the_same(both: Both, about: str) -> None:
    assert both.differ(ADMIN, PASSWORD, STEPS[about]) == {}


def test_a_user_without_rights_is_told_the_same(both: Both) -> None:
    assert both.differ(GUEST, GUEST, GUEST_STEPS) == {}
