"""Administration with confluent-kafka (librdkafka): cluster, topics, configs, records, groups, offsets."""

import pytest
from confluent_kafka import (
    OFFSET_END,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from support.clients.confluent import MANUAL, Fresh, code, create, done, produce, reader
from support.clients.reading import WAIT_SECONDS


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def test_describe_cluster_and_topics(bootstrap: str, admin: AdminClient, fresh: Fresh) -> None:
    topic = create(admin, fresh("described"), 3)
    cluster = admin.describe_cluster(include_authorized_operations=True).result(WAIT_SECONDS)
    assert cluster.cluster_id
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [bootstrap]
    assert cluster.controller.id == cluster.nodes[0].id
    listed = admin.list_topics(timeout=WAIT_SECONDS)
    assert listed.cluster_id == cluster.cluster_id
    assert sorted(listed.topics[topic].partitions) == [0, 1, 2]
    described = done(admin.describe_topics(TopicCollection([topic])))[topic]
    assert (described.name, len(described.partitions), described.is_internal) == (topic, 3, False)
    assert described.topic_id is not None
    for partition in described.partitions:
        assert partition.leader.id == cluster.nodes[0].id
        assert [node.id for node in partition.isr] == [cluster.nodes[0].id]


def test_topics_are_refused_with_the_right_codes(admin: AdminClient, topic: str) -> None:
    cases = {
        NewTopic(topic, 1, 1): KafkaError.TOPIC_ALREADY_EXISTS,
        NewTopic("not a name", 1, 1): KafkaError.TOPIC_EXCEPTION,
        NewTopic("zero", 0, 1): KafkaError.INVALID_PARTITIONS,
        NewTopic("config", 1, 1, config={"no.such.config": "1"}): KafkaError.INVALID_CONFIG,
        NewTopic("value", 1, 1, config={"retention.ms": "soon"}): KafkaError.INVALID_CONFIG,
    }
    for new, expected in cases.items():
        with pytest.raises(KafkaException) as error:
            done(admin.create_topics([new]))
        assert code(error) == expected, new.topic
    done(admin.create_topics([NewTopic("only-validated", 1, 1)], validate_only=True))
    assert "only-validated" not in admin.list_topics(timeout=WAIT_SECONDS).topics


def test_configs(admin: AdminClient, topic: str) -> None:
    def values() -> dict[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        (found,) = done(admin.describe_configs([resource])).values()
        return {name: entry.value for name, entry in found.items()}

    def change(name: str, value: str | None, operation: AlterConfigOpType) -> None:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        done(
            admin.incremental_alter_configs(
                [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])]
            )
        )

    before = values()
    assert (before["cleanup.policy"], before["retention.ms"]) == ("delete", "604800000")
    change("retention.ms", "1000000", AlterConfigOpType.SET)
    change("cleanup.policy", "compact", AlterConfigOpType.APPEND)
    assert values()["retention.ms"] == "1000000"
    assert set(values()["cleanup.policy"].split(",")) == {"delete", "compact"}
    change("cleanup.policy", "compact", AlterConfigOpType.SUBTRACT)
    change("retention.ms", None, AlterConfigOpType.DELETE)
    assert values() == before
    for name, value in {"retention.ms": "soon", "no.such.config": "1"}.items():
        with pytest.raises(KafkaException) as error:
            change(name, value, AlterConfigOpType.SET)
        assert code(error) == KafkaError.INVALID_CONFIG


def test_configs_of_the_broker_are_shown(admin: AdminClient) -> None:
    node = admin.list_topics(timeout=WAIT_SECONDS).controller_id
    (found,) = done(admin.describe_configs([ConfigResource(ResourceType.BROKER, str(node))])).values()
    assert found["message.max.bytes"].value == "1048588"
    assert found["group.initial.rebalance.delay.ms"].value == "0"


