"""What librdkafka's test of its admin client (0081) expects of a broker, beside `test_confluent_admin.py`.

Each request is about several things, of which some are wrong: the others are done, and each is answered.
"""

from typing import Any

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
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from support.clients.confluent import Fresh, create, done, produce, reader
from support.clients.reading import WAIT_SECONDS
from support.waiting import until


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture(scope="module")
def node(admin: AdminClient) -> int:
    """The id of a broker."""
    return min(admin.list_topics(timeout=WAIT_SECONDS).brokers)


def codes(futures: Any) -> list[int | None]:
    """The error of each, in their order; None if there was none."""
    found: list[int | None] = []
    for future in futures.values():
        try:
            future.result(WAIT_SECONDS)
            found.append(None)
        except KafkaException as error:
            found.append(error.args[0].code())
    return found


def topics_of(admin: AdminClient) -> dict[str, int]:
    """All topics, and how many partitions each has."""
    listed = admin.list_topics(timeout=WAIT_SECONDS).topics
    return {name: len(topic.partitions) for name, topic in listed.items()}


@pytest.mark.parametrize("validate_only", [False, True])
def test_several_topics_in_one_request(
    admin: AdminClient, node: int, fresh: Fresh, validate_only: bool
) -> None:
    configs = {"compression.type": "lz4", "delete.retention.ms": "900"}
    new = [
        NewTopic(fresh("many"), 1, 1),
        NewTopic(fresh("many"), 8, 1, config={**configs, "dummy.doesntexist": "the broker verifies this"}),
        NewTopic(fresh("many"), 15, 1),
        NewTopic(fresh("many"), 3, replica_assignment=[[node]] * 3, config=configs),
        NewTopic(fresh("many")),
    ]
    refused = codes(admin.create_topics(new, validate_only=validate_only, operation_timeout=5))
    assert refused == [None, KafkaError.INVALID_CONFIG, None, None, None]
    if validate_only:
        assert not topics_of(admin).keys() & {each.topic for each in new}
        return
    expected = {new[0].topic: 1, new[2].topic: 15, new[3].topic: 3}
    until(lambda: expected.items() <= topics_of(admin).items(), WAIT_SECONDS, "the topics")
    # Partitions of the last one are the broker's default (KIP-464).
    assert topics_of(admin)[new[4].topic] >= 1
    assert new[1].topic not in topics_of(admin)


def test_several_deletions_in_one_request(admin: AdminClient, fresh: Fresh) -> None:
    there = [create(admin, fresh("deleted"), 2) for _ in range(3)]
    missing = [fresh("missing") for _ in range(2)]
    unknown = KafkaError.UNKNOWN_TOPIC_OR_PART
    assert codes(admin.delete_topics([*there, *missing])) == [None, None, None, unknown, unknown]
    until(lambda: not topics_of(admin).keys() & set(there), WAIT_SECONDS, "the deletion")


def test_partitions_with_replicas(admin: AdminClient, node: int, fresh: Fresh) -> None:
    topics = [create(admin, fresh("more"), 1) for _ in range(2)]
    new = [NewPartitions(topics[0], 4), NewPartitions(topics[1], 3, replica_assignment=[[node]] * 2)]
    assert codes(admin.create_partitions(new)) == [None, None]
    until(lambda: [topics_of(admin).get(each) for each in topics] == [4, 3], WAIT_SECONDS, "the partitions")
    wrong = [NewPartitions(topics[0], 6, replica_assignment=[[node]])]
    assert codes(admin.create_partitions(wrong)) == [KafkaError.INVALID_REPLICA_ASSIGNMENT]
    assert topics_of(admin)[topics[0]] == 4


