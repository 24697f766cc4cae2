"""Users, ACLs, quotas and configs: a change is in force at every broker of a cluster when it is answered."""

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
    ResourceType,
    Security,
)
from semel.client.admin.acls import Acl
from semel.client.admin.quotas import QuotaEntity
from semel.wire.messages import CreateTopicsRequest, DeleteTopicsRequest, MetadataRequest
from semel.wire.messages.topics import CreatableTopic

NODES = (1, 2, 3)


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


def test_quotas_policies_and_configs_survive_a_restart_of_all_brokers(cluster: Cluster, admin: Admin) -> None:
    right = Acl.of("User:eve", "Write", topic="logs-", is_prefix=True, is_denied=True)
    admin.acls.add(right)
    entity = QuotaEntity(user="eve")
    admin.quotas.alter(entity, {"producer_byte_rate": 1_000.0})
    admin.users.put("eve", "secret", mechanism="SCRAM-SHA-512")
    admin.configs.alter_broker(None, values={"num.partitions": "9"})
    cluster.restart()
    with Client(cluster.bootstrap) as client:
        known = Admin(client)
        assert right in known.acls.list(principal="User:eve")
        assert [each.limits for each in known.quotas.list() if each.entity == entity] == [
            {"producer_byte_rate": 1_000.0}
        ]
        assert held(known, "num.partitions") == [("9", "broker default")] * 3
        known.configs.alter_broker(None, remove=["num.partitions"])
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


# -- configs ------------------------------------------------------------------------------------------------


def held(admin: Admin, name: str) -> list[tuple[str | None, str]]:
    """What holds at each broker, and its source."""
    found = [{each.name: each for each in admin.configs.of_broker(node)}[name] for node in NODES]
    return [(each.value, each.source) for each in found]


def test_a_changed_config_is_in_force_at_every_broker_when_it_is_answered(
    cluster: Cluster, admin: Admin
) -> None:
    with Client(cluster.bootstrap) as client:
        client.describe()
        for turn in range(2, 7):
            admin.configs.alter_broker(None, values={"num.partitions": str(turn)})
            assert held(admin, "num.partitions") == [(str(turn), "broker default")] * 3
            for node in NODES:
                name = f"turn-{turn}-{node}"
                wanted = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1)
                answer = client.send(CreateTopicsRequest(topics=[wanted], timeout_ms=5_000), node=node)
                assert [each.num_partitions for each in answer.topics] == [turn]
                client.send(
                    DeleteTopicsRequest(topic_names=[name], timeout_ms=5_000), node=node, max_version=5
                )
    admin.configs.alter_broker(None, remove=["num.partitions"])
    assert held(admin, "num.partitions") == [("1", "default")] * 3


def test_a_broker_can_differ_from_the_others(admin: Admin) -> None:
    admin.configs.alter_broker(None, values={"max.connections": "5000"})
    admin.configs.alter_broker(2, values={"max.connections": "6000"})
    assert held(admin, "max.connections") == [
        ("5000", "broker default"),
        ("6000", "broker"),
        ("5000", "broker default"),
    ]
    with pytest.raises(KafkaError, match=r"'2'.* 1\b"):
        admin.configs.describe(ResourceType.BROKER, "2", node=1)
    admin.configs.alter_broker(2, remove=["max.connections"])
    admin.configs.alter_broker(None, remove=["max.connections"])
    assert held(admin, "max.connections") == [("10000", "default")] * 3


def test_a_group_has_its_configs_at_whichever_broker_coordinates_it(admin: Admin) -> None:
    admin.configs.alter_group("g", values={"consumer.session.timeout.ms": "50000"})
    for node in NODES:
        found = {each.name: each for each in admin.configs.describe(ResourceType.GROUP, "g", node=node)}
        assert found["consumer.session.timeout.ms"].value == "50000"
        assert found["consumer.session.timeout.ms"].source == "group"
    admin.configs.alter_group("g", remove=["consumer.session.timeout.ms"])


@pytest.mark.slow
def test_a_broker_that_was_away_knows_changed_configs_when_it_serves_again(
    cluster: Cluster, admin: Admin
) -> None:
    away = cluster.brokers[2]
    away.pause()
    try:
        with Client(cluster.brokers[0].bootstrap, timeout_s=30) as other:
            Admin(other).configs.alter_broker(None, values={"num.partitions": "9"})
    finally:
        away.resume()

    def knows() -> bool:
        try:
            return held(admin, "num.partitions") == [("9", "broker default")] * 3
        except ClientError:
            if away.has_ended:
                # Others took its place while it slept.
                away.restart()
            return False

    until(knows, what="the broker serves again")
    admin.configs.alter_broker(None, remove=["num.partitions"])