def test_configs_of_brokers_and_groups_are_changed(admin: AdminClient, topic: str) -> None:
    """librdkafka sends what concerns a broker to that broker, and a group to any."""
    node = str(admin.list_topics(timeout=WAIT_SECONDS).controller_id)

    def change(kind: ResourceType, name: str, config: str, value: str | None) -> None:
        operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        entry = ConfigEntry(config, value, incremental_operation=operation)
        done(
            admin.incremental_alter_configs([ConfigResource(kind, name, incremental_configs=[entry])]),
        )

    def source(kind: ResourceType, name: str, config: str) -> tuple[str, int]:
        (found,) = done(admin.describe_configs([ConfigResource(kind, name)])).values()
        return found[config].value, found[config].source

    change(ResourceType.BROKER, node, "log.retention.bytes", "12345")
    assert source(ResourceType.BROKER, node, "log.retention.bytes") == ("12345", 2)
    assert source(ResourceType.TOPIC, topic, "retention.bytes") == ("12345", 2)
    change(ResourceType.BROKER, node, "log.retention.bytes", None)
    assert source(ResourceType.TOPIC, topic, "retention.bytes") == ("-1", 5)
    with pytest.raises(KafkaException) as error:
        change(ResourceType.BROKER, node, "node.id", "7")
    assert code(error) == KafkaError.INVALID_REQUEST