def test_configs_of_topics_that_are_there_and_that_are_not(admin: AdminClient, fresh: Fresh) -> None:
    topic, missing = create(admin, fresh("configured")), fresh("missing")

    def resources(**entries: tuple[str, AlterConfigOpType]) -> list[ConfigResource]:
        made = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=operation)
            for name, (value, operation) in entries.items()
        ]
        return [
            ConfigResource(ResourceType.TOPIC, name, incremental_configs=made) for name in (topic, missing)
        ]

    changes = resources(
        compression_type=("gzip", AlterConfigOpType.SET),
        flush_ms=("12345678", AlterConfigOpType.SET),
        cleanup_policy=("compact", AlterConfigOpType.APPEND),
    )
    unknown = KafkaError.UNKNOWN_TOPIC_OR_PART
    expected = [None, unknown]
    # Apache Kafka may not know the topic for a moment.
    until(lambda: codes(admin.incremental_alter_configs(changes)) == expected, WAIT_SECONDS, "the change")
    asked = [ConfigResource(ResourceType.TOPIC, name) for name in (topic, missing)]
    until(lambda: codes(admin.describe_configs(asked)) == expected, WAIT_SECONDS, "the topic")

    def entries_now() -> dict[str, ConfigEntry]:
        found: dict[str, ConfigEntry] = admin.describe_configs(asked)[asked[0]].result(WAIT_SECONDS)
        return found

    until(lambda: entries_now()["compression.type"].value == "gzip", WAIT_SECONDS, "the new value")
    entries = entries_now()
    assert entries["flush.ms"].value == "12345678"
    assert set((entries["cleanup.policy"].value or "").split(",")) == {"delete", "compact"}
    assert entries["compression.type"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert not entries["compression.type"].is_default
    assert entries["retention.ms"].is_default
    assert "compression.type" in entries["compression.type"].synonyms


def test_configs_of_a_broker(admin: AdminClient, node: int) -> None:
    resource = ConfigResource(ResourceType.BROKER, str(node))
    found = done(admin.describe_configs([resource]))[resource]
    assert found["message.max.bytes"].value
    # A broker's configs and those of topics have other names for the same things.
    assert {"log.retention.ms", "num.partitions", "auto.create.topics.enable"} <= found.keys()


def test_records_of_several_partitions_are_deleted(bootstrap: str, admin: AdminClient, fresh: Fresh) -> None:
    one, two = create(admin, fresh("records"), 3), create(admin, fresh("records"), 3)
    for topic in one, two:
        for number in range(3):
            produce(bootstrap, topic, [b"x"] * 10, partition=number)
    wanted = {
        TopicPartition(one, 0, 5): 5,
        TopicPartition(one, 1, OFFSET_END): 10,
        TopicPartition(one, 2, 11): KafkaError.OFFSET_OUT_OF_RANGE,
        TopicPartition(two, 0, 0): 0,
        TopicPartition(two, 2, 10): 10,
    }
    futures = admin.delete_records(list(wanted))
    for part, expected in wanted.items():
        if expected == KafkaError.OFFSET_OUT_OF_RANGE:
            with pytest.raises(KafkaException) as error:
                futures[part].result(WAIT_SECONDS)
            assert error.value.args[0].code() == expected
        else:
            assert futures[part].result(WAIT_SECONDS).low_watermark == expected
    earliest = {TopicPartition(one, number): OffsetSpec.earliest() for number in range(3)}  # type: ignore[no-untyped-call]  # it has no types
    assert [each.offset for each in done(admin.list_offsets(earliest)).values()] == [5, 10, 0]


def test_deletion_of_records_of_a_partition_that_is_not_there(admin: AdminClient, topic: str) -> None:
    (code,) = codes(admin.delete_records([TopicPartition(topic, 99, 1)]))
    # librdkafka finds out by itself, from the metadata.
    assert code == KafkaError._NOENT


def test_offsets_by_isolation(bootstrap: str, admin: AdminClient, topic: str, fresh: Fresh) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": fresh("id")})
    producer.init_transactions(WAIT_SECONDS)
    for ends in True, False:
        producer.begin_transaction()
        for _ in range(3):
            producer.produce(topic, b"x", partition=0)
        assert producer.flush(WAIT_SECONDS) == 0
        if ends:
            producer.commit_transaction(WAIT_SECONDS)
    latest, committed = OffsetSpec.latest(), IsolationLevel.READ_COMMITTED  # type: ignore[no-untyped-call]  # it has no types
    # The second transaction is open: the last stable offset is its first.
    until(lambda: _at(admin, topic, 0, latest, isolation_level=committed) == 4, WAIT_SECONDS, "the marker")
    assert _at(admin, topic, 0, latest) == 7
    producer.abort_transaction(WAIT_SECONDS)
    until(lambda: _at(admin, topic, 0, latest, isolation_level=committed) == 8, WAIT_SECONDS, "the end")


def test_offsets_by_time(bootstrap: str, admin: AdminClient, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(6):
        producer.produce(topic, b"x", partition=1, timestamp=1_000 * (number + 1))
        assert producer.flush(WAIT_SECONDS) == 0
    expected = {1: 0, 1_000: 0, 1_001: 1, 6_000: 5, 6_001: -1}
    for time, offset in expected.items():
        assert _at(admin, topic, 1, OffsetSpec.for_timestamp(time)) == offset
    assert _at(admin, topic, 1, OffsetSpec.max_timestamp()) == 5  # type: ignore[no-untyped-call]  # it has no types
    assert _at(admin, topic, 2, OffsetSpec.max_timestamp()) == -1  # type: ignore[no-untyped-call]  # it has no types


def _at(admin: AdminClient, topic: str, partition: int, spec: OffsetSpec, **options: Any) -> int:
    (found,) = done(admin.list_offsets({TopicPartition(topic, partition): spec}, **options)).values()
    return int(found.offset)


def test_groups_of_every_kind_are_listed_and_described(
    bootstrap: str, admin: AdminClient, topic: str, fresh: Fresh
) -> None:
    classic, modern, nobody = fresh("classic"), fresh("modern"), fresh("nobody")
    produce(bootstrap, topic, [b"x"] * 3)
    static = {"group.instance.id": "instance-1", "client.id": "somebody"}
    with (
        reader(bootstrap, classic, topic, **static) as one,
        reader(bootstrap, modern, topic, **{"group.protocol": "consumer"}) as two,
    ):
        one.read(3)
        two.read(3)
        stable = {ConsumerGroupState.STABLE}
        until(lambda: {classic, modern} <= _listed(admin, states=stable).keys(), WAIT_SECONDS, "both groups")
        types = {ConsumerGroupType.CONSUMER}
        assert classic not in _listed(admin, types=types)
        assert _listed(admin, types=types)[modern] is ConsumerGroupType.CONSUMER
        described = admin.describe_consumer_groups(
            [classic, modern, nobody], include_authorized_operations=True
        )
        found = {name: described[name].result(WAIT_SECONDS) for name in (classic, modern)}
        assert found[classic].members[0].group_instance_id == "instance-1"
        assert found[classic].members[0].client_id == "somebody"
        assert found[classic].partition_assignor == "range"
        assert {each.type for each in found.values()} == {
            ConsumerGroupType.CLASSIC,
            ConsumerGroupType.CONSUMER,
        }
        for group in found.values():
            assert group.state is ConsumerGroupState.STABLE
            assert {AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DELETE} <= set(
                group.authorized_operations
            )
        # librdkafka asks with a version that has no error for a group that is not there.
        assert described[nobody].result(WAIT_SECONDS).state is ConsumerGroupState.DEAD
    deleted = admin.delete_consumer_groups([nobody])
    assert codes(deleted) == [KafkaError.GROUP_ID_NOT_FOUND]


def _listed(admin: AdminClient, **which: Any) -> dict[str, Any]:
    """The groups, and the type of each."""
    listed = admin.list_consumer_groups(**which).result(WAIT_SECONDS)
    assert not listed.errors
    return {each.group_id: each.type for each in listed.valid}


def test_offsets_of_a_group_with_an_open_transaction_are_unstable(
    bootstrap: str, admin: AdminClient, topic: str, fresh: Fresh
) -> None:
    """KIP-447: who asks for stable offsets waits for the end of the transaction."""
    group = fresh("group")
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": fresh("id")})
    producer.init_transactions(WAIT_SECONDS)
    producer.begin_transaction()
    with reader(bootstrap, group) as member:
        metadata = member.consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, 7)], metadata, WAIT_SECONDS)
        wanted = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])]
        assert _offset(admin.list_consumer_group_offsets(wanted)) == -1001
        with pytest.raises(KafkaException) as error:
            _offset(admin.list_consumer_group_offsets(wanted, require_stable=True, request_timeout=3))
        assert error.value.args[0].code() in (KafkaError.UNSTABLE_OFFSET_COMMIT, KafkaError._TIMED_OUT)
        producer.commit_transaction(WAIT_SECONDS)
        # Markers of Apache Kafka come a moment after the answer.
        until(lambda: _offset(admin.list_consumer_group_offsets(wanted)) == 7, WAIT_SECONDS, "the offset")
        assert _offset(admin.list_consumer_group_offsets(wanted, require_stable=True)) == 7


