"""Users, ACLs and quotas in a cluster: a change is in force at every broker when it is answered."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.brokers.cluster import Cluster, running
from support.brokers.cluster_members import database
from support.waiting import until

from semel.client import (
    Admin,
    AuthenticationFailed,
    Client,
    ClientError,
    ErrorCode,
    KafkaError,
    NewTopic,
    Security,
)
from semel.client.acls import Acl
from semel.client.quotas import QuotaEntity
from semel.wire.messages import MetadataRequest


@pytest.fixture(scope="module")
def cluster(postgres_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Whoever does not authenticate may do everything; ``bob`` may do what ACLs allow."""
    settings = {"semel.authorizer": "acl", "super.users": "User:ANONYMOUS"}
    made = Cluster(tmp_path_factory.mktemp("cluster"), settings=settings, has_sasl=True, proxied=True)
    with running(made, postgres_dsn) as cluster:
        yield cluster


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Client(cluster.bootstrap) as client:
        yield Admin(client)


def bob(cluster: Cluster, at: int, password: str = "secret") -> Client:
    """A client that knows one broker at first."""
    who = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "bob", "sasl.password": password}
    security = Security.of({"security.protocol": "SASL_PLAINTEXT", **who})
    return Client(f"127.0.0.1:{cluster.brokers[at].sasl_port}", security=security, timeout_s=10)


def sees(client: Client, at: int, topic: str) -> bool:
    """Whether a broker, and no other, shows a topic."""
    client.describe()
    answer = client.ask(MetadataRequest(topics=None), node=at + 1)
    return topic in {each.name for each in answer.topics}


def test_a_change_is_in_force_at_every_broker_when_it_is_answered(cluster: Cluster, admin: Admin) -> None:
    admin.topics.create(NewTopic("seen", 1))
    admin.users.put("bob", "secret")
    right = Acl.of("User:bob", "Describe", topic="seen")
    clients = [bob(cluster, at) for at in range(3)]
    try:
        assert [sees(each, at, "seen") for at, each in enumerate(clients)] == [False] * 3
        for _ in range(5):
            admin.acls.add(right)
            assert [sees(each, at, "seen") for at, each in enumerate(clients)] == [True] * 3
            admin.acls.remove([right])
            assert [sees(each, at, "seen") for at, each in enumerate(clients)] == [False] * 3
        admin.users.put("bob", "other")
        for at in range(3):
            with bob(cluster, at) as refused, pytest.raises(AuthenticationFailed):
                refused.describe()
            with bob(cluster, at, "other") as client:
                assert client.describe().nodes
        admin.users.remove("bob")
        for each in clients:
            with pytest.raises(AuthenticationFailed):
                Admin(each).topics.all()
    finally:
        for each in clients:
            each.close()


def test_a_broker_that_was_away_knows_the_changes_when_it_serves_again(
    cluster: Cluster, admin: Admin
) -> None:
    """It cannot be told, so the change is answered when its lease is over."""
    admin.topics.create(NewTopic("away", 1))
    admin.users.put("bob", "secret")
    right = Acl.of("User:bob", "Describe", topic="away")
    admin.acls.add(right)
    away = cluster.brokers[2]
    with bob(cluster, 2) as client:
        assert sees(client, 2, "away")
        away.pause()
        try:
            with Client(cluster.brokers[0].bootstrap, timeout_s=30) as other:
                Admin(other).acls.remove([right])
        finally:
            away.resume()

        def answers() -> bool:
            try:
                assert not sees(client, 2, "away"), "a right that was taken away is still there"
            except ClientError:
                if away.has_ended:
                    # Others took its place while it slept.
                    away.restart()
                return False
            return True

        until(answers, what="the broker serves again")


def test_quotas_and_policies_survive_a_restart_of_all_brokers(cluster: Cluster, admin: Admin) -> None:
    right = Acl.of("User:eve", "Write", topic="logs-", is_prefix=True, is_denied=True)
    admin.acls.add(right)
    entity = QuotaEntity(user="eve")
    admin.quotas.alter(entity, {"producer_byte_rate": 1_000.0})
    admin.users.put("eve", "secret", mechanism="SCRAM-SHA-512")
    cluster.restart()
    with Client(cluster.bootstrap) as client:
        known = Admin(client)
        assert right in known.acls.list(principal="User:eve")
        assert [each.limits for each in known.quotas.list() if each.entity == entity] == [
            {"producer_byte_rate": 1_000.0}
        ]
        assert ("eve", "SCRAM-SHA-512") in {(each.user, each.mechanism) for each in known.users.list()}


def test_the_first_user_is_added_to_a_ledger_that_no_broker_uses(cluster: Cluster) -> None:
    command = [sys.executable, "-m", "semel", "users", "add", "root", "--password-stdin", "--ledger"]
    done = subprocess.run([*command, cluster.dsn], input="x\n", text=True, capture_output=True, check=False)
    assert done.returncode == 1
    assert "rokers of this cluster are running" in done.stderr
    with Client(cluster.bootstrap) as client:
        with pytest.raises(KafkaError) as refused:
            Admin(client).users.remove("root")
        assert refused.value.code is ErrorCode.RESOURCE_NOT_FOUND


def test_a_password_that_is_replaced_in_a_ledger_is_told(postgres_dsn: str) -> None:
    with database(postgres_dsn) as ledger:
        command = [
            sys.executable,
            "-m",
            "semel",
            "users",
            "add",
            "ann",
            "--password-stdin",
            "--ledger",
            ledger,
        ]
        for mechanism, told in (
            ("SCRAM-SHA-256", "Added the user ann with SCRAM-SHA-256.\n"),
            ("SCRAM-SHA-256", "Replaced the password of the user ann for SCRAM-SHA-256.\n"),
            ("SCRAM-SHA-512", "Added the user ann with SCRAM-SHA-512.\n"),
        ):
            done = subprocess.run(
                [*command, "--mechanism", mechanism], input="x\n", text=True, capture_output=True, check=True
            )
            assert done.stderr == told
