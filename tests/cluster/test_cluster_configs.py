"""Configs of groups and brokers in a cluster: in force at every broker when the change is answered."""

from collections.abc import Iterator

import pytest
from support.brokers.cluster import Cluster
from support.waiting import until

from semel.client import Admin, Client, ClientError, KafkaError, ResourceType
from semel.wire.messages import CreateTopicsRequest, DeleteTopicsRequest
from semel.wire.messages.topics import CreatableTopic

NODES = (1, 2, 3)


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Client(cluster.bootstrap) as client:
        yield Admin(client)


def held(admin: Admin, name: str) -> list[tuple[str | None, str]]:
    """What holds at each broker, and its source."""
    found = [{each.name: each for each in admin.configs.of_broker(node)}[name] for node in NODES]
    return [(each.value, each.source) for each in found]


def test_a_change_for_all_is_in_force_at_every_broker_when_it_is_answered(
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
    with pytest.raises(KafkaError, match="this is"):
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


def test_changes_survive_a_restart_of_all_brokers(cluster: Cluster, admin: Admin) -> None:
    admin.configs.alter_broker(None, values={"num.partitions": "9"})
    cluster.restart()
    with Client(cluster.bootstrap) as client:
        assert held(Admin(client), "num.partitions") == [("9", "broker default")] * 3
        Admin(client).configs.alter_broker(None, remove=["num.partitions"])


@pytest.mark.slow
def test_a_broker_that_was_away_knows_the_changes_when_it_serves_again(
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