def _offset(futures: dict[Any, Any]) -> int:
    (found,) = done(futures).values()
    (part,) = found.topic_partitions
    if part.error is not None:
        raise KafkaException(part.error)
    return int(part.offset)


def test_offsets_of_partitions_that_are_not_there_cannot_be_set(
    admin: AdminClient, topic: str, fresh: Fresh
) -> None:
    group = fresh("group")
    parts = [
        TopicPartition(topic, 0, 1),
        TopicPartition(topic, 77, 1),
        TopicPartition(fresh("missing"), 0, 1),
    ]
    (found,) = done(admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, parts)])).values()
    errors = {
        (each.topic, each.partition): each.error.code() if each.error else None
        for each in found.topic_partitions
    }
    unknown = KafkaError.UNKNOWN_TOPIC_OR_PART
    assert errors == {
        (topic, 0): None,
        (topic, 77): unknown,
        (parts[2].topic, 0): unknown,
    }


def test_acls_without_an_authorizer(admin: AdminClient, fresh: Fresh) -> None:
    allowed = (AclOperation.READ, AclPermissionType.ALLOW)
    binding = AclBinding(
        ResourceType.TOPIC, fresh("topic"), ResourcePatternType.LITERAL, "User:test", "*", *allowed
    )
    nothing: Any = None  # its types know no filter of everything
    everything = AclBindingFilter(
        ResourceType.ANY,
        nothing,
        ResourcePatternType.ANY,
        nothing,
        nothing,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    disabled = [KafkaError.SECURITY_DISABLED]
    assert codes(admin.create_acls([binding])) == disabled
    assert codes(admin.delete_acls([everything])) == disabled


def test_credentials_of_users(admin: AdminClient, fresh: Fresh) -> None:
    user, other = fresh("user"), fresh("other")
    sha256, sha512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
    missing = KafkaError.RESOURCE_NOT_FOUND
    assert codes(admin.describe_user_scram_credentials([user])) == [missing]

    def put(name: str, mechanism: ScramMechanism, iterations: int) -> UserScramCredentialUpsertion:
        info = ScramCredentialInfo(mechanism, iterations)
        return UserScramCredentialUpsertion(name, info, b"password", b"salt")

    answers = admin.alter_user_scram_credentials([put(user, sha256, 1), put(other, sha256, 8_192)])
    refused = dict(zip(answers, codes(answers), strict=True))
    assert refused == {user: KafkaError.UNACCEPTABLE_CREDENTIAL, other: None}
    twice = KafkaError.DUPLICATE_RESOURCE
    both: list[UserScramCredentialAlteration] = [put(user, sha256, 4_096), put(user, sha512, 16_384)]
    assert codes(admin.alter_user_scram_credentials(both)) == [twice], "a user is in a request once"
    for each in both:
        assert codes(admin.alter_user_scram_credentials([each])) == [None]
    until(lambda: codes(admin.describe_user_scram_credentials([user])) == [None], WAIT_SECONDS, "the user")

    def described() -> dict[Any, int]:
        asked: Any = admin.describe_user_scram_credentials([user])
        found = done(asked)[user]
        return {each.mechanism: each.iterations for each in found.scram_credential_infos}

    until(lambda: described() == {sha256: 4_096, sha512: 16_384}, WAIT_SECONDS, "both mechanisms")
    for mechanism in (sha256, sha512):
        deletion = UserScramCredentialDeletion(user, mechanism)
        assert codes(admin.alter_user_scram_credentials([deletion])) == [None]
        assert codes(admin.alter_user_scram_credentials([deletion])) == [missing]
    done(admin.alter_user_scram_credentials([UserScramCredentialDeletion(other, sha256)]))
