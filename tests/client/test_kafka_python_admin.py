"""Administration with kafka-python, which knows more admin APIs than the other clients.

It deletes offsets of a group, removes members, and asks for features, log directories and producers, all in
the newest versions of those APIs.
"""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.admin import (
    AlterConfigOp,
    ConfigResource,
    ConfigResourceType,
    KafkaAdminClient,
    MemberToRemove,
    OffsetSpec,
)
from kafka.errors import KafkaError, NoError, TopicAlreadyExistsError, UnknownTopicOrPartitionError
from kafka.structs import OffsetAndMetadata
from support.clients.kafka_python import Fresh, Member, administrator, produce, reader, shared
from support.clients.reading import WAIT_SECONDS
from support.waiting import until


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    with administrator(bootstrap) as client:
        yield client


def test_admin_of_the_cluster(bootstrap: str, topic: str, admin: KafkaAdminClient) -> None:
    cluster = admin.describe_cluster()
    assert cluster["cluster_id"]
    assert [f"{each['host']}:{each['port']}" for each in cluster["brokers"]] == [bootstrap]
    features = admin.describe_features()
    assert features["transaction.version"]["supported"] == (0, 2)
    assert features["group.version"]["finalized"] == (1, 1)
    assert admin.list_partition_reassignments() == {}
    produce(bootstrap, topic, [b"some bytes"])
    (broker,) = admin.describe_log_dirs({topic: [0]})
    sizes = [
        part["partition_size"]
        for directory in broker["log_dirs"]
        for each in directory["topics"]
        for part in each["partitions"]
    ]
    assert len(sizes) == 1
    assert sizes[0] >= 61


def test_admin_of_topics(bootstrap: str, topic: str, admin: KafkaAdminClient, fresh: Fresh) -> None:
    assert topic in admin.list_topics()
    (described,) = admin.describe_topics([topic])
    assert (described["name"], len(described["partitions"])) == (topic, 3)
    (by_id,) = admin.describe_topics([uuid.UUID(described["topic_id"])])
    assert by_id["name"] == topic
    page = admin.describe_topic_partitions([topic], response_partition_limit=2)
    assert [len(each["partitions"]) for each in page["topics"]] == [2]
    rest = admin.describe_topic_partitions([topic], cursor=page["next_cursor"])
    assert [each["partition_index"] for each in rest["topics"][0]["partitions"]] == [2]
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics([topic])
    admin.create_partitions({topic: 5})
    assert len(admin.describe_topics([topic])[0]["partitions"]) == 5
    with pytest.raises(KafkaError):
        admin.create_partitions({topic: 2})
    part = TopicPartition(topic, 4)
    assert produce(bootstrap, topic, [b"%d" % number for number in range(10)], 4) == list(range(10))
    assert admin.delete_records({part: 4})[part]["low_watermark"] == 4
    with reader(bootstrap, None) as each:
        each.consumer.assign([part])
        assert each.read(6) == [b"%d" % number for number in range(4, 10)]
    admin.delete_topics([topic])
    assert topic not in admin.list_topics()
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topics([topic])


def test_admin_of_configs(admin: KafkaAdminClient, topic: str) -> None:
    def value(name: str) -> str:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        found = admin.describe_configs([resource], config_filter="all")
        (configs,) = (each[topic] for kind, each in found.items() if kind.lower() == "topic")
        return str(configs[name]["value"])

    def change(**configs: Any) -> None:
        renamed = {name.replace("_", "."): each for name, each in configs.items()}
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=renamed)])

    assert value("retention.ms") == "604800000"
    change(retention_ms=(AlterConfigOp.SET, "1000000"), cleanup_policy=(AlterConfigOp.APPEND, "compact"))
    assert value("retention.ms") == "1000000"
    assert set(value("cleanup.policy").split(",")) == {"delete", "compact"}
    change(retention_ms=(AlterConfigOp.DELETE, None), cleanup_policy=(AlterConfigOp.SUBTRACT, "compact"))
    assert (value("retention.ms"), value("cleanup.policy")) == ("604800000", "delete")


def test_admin_of_groups(bootstrap: str, topic: str, admin: KafkaAdminClient, fresh: Fresh) -> None:
    group, part = fresh("group"), TopicPartition(topic, 0)
    produce(bootstrap, topic, [b"0", b"1", b"2"])
    with reader(bootstrap, group, topic, client_id="somebody") as each:
        each.read(3)
        each.consumer.commit()
        listed = {one["group_id"]: one for one in admin.list_groups()}
        assert (listed[group]["protocol_type"], listed[group]["group_state"]) == ("consumer", "Stable")
        described = admin.describe_groups([group])[group]
        assert described["group_state"] == "Stable"
        assert [member["client_id"] for member in described["members"]] == ["somebody"]
        assert admin.delete_groups([group]) == {group: "NonEmptyGroupError"}
    assert admin.describe_groups([group])[group]["group_state"] == "Empty"
    assert group not in {one["group_id"] for one in admin.list_groups(states_filter=["Stable"])}
    assert admin.alter_group_offsets(group, {part: OffsetAndMetadata(1, "", -1)}) == {part: NoError}
    assert admin.list_group_offsets({group: [part]})[group][part].offset == 1
    assert admin.delete_group_offsets(group, [part]) == {part: NoError}
    assert part not in admin.list_group_offsets({group: None})[group]
    assert admin.reset_group_offsets(group, {part: OffsetSpec.LATEST})[part]["offset"] == 3
    assert admin.delete_groups([group]) == {group: "OK"}
    assert admin.delete_groups([group]) == {group: "GroupIdNotFoundError"}


def test_a_member_can_be_removed(bootstrap: str, topic: str, admin: KafkaAdminClient, fresh: Fresh) -> None:
    """KIP-345: an administrator removes a static member that will not come back."""
    group = fresh("group")
    config = {"group_instance_id": "gone", "session_timeout_ms": 30_000}
    with Member(bootstrap, group, topic, **config) as each:
        until(lambda: shared([each], 3), WAIT_SECONDS, "joining")
    assert [one["group_instance_id"] for one in admin.describe_groups([group])[group]["members"]] == ["gone"]
    removed = admin.remove_group_members(group, [MemberToRemove(group_instance_id="gone")])
    assert list(removed.values()) == [NoError]
    assert admin.describe_groups([group])[group]["members"] == []