def test_create_partitions(bootstrap: str, admin: AdminClient, topic: str, fresh: Fresh) -> None:
    done(admin.create_partitions([NewPartitions(topic, 5)]))
    assert len(admin.list_topics(topic, WAIT_SECONDS).topics[topic].partitions) == 5
    assert produce(bootstrap, topic, [b"new partition"], partition=4)[0].offset() == 0
    for count in 5, 3:
        with pytest.raises(KafkaException) as error:
            done(admin.create_partitions([NewPartitions(topic, count)]))
        assert code(error) == KafkaError.INVALID_PARTITIONS
    with pytest.raises(KafkaException) as error:
        done(admin.create_partitions([NewPartitions(fresh("missing"), 3)]))
    assert code(error) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_delete_records_and_list_offsets(
    bootstrap: str, admin: AdminClient, topic: str, fresh: Fresh
) -> None:
    produce(bootstrap, topic, [b"%d" % number for number in range(10)])
    part = TopicPartition(topic, 0)

    def offset(spec: OffsetSpec) -> int:
        (found,) = done(admin.list_offsets({part: spec})).values()
        return int(found.offset)

    assert (offset(OffsetSpec.earliest()), offset(OffsetSpec.latest())) == (0, 10)  # type: ignore[no-untyped-call]  # they have no types
    deleted = done(admin.delete_records([TopicPartition(topic, 0, 4)]))
    assert [each.low_watermark for each in deleted.values()] == [4]
    assert (offset(OffsetSpec.earliest()), offset(OffsetSpec.latest())) == (4, 10)  # type: ignore[no-untyped-call]  # they have no types
    with reader(bootstrap, fresh("group"), topic) as each:
        assert each.read(6) == [b"%d" % number for number in range(4, 10)]
    with pytest.raises(KafkaException) as error:
        done(admin.delete_records([TopicPartition(topic, 0, 11)]))
    assert code(error) == KafkaError.OFFSET_OUT_OF_RANGE
    assert [
        each.low_watermark
        for each in done(admin.delete_records([TopicPartition(topic, 0, OFFSET_END)])).values()
    ] == [10]
    committed = done(
        admin.list_offsets({part: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED)  # type: ignore[no-untyped-call]  # it has no types
    )
    assert [each.offset for each in committed.values()] == [10]


def test_max_timestamp(bootstrap: str, admin: AdminClient, topic: str) -> None:
    """KIP-734: the record with the highest timestamp need not be the last."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for timestamp in 3_000, 9_000, 5_000:
        producer.produce(topic, b"x", partition=0, timestamp=timestamp)
        assert producer.flush(WAIT_SECONDS) == 0
    (found,) = done(admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.max_timestamp()})).values()  # type: ignore[no-untyped-call]  # it has no types
    assert (found.offset, found.timestamp) == (1, 9_000)


def test_groups_are_listed_described_and_deleted(
    bootstrap: str, admin: AdminClient, topic: str, fresh: Fresh
) -> None:
    group = fresh("group")
    produce(bootstrap, topic, [b"0", b"1"])
    with reader(bootstrap, group, topic, **{"client.id": "somebody"}, **MANUAL) as each:
        each.read(2)
        each.consumer.commit(asynchronous=False)
        listed = admin.list_consumer_groups().result(WAIT_SECONDS)
        assert not listed.errors
        states = {one.group_id: (one.state, one.is_simple_consumer_group) for one in listed.valid}
        assert states[group] == (ConsumerGroupState.STABLE, False)
        described = done(admin.describe_consumer_groups([group]))[group]
        assert described.state is ConsumerGroupState.STABLE
        assert described.type is ConsumerGroupType.CLASSIC
        (member,) = described.members
        assert member.client_id == "somebody"
        assert {(one.topic, one.partition) for one in member.assignment.topic_partitions} == {
            (topic, 0),
            (topic, 1),
            (topic, 2),
        }
        with pytest.raises(KafkaException) as error:
            done(admin.delete_consumer_groups([group]))
        assert code(error) == KafkaError.NON_EMPTY_GROUP
    described = done(admin.describe_consumer_groups([group]))[group]
    assert (described.state, described.members) == (ConsumerGroupState.EMPTY, [])
    stable = admin.list_consumer_groups(states={ConsumerGroupState.STABLE}).result(WAIT_SECONDS)
    assert group not in {one.group_id for one in stable.valid}
    done(admin.delete_consumer_groups([group]))
    assert group not in {one.group_id for one in admin.list_consumer_groups().result(WAIT_SECONDS).valid}
    with pytest.raises(KafkaException) as error:
        done(admin.delete_consumer_groups([group]))
    assert code(error) == KafkaError.GROUP_ID_NOT_FOUND


def test_offsets_of_a_group_are_listed_and_altered(
    bootstrap: str, admin: AdminClient, topic: str, fresh: Fresh
) -> None:
    group = fresh("group")
    produce(bootstrap, topic, [b"%d" % number for number in range(5)])

    def offsets(*partitions: TopicPartition) -> dict[int, int]:
        request = ConsumerGroupTopicPartitions(group, list(partitions) or None)
        (found,) = done(admin.list_consumer_group_offsets([request])).values()
        return {each.partition: each.offset for each in found.topic_partitions}

    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 3), TopicPartition(topic, 1, 0)])
    done(admin.alter_consumer_group_offsets([wanted]))
    assert offsets() == {0: 3, 1: 0}
    assert offsets(TopicPartition(topic, 0), TopicPartition(topic, 2)) == {0: 3, 2: -1001}
    with reader(bootstrap, group, topic) as each:
        assert each.read(2) == [b"3", b"4"]
        (refused,) = done(admin.alter_consumer_group_offsets([wanted])).values()
        codes = {part.error.code() for part in refused.topic_partitions}
        assert codes == {KafkaError.UNKNOWN_MEMBER_ID}


def test_a_deleted_topic_is_gone_for_everyone(bootstrap: str, admin: AdminClient, topic: str) -> None:
    produce(bootstrap, topic, [b"doomed"])
    done(admin.delete_topics([topic]))
    assert topic not in admin.list_topics(timeout=WAIT_SECONDS).topics
    with pytest.raises(KafkaException) as error:
        done(admin.delete_topics([topic]))
    assert code(error) == KafkaError.UNKNOWN_TOPIC_OR_PART
    create(admin, topic, 1)
    assert produce(bootstrap, topic, [b"new life"])[0].offset() == 0
